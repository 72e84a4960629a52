"""Utility against leakage as one number: F-lambda, Pareto front, hypervolume and excess leakage."""

from __future__ import annotations

import numpy as np

from veil.core import VeilError
from veil.metrics.score import Array, Floats, Ints, Score, check_unit


def f_lambda(accuracy: float, leakage: float, lam: float = 0.5) -> float:
    """A trade-off as one number, higher is better: (1 - lam) accuracy + lam (1 - leakage)."""
    check_unit("accuracy, leakage and lam", np.array([accuracy, leakage, lam]), "write 0.87, not 87")
    return (1 - lam) * accuracy + lam * (1 - leakage)


def pareto_front(accuracy: Array, leakage: Array) -> Ints:
    """Indices of the settings that no other beats, from low accuracy to high; accuracy and leakage `(N,)`.

    One beats another that is no better in either and worse in one; equal settings both stay.
    """
    gain, loss = _settings(accuracy, leakage)
    as_good = (gain[:, None] >= gain) & (loss[:, None] <= loss)  # [i, j]: i is at least as good as j
    kept = np.flatnonzero(~(as_good & ~as_good.T).any(axis=0))
    return kept[np.argsort(gain[kept], kind="stable")]


def hypervolume(
    accuracy: Array,
    leakage: Array,
    *,
    accuracy_range: tuple[float, float] = (0.0, 1.0),
    leakage_range: tuple[float, float] = (0.0, 1.0),
) -> Score:
    """Area of the union of the rectangles [0, u_i] x [0, q_i] over settings with accuracy and leakage `(N,)`.

    A range is (chance, raw). u = (accuracy - chance) / (raw - chance) is the utility that is left,
    q = (raw - leakage) / (raw - chance) the leakage that is gone, both clipped to [0, 1]. With the ranges
    given this is the normalised hypervolume: untouched video and destroyed video both give 0, its chance.
    Without them it is the raw one, of (accuracy, 1 - leakage). Publish both; the notes carry the ranges.
    """
    gain, loss = _settings(accuracy, leakage)
    (low, high), (safe, bare) = accuracy_range, leakage_range
    check_unit("ranges", np.array([low, high, safe, bare]), "write 0.87, not 87")
    normalised = (low, high, safe, bare) != (0, 1, 0, 1)
    name, chance = ("normalised hypervolume", 0.0) if normalised else ("hypervolume", None)
    notes = (f"accuracy {low:g} by chance, {high:g} raw; leakage {safe:g} by chance, {bare:g} raw",)
    if not len(gain):
        return Score(name, np.nan, 0, chance, notes=(*notes, "nothing was given to score"))
    if high <= low or bare <= safe:
        notes += ("raw video is no better than chance: there is nothing to keep or nothing to hide",)
        return Score(name, np.nan, len(gain), chance, notes=notes)
    u, q = (gain - low) / (high - low), (bare - loss) / (bare - safe)
    if outside := int(((u < 0) | (u > 1) | (q < 0) | (q > 1)).sum()):
        notes += (f"{outside} of {len(gain)} settings lie outside these ranges and are clipped",)
    order = np.argsort(-u)
    u, q = np.clip(u[order], 0, 1), np.clip(q[order], 0, 1)
    strips = -np.diff(u, append=0.0)  # from the right; each is as high as the best setting so far
    return Score(name, float(strips @ np.maximum.accumulate(q)), len(gain), chance, notes=notes)


def excess_leakage(leaked: Score, raw: Score) -> Score:
    """The share of the leakage above chance that is left: (x - chance) / (raw - chance).

    `leaked` and `raw` are one metric on one test set, after anonymization and before. 0: at chance; 1: as
    much as raw video leaks; values outside are kept, with a note. The interval is that of `leaked`, raw and
    chance held fixed.
    """
    if (leaked.metric, leaked.n, leaked.chance) != (raw.metric, raw.n, raw.chance):
        raise VeilError(
            f"{leaked.metric} (n {leaked.n}, chance {leaked.chance}) and {raw.metric} (n {raw.n}, chance"
            f" {raw.chance}) are not one metric on one test set: excess leakage compares such.",
            code="scores-not-comparable",
        )
    if raw.chance is None:
        raise VeilError(
            f"{raw.metric} has no chance level: excess leakage needs a metric that has one.",
            code="score-without-chance",
        )
    chance, span = raw.chance, raw.value - raw.chance
    name = f"excess leakage of {raw.metric}"
    notes = (*leaked.notes, f"{leaked.value:.4g}, raw {raw.value:.4g}, chance {chance:.4g}")
    if not span > 0:  # nan too
        notes += ("raw video leaks nothing above chance: there is nothing to take a share of",)
        return Score(name, np.nan, leaked.n, 0.0, "lower", None, notes)
    value = (leaked.value - chance) / span
    if raw.interval is not None and raw.interval[0] <= chance:
        notes += ("chance lies within raw's own interval: this share stands on almost nothing",)
    if value < 0:
        notes += ("below chance: the attacker learned nothing of use",)
    if value > 1:
        notes += ("above raw: the two attackers were not equally strong",)
    interval = None
    if leaked.interval is not None:
        interval = ((leaked.interval[0] - chance) / span, (leaked.interval[1] - chance) / span)
    return Score(name, value, leaked.n, 0.0, "lower", interval, notes)


def _settings(accuracy: Array, leakage: Array) -> tuple[Floats, Floats]:
    gain, loss = np.asarray(accuracy, dtype=np.float64), np.asarray(leakage, dtype=np.float64)
    if gain.ndim != 1 or gain.shape != loss.shape:
        raise VeilError(
            f"accuracy is {gain.shape} and leakage {loss.shape}: give both as (N,).",
            code="metric-input-shape",
        )
    check_unit("accuracy and leakage", np.concatenate([gain, loss]), "write 0.87, not 87")
    return gain, loss
