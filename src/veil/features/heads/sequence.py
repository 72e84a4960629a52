"""Layers over the clips of a video, `(B, C, T)`, that ignore padding.

A batch holds videos of different lengths. The mask `(B, 1, T)`, bool, marks the clips; the rest is padding. Every
layer over several positions takes the mask, so that a video's output depends neither on the values of the padding, nor on its
length, nor, but for `BatchNorm` in training, on the other videos.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def emptied(x: Tensor, mask: Tensor) -> Tensor:
    """x with zeros in the padding, whatever it held: not even nan stays."""
    return x.masked_fill(~mask, 0)


def checked(features: Tensor, mask: Tensor | None) -> Tensor:
    """The mask `(B, T)` of features `(B, T, D)`; None: all positions are clips."""
    if mask is None:
        mask = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    if features.ndim != 3 or mask.shape != features.shape[:2] or mask.dtype != torch.bool:
        shapes = f"{tuple(features.shape)} and {tuple(mask.shape)} of {mask.dtype}"
        raise ValueError(f"features are (B, T, D) and the mask is (B, T) bool, got {shapes}")
    return mask


class Conv(nn.Conv1d):
    """A convolution over time that gives one place a place: `(B, C, T)` -> `(B, C', T)`, padding counts as zeros."""

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int = 1, bias: bool = True) -> None:
        if kernel % 2 == 0:
            raise ValueError(f"a kernel that keeps the places is odd, got {kernel}")
        super().__init__(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=bias)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The padding of the output is zero."""
        return emptied(super().forward(emptied(x, mask)), mask)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of each place."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch names it so)
        """`(B, C, T)` -> `(B, C, T)`."""
        return super().forward(input.transpose(1, 2)).transpose(1, 2)


class GroupNorm(nn.GroupNorm):
    """Group norm whose mean and variance are over a video's own clips."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`(B, C, T)` -> `(B, C, T)`."""
        batch, channels, time = x.shape
        grouped = emptied(x, mask).float().view(batch, self.num_groups, -1, time)
        count = mask.sum(2).clamp_min(1)[..., None, None] * grouped.shape[2]  # (B, 1, 1, 1)
        mean = grouped.sum((2, 3), keepdim=True) / count
        apart = emptied(grouped - mean, mask[:, None])
        variance = apart.square().sum((2, 3), keepdim=True) / count
        normal = (apart * (variance + self.eps).rsqrt()).view(batch, channels, time)
        return (normal * self.weight[:, None] + self.bias[:, None]).to(x.dtype)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm whose mean and variance are over the clips of the batch, and not over its padding."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`(B, C, T)` -> `(B, C, T)`."""
        if not self.training:
            return super().forward(x)
        full, every = emptied(x, mask).float(), (0, 2)
        count = mask.sum()
        mean = full.sum(every) / count  # (C,)
        apart = emptied(full - mean[:, None], mask)
        variance = apart.square().sum(every) / count
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum or 0.1)
                self.running_var.lerp_(variance * count / (count - 1).clamp_min(1), self.momentum or 0.1)
        normal = apart * (variance + self.eps).rsqrt()[:, None]
        return (normal * self.weight[:, None] + self.bias[:, None]).to(x.dtype)


def halved(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Every second place, each the largest of itself and its two neighbours: `(B, C, T)` -> `(B, C, ceil(T / 2))`."""
    lowest = torch.finfo(x.dtype).min
    pooled = F.max_pool1d(x.masked_fill(~mask, lowest), kernel_size=3, stride=2, padding=1)
    mask = mask[..., ::2]
    return emptied(pooled, mask), mask


def clip_mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean over a video's clips, `(B, C, T)` -> `(B, C)`; of a video without clips, zeros."""
    return emptied(x, mask).sum(2) / mask.sum(2).clamp_min(1)
