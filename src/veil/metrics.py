"""Numbers that can be trusted: each carries n, what chance would give, and what is wrong with it.

Everything is numpy; whatever `np.asarray` takes may be given. Shares lie in [0, 1]: 0.87, never 87.

*Chance* is what is reached without looking at the video; each function says how it is found.
*A degenerate case is said.* Where a number has no meaning (nothing given, one class only, a class without
positives) it is nan and a note tells why; where it has little meaning, a note tells that.
*Intervals* are percentile bootstraps that draw whole videos, since frames of one video are no independent
witnesses. Every metric is written as a function of how often each video counts: once each for the value, as
drawn for a resample. So sorting and matching are done once, and resamples are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from veil.core import VeilError

Array = npt.ArrayLike
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]
Videos = npt.ArrayLike | None  # (N,) the video of each row; None: each row is a video of its own
Statistic = Callable[[Floats], Floats]  # (V, R) how often each video counts in each resample -> (R,)

THUMOS_TIOU = (0.3, 0.4, 0.5, 0.6, 0.7)
_CELLS = 1 << 19  # weights held at once in a bootstrap: few enough to stay near the processor
_TIE = 1e-12  # similarities this close differ by rounding only


@dataclass(frozen=True)
class Score:
    """One measured number and what is needed to read it."""

    metric: str
    value: float  # nan: it has no meaning here, and the notes say why
    n: int  # how many things were scored: videos, samples, frames, segments, probes or settings
    chance: float | None = None  # None: chance has no agreed meaning for this metric
    better: Literal["higher", "lower"] = "higher"
    interval: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()

    def as_leakage(self) -> Score:
        """The same number read as what an attacker learned: lower is better."""
        return replace(self, better="lower")


@dataclass(frozen=True)
class Bootstrap:
    """How confidence intervals are drawn. The same seed draws the same resamples of as many videos."""

    resamples: int = 1000
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1 or not 0 < self.level < 1:
            raise VeilError(f"a bootstrap needs resamples >= 1 and a level between 0 and 1, got {self}")

    def draws(self, statistic: Statistic, videos: int, rows: int = 0) -> Floats:
        """The statistic on every resample, `(resamples,)`.

        `rows`: to how many frames or samples the statistic spreads the videos; it bounds the memory.
        """
        rng = np.random.default_rng(self.seed)
        step = max(1, _CELLS // max(videos, rows))
        values = []
        for start in range(0, self.resamples, step):
            size = min(step, self.resamples - start)
            drawn = rng.integers(videos, size=(size, videos)) + videos * np.arange(size)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=size * videos).reshape(size, videos)
            values.append(statistic(np.ascontiguousarray(counts.T, dtype=np.float64)))
        return np.concatenate(values)

    def interval(
        self, statistic: Statistic, videos: int, rows: int = 0
    ) -> tuple[tuple[float, float] | None, str]:
        """The percentile interval of the statistic, and a sentence that says how it was found."""
        if videos < 2:
            return None, "no interval: it needs at least two videos"
        values = self.draws(statistic, videos, rows)
        defined = values[~np.isnan(values)]
        if not len(defined):
            return None, "no interval: the value is undefined in every resample"
        low, high = np.quantile(defined, [(1 - self.level) / 2, (1 + self.level) / 2])
        how = f"interval: the middle {self.level:.4g} of {len(values)} resamples of {videos} videos"
        if lost := len(values) - len(defined):
            how += f", without {lost} in which the value is undefined"
        return (float(low), float(high)), how


Resampling = Bootstrap | None  # None: no interval


def softmax(logits: Array) -> Floats:
    """Probabilities `(..., K)` from logits `(..., K)`: exp(z_k) / sum_j exp(z_j)."""
    z = np.asarray(logits, dtype=np.float64)
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def video_mean(values: Array, videos: Array) -> tuple[npt.NDArray[Any], Floats]:
    """The mean over each video's clips: values `(N, ...)` -> sorted ids `(V,)` and means `(V, ...)`."""
    array = np.asarray(values, dtype=np.float64)
    ids, _, index = _videos(videos, len(array))
    sums, counts = np.zeros((len(ids), *array.shape[1:])), np.bincount(index, minlength=len(ids))
    np.add.at(sums, index, array)
    return ids, sums / counts.reshape(-1, *[1] * (array.ndim - 1))


