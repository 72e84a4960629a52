"""Classification: top-1 accuracy, accuracy of groups, average precision, area under the ROC curve and F1.

Values of average precision, ROC and F1 are scikit-learn's. scikit-learn is imported when a value is computed: it
is part of the extra `learn`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from veil.core import VeilError
from veil.metrics.score import (
    Array,
    Bools,
    Floats,
    Ints,
    Resampling,
    Score,
    Statistic,
    Videos,
    check_unit,
    mean_of,
    measured,
    ratio,
    video_index,
    video_mean,
)


def softmax(logits: Array) -> Floats:
    """Probabilities `(..., K)` from logits `(..., K)`: exp(z_k) / sum_j exp(z_j)."""
    from scipy.special import softmax

    return softmax(np.asarray(logits, dtype=np.float64), axis=-1)


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
        accuracy = ratio(weights.T @ (member * a.credit[:, None]), weights.T @ member)  # (R, G)
        return accuracy.max(axis=1) - accuracy.min(axis=1)

    if len(names) == 1:
        why = f"all videos are of the group {names[0]}: there is no gap to measure"
        return Score("top-1 gap", np.nan, len(a.credit), None, "lower", None, (why,))
    return replace(measured("top-1 gap", gap, len(a.credit), None, (), bootstrap), better="lower")


def average_precisions(scores: Array, labels: Array) -> Floats:
    """Average precision of each class, `(K,)`; nan for a class without positives.

    scores `(N, K)`, any that rank; labels `(N, K)` of 0 and 1. With precision P and recall R over all samples
    down to the i-th distinct score from above, AP = sum_i (R_i - R_{i-1}) P_i.
    """
    from sklearn.metrics import average_precision_score

    s, truth = _labelled(scores, labels)
    pairs = zip(s.T, truth.T, strict=True)
    return np.array(
        [average_precision_score(y, _order(x)) if y.any() else np.nan for x, y in pairs], np.float64
    )


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
    random scores reach (a little more where positives are few). A class without positives makes
    the mean undefined; with `skip_absent` it is over the others, and a note names the missing ones.
    """
    return _mean_ap("cMAP", *_labelled(scores, labels), videos, skip_absent, bootstrap)


def average_precision(
    scores: Array, labels: Array, videos: Videos = None, *, bootstrap: Resampling = None
) -> Score:
    """Average precision of one score, for example of an anomalous frame: scores, labels and videos `(N,)`.

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
    ids, _, index = video_index(videos, len(s))
    rank = _ranked(s, truth, index)
    negative = rank.times.copy()
    negative[rank.hit] = 0

    def area(weights: Floats) -> Floats:
        counted = weights[rank.video] * negative[:, None]  # (M, R)
        above = np.cumsum(counted, axis=0)  # negatives from the highest score down to here
        hits = weights[rank.video[rank.hit]] * rank.times[rank.hit, None]
        wrong = hits * (above[rank.first] - counted[rank.first] + above[rank.last]) / 2
        return 1 - ratio(wrong.sum(axis=0), hits.sum(axis=0) * above[-1])

    if len(truth) and truth.all() == truth.any():
        value, notes = np.nan, ("all frames are of one class: there are no pairs",)
    else:
        from sklearn.metrics import roc_auc_score

        value, notes = float(roc_auc_score(truth, _order(s))) if len(truth) else np.nan, ()
    size = {"n": len(s), "rows": len(rank.video)}
    return measured("frame AUC", area, len(ids), 0.5, notes, bootstrap, value=value, **size)


def f1_scores(predicted: Array, labels: Array) -> Floats:
    """F1 of each class, `(K,)`: 2 TP / (2 TP + FP + FN); nan for a class without positives.

    predicted and labels `(N, K)` of 0 and 1.
    """
    from sklearn.metrics import f1_score

    answer, truth = _labelled(predicted, labels)
    pairs = zip(answer.T > 0, truth.T, strict=True)
    return np.array([f1_score(y, x) if y.any() else np.nan for x, y in pairs], np.float64)


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
    yes, the best constant answer, which gives 2 p / (1 + p) at prevalence p. A class without
    positives: as in `class_mean_average_precision`.
    """
    share, truth = _labelled(probabilities, labels)
    check_unit("probabilities", share, "use macro_f1_raw_logit for logits")
    return _macro_f1("macro F1", share > 0.5, truth, videos, skip_absent, bootstrap)


