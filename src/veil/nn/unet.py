"""Networks from images to images of the same size, by name.

Images are ``(B, 3, H, W)`` in [0, 1], of any height and width, and nothing is standardized inside. Such a network
processes one frame at a time; `per_frame` applies it to every frame of a clip.
"""

from __future__ import annotations

import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet

from veil.core import VeilError
from veil.nn import onnx
from veil.nn.published import load_published

Activation = Literal["sigmoid", "none"]


class ImageToImage(nn.Module, ABC):
    """Images ``(B, 3, H, W)`` in [0, 1] to images of the same shape and range."""

    stride: int  # pixels per pixel of its coarsest feature map, along each side

    @abstractmethod
    def forward_aligned(self, x: Tensor) -> Tensor:
        """The result for images whose height and width are multiples of the stride."""

    def forward(self, x: Tensor) -> Tensor:
        """The result for images of any size."""
        if x.ndim != 4 or x.shape[1] != 3:
            raise ValueError(f"images are (B, 3, H, W), got {tuple(x.shape)}")
        height, width = x.shape[2:]
        below, right = self._padding(height), self._padding(width)
        if below or right:
            # With its border rather than with zeros: a black edge could be a part of the image.
            x = F.pad(x, (0, right, 0, below), mode="replicate")
        return self.forward_aligned(x)[:, :, :height, :width]

    def _padding(self, length: int) -> int:
        # At least two pixels of the coarsest map: a norm over a single one does not exist.
        return max(2 * self.stride - length, -length % self.stride)


class _DoubleConv(nn.Sequential):
    """Two times a 3×3 convolution, BN and ReLU: ``(B, inputs, h, w)`` to ``(B, outputs, h, w)``."""

    def __init__(self, inputs: int, middle: int, outputs: int) -> None:
        super().__init__()
        for before, after in pairwise((inputs, middle, outputs)):
            # Paper: with a bias (released code). Here: without, because BN would subtract it.
            self.append(nn.Conv2d(before, after, 3, padding=1, bias=False))
            self.append(nn.BatchNorm2d(after))
            self.append(nn.ReLU(inplace=True))


class UNet(ImageToImage):
    """U-Net (Ronneberger et al. 2015, arXiv 1505.04597) as SPAct (Dave et al. 2022, arXiv 2203.15205) has it.

    With c_i = width·2^i channels at level i, and c_depth = c_{depth-1}, of which the defaults make 64-128-256-512-512:

        e_0 = D(x),  e_i = D(maxpool2(e_{i-1}))                              D: two 3×3 convolutions, BN, ReLU
        d_depth = e_depth,  d_i = D([e_i, up2(d_{i+1})]): 2c_i → c_i → c_{i-1} channels, and c_0 at the top
        y = sigmoid(W d_0 + b)                                               up2: bilinear, corners aligned

    Its layout is that of the bilinear form of github.com/milesial/Pytorch-UNet from 2020 on, which SPAct names. Of
    SPAct no weights are published; a student has a width of 8 or 16.
    """

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        if min(width, depth) < 1:
            raise VeilError(
                f"a U-Net cannot have width={width}, depth={depth}: use 1 or more.", code="network-shape"
            )
        super().__init__()
        self.stride = 2**depth
        channels = [width * 2 ** min(level, depth - 1) for level in range(depth + 1)]
        self.top = _DoubleConv(3, width, width)
        self.down = nn.ModuleList(_DoubleConv(a, b, b) for a, b in pairwise(channels))
        self.up = nn.ModuleList()
        for level in reversed(range(depth)):
            here = channels[level]
            self.up.append(_DoubleConv(2 * here, here, channels[max(level - 1, 0)]))
        self.out = nn.Conv2d(width, 3, 1)

    def forward_aligned(self, x: Tensor) -> Tensor:
        """The result for images whose height and width are multiples of the stride."""
        # Paper: each up-sampled map is filled up with zeros to its skip's size (released code). Here: the image was
        # filled up before, because then every map fits, and an exported network has no branches.
        skips = [self.top(x)]
        for down in self.down:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up in self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
            x = up(torch.cat([skips.pop(), x], 1))
        return torch.sigmoid(self.out(x))


class _ResNet18Encoder(nn.Module):
    """ResNet-18 (He et al. 2016, arXiv 1512.03385) up to stride 16, its tensors named as in torchvision."""

    def __init__(self) -> None:
        super().__init__()
        whole = resnet.resnet18()
        self.conv1, self.bn1 = whole.conv1, whole.bn1
        # Paper: a fourth stage is built, and its output not used (released code). Here: it is left out, because
        # it would not be trained.
        self.layer1, self.layer2, self.layer3 = whole.layer1, whole.layer2, whole.layer3

    def forward(self, x: Tensor) -> list[Tensor]:
        """Maps of 256, 128, 64 and 64 channels at strides 16, 8, 4 and 2."""
        stem = F.relu(self.bn1(self.conv1(x)))
        first = self.layer1(F.max_pool2d(stem, 3, 2, 1))
        second = self.layer2(first)
        return [self.layer3(second), second, first, stem]


