"""Sampling of the phase: a random number from the grey levels of a clip, and the phase that it selects."""

from __future__ import annotations

import torch
from torch import Tensor

PRIME = 1_048_573  # below 2**20, so that the weighted sum of the levels fits into 64 bits


def uniform_from_levels(half_cells: Tensor, cell: int) -> Tensor:
    """A number in [0, 1) for each clip of half-cells ``(B, T, 2h, 2w)``; it changes with any single grey level."""
    levels = (half_cells * (255 * 3 * (cell // 2) ** 2)).round().long().flatten(1)  # sums of bytes
    weights = torch.arange(1, levels.shape[1] + 1, device=half_cells.device) * 48_271 % PRIME
    return (levels * weights).sum(1).remainder(PRIME) / PRIME


def sample_phase(distances: Tensor, temperature: float, uniform: Tensor) -> Tensor:
    """Phases ``(B,)`` from p(ψ) ∝ exp(−d(ψ) / temperature), by inversion: distances ``(B, phases)``, uniform ``(B,)``."""
    return ((-distances / temperature).softmax(1).cumsum(1)[:, :-1] < uniform[:, None]).sum(1)