def macro_f1_raw_logit(
    logits: Array,
    labels: Array,
    videos: Videos = None,
    *,
    skip_absent: bool = False,
    bootstrap: Resampling = None,
) -> Score:
    """`macro_f1` as in the released code of SPAct: answered if the *logit* is above 0.5 (probability 0.622).

    For comparison with published figures only.
    """
    z, truth = _labelled(logits, labels)
    return _macro_f1("macro F1 (raw logit > 0.5)", z > 0.5, truth, videos, skip_absent, bootstrap)


class _Ranked(NamedTuple):
    """Rows from the highest score to the lowest; those equal in score, label and video are one row."""

    video: Ints  # (M,)
    times: Floats  # (M,) how many are equal
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


def _resampled_ap(rank: _Ranked, weights: Floats) -> Floats:
    """Average precision `(R,)`: the mean over the hits of the precision down to each, its ties included."""
    if not len(rank.hit):
        return np.full(weights.shape[1], np.nan)
    counted = weights[rank.video[: rank.last[-1] + 1]]  # (M, R)
    if (rank.times != 1).any():
        counted *= rank.times[: len(counted), None]
    hits = counted[rank.hit]
    seen = np.cumsum(counted, axis=0, out=counted)[rank.last]
    right = np.cumsum(hits, axis=0)
    precision = right[np.searchsorted(rank.hit, rank.last)] / np.maximum(seen, 1)  # ties end with a hit
    return ratio((hits * precision).sum(axis=0), right[-1])


def _mean_ap(
    metric: str, scores: Floats, truth: Bools, videos: Videos, skip_absent: bool, bootstrap: Resampling
) -> Score:
    ids, _, index = video_index(videos, len(scores))
    kept, notes = _classes(truth, skip_absent)
    if always := [int(k) for k in kept if len(truth) and truth[:, k].all()]:
        notes += (f"classes {always} have no negatives: their precision is 1 whatever is answered",)
    ranked = [_ranked(scores[:, k], truth[:, k], index) for k in kept]
    mean = _class_mean(lambda weights: np.stack([_resampled_ap(r, weights) for r in ranked]), skip_absent)
    chance = float(truth[:, kept].mean()) if truth[:, kept].size else None
    value = _mean(average_precisions(scores[:, kept], truth[:, kept]))
    size = {"n": len(scores), "rows": len(scores)}
    return measured(metric, mean, len(ids), chance, notes, bootstrap, value=value, **size)


def _macro_f1(
    metric: str, answer: Bools, truth: Bools, videos: Videos, skip_absent: bool, bootstrap: Resampling
) -> Score:
    ids, _, index = video_index(videos, len(truth))
    kept, notes = _classes(truth, skip_absent)
    answer, truth = answer[:, kept], truth[:, kept]
    counts = np.zeros((3, len(ids), len(kept)))  # right, answered and true in each video, of each class
    for total, part in zip(counts, (answer & truth, answer, truth), strict=True):
        np.add.at(total, index, part)

    def f1(weights: Floats) -> Floats:
        right, answered, true = (c.T @ weights for c in counts)  # (K, R)
        return np.where(true > 0, ratio(2 * right, answered + true), np.nan)

    p = truth.mean(axis=0) if truth.size else np.empty(0)
    chance = float((2 * p / (1 + p)).mean()) if truth.size else None
    value = _mean(f1_scores(answer, truth))
    statistic = _class_mean(f1, skip_absent)
    return measured(metric, statistic, len(ids), chance, notes, bootstrap, value=value, n=len(truth))


def _order(scores: Floats) -> Ints:
    """Scores as integers in the same order, since scikit-learn refuses infinite ones."""
    return np.unique(scores, return_inverse=True)[1]


def _mean(values: Floats) -> float:
    """The mean over classes; nan where one is undefined, or there is none."""
    return float(values.mean()) if len(values) else np.nan


def _class_mean(per_class: Callable[[Floats], Floats], skip_absent: bool) -> Statistic:
    """The mean over classes of `(K, R)`: nan where a class is undefined, unless those are to be skipped."""

    def mean(weights: Floats) -> Floats:
        table = per_class(weights)
        return ratio(np.nansum(table, 0), (~np.isnan(table)).sum(0)) if skip_absent else table.mean(0)

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


