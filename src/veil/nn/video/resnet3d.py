"""ResNets over clips: C2D, I3D-R50, Slow and ir-CSN, and the bottlenecks that SlowFast and X3D share with them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from veil.nn.classifier import Classifier, init_weights
from veil.nn.video.convolutions import ONE, Triple, conv3d, window_mean


class ResNet3DStem(nn.Module):
    """Convolution over `frames` frames, batch norm, ReLU and pooling."""

    def __init__(self, outputs: int, frames: int) -> None:
        super().__init__()
        self.conv = conv3d(3, outputs, (frames, 7, 7), (1, 2, 2))
        self.norm = nn.BatchNorm3d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(B, C, T, H / 4, W / 4)`` of a clip."""
        return F.max_pool3d(F.relu(self.norm(self.conv(x))), (1, 3, 3), (1, 2, 2), (0, 1, 1))


class _SqueezeExcitation(nn.Module):
    """Squeeze and excitation: each channel is weighted by a function of the mean over the clip."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv3d(channels, inner, 1), nn.ReLU(), nn.Conv3d(inner, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.block(x.mean((2, 3, 4), keepdim=True))


class Bottleneck(nn.Module):
    """Three convolutions: over time or channels (a), over the frame (b), over channels (c)."""

    def __init__(
        self,
        widths: Triple,  # in, inside, out
        stride: Triple,
        kernels: tuple[Triple, Triple],
        *,
        depthwise: bool = False,
        squeeze: int
        | None = None,  # channels of the squeeze; 0: an identity in its place; None: not an X3D block
    ) -> None:
        super().__init__()
        inputs, inner, outputs = widths
        self.conv_a, self.norm_a = conv3d(inputs, inner, kernels[0]), nn.BatchNorm3d(inner)
        self.conv_b = conv3d(inner, inner, kernels[1], stride, groups=inner if depthwise else 1)
        self.norm_b: nn.Module = nn.BatchNorm3d(inner)
        self.act_b: nn.Module = nn.ReLU()
        if squeeze is not None:
            self.norm_b = nn.Sequential(
                self.norm_b, _SqueezeExcitation(inner, squeeze) if squeeze else nn.Identity()
            )
            self.act_b = nn.SiLU()
        self.conv_c, self.norm_c = conv3d(inner, outputs), nn.BatchNorm3d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Features with `outputs` channels."""
        x = F.relu(self.norm_a(self.conv_a(x)))
        x = self.act_b(self.norm_b(self.conv_b(x)))
        return self.norm_c(self.conv_c(x))


class BottleneckBlock(nn.Module):
    """A bottleneck with a shortcut."""

    def __init__(
        self, inputs: int, outputs: int, stride: Triple, branch: Bottleneck, *, normed: bool
    ) -> None:
        super().__init__()
        self.branch1_conv = (
            conv3d(inputs, outputs, stride=stride) if inputs != outputs or stride != ONE else None
        )
        self.branch1_norm = nn.BatchNorm3d(outputs) if self.branch1_conv and normed else None
        self.branch2 = branch

    def forward(self, x: Tensor) -> Tensor:
        """Features with `outputs` channels."""
        short = x if self.branch1_conv is None else self.branch1_conv(x)
        short = short if self.branch1_norm is None else self.branch1_norm(short)
        return F.relu(short + self.branch2(x))


class BottleneckStage(nn.Module):
    """Blocks one after the other."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.res_blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Features after the last block."""
        return self.res_blocks(x)


def bottleneck_stage(
    widths: Triple,
    depth: int,
    stride: Triple,
    *,
    times: Sequence[int] = (1,),  # temporal kernel sizes of the first convolutions of the blocks, repeated
    depthwise: bool = False,
) -> BottleneckStage:
    """A stage of `depth` bottlenecks; `widths` are the channels before, inside and after a block."""
    inputs, inner, outputs = widths
    blocks = []
    for i in range(depth):
        first, step = (inputs, stride) if i == 0 else (outputs, ONE)
        kernels = (times[i % len(times)], 1, 1), (3 if depthwise else 1, 3, 3)
        branch = Bottleneck((first, inner, outputs), step, kernels, depthwise=depthwise)
        blocks.append(BottleneckBlock(first, outputs, step, branch, normed=True))
    return BottleneckStage(blocks)


def stage_stride(stage: int, time: int = 1) -> Triple:
    """The stride of a stage by its number: 1 in the first, 2 over the frame in the others."""
    return ONE if stage == 0 else (time, 2, 2)


class ResNet3D(Classifier):
    """ResNets over clips: C2D, I3D-R50, Slow (Feichtenhofer et al. 2019, arXiv 1812.03982) and ir-CSN (Tran et
    al. 2019, arXiv 1904.02811), their tensors named as in pytorchvideo.

    For a clip of more frames or a larger size than the network was built for, features are the mean over windows of
    that size, as published.
    """

    dim = 2048

    def __init__(
        self,
        outputs: int,
        *,
        stem: int = 1,
        times: Sequence[Sequence[int]] = ((1,), (1,), (1,), (1,)),
        depth: Sequence[int] = (3, 4, 6, 3),
        halve: bool = False,  # halve the frames after the first stage
        separated: bool = False,  # depthwise convolutions over clips, and frames halved at each stage
        dropout: float = 0.5,
        frames: int = 16,
        size: int = 112,
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = [ResNet3DStem(64, stem)]
        for stage, (inputs, inner) in enumerate(pairwise((64, 64, 128, 256, 512))):
            widths = inputs if stage == 0 else 4 * inputs, inner, 4 * inner
            stride = stage_stride(stage, 2 if separated else 1)
            blocks.append(
                bottleneck_stage(widths, depth[stage], stride, times=times[stage], depthwise=separated)
            )
        if halve:
            blocks.insert(2, nn.MaxPool3d((2, 1, 1), ceil_mode=True))  # keeps a last odd frame
        self.last, self.dropout = f"blocks.{len(blocks)}.proj", dropout
        self.blocks = nn.ModuleList([*blocks, nn.ModuleDict({"proj": nn.Linear(self.dim, outputs)})])
        steps = 8 if separated else 2 if halve else 1
        self.window = -(-frames // steps), -(-size // 32), -(-size // 32)
        init_weights(self)

    def features(self, x: Tensor) -> Tensor:
        """The mean over the clip after the last stage."""
        *blocks, _ = self.blocks
        for block in blocks:
            x = block(x)
        return window_mean(x, self.window)
