"""Every metric against the loop one would write without thinking, and against the libraries that have it."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from errors import refuses
from veil import metrics as m
from veil.metrics import Bootstrap, Score
from veil.metrics import score as score_module

approx = pytest.approx
unit = st.floats(0, 1, allow_nan=False)


def noted(score: Score, words: str) -> bool:
    return any(words in note for note in score.notes)


def naive_ap(scores: Any, labels: Any) -> float:
    pairs = [(float(s), bool(y)) for s, y in zip(scores, labels, strict=True)]
    positives = sum(y for _, y in pairs)
    if not positives:
        return math.nan
    area, before = 0.0, 0.0
    for threshold in sorted({s for s, _ in pairs}, reverse=True):
        above = [y for s, y in pairs if s >= threshold]
        recall = sum(above) / positives
        area += (recall - before) * sum(above) / len(above)
        before = recall
    return area


def naive_auc(scores: Any, labels: Any) -> float:
    wins, pairs = 0.0, 0
    for s, y in zip(scores, labels, strict=True):
        for other, z in zip(scores, labels, strict=True):
            if y and not z:
                pairs += 1
                wins += 1.0 if s > other else 0.5 if s == other else 0.0
    return wins / pairs if pairs else math.nan


def naive_top1(probabilities: Any, labels: Any, videos: Any) -> float:
    clips: dict[Any, list[Any]] = {}
    label = dict(zip(videos, labels, strict=True))
    for p, video in zip(probabilities, videos, strict=True):
        clips.setdefault(video, []).append(p)
    right = [int(np.argmax(sum(ps) / len(ps))) == label[video] for video, ps in clips.items()]
    return sum(right) / len(right)


def naive_f1(predicted: Any, labels: Any) -> list[float]:
    values = []
    for k in range(len(labels[0])):
        tp = sum(bool(p[k]) and bool(y[k]) for p, y in zip(predicted, labels, strict=True))
        fp = sum(bool(p[k]) and not y[k] for p, y in zip(predicted, labels, strict=True))
        fn = sum(not p[k] and bool(y[k]) for p, y in zip(predicted, labels, strict=True))
        values.append(2 * tp / (2 * tp + fp + fn) if tp + fn else math.nan)
    return values


def naive_rank1(probe: Any, identity: Any, gallery: Any, shelf: Any, views: Any = None) -> float:
    right = []
    for i, x in enumerate(probe):
        best, name, possible = -2.0, None, False
        for j, g in enumerate(gallery):
            if views is not None and views[0][i] == views[1][j]:
                continue
            possible |= shelf[j] == identity[i]
            cosine = sum(a * b for a, b in zip(x, g, strict=True)) / math.hypot(*x) / math.hypot(*g)
            if cosine > best:
                best, name = cosine, shelf[j]
        if possible:
            right.append(name == identity[i])
    return sum(right) / len(right)


def overlap(a: Any, b: Any) -> float:
    both = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    return both / (a[1] - a[0] + b[1] - b[0] - both)


def naive_temporal_ap(found: Any, truth: Any, label: int, threshold: float) -> float:
    detections = [(d[3], v, d) for v, ds in found.items() for d in ds if d[2] == label]
    detections.sort(key=lambda d: -d[0])
    wanted = sum(g[2] == label for gs in truth.values() for g in gs)
    taken: set[tuple[Any, int]] = set()
    curve, right = [], 0
    for i, (_, video, d) in enumerate(detections):
        candidates = [(overlap(d, g), j) for j, g in enumerate(truth[video]) if g[2] == label]
        for share, j in sorted(candidates, key=lambda c: -c[0]):
            if share >= threshold and (video, j) not in taken:
                taken.add((video, j))
                right += 1
                break
        curve.append((right / wanted, right / (i + 1)))
    area, before = 0.0, 0.0
    for i, (recall, _) in enumerate(curve):
        area += (recall - before) * max(precision for _, precision in curve[i:])
        before = recall
    return area


def naive_hypervolume(u: Any, q: Any) -> float:
    area = 0.0
    for left, right in pairwise(sorted({0.0, *u})):
        for low, high in pairwise(sorted({0.0, *q})):
            if any(x >= right and y >= high for x, y in zip(u, q, strict=True)):
                area += (right - left) * (high - low)
    return area


def attributes(seed: int = 0, n: int = 120, k: int = 4, ties: bool = True) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.random((n, k)) < rng.uniform(0.2, 0.7, k)
    scores = rng.random((n, k)) * 0.7 + 0.3 * labels
    return (scores.round(1) if ties else scores), labels.astype(int), rng.integers(0, n // 4, n)


def clips(seed: int = 0, videos: int = 40, each: int = 5, k: int = 6) -> tuple[Any, Any, Any, Any]:
    """Clips in mixed order: probabilities, labels, groups, video names."""
    rng = np.random.default_rng(seed)
    label, group = rng.integers(0, k, videos), rng.integers(0, 3, videos)
    which = rng.permutation(np.repeat(np.arange(videos), each))
    logits = rng.normal(size=(len(which), k)) + 1.2 * np.eye(k)[label[which]]
    names = np.array([f"v{i:03}" for i in which])
    return m.softmax(logits), label[which], np.array(["north", "east", "west"])[group[which]], names


def untrimmed(seed: int = 0, videos: int = 8) -> tuple[dict[str, Any], dict[str, Any]]:
    """Detections, and the truth they scatter around."""
    rng = np.random.default_rng(seed)
    found, truth = {}, {}
    for i in range(videos):
        start = rng.uniform(0, 60, rng.integers(3, 9))
        truth[f"v{i}"] = np.stack(
            [start, start + rng.uniform(2, 9, len(start)), rng.integers(0, 3, len(start))], 1
        )
        near = truth[f"v{i}"][rng.integers(0, len(start), 30)]
        ends = np.sort(near[:, :2] + rng.normal(0, 1.2, (30, 2)), axis=1)
        wrong = rng.random(30) < 0.2
        found[f"v{i}"] = np.column_stack(
            [ends, np.where(wrong, rng.integers(0, 3, 30), near[:, 2]), rng.random(30)]
        )
    truth["empty"], found["empty"] = [], [(1.0, 2.0, 0, 0.5)]
    truth["unseen"] = [(0.0, 5.0, 1)]
    return found, truth


def test_top1_is_the_mean_over_a_videos_clips():
    p, y, _, v = clips()
    score = m.top1(p, y, v)
    assert score.value == approx(naive_top1(p, y, v)) and score.n == 40
    label = dict(zip(v, y, strict=True))
    assert score.chance == approx(max(list(label.values()).count(c) for c in range(6)) / 40)
    assert noted(score, "most frequent class") and noted(score, "1/classes is 0.1667")
    assert m.top1(p, y).n == 200 and m.top1(p, y).value == approx((p.argmax(1) == y).mean())


def test_top1_averages_probabilities_and_not_votes():
    p = [[0.9, 0.1], [0.45, 0.55], [0.45, 0.55]]
    assert m.top1(p, [0, 0, 0], ["a", "a", "a"]).value == 1


def test_ties_for_the_best_class_count_in_part():
    score = m.top1(np.full((8, 4), 0.25), [0, 0, 0, 0, 0, 1, 2, 3])
    assert score.value == approx(0.25) and noted(score, "8 of 8 videos have classes tied")


def test_video_mean_takes_any_shape():
    ids, means = m.video_mean(np.arange(12.0).reshape(3, 2, 2), ["b", "a", "b"])
    assert ids.tolist() == ["a", "b"]
    np.testing.assert_allclose(means, [[[4, 5], [6, 7]], [[4, 5], [6, 7]]])


def test_groups_and_their_gap():
    p, y, g, v = clips(3)
    scores = m.group_accuracy(p, y, g, v)
    for name, score in scores.items():
        mine = g == name
        assert score.value == approx(naive_top1(p[mine], y[mine], v[mine])) and score.n == len(set(v[mine]))
    values = [score.value for score in scores.values()]
    gap = m.group_gap(p, y, g, v)
    assert list(scores) == ["east", "north", "west"] and gap.value == approx(max(values) - min(values))
    assert gap.better == "lower" and gap.n == 40 and gap.chance is None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_average_precision_and_auc_on_anything(data: st.DataObject):
    n = data.draw(st.integers(1, 25))
    scores = data.draw(
        hnp.arrays(float, n, elements=st.sampled_from([-np.inf, -2.0, 0.0, 0.1, 0.3, 7.0, np.inf]))
    )
    labels = data.draw(hnp.arrays(bool, n))
    videos = data.draw(hnp.arrays(int, n, elements=st.integers(0, 3)))
    ap, auc = m.average_precision(scores, labels, videos), m.frame_auc(scores, labels, videos)
    assert ap.value == approx(naive_ap(scores, labels), nan_ok=True)
    assert auc.value == approx(naive_auc(scores, labels), nan_ok=True)
    assert ap.chance == approx(labels.mean()) and auc.chance == 0.5 and ap.n == auc.n == n


def test_class_mean_average_precision():
    s, y, v = attributes()
    score, each = m.class_mean_average_precision(s, y, v), m.average_precisions(s, y)
    assert each == approx([naive_ap(s[:, k], y[:, k]) for k in range(4)])
    assert score.value == approx(each.mean()) and score.chance == approx(y.mean()) and score.n == 120


def test_ignorant_scores_reach_chance():
    rng = np.random.default_rng(0)
    y = rng.random((20_000, 7)) < [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.8]
    score = m.class_mean_average_precision(rng.random(y.shape), y)
    assert score.value == approx(score.chance, abs=0.01)
    constant = m.class_mean_average_precision(np.zeros(y.shape), y)
    assert constant.value == approx(constant.chance, abs=1e-12)
    yes = m.macro_f1(np.ones(y.shape), y)
    assert yes.value == approx(yes.chance, abs=1e-12)


def test_f1_at_probability_and_at_raw_logit():
    s, y, v = attributes(1)
    logits = np.log(np.clip(s, 1e-3, 0.999) / (1 - np.clip(s, 1e-3, 0.999)))
    score, raw = m.macro_f1(s, y, v), m.macro_f1_raw_logit(logits, y, v)
    assert m.f1_scores(s > 0.5, y) == approx(naive_f1(s > 0.5, y))
    assert score.value == approx(np.mean(naive_f1(s > 0.5, y)))
    assert raw.value == approx(np.mean(naive_f1(s > 1 / (1 + math.exp(-0.5)), y)))
    assert raw.value != score.value and "raw logit" in raw.metric


@pytest.mark.parametrize("seed", range(5))
def test_temporal_map(seed: int):
    found, truth = untrimmed(seed)
    labels, table = m.temporal_average_precisions(found, truth)
    assert labels.tolist() == [0, 1, 2] and table.shape == (5, 3)
    expected = [[naive_temporal_ap(found, truth, c, t) for c in range(3)] for t in m.THUMOS_TIOU]
    np.testing.assert_allclose(table, expected)
    score = m.temporal_map(found, truth)
    assert score.value == approx(np.mean(expected)) and score.n == sum(map(len, truth.values()))
    assert 0.1 < score.value < 0.9 and score.chance is None


def test_a_segment_is_found_once_and_a_second_choice_is_taken():
    truth = {"a": [(0, 10, 0), (4, 14, 0)]}
    one = {"a": [(0, 10, 0, 0.9)]}
    assert m.temporal_map(one, truth, tiou=[0.5]).value == approx(0.5)
    twice = {"a": [(0, 10, 0, 0.9), (0, 10, 0, 0.8)]}
    assert m.temporal_map(twice, truth, tiou=[0.5]).value == approx(0.5)  # tIoU with the second is 6 / 14
    assert m.temporal_map(twice, truth, tiou=[0.4]).value == approx(1)
    assert m.temporal_map({}, truth).value == 0
    assert m.temporal_map({"a": [(0, 5, 0, 0.9)]}, truth, tiou=[0.5]).value == approx(
        0.5
    )  # reaching is enough


def test_temporal_notes():
    found, truth = {"a": [(0, 1, 0, 0.9), (0, 1, 7, 0.8)]}, {"a": [(0, 1, 0), (0.0005, 1.0005, 0), (0, 1, 1)]}
    score = m.temporal_map(found, truth, tiou=[0.5])
    assert score.value == approx(0.5) and score.n == 2
    assert noted(score, "1 segments are annotated twice") and noted(score, "1 detections are of classes")
    with refuses("truth-lacks-video"):
        m.temporal_map({"b": []}, truth)
    with refuses("segments-invalid"):
        m.temporal_map({"a": [(2, 1, 0, 0.9)]}, truth)
    with refuses("segments-invalid"):
        m.temporal_map({"a": [(1, 2, 0)]}, truth)


def test_rank1_with_and_without_the_identical_view():
    rng = np.random.default_rng(0)
    identity, side = rng.integers(0, 6, 30), rng.integers(0, 3, 30)
    shelf, shelf_side = rng.integers(0, 6, 40), rng.integers(0, 3, 40)
    person, angle = rng.normal(size=(6, 8)), rng.normal(size=(3, 8))
    probe = person[identity] + 2 * angle[side] + rng.normal(size=(30, 8))
    gallery = person[shelf] + 2 * angle[shelf_side] + rng.normal(size=(40, 8))
    score = m.rank1(probe, identity, gallery, shelf)
    assert score.value == approx(naive_rank1(probe, identity, gallery, shelf)) and score.n == 30
    assert score.chance == approx(np.mean([np.mean(shelf == w) for w in identity]))
    other = m.rank1(3 * probe, identity, gallery, shelf, views=(side, shelf_side))
    assert other.value == approx(naive_rank1(probe, identity, gallery, shelf, (side, shelf_side)))
    assert other.value != score.value and "view excluded" in other.metric


def test_features_on_one_point_find_nobody():
    identity, shelf = np.arange(50) % 10, np.arange(200) % 10
    score = m.rank1(np.full((50, 64), 0.3), identity, np.full((200, 64), 0.7), shelf)
    assert score.value == approx(score.chance) == approx(0.1)
    assert noted(m.rank1(np.zeros((2, 3)), [0, 1], np.ones((2, 3)), [0, 1]), "2 features are zero")


def test_f_lambda():
    assert m.f_lambda(0.9, 0.2) == approx(0.85)
    assert m.f_lambda(0.9, 0.2, 0) == approx(0.9) and m.f_lambda(0.9, 0.2, 1) == approx(0.8)
    with refuses("not-in-unit-interval"):
        m.f_lambda(87.1, 51.9)


def test_published_figures_read_again():
    raw = m.hypervolume([0.8447], [1 - 0.374])  # SPLAVU on PA-HMDB51
    assert raw.value == approx(0.316, abs=5e-4) and raw.metric == "hypervolume"
    for cmap, left in ((0.5743, 0.82), (0.5532, 0.77)):  # VISPR1: SPAct, supervised
        share = m.excess_leakage(Score("cMAP", cmap, 8000, 0.248), Score("cMAP", 0.6441, 8000, 0.248))
        assert share.value == approx(left, abs=5e-3) and share.better == "lower" and share.chance == 0


points = st.lists(st.tuples(unit, unit), min_size=1, max_size=8)
ranges = st.tuples(st.floats(0, 0.5), st.floats(0.502, 1))  # chance, raw


@settings(max_examples=100, deadline=None)
@given(points, st.tuples(unit, unit), st.randoms())
def test_hypervolume_is_the_union_of_rectangles(
    ps: list[tuple[float, float]], new: tuple[float, float], rnd: Any
):
    a, p = zip(*ps, strict=True)
    area = m.hypervolume(a, p).value
    assert area == approx(naive_hypervolume(a, [1 - x for x in p]), abs=1e-9)
    grown = m.hypervolume([*a, new[0]], [*p, new[1]]).value
    assert grown >= area - 1e-12  # a further setting never harms
    mixed = rnd.sample(ps, len(ps))
    assert m.hypervolume(*zip(*mixed, strict=True)).value == approx(area)
    front = m.pareto_front(a, p)
    assert m.hypervolume(np.take(a, front), np.take(p, front)).value == approx(area)  # only the front matters


@settings(max_examples=60, deadline=None)
@given(points, ranges, ranges)
def test_normalised_hypervolume(
    ps: list[tuple[float, float]], use: tuple[float, float], leak: tuple[float, float]
):
    (low, high), (safe, bare) = use, leak
    a, p = np.array(ps).T
    score = m.hypervolume(a, p, accuracy_range=(low, high), leakage_range=(safe, bare))
    u = np.clip((a - low) / (high - low), 0, 1)
    q = np.clip((bare - p) / (bare - safe), 0, 1)
    assert score.value == approx(naive_hypervolume(u, q), abs=1e-9) and 0 <= score.value <= 1 + 1e-12
    assert (score.metric == "normalised hypervolume") or (low, high, safe, bare) == (0, 1, 0, 1)
    trivial = m.hypervolume([high, low], [bare, safe], accuracy_range=(low, high), leakage_range=(safe, bare))
    assert trivial.value == approx(0, abs=1e-12)  # raw video and no video are worth nothing


@settings(max_examples=100, deadline=None)
@given(points)
def test_pareto_front(ps: list[tuple[float, float]]):
    a, p = np.array(ps).T
    better = lambda i, j: a[i] >= a[j] and p[i] <= p[j] and (a[i] > a[j] or p[i] < p[j])  # noqa: E731
    expected = {j for j in range(len(a)) if not any(better(i, j) for i in range(len(a)))}
    front = m.pareto_front(a, p)
    assert set(front.tolist()) == expected and (np.diff(a[front]) >= 0).all()


def test_against_scikit_learn():
    sk = pytest.importorskip("sklearn.metrics")
    s, y, v = attributes(2, n=500)
    assert m.average_precisions(s, y) == approx(sk.average_precision_score(y, s, average=None))
    assert m.class_mean_average_precision(s, y).value == approx(sk.average_precision_score(y, s))
    assert m.average_precision(s[:, 0], y[:, 0]).value == approx(sk.average_precision_score(y[:, 0], s[:, 0]))
    assert m.frame_auc(s[:, 0], y[:, 0], v).value == approx(sk.roc_auc_score(y[:, 0], s[:, 0]))
    assert m.f1_scores(s > 0.5, y) == approx(sk.f1_score(y, s > 0.5, average=None))
    assert m.macro_f1(s, y).value == approx(sk.f1_score(y, s > 0.5, average="macro"))
    p, labels, _, _ = clips()
    assert m.top1(p, labels).value == approx(sk.top_k_accuracy_score(labels, p, k=1))


def test_against_torchmetrics():
    tm = pytest.importorskip("torchmetrics.functional.classification")
    torch = pytest.importorskip("torch")
    s, y, _ = attributes(4, n=400, ties=False)
    ts, ty = torch.from_numpy(s), torch.from_numpy(y)
    near = 1e-5  # torchmetrics computes in single precision
    assert m.class_mean_average_precision(ts, ty).value == approx(
        float(tm.multilabel_average_precision(ts, ty, 4)), abs=near
    )
    assert m.macro_f1(ts, ty).value == approx(float(tm.multilabel_f1_score(ts, ty, 4)), abs=near)
    assert m.frame_auc(ts[:, 0], ty[:, 0]).value == approx(
        float(tm.binary_auroc(ts[:, 0], ty[:, 0])), abs=near
    )
    p, labels, _, _ = clips()
    accuracy = tm.multiclass_accuracy(torch.from_numpy(p), torch.from_numpy(labels), 6, average="micro")
    assert m.top1(p, labels).value == approx(float(accuracy), abs=near)


def test_a_class_without_positives_is_not_averaged_away():
    s, y, _ = attributes()
    y[:, 2] = 0
    for metric in (m.class_mean_average_precision, m.macro_f1):
        strict, rest = metric(s, y), metric(s, y, skip_absent=True)
        assert math.isnan(strict.value) and noted(strict, "classes [2] of 4 have no positives")
        assert strict.n == 120 and strict.interval is None
        kept = [0, 1, 3]
        assert rest.value == approx(metric(s[:, kept], y[:, kept]).value) and noted(rest, "over the other 3")
        assert rest.chance == approx(metric(s[:, kept], y[:, kept]).chance)
        none = metric(s, np.zeros_like(y), skip_absent=True)
        assert math.isnan(none.value) and noted(none, "have no positives")
    assert np.isnan(m.average_precisions(s, y)).tolist() == [False, False, True, False]
    assert np.isnan(m.f1_scores(s > 0.5, y)).tolist() == [False, False, True, False]
    y[:, 2] = 1
    assert noted(m.class_mean_average_precision(s, y), "classes [2] have no negatives")


def test_one_class_only_is_noted():
    for labels in (np.zeros(5), np.ones(5)):
        score = m.frame_auc(np.arange(5), labels, bootstrap=Bootstrap(10))
        assert math.isnan(score.value) and noted(score, "one class") and score.interval is None
    nothing = m.average_precision(np.arange(5), np.zeros(5))
    assert math.isnan(nothing.value) and noted(nothing, "no positives") and nothing.chance == 0
    score = m.top1(np.eye(3), [1, 1, 1])
    assert score.value == approx(1 / 3) and score.chance == 1 and noted(score, "class 1")
    gap = m.group_gap(np.eye(3), [0, 1, 2], ["all"] * 3)
    assert math.isnan(gap.value) and noted(gap, "no gap")
    rank = m.rank1(np.eye(3), [0, 0, 5], np.eye(3), [0, 0, 0])
    assert (
        rank.value == 1
        and rank.n == 2
        and noted(rank, "1 of 3 probes are left out")
        and noted(rank, "one identity")
    )
    per_group = m.group_accuracy(np.eye(3), [0, 1, 1], ["a", "b", "b"])
    assert noted(per_group["b"], "all videos are of class 1") and per_group["b"].value == 0.5


EMPTY: dict[str, Callable[[], Score]] = {
    "top1": lambda: m.top1([], []),
    "top1 of no rows": lambda: m.top1(np.empty((0, 5)), np.empty(0)),
    "gap": lambda: m.group_gap([], [], []),
    "cmap": lambda: m.class_mean_average_precision([], []),
    "cmap of no rows": lambda: m.class_mean_average_precision(np.empty((0, 7)), np.empty((0, 7))),
    "cmap of no classes": lambda: m.class_mean_average_precision(np.empty((3, 0)), np.empty((3, 0))),
    "ap": lambda: m.average_precision([], []),
    "auc": lambda: m.frame_auc([], [], []),
    "f1": lambda: m.macro_f1([], []),
    "temporal": lambda: m.temporal_map({}, {}),
    "temporal without segments": lambda: m.temporal_map({"a": [(0, 1, 0, 0.5)]}, {"a": []}),
    "rank1": lambda: m.rank1([], [], np.eye(3), [0, 1, 2]),
    "rank1 without gallery": lambda: m.rank1(np.eye(3), [0, 1, 2], [], []),
    "hypervolume": lambda: m.hypervolume([], []),
}


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_to_score(name: str):
    score = EMPTY[name]()
    assert math.isnan(score.value) and score.n == 0 and noted(score, "nothing was given")


def test_no_groups_and_no_classes():
    assert m.group_accuracy([], [], []) == {}
    assert m.average_precisions([], []).shape == (0,)
    assert [x.shape for x in m.temporal_average_precisions({}, {})] == [(0,), (5, 0)]
    assert m.pareto_front([], []).tolist() == []


def test_excess_leakage_notes_what_is_odd():
    raw = Score("cMAP", 0.7, 100, 0.3, interval=(0.6, 0.8))
    leaked = Score("cMAP", 0.5, 100, 0.3, interval=(0.4, 0.6), notes=("few videos",))
    half = m.excess_leakage(leaked, raw)
    assert half.value == approx(0.5) and half.interval == approx((0.25, 0.75)) and noted(half, "few videos")
    assert noted(m.excess_leakage(Score("cMAP", 0.2, 100, 0.3), raw), "below chance")
    assert noted(m.excess_leakage(Score("cMAP", 0.9, 100, 0.3), raw), "above raw")
    for value in (0.3, 0.1, math.nan):
        flat = m.excess_leakage(leaked, Score("cMAP", value, 100, 0.3))
        assert math.isnan(flat.value) and noted(flat, "nothing above chance")
    shaky = m.excess_leakage(leaked, Score("cMAP", 0.31, 100, 0.3, interval=(0.29, 0.33)))
    assert noted(shaky, "almost nothing")
    with refuses("scores-not-comparable"):
        m.excess_leakage(leaked, Score("cMAP", 0.7, 99, 0.3))
    with refuses("score-without-chance"):
        m.excess_leakage(Score("mAP", 0.5, 9), Score("mAP", 0.7, 9))


def test_hypervolume_without_head_room_is_noted():
    score = m.hypervolume([0.5], [0.5], accuracy_range=(0.6, 0.5), leakage_range=(0.2, 0.9))
    assert math.isnan(score.value) and noted(score, "no better than chance") and score.n == 1
    clipped = m.hypervolume([0.05, 0.5], [0.5, 0.5], accuracy_range=(0.1, 0.9), leakage_range=(0.2, 0.9))
    assert noted(clipped, "1 of 2 settings lie outside") and noted(clipped, "accuracy 0.1 by chance, 0.9 raw")


BAD: list[tuple[str, Callable[[], Any]]] = [
    ("not-in-unit-interval", lambda: m.top1([[2.0, -1.0]], [0])),
    ("probabilities-not-normalised", lambda: m.top1([[0.2, 0.2]], [0])),
    ("label-out-of-range", lambda: m.top1([[0.5, 0.5]], [2])),
    ("metric-input-shape", lambda: m.top1([0.5, 0.5], [0, 1])),
    ("clips-disagree", lambda: m.top1([[0.5, 0.5]] * 2, [0, 1], ["a", "a"])),
    ("clips-disagree", lambda: m.group_gap([[0.5, 0.5]] * 2, [0, 0], ["x", "y"], ["a", "a"])),
    ("metric-input-shape", lambda: m.group_gap([[0.5, 0.5]] * 2, [0, 0], ["x"], ["a", "a"])),
    ("metric-input-shape", lambda: m.top1([[0.5, 0.5]] * 2, [0, 1], ["a"])),
    ("metric-input-shape", lambda: m.class_mean_average_precision([1.0, 2.0], [0, 1])),
    ("metric-input-shape", lambda: m.frame_auc([[1.0]], [[1]])),
    ("score-nan", lambda: m.frame_auc([math.nan, 1.0], [0, 1])),
    ("label-out-of-range", lambda: m.frame_auc([0.5, 1.0], [0, 2])),
    ("not-in-unit-interval", lambda: m.macro_f1([[3.0]], [[1]])),
    ("metric-input-shape", lambda: m.rank1(np.eye(3), [0, 1], np.eye(3), [0, 1, 2])),
    ("features-invalid", lambda: m.rank1([[math.inf]], [0], [[1.0]], [0])),
    ("not-in-unit-interval", lambda: m.hypervolume([87.0], [20.0])),
    ("tiou-out-of-range", lambda: m.temporal_map({}, {}, tiou=[1.5])),
    ("bootstrap-invalid", lambda: Bootstrap(level=95)),
]


@pytest.mark.parametrize(("code", "call"), BAD)
def test_bad_input_is_refused(code: str, call: Callable[[], Any]):
    with refuses(code):
        call()


def test_as_leakage():
    score = m.top1(np.eye(3), [0, 1, 2])
    assert score.better == "higher" and score.as_leakage().better == "lower"


def drawn(bootstrap: Bootstrap, videos: int) -> list[list[int]]:
    """Which videos each resample holds."""
    taken: list[list[int]] = []

    def note(weights: Any) -> Any:
        assert (weights.sum(axis=0) == videos).all()
        taken.extend(np.repeat(np.arange(videos), column.astype(int)).tolist() for column in weights.T)
        return np.zeros(weights.shape[1])

    bootstrap.draws(note, videos)
    return taken


def rows_of(videos: Any, taken: list[int]) -> tuple[Any, Any]:
    """The rows of the drawn videos, each draw under a name of its own."""
    ids = np.unique(videos)
    rows = [np.flatnonzero(videos == ids[i]) for i in taken]
    return np.concatenate(rows), np.repeat(np.arange(len(taken)), [len(r) for r in rows])


def resampled(
    metric: Callable[..., Score], arrays: tuple[Any, ...], videos: Any
) -> Callable[[list[int]], float]:
    def value(taken: list[int]) -> float:
        rows, names = rows_of(videos, taken)
        return metric(*(a[rows] for a in arrays), names).value

    return value


def temporal_value(found: Any, truth: Any) -> Callable[[list[int]], float]:
    names = list(truth)

    def value(taken: list[int]) -> float:
        pick = {f"{i} {names[k]}": names[k] for i, k in enumerate(taken)}
        return m.temporal_map(
            {new: found.get(old, []) for new, old in pick.items()},
            {new: truth[old] for new, old in pick.items()},
        ).value

    return value


@pytest.mark.parametrize(
    "name", ["top1", "group_gap", "cmap", "f1", "auc", "average_precision", "temporal", "rank1"]
)
def test_an_interval_is_that_of_really_drawing_videos(name: str):
    """Weights are a shortcut: here every resample is laid out row by row and scored from the start."""
    boot = Bootstrap(60, 0.8, seed=3)
    p, y, g, v = clips()
    s, attribute, w = attributes()
    found, truth = untrimmed(videos=14)
    person = np.random.default_rng(0).normal(size=(8, 5))
    shelf = np.arange(24) % 8
    gallery, probe = person[shelf] + 0.3, person + np.random.default_rng(1).normal(size=(8, 5))
    cases: dict[str, tuple[Score, Callable[[list[int]], float], int]] = {
        "top1": (m.top1(p, y, v, bootstrap=boot), resampled(m.top1, (p, y), v), 40),
        "group_gap": (m.group_gap(p, y, g, v, bootstrap=boot), resampled(m.group_gap, (p, y, g), v), 40),
        "cmap": (
            m.class_mean_average_precision(s, attribute, w, bootstrap=boot),
            resampled(m.class_mean_average_precision, (s, attribute), w),
            len(set(w)),
        ),
        "f1": (
            m.macro_f1(s, attribute, w, bootstrap=boot),
            resampled(m.macro_f1, (s, attribute), w),
            len(set(w)),
        ),
        "auc": (
            m.frame_auc(s[:, 0], attribute[:, 0], w, bootstrap=boot),
            resampled(m.frame_auc, (s[:, 0], attribute[:, 0]), w),
            len(set(w)),
        ),
        "average_precision": (
            m.average_precision(s[:, 1], attribute[:, 1], w, bootstrap=boot),
            resampled(m.average_precision, (s[:, 1], attribute[:, 1]), w),
            len(set(w)),
        ),
        "temporal": (m.temporal_map(found, truth, bootstrap=boot), temporal_value(found, truth), len(truth)),
        "rank1": (
            m.rank1(probe, np.arange(8), gallery, shelf, bootstrap=boot),
            lambda taken: m.rank1(probe[taken], np.array(taken), gallery, shelf).value,
            8,
        ),
    }
    score, value, videos = cases[name]
    values = [value(taken) for taken in drawn(boot, videos)]
    assert score.interval == approx(tuple(np.quantile(values, [0.1, 0.9])))
    assert noted(score, f"60 resamples of {videos} videos")
    assert score.interval is not None and score.interval[0] < score.interval[1]


def test_intervals_are_seeded_and_do_not_touch_the_value():
    s, y, v = attributes()
    one = m.class_mean_average_precision(s, y, v, bootstrap=Bootstrap(200, seed=1))
    assert one == m.class_mean_average_precision(s, y, v, bootstrap=Bootstrap(200, seed=1))
    assert one.interval != m.class_mean_average_precision(s, y, v, bootstrap=Bootstrap(200, seed=2)).interval
    plain = m.class_mean_average_precision(s, y, v)
    assert plain.value == one.value and plain.interval is None


def test_resamples_do_not_depend_on_how_many_are_computed_at_once(monkeypatch: pytest.MonkeyPatch):
    s, y, v = attributes()
    together = m.class_mean_average_precision(s, y, v, bootstrap=Bootstrap(50))
    monkeypatch.setattr(score_module, "CELLS", 1)
    assert m.class_mean_average_precision(s, y, v, bootstrap=Bootstrap(50)).interval == approx(
        together.interval
    )


def test_undefined_resamples_are_noted():
    labels = np.array([1, 0, 0, 0])
    score = m.frame_auc([0.9, 0.1, 0.2, 0.3], labels, bootstrap=Bootstrap(400))
    assert score.interval == (1, 1) and noted(score, "in which the value is undefined")
    alone = m.frame_auc([0.9, 0.1], [1, 0], ["a", "a"], bootstrap=Bootstrap(10))
    assert alone.value == 1 and alone.interval is None and noted(alone, "two videos")


def test_intervals_cover_the_truth():
    """Of 95 % intervals on fresh data about 95 % hold the truth, though clips of a video fail together."""
    rng, inside, trials = np.random.default_rng(0), 0, 300
    for trial in range(trials):
        right = np.repeat(rng.random(80) < 0.7, 5)
        p = np.where(right[:, None], [0.9, 0.1], [0.1, 0.9])
        score = m.top1(
            p, np.zeros(400, dtype=int), np.repeat(np.arange(80), 5), bootstrap=Bootstrap(300, seed=trial)
        )
        assert score.interval is not None
        inside += score.interval[0] <= 0.7 <= score.interval[1]
    assert 0.9 < inside / trials < 0.985


def test_videos_are_resampled_and_not_their_frames():
    """Equal frames add nothing: the interval stays as wide as the videos make it."""
    rng = np.random.default_rng(0)
    y = rng.random(60) < 0.4
    s = rng.normal(size=60) + y
    one = m.frame_auc(s, y, bootstrap=Bootstrap(300)).interval
    many = m.frame_auc(
        np.repeat(s, 16), np.repeat(y, 16), np.repeat(np.arange(60), 16), bootstrap=Bootstrap(300)
    )
    naive = m.frame_auc(np.repeat(s, 16), np.repeat(y, 16), bootstrap=Bootstrap(300)).interval
    assert one == approx(many.interval)
    assert one is not None and naive is not None and naive[1] - naive[0] < (one[1] - one[0]) / 2


def test_resamples_are_computed_together():
    """A thousand resamples of VISPR's test set are a few dozen calls, not a thousand."""
    calls = []

    def mean(weights: Any) -> Any:
        calls.append(weights.shape)
        return weights.mean(axis=0)

    assert len(Bootstrap(1000).draws(mean, 8000)) == 1000
    assert sum(resamples for _, resamples in calls) == 1000 and len(calls) < 20


def test_metrics_are_imported_without_libraries_of_the_extra_learn():
    code = "import sys, veil.metrics; sys.exit(bool({'torch', 'sklearn', 'scipy'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
