"""Every loss against its equation written as a loop, at its extremes, and in bf16."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from errors import refuses
from veil.training import losses as L
from veil.training.distributed import launch, rank, world_size
from veil.training.phase import Phase
from veil.training.steps import Setup, Step

approx = pytest.approx


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float(a @ b / (a.norm() * b.norm()))


def gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(x), x)
    return found


# Contrast


def naive_nt_xent(a: Tensor, b: Tensor, temperature: float) -> float:
    views, n, total = [*a, *b], len(a), 0.0
    for i, view in enumerate(views):
        partner = i + n if i < n else i - n
        others = [math.exp(cosine(view, z) / temperature) for j, z in enumerate(views) if j != i]
        total -= math.log(math.exp(cosine(view, views[partner]) / temperature) / sum(others))
    return total / len(views)


@pytest.mark.parametrize(("n", "d", "temperature"), [(2, 3, 0.1), (5, 8, 0.1), (4, 2, 0.7)])
def test_nt_xent(n, d, temperature):
    a, b = randn(n, d), randn(n, d, seed=1)
    assert L.nt_xent(a, b, temperature).item() == approx(naive_nt_xent(a, b, temperature), rel=1e-5)


@pytest.mark.parametrize("n", [2, 8, 64])
def test_nt_xent_of_a_constant_encoder(n):
    same = torch.ones(n, 4)
    assert L.nt_xent(same, same).item() == approx(L.chance_loss(n), rel=1e-5)
    assert L.chance_loss(n) == approx(math.log(2 * n - 1))


def test_nt_xent_is_independent_of_scale_and_bounded():
    a, b = randn(4, 6), randn(4, 6, seed=1)
    assert L.nt_xent(1000 * a, 0.01 * b).item() == approx(L.nt_xent(a, b).item(), rel=1e-5)
    up = torch.tensor([[1.0, 0.0]]).repeat(8, 1)
    assert L.nt_xent(up, -up).item() == approx(20 + math.log(7 + 7 * math.exp(-20)), rel=1e-5)


def test_a_row_of_zeros_has_a_finite_gradient():
    a = randn(3, 4)
    a[1] = 0
    assert gradient(lambda x: L.nt_xent(x, randn(3, 4, seed=1)), a).isfinite().all()
    assert gradient(lambda x: L.triplet(x, x, randn(3, 4, seed=1)), a).isfinite().all()


@pytest.mark.parametrize("n", [1, 0])
def test_a_batch_too_small_for_contrast_is_refused(n):
    with refuses("too-few-pairs"):
        L.nt_xent(torch.ones(n, 4), torch.ones(n, 4))
    with pytest.raises(ValueError, match=r"\(2, 4\) and \(3, 4\)"):
        L.nt_xent(torch.ones(2, 4), torch.ones(3, 4))


def test_clamped_has_no_gradient_above_the_cap():
    x = torch.tensor([1.0, 2.9, 3.1, 50.0])
    assert L.clamped(x, 3.0).tolist() == approx([1.0, 2.9, 3.0, 3.0])
    assert gradient(lambda x: L.clamped(x, 3.0).sum(), x).tolist() == [1, 1, 0, 0]
    assert L.clamped(torch.tensor(math.nan), 3.0).isnan(), "a NaN must reach the loop, which names the term"


def test_the_cap_stops_the_ascent_of_a_contrastive_loss():
    up = randn(8, 4)
    cap = L.chance_loss(8) + 0.5
    inverted = gradient(lambda x: L.clamped(L.nt_xent(x, -up), cap), up)
    assert L.nt_xent(up, -up) > cap and not inverted.any()
    assert gradient(lambda x: L.clamped(L.nt_xent(x, up), cap), up).any()


# Momentum queue


def queue(size: int = 6, **named: float) -> L.MomentumQueue:
    torch.manual_seed(0)
    return L.MomentumQueue(nn.Linear(3, 4), dim=4, size=size, **named)  # type: ignore[arg-type]


def naive_info_nce(queries: Tensor, keys: Tensor, past: Tensor, temperature: float) -> float:
    total = 0.0
    for q, k in zip(queries, keys, strict=True):
        positive = math.exp(cosine(q, k) / temperature)
        total -= math.log(positive / (positive + sum(math.exp(cosine(q, p) / temperature) for p in past)))
    return total / len(queries)


def test_momentum_queue():
    moco, a, b = queue(momentum=0.9), randn(2, 3), randn(2, 3, seed=1)
    nn.init.constant_(moco.encoder.weight, 0.3)  # type: ignore[arg-type]
    before, past = copy.deepcopy(moco.momentum_encoder), moco.queue.clone()
    loss = moco(a, b, update=True)
    for new, old, fast in zip(
        moco.momentum_encoder.parameters(), before.parameters(), moco.encoder.parameters(), strict=True
    ):
        assert torch.allclose(new, 0.9 * old + 0.1 * fast)
        assert not new.requires_grad
    keys = moco.momentum_encoder(b)
    assert loss.item() == approx(naive_info_nce(moco.encoder(a), keys, past, 0.1), rel=1e-5)
    assert torch.allclose(moco.queue, torch.cat([nn.functional.normalize(keys), past[:4]]))
    loss.backward()
    assert moco.encoder.weight.grad is not None


def test_the_queue_holds_the_latest_keys_even_of_a_batch_larger_than_it():
    moco = queue(size=3)
    moco(randn(5, 3), b := randn(5, 3, seed=1), update=True)
    assert torch.allclose(moco.queue, nn.functional.normalize(moco.momentum_encoder(b))[:3])


def test_without_update_the_queue_does_not_change():
    moco = queue().train()
    before = {name: value.clone() for name, value in moco.state_dict().items()}
    moco(randn(2, 3), randn(2, 3, seed=1)).backward()
    assert all(torch.equal(before[name], value) for name, value in moco.state_dict().items())


def test_the_queue_depends_on_its_seed_alone():
    first, drawn = queue(), torch.rand(1)
    again = queue()
    torch.rand(3)
    assert torch.equal(first.queue, again.queue) and torch.equal(drawn, (queue(), torch.rand(1))[1])
    assert not torch.equal(first.queue, queue(seed=1).queue)
    assert torch.allclose(first.queue.norm(dim=1), torch.ones(6))
    assert queue().chance_loss == approx(math.log(7))


def contrast(moco: L.MomentumQueue, setup: Setup = Setup()) -> Phase[tuple[Tensor, Tensor]]:
    return Phase([Step("budget", (moco,), lambda x: {"moco": moco(*x, update=True)}, lr=0.1)], setup)


def test_a_phase_with_a_queue_resumes_exactly():
    batches = [(randn(2, 3, seed=i), randn(2, 3, seed=i + 50)) for i in range(4)]
    whole = contrast(queue(momentum=0.5))
    first = contrast(queue(momentum=0.5))
    for batch in batches:
        whole.train_step(batch)
    for batch in batches[:2]:
        first.train_step(batch)
    second = contrast(queue(momentum=0.5, seed=9))
    second.restore(*first.state())
    for batch in batches[2:]:
        second.train_step(batch)
    ours, theirs = whole.state()[0], second.state()[0]
    assert any(name.endswith("queue") for name in ours) and any("momentum_encoder" in name for name in ours)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def together() -> tuple[Tensor, Tensor]:
    moco = queue()
    a, b = randn(4, 3), randn(4, 3, seed=1)
    mine = slice(2 * rank(), 2 * rank() + 2)
    contrast(moco, Setup(devices=world_size())).train_step((a[mine], b[mine]))
    alone = queue()
    return moco.queue, nn.functional.normalize(alone.momentum_encoder(b))


@pytest.mark.slow
def test_two_processes_keep_one_queue():
    pytest.importorskip("lightning_fabric")
    kept, keys = launch(together, 2, accelerator="cpu")
    assert torch.allclose(kept[:4], keys, atol=1e-6)


# Rotation


def test_rotations():
    images = torch.arange(2 * 3 * 2 * 2).reshape(2, 3, 2, 2).float()
    turned, labels = L.rotations(images)
    assert turned.shape == (8, 3, 2, 2) and labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for image, turns, source in zip(turned, labels.tolist(), [0, 1] * 4, strict=True):
        expected = images[source]
        for _ in range(turns):
            expected = expected.transpose(-2, -1).flip(-2)  # a quarter turn to the left
        assert torch.equal(image, expected)
    clips = randn(2, 3, 4, 5, 5)
    assert torch.equal(L.rotations(clips)[0][2, :, 1], L.rotations(clips[:, :, 1])[0][2])
    with pytest.raises(ValueError, match=r"square.*\(2, 3, 4, 5\)"):
        L.rotations(torch.zeros(2, 3, 4, 5))


def test_rotation_loss():
    labels = L.rotations(torch.zeros(2, 3, 2, 2))[1]
    assert L.rotation_loss(torch.zeros(8, 4), labels).item() == approx(math.log(4))
    logits = randn(8, 4)
    assert L.rotation_loss(logits, labels).item() == approx(naive_single(logits, labels), rel=1e-5)
    with pytest.raises(ValueError, match=r"four classes.*\(8, 5\)"):
        L.rotation_loss(torch.zeros(8, 5), labels)


# Answers


def probabilities(row: Tensor) -> list[float]:
    powers = [math.exp(z) for z in row.tolist()]
    return [power / sum(powers) for power in powers]


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def naive_single(logits: Tensor, labels: Tensor) -> float:
    return sum(-math.log(probabilities(z)[int(y)]) for z, y in zip(logits, labels, strict=True)) / len(labels)


def naive_multi(logits: Tensor, labels: Tensor) -> float:
    total = 0.0
    for z, y in zip(logits.flatten().tolist(), labels.flatten().tolist(), strict=True):
        total -= y * math.log(sigmoid(z)) + (1 - y) * math.log(1 - sigmoid(z))
    return total / logits.numel()


def test_answer_loss_goes_by_the_labels():
    logits = randn(4, 3, scale=2)
    single, multi = torch.tensor([0, 2, 1, 1]), torch.tensor([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1.0]])
    assert L.classification_loss(logits, single).item() == approx(naive_single(logits, single), rel=1e-5)
    assert L.classification_loss(logits, multi).item() == approx(naive_multi(logits, multi), rel=1e-5)
    assert torch.equal(L.classification_loss(logits, multi), L.multi_label(logits, multi))
    assert torch.equal(L.classification_loss(logits, single), L.single_label(logits, single))


@pytest.mark.parametrize(
    "labels",
    [
        torch.zeros(4),
        torch.zeros(4, 3, dtype=torch.long),
        torch.zeros(4, 2),
        torch.zeros(3, dtype=torch.long),
    ],
)
def test_labels_that_fit_neither_are_refused(labels):
    with pytest.raises(ValueError, match=r"labels are \(N,\) int64 or \(N, K\) float"):
        L.classification_loss(torch.zeros(4, 3), labels)


def test_entropy():
    logits = randn(5, 4, scale=3)
    naive = sum(-sum(p * math.log(p) for p in probabilities(z)) for z in logits) / 5
    assert L.entropy(logits).item() == approx(naive, rel=1e-5)
    assert L.entropy(torch.zeros(2, 7)).item() == approx(math.log(7))


def test_binary_entropy():
    logits = randn(5, 4, scale=3)
    naive = 0.0
    for p in map(sigmoid, logits.flatten().tolist()):
        naive -= p * math.log(p) + (1 - p) * math.log(1 - p)
    assert L.binary_entropy(logits).item() == approx(naive / 20, rel=1e-5)
    assert L.binary_entropy(torch.zeros(2, 7)).item() == approx(math.log(2))


def test_uniform_cross_entropy():
    logits = randn(5, 4, scale=3)
    naive = sum(-sum(math.log(p) / 4 for p in probabilities(z)) for z in logits) / 5
    assert L.uniform_cross_entropy(logits).item() == approx(naive, rel=1e-5)
    assert L.uniform_cross_entropy(torch.zeros(2, 7)).item() == approx(math.log(7))
    half = torch.full_like(logits, 0.5)
    assert L.binary_uniform_cross_entropy(logits).item() == approx(naive_multi(logits, half), rel=1e-5)
    assert L.binary_uniform_cross_entropy(torch.zeros(2, 7)).item() == approx(math.log(2))


MEASURES = [L.entropy, L.binary_entropy, L.uniform_cross_entropy, L.binary_uniform_cross_entropy]


@pytest.mark.parametrize("measure", MEASURES, ids=lambda f: f.__name__)
def test_a_certain_network_gives_finite_numbers(measure):
    certain = torch.tensor([[1e4, -1e4, 0.0], [-500.0, 500.0, 90.0]])
    assert measure(certain).isfinite() and gradient(measure, certain).isfinite().all()


def test_only_the_strongest_budget_network_has_a_gradient():
    knows, guesses = torch.tensor([[4.0, -4.0]]), torch.tensor([[0.1, -0.1]])
    both = torch.stack([knows, guesses])
    for hidden in (L.uniform_cross_entropy, lambda z: -L.entropy(z)):
        assert L.max_over_networks([hidden(guesses), hidden(knows)]) == hidden(knows)
        moved = gradient(lambda z, hidden=hidden: L.max_over_networks([hidden(z[0]), hidden(z[1])]), both)
        assert moved[0].any() and not moved[1].any()
    with pytest.raises(ValueError, match="no budget networks"):
        L.max_over_networks([])


# Distance


def naive_rms(x: Tensor, y: Tensor) -> float:
    squares = [(p - q) ** 2 for p, q in zip(x.flatten().tolist(), y.flatten().tolist(), strict=True)]
    return math.sqrt(sum(squares) / len(squares) + 1e-12)


def clips(seed: int = 0) -> Tensor:
    return torch.rand(2, 3, 4, 3, 5, generator=torch.Generator().manual_seed(seed))


def test_distortion():
    x, y = clips(), clips(1)
    assert L.distortion(x, y).item() == approx(naive_rms(x, y), rel=1e-5)
    for i, per_clip in enumerate(L.distortion(x, y, "clip")):
        assert per_clip.item() == approx(naive_rms(x[i], y[i]), rel=1e-5)
        for t, per_frame in enumerate(L.distortion(x, y, "frame")[i]):
            assert per_frame.item() == approx(naive_rms(x[i, :, t], y[i, :, t]), rel=1e-5)
    with pytest.raises(ValueError, match=r"\(3, 4, 5, 6\)"):
        L.distortion(torch.zeros(3, 4, 5, 6), torch.zeros(3, 4, 5, 6))


@pytest.mark.parametrize("per", get_args(L.Per))
def test_the_penalty_pulls_above_the_bound_and_never_below(per):
    x, y = clips(), clips(1)
    rms = L.distortion(x, y, per)
    below, above = rms.max().item() + 0.01, rms.min().item() - 0.01
    assert L.distortion_penalty(x, y, below, per) == 0
    assert not gradient(lambda y: L.distortion_penalty(x, y, below, per), y).any()
    assert L.distortion_penalty(x, y, above, per).item() == approx((rms - above).mean().item(), rel=1e-4)
    pull = gradient(lambda y: L.distortion_penalty(x, y, above, per), y)
    assert pull.all() and L.distortion_penalty(
        x, y - 0.1 * pull / pull.norm(), above, per
    ) < L.distortion_penalty(x, y, above, per)


@pytest.mark.parametrize("per", get_args(L.Per))
def test_a_bound_of_one_is_no_penalty(per):
    black, white = torch.zeros(2, 3, 4, 8, 8), torch.ones(2, 3, 4, 8, 8)
    for x, y in ((clips(), clips(1)), (black, white)):
        assert L.distortion_penalty(x, y, 1.0, per) == 0
        assert not gradient(lambda y, x=x: L.distortion_penalty(x, y, 1.0, per), y).any()


def test_one_frame_over_the_bound_counts_per_frame_only():
    x = torch.zeros(1, 3, 10, 4, 4)
    y = x.clone()
    y[:, :, 3] = 0.6
    assert L.distortion_penalty(x, y, 0.3) == 0 == L.distortion_penalty(x, y, 0.3, "clip")
    assert L.distortion_penalty(x, y, 0.3, "frame").item() == approx(0.03)


def test_an_unchanged_clip_has_a_finite_gradient():
    x = clips()
    assert not gradient(lambda y: L.distortion(x, y), x).any()


def test_triplet():
    a, p, n = randn(5, 6), randn(5, 6, seed=1), randn(5, 6, seed=2)
    for margin in (0.0, 0.2, 1.0):
        naive = 0.0
        for x, y, z in zip(a, p, n, strict=True):
            near, far = math.sqrt(2 - 2 * cosine(x, y)), math.sqrt(2 - 2 * cosine(x, z))
            naive += max(0.0, near - far + margin)
        assert L.triplet(a, p, n, margin).item() == approx(naive / 5, rel=1e-4)
    assert L.triplet(a, a, -a).item() == 0
    assert L.triplet(a, -a, a).item() == approx(3.0)
    with pytest.raises(ValueError, match=r"\(5, 6\), \(5, 6\), \(4, 6\)"):
        L.triplet(a, p, n[:4])


# Precision


def under_bf16(loss: Callable[..., Tensor], *inputs: Tensor) -> None:
    """As exact as without autocast on the same inputs, and in fp32."""
    low = [x.bfloat16() if x.is_floating_point() else x for x in inputs]
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(*low)
    exact = loss(*[x.double() if x.is_floating_point() else x for x in low])
    assert found.dtype == torch.float32 and found.item() == approx(exact.item(), rel=1e-5, abs=1e-6)


def test_under_autocast_all_is_fp32():
    a, b, c = randn(6, 8), randn(6, 8, seed=1), randn(6, 8, seed=2)
    under_bf16(L.nt_xent, a, b)
    under_bf16(L.triplet, a, b, c)
    for measure in MEASURES:
        under_bf16(measure, a)
    under_bf16(L.classification_loss, a, torch.tensor([0, 1, 2, 3, 4, 5]))
    under_bf16(L.classification_loss, a, (b > 0).float())
    under_bf16(L.distortion, clips(), clips(1))
    under_bf16(lambda x, y: L.distortion_penalty(x, y, 0.1, "frame"), clips(), clips(1))


def test_the_queue_under_autocast_is_exact_in_what_its_encoder_gave():
    moco = L.MomentumQueue(nn.Identity(), dim=4, size=6)
    a, b = randn(3, 4), randn(3, 4, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        found = moco(a, b)
    assert found.dtype == torch.float32
    assert found.item() == approx(naive_info_nce(a, b, moco.queue, 0.1), rel=1e-5)
