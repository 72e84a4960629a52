"""A small video network for training from scratch on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.nn.classifier import Classifier, init_weights
from veil.nn.video.convolutions import Triple, conv3d


class _Residual3d(nn.Module):
    """A convolution over each frame and one over the clip, with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: Triple) -> None:
        super().__init__()
        self.conv1 = conv3d(inputs, outputs, (1, 3, 3), (1, *stride[1:]))
        self.norm1 = nn.BatchNorm3d(outputs)
        self.conv2 = conv3d(outputs, outputs, (3, 3, 3), (stride[0], 1, 1))
        self.norm2 = nn.BatchNorm3d(outputs)
        self.shortcut = nn.Sequential(conv3d(inputs, outputs, stride=stride), nn.BatchNorm3d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class Small3d(Classifier):
    """A small residual network for training from scratch on two CPU cores at about 8×56²."""

    last = "fc"

    def __init__(
        self,
        outputs: int,
        *,
        widths: Sequence[int] = (24, 32, 64, 96),
        frames: int = 16,
        size: int = 112,
    ) -> None:
        del frames, size  # any are accepted
        super().__init__()
        self.dim = widths[-1]
        stem = conv3d(3, widths[0], (3, 5, 5), (1, 2, 2))
        self.stem = nn.Sequential(stem, nn.BatchNorm3d(widths[0]), nn.ReLU(inplace=True))
        strides: Sequence[Triple] = (1, 2, 2), (2, 2, 2), (2, 2, 2)
        pairs = zip(pairwise(widths), strides, strict=True)
        self.blocks = nn.Sequential(*(_Residual3d(a, b, stride) for (a, b), stride in pairs))
        self.fc = nn.Linear(self.dim, outputs)
        init_weights(self)
        self.to(memory_format=torch.channels_last_3d)  # pyright: ignore[reportCallIssue]

    def features(self, x: Tensor) -> Tensor:
        """The mean over the clip after the last block."""
        x = x.contiguous(memory_format=torch.channels_last_3d)  # 1.5 times as fast on a CPU
        return self.blocks(self.stem(x)).mean((2, 3, 4))