class _NestedNode(nn.Module):
    """``up2`` of a coarse map beside finer ones, then two times a 3×3 convolution, BN and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = _conv_norm_relu(inputs, outputs), _conv_norm_relu(outputs, outputs)

    def forward(self, coarse: Tensor, fine: list[Tensor]) -> Tensor:
        x = F.interpolate(coarse, scale_factor=2, mode="nearest")
        return self.conv2(self.conv1(torch.cat([x, *fine], 1) if fine else x))


def _conv_norm_relu(inputs: int, outputs: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.kaiming_uniform_(convolution.weight, nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class UNetPlusPlus(ImageToImage):
    """UNet++ (Zhou et al. 2018, arXiv 1807.10165) over a ResNet-18, as TeD-SPAD and the penalty-driven anonymizer have it.

    With f_0 … f_3 the encoder's maps at strides 16, 8, 4 and 2, every node takes the last node of its row and all
    nodes that are as fine as itself and began later, down to the encoder's map of its own stride:

        x_{i,i} = N(up2(f_i), f_{i+1})                                       i = 0 … 2
        x_{i,j} = N(up2(x_{i,j-1}), x_{i+1,j}, …, x_{j,j}, f_{j+1})          i < j ≤ 2
        y = a(W * N(up2(x_{0,2})) + b)                                       N: two 3×3 convolutions, BN, ReLU

    up2 is nearest neighbour, W 3×3, a the activation; the nodes x_{0,j} and the last one have 256, 128, 64 and 32
    channels, the others as many as f_{j+1}. Tensors are named as segmentation-models-pytorch names them. The encoder
    can begin with torchvision's ResNet18_Weights.IMAGENET1K_V1 (`load_encoder`); of the whole there are no published
    weights that Veil knows of.
    """

    stride = 16

    def __init__(self, activation: Activation = "sigmoid") -> None:
        if activation not in get_args(Activation):
            raise VeilError(
                f"there is no activation '{activation}': use 'sigmoid' or 'none'.", code="activation-unknown"
            )
        super().__init__()
        # Paper: none (released code). Here: the sigmoid by default, because a frame has values in [0, 1].
        self.activation = activation
        self.encoder = _ResNet18Encoder()
        skips, widths = (128, 64, 64), (256, 128, 64, 32)
        blocks = nn.ModuleDict()
        for column, skip in enumerate(skips):
            for row in range(column + 1):
                if row == 0:
                    coarse, outputs = (256, *widths)[column], widths[column]
                else:
                    coarse, outputs = skips[column - 1], skip
                blocks[f"x_{row}_{column}"] = _NestedNode(coarse + skip * (column + 1 - row), outputs)
        blocks["x_0_3"] = _NestedNode(widths[2], widths[3])
        self.decoder = nn.ModuleDict({"blocks": blocks})
        head = nn.Conv2d(widths[3], 3, 3, padding=1)
        nn.init.xavier_uniform_(head.weight)
        nn.init.zeros_(head.bias)  # pyright: ignore[reportArgumentType]
        self.segmentation_head = nn.Sequential(head)

    def forward_aligned(self, x: Tensor) -> Tensor:
        """The result for images whose height and width are multiples of the stride."""
        maps = self.encoder(x)
        blocks: Any = self.decoder["blocks"]
        nodes: dict[tuple[int, int], Tensor] = {}
        for column in range(3):
            # From the latest row up: a node needs those below it in its column.
            for row in reversed(range(column + 1)):
                coarse = maps[row] if row == column else nodes[row, column - 1]
                fine = [nodes[below, column] for below in range(row + 1, column + 1)]
                nodes[row, column] = blocks[f"x_{row}_{column}"](coarse, [*fine, maps[column + 1]])
        x = self.segmentation_head(blocks["x_0_3"](nodes[0, 2], []))
        return torch.sigmoid(x) if self.activation == "sigmoid" else x

    def load_encoder(self, state: Mapping[str, Tensor]) -> int:
        """Begin with a ResNet-18 of torchvision's layout; returns how many tensors were taken.

        Its last stage and its classifier, which are not used here, are skipped; all else must fit.
        """
        return load_published(self.encoder, state, "the tensors do not fit a ResNet-18", ("layer4.", "fc."))


class _InstanceNormResidual(nn.Module):
    """Two convolutions with instance norm and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = _instance_norm(channels), _instance_norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))


def _instance_norm(channels: int) -> nn.InstanceNorm2d:
    return nn.InstanceNorm2d(channels, eps=1e-3, affine=True)


