"""Anomaly: which moments are unusual, by an MGFN that is trained anew on the features."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from veil.audit.features.head_training import train_head
from veil.audit.features.probes import ProbeBudget, ProbeResult, mean_and_scale
from veil.features.bank import Bank
from veil.features.heads.anomaly import MGFN, binned, frame_scores, frame_truth
from veil.metrics import Bootstrap, Score, frame_auc

FPS = 10.0  # frames a second at which anomalies are scored


def evaluate_anomaly(
    train: Bank,
    val: Bank,
    test: Bank,
    *,
    seed: int = 0,
    budget: ProbeBudget = ProbeBudget(),
    bootstrap: Bootstrap | None = None,
) -> ProbeResult:
    """Train an MGFN on whole videos and score it: AUC over the frames.

    With labels of whole videos only, some trainings fail: of several, the best on validation videos is scored.
    """
    tries = (
        _train_once(train, val, seed * budget.anomaly_runs + place, budget)
        for place in range(budget.anomaly_runs)
    )
    best, score = max(tries, key=lambda one: one[0])
    return ProbeResult(score(test, bootstrap), best, np.zeros((0, 0)))


def _train_once(
    train: Bank, val: Bank, seed: int, budget: ProbeBudget
) -> tuple[float, Callable[[Bank, Bootstrap | None], Score]]:
    """The value of one MGFN on the validation videos, and its score of others."""
    torch.manual_seed(seed)
    device = train.clips.device
    net = MGFN(train.dim, **budget.anomaly).to(device)  # type: ignore[arg-type]
    mean, scale = mean_and_scale(train.clips[train.mask])
    abnormal = (train.truth("action") > 0).to(device)  # 0 is normal
    kinds = [abnormal.logical_not().nonzero()[:, 0].tolist(), abnormal.nonzero()[:, 0].tolist()]
    x = binned((train.clips - mean) / scale, train.mask)
    rng = np.random.default_rng(seed)

    def loss(_: list[int]) -> dict[str, Tensor]:
        rows = [int(rng.choice(kind)) for kind in kinds for _ in range(budget.videos)]
        return net.loss(net(x[rows]), abnormal[rows])

    def score(bank: Bank, resample: Bootstrap | None = None) -> Score:
        scored = net((bank.clips - mean) / scale, bank.mask).scores.cpu().numpy()
        predicted, truth, videos = [], [], []
        for row, (sample, starts) in enumerate(zip(bank.samples, bank.starts.cpu().numpy(), strict=True)):
            count, frames = int(bank.counts[row]), round(float(bank.seconds[row]) * FPS)
            predicted.append(frame_scores(scored[row, :count], starts[:count], bank.length, frames, FPS))
            truth.append(frame_truth(sample.segments, frames, FPS))
            videos += [sample.id] * frames
        return frame_auc(np.concatenate(predicted), np.concatenate(truth), videos, bootstrap=resample)

    return train_head(net, loss, lambda: score(val).value, len(train), seed, budget, lr=1e-4), score
