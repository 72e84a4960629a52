"""Learning-rate schedules: warm-up, then constant, cosine, or reduced on a plateau."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from veil.core import VeilError


@dataclass(frozen=True)
class LRSchedule:
    """The factor on the learning rate of a step, by the number of its own updates."""

    warmup: int = 0  # updates of linear increase
    shape: Literal["constant", "cosine", "plateau"] = "constant"
    updates: int | None = None  # of this step in total, including the warm-up; required by "cosine"
    floor: float = 0.0  # the factor at the end of a cosine, and the smallest factor on a plateau
    patience: int = 10  # plateau: the number of reports without improvement that are tolerated
    factor: float = 0.1  # plateau: what the learning rate is multiplied by after one more

    def __post_init__(self) -> None:
        if self.shape == "cosine" and (self.updates is None or self.updates <= self.warmup):
            raise VeilError(
                f"a cosine schedule with updates={self.updates} and warmup={self.warmup} never decreases: "
                "set updates to the total number, more than the warm-up.",
                code="schedule-too-short",
            )

    def at(self, update: int, plateau: float = 1.0) -> float:
        """The factor for an update, counted from 0; `plateau` is the current factor of a plateau schedule."""
        if update < self.warmup:
            return (update + 1) / self.warmup
        if self.shape == "plateau":
            return plateau
        if self.shape == "constant" or self.updates is None:
            return 1.0
        progress = min(1.0, (update - self.warmup) / (self.updates - self.warmup))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2


@dataclass
class StepProgress:
    """The number of updates of a step so far, and the state of its plateau schedule."""

    updates: int = 0
    plateau: float = 1.0  # the current factor
    best: float | None = None
    without_improvement: int = 0  # reports since the best one

    def report(self, value: float, schedule: LRSchedule) -> None:
        """Take in a validation loss; reduce the factor after too many reports without improvement."""
        if math.isfinite(value) and (self.best is None or value < self.best):
            self.best, self.without_improvement = value, 0
            return
        self.without_improvement += 1
        if self.without_improvement > schedule.patience:
            self.plateau = max(schedule.floor, self.plateau * schedule.factor)
            self.without_improvement = 0
