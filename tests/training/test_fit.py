"""The training loop against the same thing written out by hand, and what it must leave alone."""

import copy
import gc
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessRaisedException
from torch.nn import functional as F

from errors import refuses
from veil.training import distributed
from veil.training.distributed import launch, rank, shard, world_size
from veil.training.fit import fit
from veil.training.memory import with_smaller_batches
from veil.training.phase import Phase, make_optimizer
from veil.training.schedule import LRSchedule
from veil.training.steps import Setup, Step, Terms


class Batch(NamedTuple):
    x: Tensor  # (B, 6)
    label: Tensor  # (B,)


def batch(number: int, size: int = 8) -> Batch:
    random = torch.Generator().manual_seed(number)
    return Batch(torch.randn(size, 6, generator=random), torch.randint(0, 3, (size,), generator=random))


def batches(count: int, size: int = 8) -> Iterator[Batch]:
    return (batch(number, size) for number in range(1, count + 1))


def plain(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def veiler(seed: int = 1) -> nn.Sequential:
    """A module with everything that a step could disturb."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 6))


def task(net: Callable[[Tensor], Tensor]) -> Callable[[Batch], Terms]:
    return lambda batch: {"task": F.cross_entropy(net(batch.x), batch.label)}


def rivals(**more) -> tuple[nn.Sequential, nn.Sequential, list[Step[Batch]]]:
    """Two adversaries: one module hides the label from the other."""
    hides, sees = veiler(), plain()

    def loss(batch: Batch) -> Terms:
        hidden = hides(batch.x)
        return {
            "keep": +0.5 * F.mse_loss(hidden, batch.x),
            "budget": -0.1 * F.cross_entropy(sees(hidden), batch.label),
        }

    seeing = Step("see", (sees,), task(lambda x: sees(hides(x))), lr=0.1, **more)
    return hides, sees, [Step("hide", (hides,), loss, lr=0.01), seeing]


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def close(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 1e-6) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=0, atol=tolerance) for name in other)


# The equations, against a loop


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_one_step_is_a_plain_training_loop(kind):
    net = plain()
    other = copy.deepcopy(net)
    step = Step("task", (net,), task(net), lr=0.05, optimizer=kind, weight_decay=0.1)
    measured = list(fit([step], batches(6)))

    makers = {
        "adam": lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1),
        "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1),
    }
    optimizer = makers[kind](other.parameters())
    for number, one in enumerate(batches(6)):
        loss = F.cross_entropy(other(one.x), one.label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert float(measured[number].terms["task"]) == pytest.approx(float(loss.detach()), abs=1e-6)
    assert close(weights(net), weights(other))
    assert [m.step for m in measured] == [1, 2, 3, 4, 5, 6] and {m.step_name for m in measured} == {"task"}


def test_the_sum_of_the_terms_is_minimized():
    net = nn.Linear(6, 1, bias=False)
    before = net.weight.detach().clone()
    terms = {"up": +2.0, "down": -0.5}
    step = Step[Batch](
        "m",
        (net,),
        lambda batch: {k: w * net(batch.x).mean() for k, w in terms.items()},
        0.1,
        "sgd",
        momentum=0.0,
    )
    list(fit([step], [batch(1)]))
    torch.testing.assert_close(net.weight, before - 0.1 * 1.5 * batch(1).x.mean(0, keepdim=True))


def test_accumulating_is_one_large_batch():
    net, other = plain(), plain()
    list(fit([Step("task", (net,), task(net), lr=0.05)], batches(8, 4), Setup(accumulate=4)))
    pieces = list(batches(8, 4))
    large = [Batch(*(torch.cat(parts) for parts in zip(*pieces[i : i + 4], strict=True))) for i in (0, 4)]
    list(fit([Step("task", (other,), task(other), lr=0.05)], large))
    assert close(weights(net), weights(other))


def test_steps_alternate_in_whole_updates():
    _, _, steps = rivals(repeats=2)
    played = [m.step_name for m in fit(steps, batches(12), Setup(accumulate=2))]
    assert played == ["hide"] * 2 + ["see"] * 4 + ["hide"] * 2 + ["see"] * 4


def test_the_gradient_norm_is_clipped_over_all_modules_of_the_step():
    first, second = nn.Linear(6, 4), nn.Linear(4, 3)
    twins = copy.deepcopy((first, second))
    step = Step(
        "m", (first, second), task(lambda x: 50 * second(first(x))), 0.1, optimizer="sgd", momentum=0.0
    )
    list(fit([step], [batch(1)], Setup(clip=0.5)))
    F.cross_entropy(50 * twins[1](twins[0](batch(1).x)), batch(1).label).backward()
    every = [p for twin in twins for p in twin.parameters()]
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in every if p.grad is not None))
    assert norm > 5
    for mine, theirs in zip([*first.parameters(), *second.parameters()], every, strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(mine, theirs.detach() - 0.1 * theirs.grad * 0.5 / norm, rtol=0, atol=1e-6)


def test_the_average_follows_every_update():
    net = plain()
    phase = Phase([Step("task", (net,), task(net), lr=0.05)], Setup(ema=0.8))
    naive = weights(net)
    for one in batches(5):
        phase.train_step(one)
        naive = {name: 0.8 * naive[name] + 0.2 * now for name, now in weights(net).items()}
    assert close(phase.averaged(net), naive)
    assert not close(phase.averaged(net), weights(net))
    plain(7).load_state_dict(phase.averaged(net))
    with pytest.raises(ValueError, match="ema"):
        Phase([Step("task", (net,), task(net), lr=0.05)]).averaged(net)


def test_warm_up_and_cosine():
    net = plain()
    schedule = LRSchedule(warmup=4, shape="cosine", updates=12, floor=0.1)
    step = Step("task", (net,), task(net), lr=2.0, schedule=schedule)
    rates = [m.lr for m in fit([step], batches(14, 2))]
    risen = [2 * n / 4 for n in (1, 2, 3, 4)]
    fallen = [2 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * n / 8))) for n in range(8)]
    assert rates == pytest.approx([*risen, *fallen, 0.2, 0.2])
    assert [LRSchedule().at(n) for n in (0, 9)] == [1, 1]
    with refuses("schedule-too-short"):
        LRSchedule(shape="cosine")
    with refuses("schedule-too-short"):
        LRSchedule(shape="cosine", warmup=3, updates=3)


def test_a_schedule_counts_the_updates_of_its_own_step():
    _, _, steps = rivals(schedule=LRSchedule(warmup=4))
    rates = [m.lr for m in fit(steps, batches(12), Setup(accumulate=2)) if m.step_name == "see"]
    assert rates == pytest.approx([0.025, 0.025, 0.05, 0.05, 0.075, 0.075])


def test_a_plateau_is_that_of_torch():
    net = plain()
    schedule = LRSchedule(shape="plateau", patience=2, factor=0.5, floor=0.1)
    phase = Phase([Step("task", (net,), task(net), lr=1.0, schedule=schedule)])
    theirs = torch.optim.SGD(plain().parameters(), 1.0)
    reduce = torch.optim.lr_scheduler.ReduceLROnPlateau(
        theirs, factor=0.5, patience=2, threshold=0, min_lr=0.1
    )
    values = [5, 4, 4, 4.5, math.nan, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    for value in values:
        phase.report("task", value)
        reduce.step(value)
        assert phase.train_step(batch(1)).lr == pytest.approx(theirs.param_groups[0]["lr"])
    assert phase.train_step(batch(1)).lr == pytest.approx(0.1)


# What is trained, and what is frozen


def test_only_the_modules_of_the_step_change():
    hides, sees, steps = rivals()
    phase = Phase(steps)
    seen: list[tuple[bool, Any]] = []
    hides.register_forward_hook(lambda *_: seen.append((hides.training, hides[0].weight.requires_grad)))
    for number in range(4):
        before = weights(hides), weights(sees)
        trained = phase.train_step(batch(number)).step_name
        after = weights(hides), weights(sees)
        moved = [not same(b, a) for b, a in zip(before, after, strict=True)]
        assert moved == ([True, False] if trained == "hide" else [False, True])
    assert seen == [(True, True), (False, False)] * 2
    statistics = phase.state()[0]["weights/hide.0/1.num_batches_tracked"]
    assert statistics == 2
    assert all(p.grad is None for p in [*hides.parameters(), *sees.parameters()])


def test_train_modes_and_requires_grad_are_restored():
    hides, sees, steps = rivals(batch_stats=())
    hides.eval()
    hides[1].train()
    for p in sees[0].parameters():
        p.requires_grad_(False)
    frozen = weights(sees[0])
    modes = [m.training for m in (*hides.modules(), *sees.modules())]
    flags = [p.requires_grad for p in (*hides.parameters(), *sees.parameters())]
    for _ in fit(steps, batches(4)):
        assert [m.training for m in (*hides.modules(), *sees.modules())] == modes
        assert [p.requires_grad for p in (*hides.parameters(), *sees.parameters())] == flags
    assert same(weights(sees[0]), frozen)


def test_batch_stats_leaves_the_running_statistics_unchanged():
    hides, sees, steps = rivals()
    seen: list[bool] = []
    hides.register_forward_hook(lambda module, *_: seen.append(module.training))
    batch_stats = Step("see", (sees,), steps[1].loss, lr=0.1, batch_stats=(hides,))
    before = weights(hides)
    list(fit([batch_stats], batches(3)))
    assert seen == [True] * 3 and same(weights(hides), before)
    instance = nn.InstanceNorm1d(6, track_running_stats=True)
    before = weights(instance)
    step = Step("see", (sees,), task(lambda x: sees(instance(x[:, :, None].expand(-1, -1, 4)).mean(-1))), 0.1)
    list(fit([Step(**{**vars(step), "batch_stats": (instance,)})], batches(2)))
    assert same(weights(instance), before)


def test_a_shared_module_is_trained_in_every_step_that_has_it():
    trunk, left, right = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 3)
    whole = nn.Sequential(trunk, left)  # the trunk is nested here, and a module of its own below
    steps = [
        Step("left", (whole,), task(whole), lr=0.1),
        Step("right", (trunk, right), task(lambda x: right(trunk(x))), lr=0.1),
    ]
    phase = Phase(steps, Setup(ema=0.5))
    for step, still in (("left", right), ("right", left)):
        trunk_before, still_before = weights(trunk), weights(still)
        assert phase.train_step(batch(3)).step_name == step
        assert not same(weights(trunk), trunk_before) and same(weights(still), still_before)
    tensors, values = phase.state()
    assert [n for n in tensors if n.startswith("weights/") and n.endswith("weight")] == [
        "weights/left.0/0.weight",
        "weights/left.0/1.weight",
        "weights/right.1/weight",
    ]
    assert "optimizer/right/exp_avg/left.0/0.weight" in tensors
    after = weights(whole)
    phase.train_step(batch(4))
    phase.restore(tensors, values)
    assert same(weights(whole), after) and set(phase.averaged(trunk)) == {"weight", "bias"}


def test_a_module_outside_the_phase_gets_no_gradient():
    net, outside = plain(), nn.Linear(6, 6)
    list(fit([Step("task", (net,), task(lambda x: net(outside(x))), lr=0.1)], batches(2)))
    assert outside.weight.grad is None and outside.weight.requires_grad


# What goes wrong


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_term_that_is_not_finite_is_named_and_changes_nothing(value):
    net = plain()
    poison = {3: value}

    def loss(batch: Batch) -> Terms:
        step = phase.step + 1
        return {"good": net(batch.x).mean(), "bad": net(batch.x).std() * poison.get(step, 1.0)}

    phase = Phase([Step("task", (net,), loss, lr=0.1)], Setup(ema=0.9))
    running = fit(phase, batches(5))
    next(running)
    next(running)
    before, state = weights(net), phase.state()
    with refuses("term-not-finite") as raised:
        next(running)
    assert "'bad'" in str(raised.value) and "step 3" in str(raised.value)
    assert same(weights(net), before) and same(phase.state()[0], state[0]) and phase.state()[1] == state[1]
    assert all(p.grad is None for p in net.parameters())


def test_weights_that_are_not_finite_are_never_saved():
    net = plain()

    def loss(batch: Batch) -> Terms:  # the square root's slope at 0 is infinite, its value is not
        return {"root": (net(batch.x).mean() * 0).sqrt()}

    phase = Phase([Step("task", (net,), loss, lr=0.1)])
    phase.train_step(batch(1))
    with refuses("weights-not-finite") as raised:
        phase.state()
    assert "weights/task.0/0.weight" in str(raised.value)


def test_mistakes_in_a_phase():
    net = plain()
    step = Step("task", (net,), task(net), lr=0.1)
    with pytest.raises(ValueError, match="task"):
        Phase([step, step])
    with pytest.raises(ValueError, match="task"):
        Phase([Step("task", (nn.ReLU(),), task(net), lr=0.1)])
    with pytest.raises(ValueError, match="'t'"):
        Phase([Step[Batch]("task", (net,), lambda batch: {"t": net(batch.x)}, lr=0.1)]).train_step(batch(1))
    with pytest.raises(ValueError, match=r"'task' \(t\)"):
        Phase([Step[Batch]("task", (net,), lambda batch: {"t": batch.x.mean()}, lr=0.1)]).train_step(batch(1))
    with pytest.raises(ValueError, match="task"):
        Phase([Step("task", (net,), lambda batch: {}, lr=0.1)]).train_step(batch(1))
    with pytest.raises(ValueError, match="setup"):
        list(fit(Phase([step]), [], Setup(seed=1)))
    with refuses("step-repeats"):
        Step("task", (net,), task(net), lr=0.1, repeats=0)
    with refuses("setup-below-one"):
        Setup(accumulate=0)
    with refuses("process-count"):
        Phase([step], Setup(devices=2))


# Resuming


def state_and_rest(setup: Setup, stop: int, count: int = 15) -> None:
    """A phase restored from its state at `stop` ends as one that was not interrupted."""
    hides, sees, steps = rivals()
    phase = Phase(steps, setup)
    for number in range(1, stop + 1):
        phase.train_step(batch(number))
    tensors, values = phase.state()
    through = [phase.train_step(batch(number)) for number in range(stop + 1, count + 1)]
    end = phase.state()

    hides, sees, steps = rivals()
    for module in (hides, sees):
        nn.init.constant_(next(module.parameters()), 9)
    other = Phase(steps, setup)
    torch.manual_seed(99)
    other.train_step(batch(77))
    other.restore(tensors, values)
    again = [other.train_step(batch(number)) for number in range(stop + 1, count + 1)]
    assert same(other.state()[0], end[0]) and other.state()[1] == end[1]
    assert [(m.step, m.step_name, m.lr) for m in again] == [(m.step, m.step_name, m.lr) for m in through]
    assert all(same(a.terms, t.terms) for a, t in zip(again, through, strict=True))


@pytest.mark.parametrize("stop", [0, 1, 3, 4])
def test_a_restored_phase_continues_exactly(stop):
    state_and_rest(Setup(seed=5, accumulate=3, clip=1.0, ema=0.9), stop)


def test_a_restored_phase_in_another_layout_and_precision():
    state_and_rest(Setup(precision="bf16", channels_last=True), 3)


def test_the_seed_determines_the_result():
    ends = []
    for seed in (1, 1, 2):
        hides, _, steps = rivals()
        list(fit(steps, batches(3), Setup(seed=seed)))
        ends.append(weights(hides))
    assert same(ends[0], ends[1]) and not same(ends[0], ends[2])


def test_the_state_of_another_phase_is_refused():
    net = plain()
    step = Step("task", (net,), task(net), lr=0.1)
    phase = Phase([step])
    phase.train_step(batch(1))
    tensors, values = phase.state()
    before = weights(net)

    wide = nn.Linear(6, 3)
    others = [
        (Phase([Step("task", (wide,), task(wide), lr=0.1)]), "state-mismatch", "task.0/weight"),
        (Phase([Step("other", (net,), task(net), lr=0.1)]), "state-invalid", "other"),
        (Phase([Step("task", (net,), task(net), lr=0.1, optimizer="sgd")]), "state-mismatch", "steps"),
        (Phase([step], Setup(accumulate=2)), "state-mismatch", "accumulate"),
        (Phase([step], Setup(ema=0.9)), "state-mismatch", "ema"),
    ]
    for other, code, key in others:
        with refuses(code) as raised:
            other.restore(tensors, values)
        assert key in str(raised.value)
    narrow = {**tensors, "weights/task.0/0.weight": torch.zeros(8, 5)}
    with refuses("state-mismatch"):
        phase.restore(narrow, values)
    odd = {**tensors, "optimizer/task/exp_avg/task.0/0.weight": torch.zeros(1)}
    with refuses("state-mismatch"):
        phase.restore(odd, values)
    fewer = {name: tensor for name, tensor in tensors.items() if name != "weights/task.0/2.bias"}
    with refuses("state-mismatch"):
        phase.restore(fewer, values)
    for bad in ({}, {**values, "step": "x"}, {**values, "progress": {"task": {"updates": 1, "odd": 2}}}):
        with refuses("state-invalid"):
            phase.restore(tensors, bad)
    assert same(weights(net), before) and phase.step == 1


# Layout, precision, compilation


def test_bf16_is_autocast_and_weights_stay_fp32():
    net = plain()
    kinds = []
    net[0].register_forward_hook(lambda *arguments: kinds.append(arguments[-1].dtype))
    measured = list(fit([Step("task", (net,), task(net), lr=0.05)], batches(20), Setup(precision="bf16")))
    assert set(kinds) == {torch.bfloat16} and net[0].weight.dtype == torch.float32
    assert float(measured[0].terms["task"]) == pytest.approx(1.1, abs=0.3)


def test_channels_last_changes_the_layout_and_not_the_result():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.video, self.image = nn.Conv3d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.image(self.video(x[:, None, :, None, None].expand(-1, -1, -1, 4, 4)).mean(2)).mean(
                (2, 3)
            )

    torch.manual_seed(0)
    net = Net()
    other = copy.deepcopy(net)
    list(fit([Step("task", (net,), task(net), lr=0.05)], batches(3), Setup(channels_last=True)))
    list(fit([Step("task", (other,), task(other), lr=0.05)], batches(3)))
    assert net.video.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert net.image.weight.is_contiguous(memory_format=torch.channels_last)
    assert close(weights(net), weights(other), 1e-5)


def test_every_module_is_compiled(monkeypatch):
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled.append(module))  # noqa: PLW0108
    hides, sees, steps = rivals()
    Phase(steps, Setup(compile=True))
    assert compiled == [hides, sees]


# Memory


@pytest.mark.slow
def test_batches_are_halved_until_they_fit():
    tried, held = [], []

    def train(size: int) -> str:
        tried.append(size)
        large = torch.zeros(10)
        gc.collect()
        assert not held or held[-1]() is None, "what the failed try held is still there"
        held.append(weakref.ref(large))
        if size > 6:
            errors = [
                torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
                RuntimeError("CUDA error: out of memory"),
                RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
            ]
            raise errors[len(tried) % 3]
        return f"trained with {size}"

    with pytest.warns(UserWarning, match="batch of 40 .* batch of 5 "):
        assert with_smaller_batches(train, 40) == ("trained with 5", 5)
    assert tried == [40, 20, 10, 5]


def test_no_batch_size_fits(recwarn):
    def train(size: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    with refuses("out-of-memory") as raised:
        with_smaller_batches(train, 16, least=3)
    assert "2 GiB" in str(raised.value)
    assert with_smaller_batches(lambda size: size, 16) == (16, 16) and not recwarn.list

    def wrong(size: int) -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        with_smaller_batches(wrong, 16)


# Several processes


def test_a_single_process():
    assert (rank(), world_size()) == (0, 1)
    assert list(shard(range(5))) == [0, 1, 2, 3, 4]
    assert launch(lambda x: x + 1, 1, 2) == 3


def test_without_fabric(monkeypatch):
    for name in ("lightning_fabric", "lightning", "lightning.fabric"):
        monkeypatch.setitem(sys.modules, name, None)
    with refuses("extra-missing"):
        launch(print, 2, accelerator="cpu")


def test_the_error_of_another_process_is_raised(monkeypatch):
    text = "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"

    def launched(error: str) -> None:
        def fail(*_: object) -> None:
            raise ProcessRaisedException(text + error, 1, 4321)

        monkeypatch.setattr(distributed, "_fabric", lambda **_: SimpleNamespace(launch=fail))
        launch(print, 2, accelerator="cpu")

    with refuses("process-failed") as raised:
        launched("  raise\nveil.core.VeilError: the folder is full\n")
    assert str(raised.value) == "the folder is full"
    with pytest.raises(ProcessRaisedException, match="KeyError"):
        launched("  raise\nKeyError: 3\n")


def together(count: int) -> dict:
    """What each process does in the tests below: its replica and what it measured, gathered from all."""
    net, normed, unused = plain(seed=rank()), nn.BatchNorm1d(6), nn.Linear(2, 2)
    step = Step(
        "task",
        (net, normed, unused),
        task(lambda x: net(x) + 0 * normed(x)[:, :3]),
        lr=0.05,
        weight_decay=0.5,
    )
    unused_before = weights(unused)
    phase = Phase([step], Setup(devices=world_size(), clip=0.3, ema=0.9))
    rounds = map(batch, shard(range(1, count * world_size() + 2)))
    terms = [float(m.terms["task"]) for m in fit(phase, rounds)]
    ends: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(ends, (phase.state()[0], terms, phase.step))
    return {"ends": ends, "unused": close(weights(unused), unused_before, 0) or rank() > 0}


@pytest.fixture(scope="module")
def pair() -> dict:
    return launch(together, 2, 4, accelerator="cpu")


@pytest.mark.slow
def test_two_processes_stay_identical(pair):
    (first, terms, step), (second, others, _) = pair["ends"]
    assert same(first, second) and terms == others and step == 4
    assert pair["unused"], "what no process reached was changed by the weight decay"


@pytest.mark.slow
def test_two_processes_do_what_one_does_with_twice_the_batch(pair):
    net = plain(seed=0)
    step = Step("task", (net,), task(net), lr=0.05, weight_decay=0.5)
    phase = Phase([step], Setup(clip=0.3, ema=0.9))
    terms = []
    for number in (1, 3, 5, 7):
        one, two = batch(number), batch(number + 1)
        both = Batch(torch.cat([one.x, two.x]), torch.cat([one.label, two.label]))
        terms.append(float(phase.train_step(both).terms["task"]))
    (state, measured, _), _ = pair["ends"]
    assert measured == pytest.approx(terms, abs=1e-5)
    for name, tensor in weights(net).items():
        torch.testing.assert_close(state[f"weights/task.0/{name}"], tensor, rtol=0, atol=1e-5)


SCRIPT = """
import torch
from torch import nn
from veil.core import VeilError
from veil.training.distributed import launch, rank, world_size
from veil.training.phase import Phase
from veil.training.steps import Setup, Step

def train(word):
    net = nn.Linear(2, 2)
    def loss(x):
        return {"mean": net(x).mean() * (float("nan") if rank() == 1 and phase.step == 1 else 1)}
    phase = Phase([Step("m", (net,), loss, lr=0.1)], Setup(devices=2))
    try:
        for _ in range(3):
            phase.train_step(torch.ones(1, 2))
    except VeilError as error:
        print(f"{word} {rank()} of {world_size()}: {error.code}\\n", end="", flush=True)

if __name__ == "__main__":
    launch(train, 2, "process", accelerator="cpu")
"""


@pytest.mark.slow
def test_under_torchrun_every_process_raises_the_same_error(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*command, tmp_path / "script.py"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        process.terminate()  # and with it, where it still runs, the processes it started
    assert process.returncode == 0, errors
    for number in (0, 1):
        assert f"process {number} of 2: term-not-finite" in out


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu(compiled):
    hides, sees, steps = rivals()
    hides.cuda()
    sees.cuda()
    phase = Phase(steps, Setup(precision="bf16", clip=1.0, ema=0.9, compile=compiled))
    on_gpu = [Batch(*(tensor.cuda() for tensor in one)) for one in batches(8)]
    for one in on_gpu[:4]:
        phase.train_step(one)
    tensors, values = phase.state()
    for one in on_gpu[4:]:
        phase.train_step(one)
    end = phase.state()[0]
    phase.restore(tensors, values)
    for one in on_gpu[4:]:
        phase.train_step(one)
    assert same(phase.state()[0], end)
    assert make_optimizer(steps[0], list(hides.parameters())).defaults["fused"]