def top1(
    probabilities: Array, labels: Array, videos: Videos = None, *, bootstrap: Resampling = None
) -> Score:
    """Share of videos whose likeliest class is the true one.

    probabilities `(N, K)` and labels `(N,)` in 0..K-1 of N clips; videos `(N,)` ids, None: each clip is a
    video. A video's probability is the mean over its clips. k classes tied for the best count 1/k each, so
    that the order of the classes means nothing. Chance: the share of the most frequent class among the
    videos, which is the best constant answer and never below 1/K; a note gives 1/K too.
    """
    return _accuracy("top-1", _answers(probabilities, labels, videos), bootstrap)


def group_accuracy(
    probabilities: Array, labels: Array, groups: Array, videos: Videos = None, *, bootstrap: Resampling = None
) -> dict[str, Score]:
    """`top1` within each group, by the group's name; groups `(N,)`: a name for each clip."""
    a = _answers(probabilities, labels, videos, groups)
    return {str(g): _accuracy(f"top-1 of {g}", a.of(a.group == g), bootstrap) for g in np.unique(a.group)}


def group_gap(
    probabilities: Array, labels: Array, groups: Array, videos: Videos = None, *, bootstrap: Resampling = None
) -> Score:
    """`top1` of the best group minus that of the worst; arguments as in `group_accuracy`.

    It cannot be negative, so noise alone makes it positive: read it with its interval. Chance is None: the
    gap of a constant answer depends on the answer.
    """
    a = _answers(probabilities, labels, videos, groups)
    names, group = np.unique(a.group, return_inverse=True)
    member = (group[:, None] == np.arange(len(names))).astype(np.float64)  # (V, G)

    def gap(weights: Floats) -> Floats:
        accuracy = _ratio(weights.T @ (member * a.credit[:, None]), weights.T @ member)  # (R, G)
        return accuracy.max(axis=1) - accuracy.min(axis=1)

    if len(names) == 1:
        why = f"all videos are of the group {names[0]}: there is no gap to measure"
        return Score("top-1 gap", np.nan, len(a.credit), None, "lower", None, (why,))
    return replace(_measure("top-1 gap", gap, len(a.credit), None, (), bootstrap), better="lower")


def average_precisions(scores: Array, labels: Array) -> Floats:
    """Average precision of each class, `(K,)`; nan for a class without positives.

    scores `(N, K)`, any that rank; labels `(N, K)` of 0 and 1. With precision P and recall R over all samples
    down to the i-th distinct score from above, AP = sum_i (R_i - R_{i-1}) P_i: scikit-learn's definition.
    """
    s, truth = _labelled(scores, labels)
    each = np.arange(len(s))
    return np.array([_ap(_ranked(s[:, k], truth[:, k], each))[0] for k in range(s.shape[1])])


def class_mean_average_precision(
    scores: Array,
    labels: Array,
    videos: Videos = None,
    *,
    skip_absent: bool = False,
    bootstrap: Resampling = None,
) -> Score:
    """cMAP: the mean over the classes of `average_precisions`, on all samples.

    scores and labels `(N, K)`; videos `(N,)` matter to the interval only. Chance: the mean prevalence, which
    scores that know nothing reach (a little more where positives are few). A class without positives makes
    the mean undefined; with `skip_absent` it is over the others, and a note names who is missing.
    """
    return _mean_ap("cMAP", *_labelled(scores, labels), videos, skip_absent, bootstrap)


def average_precision(
    scores: Array, labels: Array, videos: Videos = None, *, bootstrap: Resampling = None
) -> Score:
    """Average precision of one score, say that a frame is anomalous: scores, labels and videos `(N,)`.

    The formula is that of `average_precisions`; chance is the prevalence.
    """
    s, truth = _labelled(scores, labels, axes=1)
    return _mean_ap("average precision", s[:, None], truth[:, None], videos, False, bootstrap)


