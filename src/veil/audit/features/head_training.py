"""The training of a head for long videos on features, selected on validation videos."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from veil.audit.features.probes import ProbeBudget
from veil.training.fit import fit
from veil.training.phase import Phase
from veil.training.schedule import LRSchedule
from veil.training.steps import Setup, Step


def train_head(
    net: nn.Module,
    loss: Callable[[list[int]], dict[str, Tensor]],
    score: Callable[[], float],
    videos: int,
    seed: int,
    budget: ProbeBudget,
    lr: float = 1e-3,
) -> float:
    """Train a head, which keeps the weights that are best on the validation videos; returns their value."""
    plan = LRSchedule(warmup=budget.head_steps // 20, shape="cosine", updates=budget.head_steps, floor=0.01)
    step = Step("learn", (net,), loss, lr, "adamw", 0.025, plan)
    rng = np.random.default_rng(seed)
    count = min(budget.videos, videos)
    batches = (rng.choice(videos, count, replace=False).tolist() for _ in range(budget.head_steps))
    every, best, kept = max(1, budget.head_steps // 6), -math.inf, {}
    for measured in fit(Phase([step], Setup(seed=seed, clip=1.0)), batches):
        if measured.step % every and measured.step != budget.head_steps:
            continue
        net.eval()
        with torch.no_grad():
            value = score()
        net.train()
        if value > best:
            best, kept = value, {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.load_state_dict(kept)
    net.eval().requires_grad_(False)
    return best
