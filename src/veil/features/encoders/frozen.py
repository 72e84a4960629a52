"""The contract of encoders: a frozen network over clips that resizes and standardises its input itself."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.core import VeilError
from veil.nn.classifier import HALVES

LENGTH = 16  # frames of a clip, in the paper and here


class Backbone(nn.Module, ABC):
    """What an encoder is made of: standardised clips of the right length and size to tokens."""

    dim: int
    ignored: tuple[str, ...] = ()  # prefixes of tensors in published files that the encoder does not use

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``(B, N, dim)`` of clips ``(B, 3, T, H, W)``."""

    def pool(self, tokens: Tensor) -> Tensor:
        """One vector ``(B, dim)`` a clip."""
        return tokens.mean(1)


class FrozenEncoder(nn.Module):
    """A frozen network over clips: it stays in eval mode, and its weights take no gradient.

    `length` is how many frames a clip has, of which every n-th (`every`) is used, and `size` its height and width.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        backbone: Backbone,
        *,
        size: int,
        length: int = LENGTH,
        mean: Sequence[float] = HALVES[0],
        std: Sequence[float] = HALVES[1],
        every: int = 1,
    ) -> None:
        super().__init__()
        self.name, self.dim, self.length, self.size, self.every = name, backbone.dim, length, size, every
        self.body = backbone  # the name is part of the fingerprint
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(3, 1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(3, 1, 1, 1))
        self.requires_grad_(False)
        self.eval()
        self.fingerprint = fingerprint(self)

    def train(self, mode: bool = True) -> FrozenEncoder:
        """Does nothing: an encoder is frozen."""
        del mode
        return super().train(False)

    def forward(self, clip: Tensor) -> Tensor:
        """Tokens ``(B, N, dim)`` of clips ``(B, 3, length, H, W)`` in [0, 1]."""
        return self.body(self.preprocess(clip)).float()

    def pooled(self, clip: Tensor) -> Tensor:
        """One vector a clip, ``(B, dim)``: what the paper stores."""
        return self.body.pool(self.body(self.preprocess(clip))).float()

    def preprocess(self, clip: Tensor) -> Tensor:
        """The network's input: the shorter side at `size`, the middle of the longer one, standardised."""
        if clip.ndim != 5 or clip.shape[1] != 3 or not clip.is_floating_point():
            raise ValueError(
                f"a clip is (B, 3, T, H, W) of floats in [0, 1], got {clip.dtype} {tuple(clip.shape)}"
            )
        if clip.shape[2] != self.length:
            raise VeilError(
                f"the encoder '{self.name}' takes clips of {self.length} frames, got {clip.shape[2]}: repeat the last "
                "frame of a shorter video, or cut a longer one.",
                code="clip-length",
            )
        clip = clip[:, :, :: self.every]
        clip = (center_square(clip, self.size) - self.mean) / self.std
        weight = next(self.body.parameters(), None)
        return clip if weight is None else clip.to(weight.dtype)


def center_square(clip: Tensor, size: int) -> Tensor:
    """Clips with their shorter side at `size` pixels, and of the longer one the middle."""
    height, width = clip.shape[-2:]
    if (height, width) == (size, size):
        return clip
    scale = size / min(height, width)
    shape = max(size, round(height * scale)), max(size, round(width * scale))
    frames = clip.transpose(1, 2).flatten(0, 1)  # (B·T, 3, H, W)
    frames = F.interpolate(frames, shape, mode="bilinear", antialias=True, align_corners=False)
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    frames = frames[..., top : top + size, left : left + size]
    return frames.unflatten(0, (len(clip), -1)).transpose(1, 2)


def fingerprint(encoder: FrozenEncoder) -> str:
    """SHA-256 of all that makes an encoder's features: each tensor's name, shape and values, and which frames it uses."""
    digest = hashlib.sha256(f"{encoder.length} {encoder.every} {encoder.size}".encode())
    for name, value in sorted(encoder.state_dict().items()):
        if name.endswith(".num_batches_tracked"):  # not used, and files of before 2018 lack it
            continue
        value = value.detach().float().cpu().contiguous()
        digest.update(f"\n{name} {tuple(value.shape)}\n".encode())
        digest.update(memoryview(value.numpy()).cast("B") if value.numel() else b"")
    return digest.hexdigest()