def frame_auc(scores: Array, labels: Array, videos: Videos = None, *, bootstrap: Resampling = None) -> Score:
    """Area under the ROC curve over the frames of all videos together: scores, labels and videos `(N,)`.

    The share of pairs of a positive and a negative frame in which the positive has the higher score, a tie
    counting half. Chance 0.5. With one class only there are no pairs, and no value.
    """
    s, truth = _labelled(scores, labels, axes=1)
    ids, _, index = _videos(videos, len(s))
    rank = _ranked(s, truth, index)
    negative = rank.times.copy()
    negative[rank.hit] = 0

    def area(weights: Floats) -> Floats:
        counted = weights[rank.video] * negative[:, None]  # (M, R)
        above = np.cumsum(counted, axis=0)  # negatives from the highest score down to here
        hits = weights[rank.video[rank.hit]] * rank.times[rank.hit, None]
        wrong = hits * (above[rank.first] - counted[rank.first] + above[rank.last]) / 2
        return 1 - _ratio(wrong.sum(axis=0), hits.sum(axis=0) * above[-1])

    one = len(truth) > 0 and truth.all() == truth.any()
    notes = ("all frames are of one class: there are no pairs",) if one else ()
    return _measure("frame AUC", area, len(ids), 0.5, notes, bootstrap, n=len(s), rows=len(rank.video))


def f1_scores(predicted: Array, labels: Array) -> Floats:
    """F1 of each class, `(K,)`: 2 TP / (2 TP + FP + FN); nan for a class without positives.

    predicted and labels `(N, K)` of 0 and 1.
    """
    answer, truth = _labelled(predicted, labels)
    f1 = _ratio(2 * (answer * truth).sum(axis=0), answer.sum(axis=0) + truth.sum(axis=0))
    return np.where(truth.sum(axis=0) > 0, f1, np.nan)


def macro_f1(
    probabilities: Array,
    labels: Array,
    videos: Videos = None,
    *,
    skip_absent: bool = False,
    bootstrap: Resampling = None,
) -> Score:
    """The mean over the classes of F1, where an attribute is answered if its probability is above 0.5.

    probabilities and labels `(N, K)`; videos `(N,)` matter to the interval only. Chance: always answering
    yes, the best that can be done blindly, which gives 2 p / (1 + p) at prevalence p. A class without
    positives: as in `class_mean_average_precision`.
    """
    share, truth = _labelled(probabilities, labels)
    _in_unit("probabilities", share, "macro_f1_raw_logit takes logits")
    return _macro_f1("macro F1", share > 0.5, truth, videos, skip_absent, bootstrap)