class Translator(ImageToImage):
    """The degradation network of Wu et al. (2018, arXiv 1807.08379; 2020, arXiv 1906.05675), "VITA" or "ALF".

    It is the network of Johnson et al. (2016, arXiv 1603.08155) with I the instance norm after every convolution:

        h = relu(I(9×9-32)) → relu(I(3×3/2-64)) → relu(I(3×3/2-128))
        h ← h + I(W' * relu(I(W * h)))                                       `blocks` times, 3×3, 128 channels
        z = relu(I(3×3ᵀ/2-64)) → relu(I(3×3ᵀ/2-32)) → I(9×9-3)
        y = mean over the channels of (tanh(z) + 1) / 2, in all three channels

    The norm is that of each frame, in training and after: there are no running means, and frames are independent.
    torch computes it in the plain layout, so that channels-last gains less here. No weights are published for torch.
    """

    stride = 4

    def __init__(self, blocks: int = 5) -> None:
        if blocks < 0:
            raise VeilError(f"a translator cannot have blocks={blocks}: use 0 or more.", code="network-shape")
        super().__init__()

        def layer(convolution: nn.Module, channels: int) -> list[nn.Module]:
            return [convolution, _instance_norm(channels), nn.ReLU(inplace=True)]

        def up(inputs: int, outputs: int) -> nn.ConvTranspose2d:
            return nn.ConvTranspose2d(inputs, outputs, 3, 2, padding=1, output_padding=1, bias=False)

        self.encoder = nn.Sequential(
            *layer(nn.Conv2d(3, 32, 9, padding=4, bias=False), 32),
            *layer(nn.Conv2d(32, 64, 3, 2, padding=1, bias=False), 64),
            *layer(nn.Conv2d(64, 128, 3, 2, padding=1, bias=False), 128),
        )
        self.blocks = nn.Sequential(*(_InstanceNormResidual(128) for _ in range(blocks)))
        self.decoder = nn.Sequential(
            *layer(up(128, 64), 64),
            *layer(up(64, 32), 32),
            nn.Conv2d(32, 3, 9, padding=4, bias=False),
            _instance_norm(3),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.trunc_normal_(module.weight, std=0.1, a=-0.2, b=0.2)

    def forward_aligned(self, x: Tensor) -> Tensor:
        """The result for images whose height and width are multiples of the stride."""
        x = (torch.tanh(self.decoder(self.blocks(self.encoder(x)))) + 1) / 2
        grey = x.mean(1, keepdim=True)
        return torch.cat([grey, grey, grey], 1)


NETS: dict[str, type[ImageToImage]] = {
    "unet": UNet,
    "unet++": UNetPlusPlus,
    "translator": Translator,
}


def make(name: str, **options: Any) -> ImageToImage:
    """The image-to-image network of that name, randomly initialized, with its options.

    >>> make("unet", width=8)(torch.zeros(2, 3, 50, 70)).shape
    torch.Size([2, 3, 50, 70])
    """
    if name not in NETS:
        raise VeilError(
            f"there is no image-to-image network '{name}': {_hint(name, list(NETS))}", code="network-unknown"
        )
    accepted = list(inspect.signature(NETS[name]).parameters)
    for option in options:
        if option not in accepted:
            raise VeilError(
                f"network '{name}' has no option '{option}': {_hint(option, accepted)}", code="option-unknown"
            )
    return NETS[name](**options)


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(known)}."


def per_frame(net: Callable[[Tensor], Tensor], clip: Tensor) -> Tensor:
    """Apply a network for images to every frame of a clip ``(B, 3, T, H, W)``.

    Axes are transposed before they are merged, since merging alone would mix colours and times.
    """
    if clip.ndim != 5 or clip.shape[1] != 3:
        raise ValueError(f"a clip is (B, 3, T, H, W), got {tuple(clip.shape)}")
    frames = clip.transpose(1, 2)  # (B, T, 3, H, W)
    processed = net(frames.flatten(0, 1))  # (B·T, 3, H, W)
    return processed.unflatten(0, frames.shape[:2]).transpose(1, 2)


def to_onnx(net: ImageToImage, path: Path, size: int | tuple[int, int], *, half: bool = False) -> None:
    """Write a network as ONNX: ``images`` ``(N, 3, H, W)``, any N and any multiples of its stride, to ``output``.

    `size`, a side or height and width, is that of the image it is traced with. With `half`, weights are stored in 16
    bits. The stride is in the metadata. Images must be padded to the stride, and to twice the stride where they are smaller.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1 or height % net.stride or width % net.stride:
        raise VeilError(
            f"this network cannot be exported at {height}×{width}: use multiples of {net.stride} pixels.",
            code="size-not-aligned",
        )
    example = torch.zeros(1, 3, height, width, device=next(net.parameters()).device)
    axes = {0: "batch", 2: "height", 3: "width"}
    onnx.write(
        path,
        net,
        net.forward_aligned,
        example,
        output="output",
        axes=axes,
        metadata={"stride": net.stride},
        half=half,
    )
