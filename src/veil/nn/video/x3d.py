"""X3D, a small network with depthwise convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from veil.nn.classifier import Classifier, init_weights
from veil.nn.video.convolutions import ONE, Triple, conv3d
from veil.nn.video.resnet3d import Bottleneck, BottleneckBlock, BottleneckStage


class _X3DStem(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        over_frame = conv3d(3, outputs, (1, 3, 3), (1, 2, 2))
        over_time = conv3d(outputs, outputs, (5, 1, 1), groups=outputs)
        # Published with the two names interchanged.
        self.conv = nn.ModuleDict({"conv_t": over_frame, "conv_xy": over_time})
        self.norm = nn.BatchNorm3d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv["conv_xy"](self.conv["conv_t"](x))))


class _X3DPool(nn.Module):
    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.pre_conv, self.pre_norm = conv3d(inputs, inner), nn.BatchNorm3d(inner)
        self.post_conv = conv3d(inner, outputs)

    def forward(self, x: Tensor, window: Triple) -> Tensor:
        x = F.relu(self.pre_norm(self.pre_conv(x)))
        window = min(window[0], x.shape[2]), min(window[1], x.shape[3]), min(window[2], x.shape[4])
        return F.relu(self.post_conv(F.avg_pool3d(x, window, stride=1))).mean((2, 3, 4))


class X3D(Classifier):
    """X3D (Feichtenhofer 2020, arXiv 2004.04730), its tensors named as in pytorchvideo.

    The published code returns probabilities; here the result is logits, as of every network.
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
                branch = Bottleneck(
                    (first, width * 9 // 4, width),
                    stride,
                    (ONE, (3, 3, 3)),
                    depthwise=True,
                    squeeze=0 if i % 2 else squeeze,
                )
                stage.append(BottleneckBlock(first, width, stride, branch, normed=first != width))
            blocks.append(BottleneckStage(stage))
        pool = _X3DPool(192, 432, self.dim)
        head = nn.ModuleDict({"pool": pool, "proj": nn.Linear(self.dim, outputs)})
        self.blocks = nn.ModuleList([*blocks, head])
        self.window = frames, -(-size // 32), -(-size // 32)
        init_weights(self)

    def features(self, x: Tensor) -> Tensor:
        """The mean over the clip, projected to 2,048 channels."""
        *blocks, head = self.blocks
        for block in blocks:
            x = block(x)
        return head.get_submodule("pool")(x, self.window)