def macro_f1_raw_logit(
    logits: Array,
    labels: Array,
    videos: Videos = None,
    *,
    skip_absent: bool = False,
    bootstrap: Resampling = None,
) -> Score:
    """`macro_f1` as the SPAct family's code has it: answered if the *logit* is above 0.5 (probability 0.622).

    For comparison with published figures only.
    """
    z, truth = _labelled(logits, labels)
    return _macro_f1("macro F1 (raw logit > 0.5)", z > 0.5, truth, videos, skip_absent, bootstrap)


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
    segments. Chance is None: it depends on how many detections are made up.
    """
    classes, notes = _matched(found, truth, tiou)

    def mean(weights: Floats) -> Floats:
        return np.stack([ap for c in classes for ap in _interpolated_ap(c, weights)]).mean(axis=0)

    segments = int(sum(c.segments.sum() for c in classes))
    name = f"mAP at tIoU {', '.join(f'{t:g}' for t in tiou)}"
    return _measure(name, mean, len(truth), None, notes, bootstrap, n=segments)


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


def rank1(
    probe: Array,
    probe_ids: Array,
    gallery: Array,
    gallery_ids: Array,
    *,
    views: tuple[Array, Array] | None = None,
    bootstrap: Resampling = None,
) -> Score:
    """Share of probes whose nearest gallery item, by cosine, has their identity.

    probe `(P, D)`, gallery `(G, D)`: a feature for each video (`video_mean` of its clips); ids `(P,)` and
    `(G,)`. views: those of the probes and of the gallery; given, items seen from a probe's own view are not
    in its gallery. Items tied for the nearest count in equal parts, so that features that fell onto one point
    score chance. Chance: the mean share of a probe's gallery that has its identity. A probe whose identity is
    not in its gallery cannot be found: it is left out of n, and said.
    """
    x, who = _features(probe), np.asarray(probe_ids)
    shelf, shelf_who = _features(gallery), np.asarray(gallery_ids)
    no_views = (np.zeros(len(x)), np.ones(len(shelf)))  # never identical
    side, shelf_side = (np.asarray(v) for v in views or no_views)
    if not len(x) == len(who) == len(side) or not len(shelf) == len(shelf_who) == len(shelf_side):
        raise VeilError("probe and gallery need as many ids, and views where given, as features")
    credit, luck = np.zeros(len(x)), np.zeros(len(x))
    step = max(1, 8 * _CELLS // max(1, len(shelf)))
    for rows in (slice(i, i + step) for i in range(0, len(x) if len(shelf) else 0, step)):
        allowed = side[rows, None] != shelf_side
        same = allowed & (who[rows, None] == shelf_who)
        near = np.where(allowed, x[rows] @ shelf.T, -np.inf)
        best = allowed & (near >= near.max(axis=1, keepdims=True) - _TIE)
        credit[rows] = (best & same).sum(axis=1) / np.maximum(best.sum(axis=1), 1)
        luck[rows] = same.sum(axis=1) / np.maximum(allowed.sum(axis=1), 1)
    notes: tuple[str, ...] = ()
    if lost := int((luck == 0).sum()):
        notes += (f"{lost} of {len(x)} probes are left out: their identity is not in their gallery",)
    if empty := int((~x.any(axis=1)).sum() + (~shelf.any(axis=1)).sum()):
        notes += (f"{empty} features are zero and so equally near to everything",)
    if len(np.unique(shelf_who)) == 1:
        notes += ("the gallery holds one identity: every probe finds it",)
    credit, luck = credit[luck > 0], luck[luck > 0]
    name = "rank-1" if views is None else "rank-1, identical view excluded"
    chance = float(luck.mean()) if len(luck) else None
    return _measure(name, _mean_of(credit), len(credit), chance, notes, bootstrap)


def f_lambda(accuracy: float, leakage: float, lam: float = 0.5) -> float:
    """A trade-off as one number, higher is better: (1 - lam) accuracy + lam (1 - leakage)."""
    _in_unit("accuracy, leakage and lam", np.array([accuracy, leakage, lam]), "write 0.87, not 87")
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

    A range is (chance, raw). u = (accuracy - chance) / (raw - chance) is the use that is left,
    q = (raw - leakage) / (raw - chance) the leakage that is gone, both clipped to [0, 1]. With the ranges
    given this is the normalised hypervolume: untouched video and destroyed video both give 0, its chance.
    Without them it is the raw one, of (accuracy, 1 - leakage). Publish both; the notes carry the ranges.
    """
    gain, loss = _settings(accuracy, leakage)
    (low, high), (safe, bare) = accuracy_range, leakage_range
    _in_unit("ranges", np.array([low, high, safe, bare]), "write 0.87, not 87")
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
    much as raw video leaks; what lies outside is kept, and said. The interval is that of `leaked`, raw and
    chance held fixed.
    """
    if (leaked.metric, leaked.n, leaked.chance) != (raw.metric, raw.n, raw.chance):
        raise VeilError(
            f"excess leakage compares one metric on one test set, got {leaked.metric} (n {leaked.n}, chance"
            f" {leaked.chance}) and {raw.metric} (n {raw.n}, chance {raw.chance})"
        )
    if raw.chance is None:
        raise VeilError(f"excess leakage needs a metric with a chance level, which {raw.metric} has not")
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


def _measure(
    metric: str,
    statistic: Statistic,
    videos: int,
    chance: float | None,
    notes: tuple[str, ...],
    bootstrap: Resampling,
    *,
    n: int | None = None,
    rows: int = 0,
) -> Score:
    """The statistic with every video once, and its interval where one is asked for and there is a value."""
    n = videos if n is None else n
    if n == 0:
        return Score(metric, np.nan, 0, chance, notes=(*notes, "nothing was given to score"))
    value, interval = float(statistic(np.ones((videos, 1)))[0]), None
    if bootstrap is not None and not np.isnan(value):
        interval, how = bootstrap.interval(statistic, videos, rows)
        notes = (*notes, how)
    return Score(metric, value, n, chance, interval=interval, notes=notes)


def _mean_of(credit: Floats) -> Statistic:
    return lambda weights: credit @ weights / weights.sum(axis=0)


def _ratio(a: Array, b: Array) -> Floats:
    """a / b, and nan where b is 0."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    return np.divide(a, b, out=np.full(a.shape, np.nan), where=b != 0)


