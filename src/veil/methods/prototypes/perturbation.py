"""Random perturbation of what the network sees: people elsewhere, of another size, who move more or less."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def perturb(inputs: Tensor) -> Tensor:
    """Inputs of the network ``(B, 2, T, h, w)``, each clip shifted, scaled, weakened or strengthened, with noise."""
    with torch.autocast(inputs.device.type, enabled=False):
        count, _, _, height, width = inputs.shape
        random = 2 * torch.rand(5, count, device=inputs.device) - 1
        theta = torch.zeros(count, 2, 3, device=inputs.device)
        theta[:, 0, 0], theta[:, 1, 1] = (random[:2] * math.log(1.2)).exp()
        theta[:, 0, 2], theta[:, 1, 2] = 0.2 * random[2], 0.12 * random[3]
        flat = inputs.float().flatten(1, 2)  # (B, 2·T, h, w)
        grid = F.affine_grid(theta, [count, 1, height, width], align_corners=False)
        moved = F.grid_sample(flat, grid, padding_mode="border", align_corners=False).view(inputs.shape)
        strength = (random[4] * math.log(1.4)).exp()[:, None, None, None, None]
        return moved * strength + 0.15 * torch.randn_like(moved)
