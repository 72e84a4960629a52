"""Temporal action detection: mean average precision by the rules of THUMOS and ActivityNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from veil.core import VeilError
from veil.metrics.score import Bools, Floats, Ints, Resampling, Score, measured, ratio

THUMOS_TIOU = (0.3, 0.4, 0.5, 0.6, 0.7)


def temporal_map(
    found: Mapping[str, Any],
    truth: Mapping[str, Any],
    *,
    tiou: Sequence[float] = THUMOS_TIOU,
    bootstrap: Resampling = None,
) -> Score:
    """Mean over tIoU thresholds and annotated classes of `temporal_average_precisions`.

    found: for each video rows `(D, 4)` of start, end, label, score. truth: for each video rows `(G, 3)` of
    start, end, label; a video in which nothing happens is listed, without rows. n counts the annotated
    segments. Chance is None: it depends on the number of detections.
    """
    classes, notes = _matched(found, truth, tiou)

    def mean(weights: Floats) -> Floats:
        return np.stack([ap for c in classes for ap in _interpolated_ap(c, weights)]).mean(axis=0)

    segments = int(sum(c.segments.sum() for c in classes))
    name = f"mAP at tIoU {', '.join(f'{t:g}' for t in tiou)}"
    return measured(name, mean, len(truth), None, notes, bootstrap, n=segments)


def temporal_average_precisions(
    found: Mapping[str, Any], truth: Mapping[str, Any], *, tiou: Sequence[float] = THUMOS_TIOU
) -> tuple[Ints, Floats]:
    """The annotated classes `(C,)`, and their average precision at each tIoU threshold, `(thresholds, C)`.

    THUMOS and ActivityNet rules. The detections of a class in all videos are taken from high score to low
    (equal scores: as given). Each takes, of the segments of its class and video that are still free, the one
    with the highest tIoU if that reaches the threshold, and is a false alarm otherwise.
    AP = sum_i (R_i - R_{i-1}) max_{j >= i} P_j. A segment annotated twice (both ends within 0.001) is one.
    """
    classes, _ = _matched(found, truth, tiou)
    once = np.ones((len(truth), 1))
    table = np.array([_interpolated_ap(c, once) for c in classes]).reshape(len(classes), len(tiou))
    return np.array([c.label for c in classes], dtype=np.intp), table.T


class _Class(NamedTuple):
    """The detections of one class that are right at some threshold, from high score to low."""

    label: int
    video: Ints  # (H,)
    hit: Bools  # (thresholds, H) at which they are right
    seen: Floats  # (H, V) detections of each video down to here, the false ones too
    segments: Floats  # (V,) how many there are to find


def _interpolated_ap(c: _Class, weights: Floats) -> list[Floats]:
    """Average precision `(R,)` at each threshold."""
    seen, values = np.maximum(c.seen @ weights, 1), []
    for hit in c.hit:
        hits = weights[c.video[hit]]
        precision = np.cumsum(hits, axis=0) / seen[hit]
        envelope = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
        values.append(ratio((hits * envelope).sum(axis=0), c.segments @ weights))
    return values


def _matched(
    found: Mapping[str, Any], truth: Mapping[str, Any], tiou: Sequence[float]
) -> tuple[list[_Class], tuple[str, ...]]:
    """Every annotated class with its detections, right or wrong, and notes."""
    if unlisted := sorted(set(found) - set(truth)):
        raise VeilError(
            f"the truth lacks video {unlisted[0]}: list it, without segments if it has none.",
            code="truth-lacks-video",
        )
    if not tiou or not all(0 < t <= 1 for t in tiou):
        raise VeilError(f"tIoU thresholds are {tuple(tiou)}: give some in (0, 1].", code="tiou-out-of-range")
    real, real_video, twice = _segments(truth, truth, 3)
    guess, guess_video, _ = _segments(found, truth, 4)
    order = np.argsort(-guess[:, 3], kind="stable")
    guess, guess_video = guess[order], guess_video[order]
    labels = np.unique(real[:, 2])
    notes = (f"{twice} segments are annotated twice and count once",) if twice else ()
    if stray := int((~np.isin(guess[:, 2], labels)).sum()):
        notes += (f"{stray} detections are of classes that are never annotated, and are not scored",)
    classes = []
    for label in labels:
        mine, video = guess[guess[:, 2] == label], guess_video[guess[:, 2] == label]
        want, want_video = real[real[:, 2] == label], real_video[real[:, 2] == label]
        hit = np.zeros((len(tiou), len(mine)), dtype=bool)
        for v in np.unique(want_video):
            rows = np.flatnonzero(video == v)
            overlap = _tiou(mine[rows], want[want_video == v])
            for t, threshold in enumerate(tiou):
                hit[t, rows] = _greedy(overlap, threshold)
        right = np.flatnonzero(hit.sum(axis=0))
        seen = np.zeros((len(right) + 1, len(truth)))
        np.add.at(seen, (np.searchsorted(right, np.arange(len(mine))), video), 1)
        segments = np.bincount(want_video, minlength=len(truth)).astype(np.float64)
        classes.append(_Class(int(label), video[right], hit[:, right], seen[:-1].cumsum(axis=0), segments))
    return classes, notes


def _segments(tables: Mapping[str, Any], videos: Mapping[str, Any], columns: int) -> tuple[Floats, Ints, int]:
    """The rows of all videos `(N, columns)`, the video of each `(N,)`, and how many were repeats."""
    rows, repeats = [np.empty((0, columns))], 0
    for name in videos:
        table = np.asarray(tables.get(name, ()), dtype=np.float64)
        table = table if table.size else np.empty((0, columns))
        if table.ndim != 2 or table.shape[1] != columns:
            raise VeilError(
                f"segments of {name} are {table.shape}: give rows of {columns} numbers.",
                code="segments-invalid",
            )
        if not (table[:, 0] <= table[:, 1]).all() or np.isnan(table).any():
            raise VeilError(
                f"a segment of {name} ends before it starts, or is nan: correct it.", code="segments-invalid"
            )
        if columns == 3:
            apart = np.abs(table[:, None] - table)  # (G, G, 3)
            again = np.tril((apart <= [1e-3, 1e-3, 0]).all(axis=2), -1).any(axis=1)
            table, repeats = table[~again], repeats + int(again.sum())
        rows.append(table)
    video = np.repeat(np.arange(len(videos)), [len(r) for r in rows[1:]])
    return np.concatenate(rows), video.astype(np.intp), repeats


def _tiou(a: Floats, b: Floats) -> Floats:
    """Intersection over union in time of segments `(A, 2+)` and `(B, 2+)`: `(A, B)`."""
    both = np.maximum(0, np.minimum(a[:, None, 1], b[:, 1]) - np.maximum(a[:, None, 0], b[:, 0]))
    either = (a[:, 1] - a[:, 0])[:, None] + (b[:, 1] - b[:, 0]) - both
    return both / np.where(either > 0, either, 1)


def _greedy(overlap: Floats, threshold: float) -> Bools:
    """Which detections (rows, best first) get a segment (columns): the free one they overlap most."""
    hit, free = np.zeros(len(overlap), dtype=bool), overlap.copy()
    for row in np.flatnonzero(overlap.max(axis=1) >= threshold):
        column = free[row].argmax()
        if free[row, column] >= threshold:
            hit[row], free[:, column] = True, -1
    return hit