class _Ranked(NamedTuple):
    """Rows from the highest score to the lowest; those alike in score, label and video are one row."""

    video: Ints  # (M,)
    times: Floats  # (M,) how many are alike
    hit: Ints  # (P,) the rows that are positive
    first: Ints  # (P,) the first row that ties with the hit
    last: Ints  # (P,) and the last


def _ranked(scores: Floats, truth: Bools, video: Ints) -> _Ranked:
    order = np.lexsort((video, truth, -scores))  # of those that tie, positives last
    s, y, v = scores[order], truth[order], video[order]
    new = np.ones(len(s), dtype=bool)
    new[1:] = (s[1:] != s[:-1]) | (y[1:] != y[:-1]) | (v[1:] != v[:-1])
    at = np.flatnonzero(new)
    s, hit = -s[at], np.flatnonzero(y[at])
    first, last = np.searchsorted(s, s[hit], side="left"), np.searchsorted(s, s[hit], side="right") - 1
    return _Ranked(v[at], np.diff(at, append=len(y)).astype(np.float64), hit, first, last)


def _ap(rank: _Ranked, weights: Floats | None = None) -> Floats:
    """Average precision `(R,)`: the mean over the hits of the precision down to each, its ties included."""
    if weights is None:
        weights = np.ones((rank.video.max(initial=-1) + 1, 1))
    if not len(rank.hit):
        return np.full(weights.shape[1], np.nan)
    counted = weights[rank.video[: rank.last[-1] + 1]]  # (M, R)
    if (rank.times != 1).any():
        counted *= rank.times[: len(counted), None]
    hits = counted[rank.hit]
    seen = np.cumsum(counted, axis=0, out=counted)[rank.last]
    right = np.cumsum(hits, axis=0)
    precision = right[np.searchsorted(rank.hit, rank.last)] / np.maximum(seen, 1)  # ties end with a hit
    return _ratio((hits * precision).sum(axis=0), right[-1])


def _mean_ap(
    metric: str, scores: Floats, truth: Bools, videos: Videos, skip_absent: bool, bootstrap: Resampling
) -> Score:
    ids, _, index = _videos(videos, len(scores))
    kept, notes = _classes(truth, skip_absent)
    if always := [int(k) for k in kept if len(truth) and truth[:, k].all()]:
        notes += (f"classes {always} have no negatives: their precision is 1 whatever is answered",)
    ranked = [_ranked(scores[:, k], truth[:, k], index) for k in kept]
    mean = _class_mean(lambda weights: np.stack([_ap(r, weights) for r in ranked]), skip_absent)
    chance = float(truth[:, kept].mean()) if truth[:, kept].size else None
    return _measure(metric, mean, len(ids), chance, notes, bootstrap, n=len(scores), rows=len(scores))


