"""Convolutional backbones of encoders, torchvision's video networks, and networks that were trained to recognize."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import get_model

from veil.features.encoders.frozen import Backbone
from veil.nn import video
from veil.nn.classifier import Classifier, init_weights


class Compact(Backbone):
    """The built-in network: residual blocks of a spatial, a temporal and a second spatial convolution.

    Made for 16×56²: tokens are 4×4×4 places, four frames each. ``widths``: channels after the stem and each block.
    """

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.widths, self.dim = tuple(widths), widths[-1]
        stem = nn.Conv3d(3, widths[0], (3, 5, 5), (1, 2, 2), (1, 2, 2), bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm3d(widths[0]), nn.ReLU(inplace=True))
        strides = (1, *(2 for _ in widths[2:]))
        self.blocks = nn.Sequential(
            *(_CompactBlock(a, b, stride) for (a, b), stride in zip(pairwise(widths), strides, strict=True))
        )
        init_weights(self)
        self.to(memory_format=torch.channels_last_3d)  # pyright: ignore[reportCallIssue]

    def maps(self, x: Tensor) -> Tensor:
        """Feature maps, ``(B, dim, T', H', W')``."""
        x = x.contiguous(memory_format=torch.channels_last_3d)  # half as fast again on a CPU
        return self.blocks(self.stem(x))

    def forward(self, x: Tensor) -> Tensor:
        """See `Backbone`."""
        return _as_tokens(self.maps(x))


class _CompactBlock(nn.Module):
    """Space, time, space, beside a shortcut; height and width are halved, and frames where `time` is 2."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()

        def unit(a: int, kernel: tuple[int, int, int], stride: tuple[int, int, int] = (1, 1, 1)) -> nn.Module:
            padding = kernel[0] // 2, kernel[1] // 2, kernel[2] // 2
            return nn.Sequential(
                nn.Conv3d(a, outputs, kernel, stride, padding, bias=False), nn.BatchNorm3d(outputs)
            )

        self.first = unit(inputs, (1, 3, 3), (1, 2, 2))
        self.along = unit(outputs, (3, 1, 1), (time, 1, 1))
        self.again = unit(outputs, (1, 3, 3))
        self.short = unit(inputs, (1, 1, 1), (time, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x), inplace=True)
        y = F.relu(self.along(y), inplace=True)
        return F.relu(self.again(y) + self.short(x), inplace=True)


def _as_tokens(maps: Tensor) -> Tensor:
    return maps.flatten(2).transpose(1, 2)


class I3DBackbone(Backbone):
    """I3D without its classifier: a token for each place of the last block."""

    ignored = ("logits.",)

    def __init__(self) -> None:
        super().__init__()
        net = video.I3D(400)
        self.dim, self.layers = net.dim, net.layers
        for name in net.layers:
            self.add_module(name, net.get_submodule(name))

    def forward(self, x: Tensor) -> Tensor:
        """See `Backbone`."""
        for name in self.layers:
            x = self.get_submodule(name)(x)
        return _as_tokens(x)


class TorchVision(Backbone):
    """A video network of torchvision's without its classifier, its tensors named as there."""

    ignored = ("fc.", "classifier.", "head.")

    def __init__(self, name: str) -> None:
        super().__init__()
        net = get_model(name, weights=None)
        self.kind = next((kind for kind in ("mvit", "swin") if name.startswith(kind)), "")
        for child, module in net.named_children():
            if not f"{child}.".startswith(self.ignored) and child != "avgpool":
                self.add_module(child, module)
        layer = next(m for m in reversed([*net.modules()]) if isinstance(m, nn.Linear | nn.Conv3d))
        self.dim = layer.weight.shape[1]  # what the classifier takes

    def forward(self, x: Tensor) -> Tensor:
        """See `Backbone`; the first token of MViT is its class token."""
        if self.kind == "mvit":
            x = self.get_submodule("conv_proj")(x)
            grid = x.shape[2:]
            x = self.get_submodule("pos_encoding")(x.flatten(2).transpose(1, 2))
            for block in self.get_submodule("blocks").children():
                x, grid = block(x, grid)
            return self.get_submodule("norm")(x)
        for child in self.children():
            x = child(x)
        return x.flatten(1, 3) if self.kind == "swin" else _as_tokens(x)

    def pool(self, tokens: Tensor) -> Tensor:
        """The mean over all places, or the class token where there is one."""
        return tokens[:, 0] if self.kind == "mvit" else tokens.mean(1)


class RecognizerBackbone(Backbone):
    """A network of a run that was trained to recognize, without its last layer: one token a clip."""

    def __init__(self, net: Classifier) -> None:
        super().__init__()
        self.net, self.dim = net, net.dim

    def forward(self, x: Tensor) -> Tensor:
        """See `Backbone`."""
        return self.net.features(x)[:, None]
