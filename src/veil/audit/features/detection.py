"""Detection: where actions are in long videos, by a TriDet that is trained anew on the features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from veil.audit.features.head_training import train_head
from veil.audit.features.probes import ProbeBudget, ProbeResult, mean_and_scale
from veil.features.bank import Bank
from veil.features.heads.detection import TriDet, tables
from veil.features.heads.grid import on_grid
from veil.metrics import Bootstrap, Score, temporal_map


def evaluate_detection(
    train: Bank,
    val: Bank,
    test: Bank,
    *,
    seed: int = 0,
    budget: ProbeBudget = ProbeBudget(),
    bootstrap: Bootstrap | None = None,
) -> ProbeResult:
    """Train a TriDet and score it: mean AP over tIoU."""
    torch.manual_seed(seed)
    device = train.clips.device
    net = TriDet(train.dim, len(train.actions), **budget.detection).to(device)  # type: ignore[arg-type]
    mean, scale = mean_and_scale(train.clips[train.mask])

    def scaled(bank: Bank) -> Tensor:
        return (bank.clips - mean) / scale

    spans = [
        on_grid(sample.segments, starts[:count], train.length)
        for sample, starts, count in zip(
            train.samples, train.starts.cpu().numpy(), train.counts.tolist(), strict=True
        )
    ]
    x, mask = scaled(train), train.mask

    def loss(rows: list[int]) -> dict[str, Tensor]:
        return net.loss(net(x[rows], mask[rows]), [spans[row] for row in rows])

    def score(bank: Bank, resample: Bootstrap | None = None) -> Score:
        found = net.detect(scaled(bank), bank.mask, bank.starts, bank.length, bank.seconds, most=200)
        return temporal_map(*tables(bank.samples, found), bootstrap=resample)

    best = train_head(net, loss, lambda: score(val).value, len(train), seed, budget)
    return ProbeResult(score(test, bootstrap), best, np.zeros((0, 0)))