def _macro_f1(
    metric: str, answer: Bools, truth: Bools, videos: Videos, skip_absent: bool, bootstrap: Resampling
) -> Score:
    ids, _, index = _videos(videos, len(truth))
    kept, notes = _classes(truth, skip_absent)
    answer, truth = answer[:, kept], truth[:, kept]
    counts = np.zeros((3, len(ids), len(kept)))  # right, answered and true in each video, of each class
    for total, part in zip(counts, (answer & truth, answer, truth), strict=True):
        np.add.at(total, index, part)

    def f1(weights: Floats) -> Floats:
        right, answered, true = (c.T @ weights for c in counts)  # (K, R)
        return np.where(true > 0, _ratio(2 * right, answered + true), np.nan)

    p = truth.mean(axis=0) if truth.size else np.empty(0)
    chance = float((2 * p / (1 + p)).mean()) if truth.size else None
    return _measure(metric, _class_mean(f1, skip_absent), len(ids), chance, notes, bootstrap, n=len(truth))


def _class_mean(per_class: Callable[[Floats], Floats], skip_absent: bool) -> Statistic:
    """The mean over classes of `(K, R)`: nan where a class is undefined, unless those are to be skipped."""

    def mean(weights: Floats) -> Floats:
        table = per_class(weights)
        return _ratio(np.nansum(table, 0), (~np.isnan(table)).sum(0)) if skip_absent else table.mean(0)

    return mean


def _classes(truth: Bools, skip_absent: bool) -> tuple[Ints, tuple[str, ...]]:
    """The classes to average over, and a note on those without positives."""
    present = truth.sum(axis=0) > 0
    every, some = np.arange(len(present)), np.flatnonzero(present)
    if not len(truth) or len(some) == len(every):
        return every, ()
    if len(every) == 1:
        return every, ("there are no positives to find",)
    absent = f"classes {np.flatnonzero(~present).tolist()} of {len(every)} have no positives"
    if skip_absent and len(some):
        return some, (f"{absent}: the mean is over the other {len(some)}",)
    return every, (f"{absent}: there is no mean over all classes",)


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
        values.append(_ratio((hits * envelope).sum(axis=0), c.segments @ weights))
    return values


def _matched(
    found: Mapping[str, Any], truth: Mapping[str, Any], tiou: Sequence[float]
) -> tuple[list[_Class], tuple[str, ...]]:
    """Every annotated class with its detections told right from wrong, and notes."""
    if unlisted := sorted(set(found) - set(truth)):
        raise VeilError(f"the truth lacks video {unlisted[0]}: list it, without segments if it has none")
    if not tiou or not all(0 < t <= 1 for t in tiou):
        raise VeilError(f"tIoU thresholds lie above 0 and not above 1, got {tuple(tiou)}")
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
            raise VeilError(f"segments of {name} are rows of {columns} numbers, got {table.shape}")
        if not (table[:, 0] <= table[:, 1]).all() or np.isnan(table).any():
            raise VeilError(f"a segment of {name} does not start before it ends, or is nan")
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


class _Answers(NamedTuple):
    """What a classifier of so many classes said of each video."""

    credit: Floats  # (V,) 1 right, 0 wrong, 1/k where the right class is one of k tied for the best
    label: Ints  # (V,)
    tied: Ints  # (V,) that k
    group: npt.NDArray[Any]  # (V,)
    classes: int

    def of(self, mine: Bools) -> _Answers:
        return _Answers(self.credit[mine], self.label[mine], self.tied[mine], self.group[mine], self.classes)


def _accuracy(metric: str, a: _Answers, bootstrap: Resampling) -> Score:
    if not len(a.label):
        return _measure(metric, _mean_of(a.credit), 0, None, (), None)
    chance = float(np.bincount(a.label).max() / len(a.label))
    notes = (f"chance is the share of the most frequent class; 1/classes is {1 / a.classes:.4g}",)
    if ties := int((a.tied > 1).sum()):
        notes += (f"{ties} of {len(a.label)} videos have classes tied for the best, counted in part",)
    if chance == 1:
        notes += (f"all videos are of class {a.label[0]}: a constant answer is always right",)
    return _measure(metric, _mean_of(a.credit), len(a.label), chance, notes, bootstrap)


