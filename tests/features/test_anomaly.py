"""MGFN: its size, its losses against loops, what it must not see; and that it learns."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from errors import refuses
from veil.data.sample import Segment
from veil.features.heads import anomaly as A
from veil.features.heads.anomaly import MGFN, AnomalyScores
from veil.metrics import frame_auc

approx = pytest.approx


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def masked(lengths: list[int], places: int) -> Tensor:
    return torch.arange(places) < torch.tensor(lengths)[:, None]


def small(**options: object) -> MGFN:
    torch.manual_seed(0)
    return MGFN(6, widths=(64, 64, 128), depths=(1, 1, 1), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dim", "millions"), [(2048, 28.65), (768, 28.41)])
def test_as_large_as_published(dim, millions):
    with torch.device("meta"):
        net = MGFN(dim)
    assert sum(p.numel() for p in net.parameters()) / 1e6 == approx(millions, abs=0.005)


def test_shapes_with_and_without_crops():
    net, x = small().eval(), draw(2, 3, 7, 6)
    with torch.no_grad():
        many, one = net(x), net(x[:, 1])
        each = torch.stack([net(x[:, c]).scores for c in range(3)], 1)
    assert many.scores.shape == (2, 7)
    assert many.features.shape == (2, 3, 7, 128)
    assert ((many.scores > 0) & (many.scores < 1)).all()
    torch.testing.assert_close(many.features[:, 1], one.features[:, 0])
    torch.testing.assert_close(many.scores, each.mean(1))
    with pytest.raises(ValueError, match="crops"):
        net(draw(7, 6))


def test_magnitude_is_seen():
    """Features of the same direction and another length are amplified: more than a linear layer could."""
    net, x = small().eval(), draw(1, 9, 6)
    tokens, length = net.tokens, x.norm(dim=2)[:, None]
    mask = torch.ones(1, 1, 9, dtype=torch.bool)
    seen: list[Tensor] = []
    hook = net.stages[0][0].register_forward_pre_hook(lambda _, a: seen.append(a[0]))  # type: ignore[index]
    net(x)
    hook.remove()
    torch.testing.assert_close(seen[0], tokens(x.mT, mask) + 0.1 * net.magnitude(length, mask))


def naive_glance(layer: nn.Module, x: Tensor) -> Tensor:
    """(C, T), head by head and clip by clip."""
    width, clips = x.shape
    heads = width // 64
    normal = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
    normal = normal * layer.norm.weight[:, None] + layer.norm.bias[:, None]  # type: ignore[union-attr,index]
    q, k, v = (layer.qkv.weight[:, :, 0] @ normal).chunk(3)  # type: ignore[union-attr,index,operator]
    out = torch.zeros_like(x)
    for h in range(heads):
        mine = slice(64 * h, 64 * h + 64)
        for t in range(clips):
            weight = torch.softmax(torch.stack([q[mine, t] @ k[mine, u] / 8 for u in range(clips)]), 0)
            out[mine, t] = sum(weight[u] * v[mine, u] for u in range(clips))  # type: ignore[call-overload]
    return layer.out.weight[:, :, 0] @ out + layer.out.bias[:, None]  # type: ignore[union-attr,index,operator]


def test_glance():
    torch.manual_seed(0)
    layer, x = A._Glance(128), draw(2, 128, 5)
    nn.init.normal_(layer.norm.weight)
    got = layer(x, masked([5, 3], 5)[:, None])
    torch.testing.assert_close(got[0], naive_glance(layer, x[0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[1, :, :3], naive_glance(layer, x[1, :, :3]), rtol=1e-4, atol=1e-5)


def test_focus_is_one_kernel_a_head():
    torch.manual_seed(0)
    layer, x = A._Focus(128).eval(), draw(1, 128, 6)
    value = layer.value(layer.norm(x, torch.ones(1, 1, 6, dtype=torch.bool)))[0]  # (128, 6)
    near = torch.zeros_like(value)
    for channel in range(128):
        head = channel % 2
        for t in range(6):
            near[channel, t] = layer.near.bias[head] + sum(  # type: ignore[index]
                layer.near.weight[head, 0, j] * value[channel, t + j - 2]
                for j in range(5)
                if 0 <= t + j - 2 < 6
            )
    want = layer.out(near[None])
    torch.testing.assert_close(layer(x, torch.ones(1, 1, 6, dtype=torch.bool)), want, rtol=1e-4, atol=1e-5)


def test_a_video_does_not_see_filling_or_batch_mates():
    net, alone = small().eval(), draw(1, 9, 6)
    batch = torch.full((2, 15, 6), math.nan)
    batch[0, :9], batch[1] = alone, 50 * draw(15, 6, seed=1)
    with torch.no_grad():
        one, many = net(alone), net(batch, masked([9, 15], 15))
    torch.testing.assert_close(many.scores[0, :9], one.scores[0])
    torch.testing.assert_close(many.features[0, :, :9], one.features[0], rtol=1e-4, atol=1e-4)
    assert (many.scores[0, 9:] == 0).all()
    assert (many.features[0, :, 9:] == 0).all()


def test_filling_is_not_seen_while_it_learns():
    """Its batch norm sees the batch, but never the filling; nor does the loss."""
    net, x, mask = small(dropout=0.0).train(), draw(4, 9, 6), masked([9, 5, 7, 4], 9)
    abnormal = torch.tensor([True, False, True, False])
    loss = net.loss(net(x, mask), abnormal)
    longer = torch.full((4, 14, 6), math.nan)
    longer[:, :9] = x.where(mask[..., None], torch.nan)
    other = net.loss(net(longer, masked([9, 5, 7, 4], 14)), abnormal)
    for term, value in loss.items():
        torch.testing.assert_close(value, other[term], rtol=1e-4, atol=1e-6)


def scored(seed: int = 0, crops: int = 2) -> AnomalyScores:
    """Six videos of seven clips, of which some are shorter."""
    mask = masked([7, 7, 5, 7, 6, 7], 7)
    features = 30 * draw(6, crops, 7, 4, seed=seed) * mask[:, None, :, None]
    return AnomalyScores(draw(6, 7, seed=seed + 1).sigmoid() * mask, features, mask)


ABNORMAL = torch.tensor([True, False, True, True, False, False])


def naive_bag(j: AnomalyScores, top: int) -> list[tuple[list[int], float, list[list[float]]]]:
    bags = []
    for v in range(len(j.scores)):
        clips = [t for t in range(j.mask.shape[1]) if j.mask[v, t]]
        size = {t: float(np.mean([f[t].norm() for f in j.features[v]])) for t in clips}
        places = sorted(clips, key=lambda t: -size[t])[:top]
        score = float(np.mean([float(j.scores[v, t]) for t in places]))
        bags.append((places, score, [[float(f[t].abs().sum()) for t in places] for f in j.features[v]]))
    return bags


def test_the_largest_pieces_stand_for_a_video():
    j, net = scored(), small().eval()
    bag = net.bag(j)
    for v, (places, score, magnitude) in enumerate(naive_bag(j, 3)):
        assert bag.places[v].tolist() == places
        assert bag.score[v].item() == approx(score, rel=1e-5)
        np.testing.assert_allclose(bag.magnitude[v].numpy(), magnitude, rtol=1e-5)
    with pytest.raises(ValueError, match="no 3 largest"):
        net.bag(net(draw(1, 2, 6)))


def test_pieces_are_left_out_by_chance_while_it_learns():
    j = AnomalyScores(torch.rand(200, 10), draw(200, 1, 10, 4), torch.ones(200, 10, dtype=torch.bool))
    best = small().eval().bag(j).places[:, :1]
    torch.manual_seed(0)
    kept = small(dropout=0.7).train().bag(j).places[:, :1] == best
    assert kept.float().mean().item() == approx(0.3, abs=0.1)
    none_left = small(dropout=1.0).train().bag(scored())
    assert scored().mask.gather(1, none_left.places).all()  # even then, no filling


@pytest.mark.parametrize("choice", ["paper", "released"])
def test_the_loss(choice):
    j, net = scored(), small(weights=choice).eval()
    smooth, sparse, size, apart = {"paper": (1, 1, 1e-3, 1), "released": (8e-4, 8e-3, 1e-3, 1e-3)}[choice]
    bags = naive_bag(j, 3)
    bad, good = [0, 2, 3], [1, 4, 5]
    bce = 0.0
    for v, (_, score, _) in enumerate(bags):
        bce -= math.log(score if v in bad else 1 - score) / 6

    def distances(pairs: list[tuple[int, int]]) -> list[float]:
        return [math.dist(a, b) for p, q in pairs for a, b in zip(bags[p][2], bags[q][2], strict=True)]

    between = [max(0, 200 - d) ** 2 for d in distances(list(zip(bad, good, strict=True)))]
    within = (
        [d**2 for d in distances([(0, 2)])],
        [d**2 for d in distances([(1, 4)])],
    )  # 3 and 5 have no partner
    steps = norm = 0.0
    for v in bad:
        n = int(j.mask[v].sum())
        steps += sum(float(j.scores[v, t] - j.scores[v, t + 1]) ** 2 for t in range(n - 1))
        norm += sum(float(s) ** 2 for s in j.scores[v, :n])
    loss = net.loss(j, ABNORMAL)
    assert min(between) < 200**2  # the hinge has a slope
    assert loss["bag"].item() == approx(bce, rel=1e-5)
    contrast = apart * np.mean(between) + np.mean(within[0]) + np.mean(within[1])
    assert loss["magnitude"].item() == approx(size * contrast, rel=1e-4)
    assert loss["smooth"].item() == approx(smooth * steps, rel=1e-4)
    assert loss["sparse"].item() == approx(sparse * math.sqrt(norm), rel=1e-4)


@pytest.mark.parametrize("abnormal", [[True] * 6, [False] * 6, [True] + [False] * 5])
def test_any_mixture_of_videos_has_a_loss(abnormal):
    net = small()
    loss = net.loss(net(draw(6, 8, 6)), torch.tensor(abnormal))
    total = torch.stack(list(loss.values())).sum()
    total.backward()
    assert total.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


def test_what_is_not_understood_is_refused():
    net = small()
    with pytest.raises(ValueError, match=r"\(B,\) bool, got \(6,\)"):
        net.loss(net(draw(6, 8, 6)), torch.zeros(6))
    with refuses("mgfn-weights"):
        small(weights="printed")
    with pytest.raises(ValueError, match="multiple of 64"):
        MGFN(6, widths=(64, 100, 128))


@pytest.mark.parametrize("clips", [1, 5, 31, 32, 33, 64, 101])
def test_binning(clips):
    x = draw(1, clips, 3)
    edge = np.linspace(0, clips, 33, dtype=int)
    naive = [x[0, a:b].mean(0) if a != b else x[0, a] for a, b in itertools.pairwise(edge)]
    torch.testing.assert_close(A.binned(x)[0], torch.stack(naive))
    filled = torch.cat([x, torch.full((1, 9, 3), math.nan)], 1)
    torch.testing.assert_close(A.binned(filled, masked([clips], clips + 9))[0], torch.stack(naive))
    torch.testing.assert_close(A.binned(x[:, None].repeat(1, 2, 1, 1))[0, 1], torch.stack(naive))


def test_scores_of_frames():
    scores = np.array([0.1, 0.9, 0.4])
    plain = A.frame_scores(scores, np.arange(3) * 16 / 30, 16 / 30, 53, 30)
    np.testing.assert_allclose(plain, np.r_[np.repeat(scores, 16), [0.4] * 5])  # the rest: the nearest
    half = A.frame_scores(scores, np.arange(3) * 0.8, 1.6, 32, 10)
    np.testing.assert_allclose(half, np.repeat([0.1, 0.5, 0.65, 0.4], 8))
    gaps = A.frame_scores(scores, np.arange(3) * 2.0, 1.0, 60, 10)
    np.testing.assert_allclose(gaps[[0, 9, 14, 15, 20, 29, 35, 59]], [0.1, 0.1, 0.1, 0.9, 0.9, 0.9, 0.4, 0.4])
    with refuses("scores-shape"):
        A.frame_scores(scores, [0.0], 1.0, 10, 10)


def test_truth_of_frames():
    truth = A.frame_truth([Segment(0.3, 0.5, 2), Segment(0.8, 3.0, 1)], 10, 10)
    assert truth.nonzero()[0].tolist() == [3, 4, 8, 9]
    assert not A.frame_truth([], 5, 10).any()


def test_bf16_is_near():
    net, x = small().eval(), draw(6, 9, 6)
    exact = net.loss(net(x), ABNORMAL)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = net.loss(net(x), ABNORMAL)
    for term, value in rounded.items():
        assert value.dtype == torch.float
        assert value.item() == approx(exact[term].item(), rel=0.1)


def made_up(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Videos of 40 clips; every second video has four to eight odd ones, one after the other."""
    rng = np.random.default_rng(seed)
    x, odd = draw(count, 40, 8, seed=seed), torch.zeros(count, 40, dtype=torch.bool)
    for v in range(0, count, 2):
        start = int(rng.integers(30))
        odd[v, start : start + int(rng.integers(4, 9))] = True
    x[..., 0] += 4 * odd
    return x, odd, odd.any(1)


@pytest.mark.slow
def test_it_learns():
    """Not for long: from many updates it learns to give the same high score to all clips of a video that has odd ones."""
    torch.manual_seed(0)
    net = MGFN(8, widths=(64, 64, 64), depths=(1, 1, 1))
    x, _, abnormal = made_up(64, 0)
    unseen, odd, bad = made_up(24, 1)
    x = A.binned(x)
    step = torch.optim.Adam(net.parameters(), 5e-4, weight_decay=5e-4)
    for i in range(20):
        rows = [(16 * i + j) % 64 for j in range(16)]
        step.zero_grad()
        sum(net.loss(net(x[rows]), abnormal[rows]).values()).backward()  # type: ignore[union-attr]
        step.step()
    with torch.no_grad():
        scores = net.eval()(unseen).scores
    assert frame_auc(scores.flatten(), odd.flatten()).value > 0.85
    assert (
        frame_auc(scores[bad].flatten(), odd[bad].flatten()).value > 0.85
    )  # when, and not only in which video
