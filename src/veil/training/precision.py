"""Numerical setup of a training on a device: bf16 and channels-last on a GPU, fp32 on a CPU."""

from __future__ import annotations

import torch

from veil.training.steps import Setup


def mixed_precision(device: torch.device, devices: int, seed: int, *, ema: float | None = None) -> Setup:
    """The setup of a training on pixels."""
    cuda = device.type == "cuda"
    return Setup(
        seed=seed,
        precision="bf16" if cuda else "fp32",
        clip=5.0,
        ema=ema,
        channels_last=cuda,
        devices=devices,
    )