def _answers(probabilities: Array, labels: Array, videos: Videos, groups: Array | None = None) -> _Answers:
    share, label = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if not share.size and not label.size:
        none = np.empty(0, dtype=np.intp)
        return _Answers(np.empty(0), none, none, none, 0)
    if share.ndim != 2 or label.shape != share.shape[:1]:
        raise VeilError(f"probabilities are (N, K) and labels (N,), got {share.shape} and {label.shape}")
    _in_unit("probabilities", share, "softmax() makes them of logits")
    if (np.abs(share.sum(axis=1) - 1) > 0.02).any():  # what half precision may lose
        raise VeilError("a clip's probabilities must sum to 1; softmax() makes them of logits")
    if not np.isin(label, np.arange(share.shape[1])).all():
        raise VeilError(f"labels lie in 0..{share.shape[1] - 1}, got {label.min()}..{label.max()}")
    ids, first, index = _videos(videos, len(share))
    group = np.zeros(len(share)) if groups is None else np.asarray(groups)
    for what, values in (("label", label), ("group", group)):
        if values.shape != label.shape:
            raise VeilError(f"there is one {what} for each of the {len(share)} clips, got {values.shape}")
        if len(odd := np.flatnonzero(values != values[first][index])):
            raise VeilError(f"the clips of video {ids[index[odd[0]]]} have more than one {what}")
    mean = share if videos is None else video_mean(share, videos)[1]
    label, best = label[first].astype(np.intp), mean == mean.max(axis=1, keepdims=True)
    tied = best.sum(axis=1)
    return _Answers(best[np.arange(len(label)), label] / tied, label, tied, group[first], share.shape[1])


def _videos(videos: Videos, rows: int) -> tuple[npt.NDArray[Any], Ints, Ints]:
    """Sorted ids `(V,)`, the first row of each `(V,)`, and the index of each row's video `(N,)`."""
    ids = np.arange(rows) if videos is None else np.asarray(videos)
    if ids.shape != (rows,):
        raise VeilError(f"there is one video id for each of the {rows} rows, got {ids.shape}")
    return np.unique(ids, return_index=True, return_inverse=True)


def _labelled(scores: Array, labels: Array, axes: int = 2) -> tuple[Floats, Bools]:
    """Scores and their 0/1 labels, of one shape and checked."""
    s, y = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if not s.size and not y.size:
        shape = (0, *s.shape[1:]) if s.ndim == axes else (0,) * axes
        return np.empty(shape), np.empty(shape, dtype=bool)
    if s.ndim != axes or s.shape != y.shape:
        raise VeilError(f"scores and labels are both ({'N, K'[: 3 * axes - 2]}), got {s.shape} and {y.shape}")
    if np.isnan(s).any():
        raise VeilError(f"{int(np.isnan(s).sum())} of {s.size} scores are nan and cannot be ranked")
    if not np.isin(y, (0, 1)).all():
        raise VeilError("labels are 0 or 1; leave out what is not known")
    return s, y.astype(bool)


def _features(values: Array) -> Floats:
    """Features `(N, D)` brought to length 1; those of length 0 stay 0."""
    x = np.asarray(values, dtype=np.float64)
    x = x if x.size else np.empty((0, 0))
    if x.ndim != 2 or not np.isfinite(x).all():
        raise VeilError(f"features are (N, D) and finite, got {x.shape}")
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(length > 0, length, 1)


def _settings(accuracy: Array, leakage: Array) -> tuple[Floats, Floats]:
    gain, loss = np.asarray(accuracy, dtype=np.float64), np.asarray(leakage, dtype=np.float64)
    if gain.ndim != 1 or gain.shape != loss.shape:
        raise VeilError(f"accuracy and leakage are both (N,), got {gain.shape} and {loss.shape}")
    _in_unit("accuracy and leakage", np.concatenate([gain, loss]), "write 0.87, not 87")
    return gain, loss


def _in_unit(what: str, values: Floats, hint: str) -> None:
    if not ((values >= -1e-6) & (values <= 1 + 1e-6)).all():  # nan too; single precision may overshoot
        raise VeilError(f"{what} must lie in [0, 1], got {values.min():.4g} to {values.max():.4g}: {hint}")