class _VideoAnswers(NamedTuple):
    """The answers of a classifier for each video."""

    credit: Floats  # (V,) 1 right, 0 wrong, 1/k where the right class is one of k tied for the best
    label: Ints  # (V,)
    tied: Ints  # (V,) that k
    group: npt.NDArray[Any]  # (V,)
    classes: int

    def of(self, mine: Bools) -> _VideoAnswers:
        return _VideoAnswers(
            self.credit[mine], self.label[mine], self.tied[mine], self.group[mine], self.classes
        )


def _accuracy(metric: str, a: _VideoAnswers, bootstrap: Resampling) -> Score:
    if not len(a.label):
        return measured(metric, mean_of(a.credit), 0, None, (), None)
    chance = float(np.bincount(a.label).max() / len(a.label))
    notes = (f"chance is the share of the most frequent class; 1/classes is {1 / a.classes:.4g}",)
    if ties := int((a.tied > 1).sum()):
        notes += (f"{ties} of {len(a.label)} videos have classes tied for the best, counted in part",)
    if chance == 1:
        notes += (f"all videos are of class {a.label[0]}: a constant answer is always right",)
    return measured(metric, mean_of(a.credit), len(a.label), chance, notes, bootstrap)


def _answers(
    probabilities: Array, labels: Array, videos: Videos, groups: Array | None = None
) -> _VideoAnswers:
    share, label = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if not share.size and not label.size:
        none = np.empty(0, dtype=np.intp)
        return _VideoAnswers(np.empty(0), none, none, none, 0)
    if share.ndim != 2 or label.shape != share.shape[:1]:
        raise VeilError(
            f"probabilities are {share.shape} and labels {label.shape}: give (N, K) and (N,).",
            code="metric-input-shape",
        )
    check_unit("probabilities", share, "apply softmax() to logits")
    if (np.abs(share.sum(axis=1) - 1) > 0.02).any():  # what half precision may lose
        raise VeilError(
            "the probabilities of a clip do not sum to 1: apply softmax() to logits.",
            code="probabilities-not-normalised",
        )
    if not np.isin(label, np.arange(share.shape[1])).all():
        raise VeilError(
            f"labels are {label.min()} to {label.max()}: give 0 to {share.shape[1] - 1}.",
            code="label-out-of-range",
        )
    ids, first, index = video_index(videos, len(share))
    group = np.zeros(len(share)) if groups is None else np.asarray(groups)
    for what, values in (("label", label), ("group", group)):
        if values.shape != label.shape:
            raise VeilError(
                f"{values.shape} {what}s for {len(share)} clips: give one for each.",
                code="metric-input-shape",
            )
        if len(odd := np.flatnonzero(values != values[first][index])):
            raise VeilError(
                f"the clips of video {ids[index[odd[0]]]} have more than one {what}: give one.",
                code="clips-disagree",
            )
    mean = share if videos is None else video_mean(share, videos)[1]
    label, best = label[first].astype(np.intp), mean == mean.max(axis=1, keepdims=True)
    tied = best.sum(axis=1)
    return _VideoAnswers(best[np.arange(len(label)), label] / tied, label, tied, group[first], share.shape[1])


def _labelled(scores: Array, labels: Array, axes: int = 2) -> tuple[Floats, Bools]:
    """Scores and their 0/1 labels, of one shape and checked."""
    s, y = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if not s.size and not y.size:
        shape = (0, *s.shape[1:]) if s.ndim == axes else (0,) * axes
        return np.empty(shape), np.empty(shape, dtype=bool)
    if s.ndim != axes or s.shape != y.shape:
        raise VeilError(
            f"scores are {s.shape} and labels {y.shape}: give both as ({'N, K'[: 3 * axes - 2]}).",
            code="metric-input-shape",
        )
    if np.isnan(s).any():
        raise VeilError(
            f"{int(np.isnan(s).sum())} of {s.size} scores are nan: leave these out.", code="score-nan"
        )
    if not np.isin(y, (0, 1)).all():
        raise VeilError("a label is neither 0 nor 1: leave out unknown labels.", code="label-out-of-range")
    return s, y.astype(bool)
