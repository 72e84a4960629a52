"""TriDet: its losses, targets, decoding and NMS against loops; what it must not see; and that it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from errors import refuses
from veil.data.sample import Sample, Segment
from veil.features.heads import detection as D
from veil.features.heads import grid as G
from veil.features.heads.detection import DetectedAction, PyramidLevel, TriDet
from veil.features.heads.grid import Span
from veil.metrics import temporal_map

approx = pytest.approx


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def masked(lengths: list[int], places: int) -> Tensor:
    return torch.arange(places) < torch.tensor(lengths)[:, None]


def small(seed: int = 0, **options: float) -> TriDet:
    """A small one whose weights are all different from what they begin with."""
    torch.manual_seed(seed)
    net = TriDet(6, 3, width=16, hidden=24, levels=3, bins=4, **options)  # type: ignore[arg-type]
    for p in net.parameters():
        p.data += 0.2 * torch.randn_like(p)
    return net


def test_as_large_as_published():
    net = TriDet(2048, 20)
    assert sum(p.numel() for p in net.parameters()) == approx(15.99e6, rel=1e-3)
    assert net.ranges == [(0, 4), (4, 8), (8, 16), (16, 32), (32, 64), (64, 10000)]
    assert net.stem[0].far.kernel_size == (11,)  # type: ignore[union-attr]
    assert net.what.last.bias.mean().item() == approx(-math.log(99))  # type: ignore[union-attr]


def test_levels_are_ever_coarser():
    levels = small()(draw(2, 13, 6), masked([13, 6], 13))
    assert [level.stride for level in levels] == [1, 2, 4]
    assert [level.mask.sum(1).tolist() for level in levels] == [[13, 6], [7, 3], [4, 2]]
    for level, places in zip(levels, (13, 7, 4), strict=True):
        assert level.logits.shape == level.start.shape == level.end.shape == (2, places, 3)
        assert level.centre.shape == (2, places, 2, 5)
        assert (level.centre >= 0).all()


@pytest.mark.parametrize("training", [False, True])
def test_a_video_does_not_see_filling_or_batch_mates(training):
    net = small(noise=0, drop=0, spread=0.3).train(training)
    alone = draw(1, 9, 6)
    batch = torch.full((2, 15, 6), math.nan)
    batch[0, :9], batch[1] = alone, 50 * draw(15, 6, seed=1)
    mask = masked([9, 15], 15)
    with torch.no_grad():
        for one, many in zip(net(alone), net(batch, mask), strict=True):
            places = one.mask.shape[1]
            assert many.mask[0].sum() == places
            for a, b in zip(one[2:], many[2:], strict=True):
                torch.testing.assert_close(a[0], b[0, :places], rtol=1e-4, atol=1e-4)


def test_the_loss_is_the_sum_over_videos():
    net = small(spread=0.3).eval()
    x, mask = draw(3, 15, 6), masked([9, 15, 12], 15)
    spans: list[list[Span]] = [[(1.2, 4.1, 0)], [(2, 13, 2), (5.5, 7.9, 1)], []]
    whole = net.loss(net(x, mask), spans)
    parts = [net.loss(net(x[i : i + 1], mask[i : i + 1]), spans[i : i + 1]) for i in range(3)]
    alone = net.loss(net(x[:1, :9]), spans[:1])
    for term in ("class", "extent"):
        assert whole[term].item() == approx(sum(p[term].item() for p in parts), rel=1e-4)
        assert alone[term].item() == approx(parts[0][term].item(), rel=1e-4)


def naive_focal(z: float, y: float) -> float:
    p = 1 / (1 + math.exp(-z))
    return -0.25 * (1 - p) ** 2 * math.log(p) if y else -0.75 * p**2 * math.log(1 - p)


def test_focal():
    z, y = 3 * draw(20), (draw(20, seed=1) > 0).float()
    naive = [naive_focal(a, b) for a, b in zip(z.tolist(), y.tolist(), strict=True)]
    torch.testing.assert_close(D.focal(z, y), torch.tensor(naive), rtol=1e-4, atol=1e-6)


def naive_overlap(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """IoU, and what DIoU takes off, of segments."""
    both = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    hull = max(a[1], b[1]) - min(a[0], b[0])
    either = (a[1] - a[0]) + (b[1] - b[0]) - both
    return both / either, ((sum(a) - sum(b)) / 2 / hull) ** 2


def test_overlap_and_distance():
    found, wanted = draw(20, 2).abs(), draw(20, 2, seed=1).abs()
    for got, f, w in zip(zip(*D.agreement(found, wanted), strict=True), found, wanted, strict=True):
        t = 7.0
        naive = naive_overlap((t - float(f[0]), t + float(f[1])), (t - float(w[0]), t + float(w[1])))
        assert [g.item() for g in got] == approx(naive, rel=1e-4, abs=1e-6)
    nothing = torch.zeros(1, 2)
    assert all(v.isfinite().all() for v in D.agreement(nothing, nothing))


def naive_targets(
    places: int, stride: int, reach: tuple[float, float], spans: list[Span], classes: int
) -> tuple[list[list[float]], list[tuple[float, float]]]:
    labels, offsets = [[0.0] * classes for _ in range(places)], [(0.0, 0.0)] * places
    for i in range(places):
        t, mine = i * stride, []
        for start, end, label in spans:
            low = max((start + end) / 2 - 1.5 * stride, start)
            high = min((start + end) / 2 + 1.5 * stride, end)
            if low < t < high and reach[0] <= max(t - start, end - t) <= reach[1]:
                mine.append((end - start, start, end, label))
        if not mine:
            continue
        least = min(length for length, *_ in mine)
        _, start, end, _ = next(m for m in mine if m[0] == least)
        offsets[i] = ((t - start) / stride, (end - t) / stride)
        for length, _, _, label in mine:
            if length <= least + 1e-3:
                labels[i][label] = 1.0
    return labels, offsets


SPANS: list[list[Span]] = [
    [],
    [(2.3, 5.9, 1)],
    [(1, 9, 0), (3.5, 6.5, 2), (20, 31, 1)],  # one in another
    [(4, 8, 0), (4, 8, 2), (4, 8, 2), (2, 10, 1)],  # the same three times, and a longer one
    [(4, 8, 0), (4.0003, 8.0003, 1), (5, 9.2, 2)],  # as good as the same
    [(-3, 2, 0), (28, 40, 1), (0, 32, 2)],  # beyond the ends
    [(10, 18, 1)],  # at the very edge of ranges: 4 and 8
    [(10.2, 10.8, 1)],  # between two places
]


@pytest.mark.parametrize("spans", SPANS)
def test_targets(spans):
    for stride, reach in ((1, (0, 4)), (2, (4, 8)), (4, (8, 10000)), (2, (0, 10000))):
        places = 32 // stride
        labels, offsets = naive_targets(places, stride, reach, spans, 3)
        rows = torch.zeros(2, 5, 3, dtype=torch.double)  # another video, with nothing in it
        rows[1, : len(spans)] = torch.tensor(spans, dtype=torch.double).view(-1, 3)
        got = D.targets(places, stride, reach, rows, 3)
        torch.testing.assert_close(got.labels[1], torch.tensor(labels))
        torch.testing.assert_close(got.offsets[1], torch.tensor(offsets), rtol=1e-5, atol=1e-5)
        assert not got.labels[0].any()


def naive_offsets(level: PyramidLevel, v: int, t: int, k: int) -> tuple[float, float]:
    places, bins = level.start.shape[1], level.centre.shape[3] - 1
    ends = []
    for side, (offsets, step) in enumerate(((level.start, -1), (level.end, 1))):
        e = []
        for b in range(bins + 1):
            at = t + step * b
            here = float(offsets[v, at, k]) if 0 <= at < places else 0.0
            e.append(math.exp(here + float(level.centre[v, t, side, b])))
        ends.append(sum(b * w for b, w in enumerate(e)) / sum(e))
    return ends[0], ends[1]


def test_trident_decoding():
    places, bins = 7, 4
    what, start, end = (draw(2, places, 3, seed=i) for i in range(3))
    level = PyramidLevel(
        2, torch.ones(2, places).bool(), what, start, end, draw(2, places, 2, bins + 1, seed=3)
    )
    index = torch.cartesian_prod(torch.arange(2), torch.arange(places), torch.arange(3))
    naive = [naive_offsets(level, *row) for row in index.tolist()]
    torch.testing.assert_close(level.offsets(*index.T), torch.tensor(naive), rtol=1e-4, atol=1e-5)


def test_the_loss():
    net = small(spread=0.3, positives=7.0).eval()
    x, mask = draw(2, 15, 6), masked([11, 15], 15)
    spans: list[list[Span]] = [[(1.2, 4.1, 0), (1.2, 4.1, 2)], [(2, 13, 2), (5.5, 7.9, 1)]]
    with torch.no_grad():
        levels = net(x, mask)
    what = extent = 0.0
    for level, reach in zip(levels, net.ranges, strict=True):
        for v, video in enumerate(spans):
            labels, wanted = naive_targets(level.mask.shape[1], level.stride, reach, video, 3)
            for t in range(int(level.mask[v].sum())):
                for k in range(3):
                    one = naive_focal(float(level.logits[v, t, k]), labels[t][k])
                    if labels[t][k]:
                        left, right = naive_offsets(level, v, t, k)
                        overlap, apart = naive_overlap((-left, right), (-wanted[t][0], wanted[t][1]))
                        one *= overlap**0.2
                        extent += 1 - overlap + apart
                    what += one
    loss = net.loss(levels, spans)
    assert extent > 0
    assert loss["class"].item() == approx(what / 7, rel=1e-4)
    assert loss["extent"].item() == approx(extent / 7, rel=1e-4)


def test_the_number_of_positives_is_a_moving_average():
    net = small().train()
    levels = net(draw(1, 16, 6))
    many = sum(
        float(D.targets(lv.mask.shape[1], lv.stride, r, torch.tensor([[[2.0, 6, 0]]]), 3).labels.sum())
        for lv, r in zip(levels, net.ranges, strict=True)
    )
    net.loss(levels, [[(2, 6, 0)]])
    assert many > 1
    assert net.positives.item() == approx(0.9 * 100 + 0.1 * many)
    net.loss(levels, [[]])
    assert net.positives.item() == approx(0.9 * (0.9 * 100 + 0.1 * many) + 0.1)
    assert "positives" in net.state_dict()


def test_a_video_without_actions_teaches_that_there_are_none():
    net = small()
    loss = net.loss(net(draw(1, 9, 6)), [[]])
    assert loss["extent"].item() == 0
    sum(loss.values()).backward()  # type: ignore[union-attr]
    assert net.what.last.bias.grad.sum() > 0  # type: ignore[union-attr]


def test_boundaries_do_not_move_the_backbone():
    net = small(drop=0, noise=0)
    net(draw(1, 9, 6))[0].start.sum().backward()
    assert all(p.grad is None for p in net.stem.parameters())
    assert net.start.last.weight.grad is not None  # type: ignore[union-attr]


@pytest.mark.parametrize(("spread", "learns"), [(0.0, False), (0.1, True)])
def test_what_begins_at_zero_stays_at_zero(spread, learns):
    torch.manual_seed(0)
    net = TriDet(6, 3, width=16, hidden=24, levels=3, bins=4, spread=spread)
    sum(net.loss(net(draw(1, 9, 6)), [[(2, 6, 0)]]).values()).backward()  # type: ignore[union-attr]
    block = net.stem[0]
    moved = [conv.weight.grad.abs().max() > 0 for conv in (block.near, block.far, block.gate, block.instant)]  # type: ignore[union-attr]
    assert moved == [learns] * 4


def naive_soft_nms(rows: list[list[float]], sigma: float, least: float) -> list[list[float]]:
    left, kept = [list(row) for row in rows], []
    while left:
        best = max(left, key=lambda row: row[3])
        left.remove(best)
        if best[3] < least:
            break
        kept.append(best)
        for row in left:
            overlap, _ = naive_overlap((row[0], row[1]), (best[0], best[1]))
            row[3] *= math.exp(-(overlap**2) / sigma)
    return kept


def test_soft_nms():
    start = draw(30).abs() * 5
    rows = torch.stack(
        [start, start + 0.1 + draw(30, seed=1).abs(), torch.ones(30), draw(30, seed=2).sigmoid()], 1
    )
    rows = rows.double().numpy()
    before = rows.copy()
    got = D.soft_nms(rows, 0.5, 0.2)
    naive = naive_soft_nms(rows.tolist(), 0.5, 0.2)
    assert 0 < len(got) == len(naive) < 30
    np.testing.assert_allclose(got, naive)
    np.testing.assert_array_equal(rows, before)
    assert D.soft_nms(rows[:0], 0.5, 0.2).shape == (0, 4)


STARTS = np.arange(10) * 0.8 + 0.2


def test_the_grid():
    assert G.to_grid([0.7, 1.5, 0.3, 9.1], STARTS, 1.0) == approx([0, 1, -0.5, 10.5])
    times = np.linspace(-3, 20, 50)
    np.testing.assert_allclose(G.to_seconds(G.to_grid(times, STARTS, 1.0), STARTS, 1.0), times)
    assert G.to_grid([2.0, 4.0], [1.0], 2.0) == approx([0, 1])  # a single clip
    uneven = np.array([0.0, 1.0, 1.5])
    assert G.to_grid([1.0, 1.5, 2.0, 2.5], uneven, 1.0) == approx([0.5, 1, 2, 3])
    assert G.on_grid([Segment(0.7, 1.5, 4)], STARTS, 1.0) == (approx((0, 1, 4)),)
    assert G.on_grid([], STARTS, 1.0) == ()
    with refuses("clips-out-of-order"):
        G.to_grid([1.0], [0.0, 0.0], 1.0)


def test_detections_are_in_seconds_and_within_the_video():
    net = small().eval()
    starts = torch.arange(12.0)[None].expand(2, 12) * 1.6
    found = net.detect(draw(2, 12, 6), masked([12, 5], 12), starts, 1.6, torch.tensor([19.5, 8.2]), most=50)
    for video, seconds in zip(found, (19.5, 8.2), strict=True):
        assert 0 < len(video) <= 50
        assert all(0 <= d.start < d.end <= np.float32(seconds) for d in video)
        assert all(d.score >= 0.001 and d.label in (0, 1, 2) for d in video)
        assert [d.score for d in video] == sorted((d.score for d in video), reverse=True)
    alone = net.detect(draw(2, 12, 6)[1:, :5], None, starts[1:], 1.6, torch.tensor([8.2]), most=50)
    np.testing.assert_allclose(alone[0], found[1], rtol=1e-3, atol=1e-4)
    assert net.detect(draw(1, 4, 6), None, starts[:1], 1.6, torch.tensor([6.4]), least=2.0) == [[]]


def test_detections_are_of_the_places_that_predict_them():
    """One place predicts that label 1 goes from two strides before it to one after it."""
    bins, sure = 4, 30.0
    logits, centre = torch.full((1, 8, 3), -sure), torch.zeros(1, 8, 2, bins + 1)
    logits[0, 3, 1] = sure
    centre[0, 3, 0, 2], centre[0, 3, 1, 1] = sure, sure
    level = PyramidLevel(
        2, torch.ones(1, 8).bool(), logits, torch.zeros(1, 8, 3), torch.zeros(1, 8, 3), centre
    )
    rows = D._candidates(level, 0, 0.001, 10, 0.05)
    torch.testing.assert_close(rows, torch.tensor([[2.0, 8.0, 1.0, 1.0]], dtype=torch.double))


def test_crops_keep_what_is_mostly_inside():
    rng = np.random.default_rng(0)
    spans: list[Span] = [(2, 6, 0), (30, 50, 1), (70, 72, 2)]
    seen = set()
    for _ in range(50):
        part, inside = G.cropped(80, spans, rng, most=40)
        assert part.stop - part.start == 40
        assert inside
        for start, end, label in inside:
            whole = next(s for s in spans if s[2] == label)
            assert 0 <= start < end <= 40
            assert end - start >= 0.5 * (whole[1] - whole[0])
            assert start + part.start == approx(max(whole[0], part.start))
            seen.add(label)
    assert seen == {0, 1, 2}
    part, inside = G.cropped(20, [(2, 6, 0)], rng, share=(1.0, 1.0))
    assert (part, inside) == (slice(0, 20), ((2, 6, 0),))
    lengths = {(p := G.cropped(100, [], rng)[0]).stop - p.start for _ in range(50)}
    assert min(lengths) >= 90
    assert max(lengths) <= 100 and len(lengths) > 5


def test_other_labels_and_batches_are_refused():
    net = small()
    levels = net(draw(1, 9, 6))
    with pytest.raises(ValueError, match=r"0\.\.2"):
        net.loss(levels, [[(1, 2, 3)]])
    with pytest.raises(ValueError, match="2 videos, and features of 1"):
        net.loss(levels, [[], []])


def test_bf16_is_near():
    net, spans = small(spread=0.3).eval(), [[(1.2, 4.1, 0)], [(2, 13, 2), (5.5, 7.9, 1)]]
    x, mask = draw(2, 15, 6), masked([9, 15], 15)
    exact = net.loss(net(x, mask), spans)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = net.loss(net(x, mask), spans)
    for term, value in rounded.items():
        assert value.dtype == torch.float
        assert value.item() == approx(exact[term].item(), rel=0.1)


def made_up(count: int, seed: int) -> tuple[Tensor, list[tuple[Segment, ...]]]:
    """Videos of 32 clips of a second, with two actions of three kinds each, seen in noisy features."""
    rng = np.random.default_rng(seed)
    x, segments = draw(count, 32, 8, seed=seed), []
    for v in range(count):
        mine = []
        for half in (0, 16):
            start = half + rng.uniform(1, 6)
            end, label = start + rng.uniform(3, 9), int(rng.integers(3))
            mine.append(Segment(start, end, label))
            x[v, int(np.ceil(start - 0.5)) : int(np.ceil(end - 0.5)), label] += 4
        segments.append(tuple(mine))
    return x, segments


@pytest.mark.slow
def test_it_learns():
    torch.manual_seed(0)
    starts = torch.arange(32.0).expand(64, 32)
    net = TriDet(8, 3, width=32, hidden=48, levels=3, bins=8, positives=20.0)
    x, segments = made_up(64, 0)
    spans = [G.on_grid(s, starts[0], 1.0) for s in segments]
    unseen, truth = made_up(16, 1)
    samples = [Sample(str(i), "test", segments=s) for i, s in enumerate(truth)]

    def score() -> float:
        found = net.eval().detect(unseen, None, starts[:16], 1.0, torch.full((16,), 32.0))
        return temporal_map(*D.tables(samples, found)).value

    untrained = score()
    updates = 40
    step = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=0.025)
    slower = torch.optim.lr_scheduler.OneCycleLR(step, 4e-3, updates)
    net.train()
    for i in range(updates):
        rows = [(8 * i + j) % 64 for j in range(8)]
        step.zero_grad()
        sum(net.loss(net(x[rows]), [spans[r] for r in rows]).values()).backward()  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        step.step()
        slower.step()
    assert score() > max(0.5, 2 * untrained)


def test_tables_are_what_metrics_takes():
    samples = [Sample("a", "test", segments=(Segment(1, 3, 0),)), Sample("b", "test")]
    found, truth = D.tables(samples, [[DetectedAction(1, 3, 0, 0.9)], []])
    assert temporal_map(found, truth).value == 1
