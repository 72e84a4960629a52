"""What video networks share: unbiased convolutions and the mean over windows."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

Triple = tuple[int, int, int]  # time, height, width
ONE: Triple = (1, 1, 1)


def conv3d(
    inputs: int, outputs: int, kernel: Triple = ONE, stride: Triple = ONE, *, groups: int = 1
) -> nn.Conv3d:
    """A convolution without bias that keeps the size, but for the stride."""
    padding = kernel[0] // 2, kernel[1] // 2, kernel[2] // 2
    return nn.Conv3d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)


def window_mean(x: Tensor, window: Triple) -> Tensor:
    """The mean over all windows of that size (or of the whole clip, where it is smaller) of the mean in each: (B, C)."""
    fitting = [min(size, there) for size, there in zip(window, x.shape[2:], strict=True)]
    return F.avg_pool3d(x, fitting, stride=1).mean((2, 3, 4))
