"""Bias: the difference of a linear probe's action accuracy between groups."""

from __future__ import annotations

import numpy as np

from veil.audit.features.probes import ProbeBudget, train_probe
from veil.features.bank import Bank
from veil.metrics import Score, group_accuracy, group_gap


def evaluate_bias(
    train: Bank, val: Bank, test: Bank, group: str, *, seed: int = 0, budget: ProbeBudget = ProbeBudget()
) -> tuple[Score, Score, dict[str, Score]]:
    """The accuracy of a linear probe, the gap between the groups, and each group's accuracy."""
    found = train_probe("linear", "action", train, val, test, seed=seed, budget=budget)
    truth = test.truth("action").cpu().numpy()
    groups = np.array([sample.groups[group] for sample in test.samples])
    videos = [sample.id for sample in test.samples]
    return (
        found.score,
        group_gap(found.probabilities, truth, groups, videos),
        group_accuracy(found.probabilities, truth, groups, videos),
    )
