"""The games of the learned anonymizers on a tiny world: what each descends, who moves, when it ends, and what is refused."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from veil.apps.train import train
from veil.core import VeilError
from veil.data import Dataset
from veil.data import read as read_data
from veil.data.sample import Sample
from veil.methods import adversarial, elr, spact
from veil.methods.adversarial import Adversarial
from veil.methods.bdq import BDQRecipe
from veil.methods.elr import ELR, LowResolution
from veil.methods.noisy import NoisyRecipe
from veil.methods.penalty import Penalty
from veil.methods.spact import SPAct
from veil.methods.stprivacy import STPrivacy
from veil.methods.tedspad import TeDSPAD
from veil.nn import image, video
from veil.training import data as stage
from veil.training.data import Batch, DataConfig, TrainingData, of_clips, of_frames
from veil.training.fit import Setup, Step
from veil.training.recipe import Training

CPU = torch.device("cpu")
STAGE = DataConfig(size=32, length=4, batch=4, stills=4)


def dataset(name: str, samples: list[Sample], *, length: int = 6, **vocabulary: Any) -> Dataset:
    """Samples with noise for frames."""

    def frames(sample: Sample) -> np.ndarray:
        chance = np.random.default_rng(int(sample.id))
        return chance.integers(0, 256, (length, 32, 32, 3), np.uint8)

    return Dataset(name, samples, frames, **vocabulary)


def samples(**known: Callable[[int], Any]) -> list[Sample]:
    """Twelve to learn from, six to look at; `known` says what is known of the video of that number."""
    return [
        Sample(str(n), "train" if n < 12 else "val", **{key: value(n) for key, value in known.items()})
        for n in range(18)
    ]


@pytest.fixture(scope="module", autouse=True)
def world():
    """The synthetic world, rendered once, and small datasets that know little."""
    made = read_data("synthetic", size=32, count=60)
    known = dict(zip([s.id for s in made.samples], made.batch(made.samples), strict=True))  # type: ignore[misc]
    tags = ("sits", "waves", "tall")
    three = lambda n: (float(n % 2), float(n % 3 == 0), float(n > 6))  # noqa: E731
    found = {
        "synthetic": replace(made, frames=lambda sample: known[sample.id], batch=None),
        "tags": dataset("tags", samples(attributes=three), attributes=tags),
        "same": dataset("same", samples(action=lambda _: 1), actions=("sit", "wave")),
        "actions": dataset("actions", samples(action=lambda n: n % 2), actions=("sit", "wave")),
        "photographs": dataset("photographs", samples(attributes=three), length=1, attributes=tags),
        "long": dataset("long", samples(action=lambda n: n % 2), actions=("sit", "wave"), length=160),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            stage,
            "read_data",
            lambda name, root, **_: found[name] if name in found else read_data(name, root),
        )
        yield


def on(name: str, **more: Any) -> DataConfig:
    return replace(STAGE, use=stage.Source(name=name), **more)


def choosing(attributes: tuple[str, ...], **more: Any) -> DataConfig:
    return replace(STAGE, use=stage.Source(name="synthetic", attributes=attributes), **more)


def small(**more: Any) -> SPAct:
    values = {
        "stage": STAGE,
        "width": 4,
        "task": "small3d",
        "budget": ("small2d",),
        "drawing": 0,
        "warming": 0,
    }
    return SPAct(**{**values, "playing": 8, **more})


def supervised(**more: Any) -> Adversarial:
    values: dict[str, Any] = {
        "stage": STAGE,
        "net": "unet",
        "width": 4,
        "task": "small3d",
        "budget": ("small2d",),
    }
    return Adversarial(**{**values, "drawing": 0, "warming": 0, "playing": 8, **more})


def token_selection(**more: Any) -> STPrivacy:
    game = supervised(ignorance="reversal", gamma=0.5)
    return STPrivacy(game=game, dim=24, depth=4, stages=(1, 2, 3), **more)


def lived(recipe: Any) -> Training:
    """A game after two turns, its networks with the statistics of the last batch, so that they tell pictures apart."""
    training = recipe.training(CPU, 1)
    for net in nets(training).values():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                module.momentum = 1.0
    with torch.enable_grad():
        for number in (1, 2):
            training.game.train_step(training.batch(number))
    return training


def nets(training: Training) -> dict[str, Any]:
    return training.game._networks  # type: ignore[union-attr]


def move(training: Training, name: str) -> Step[Batch]:
    game: Any = training.game
    return getattr(game, "game", game)._movers[name].move


def terms(training: Training, name: str, batch: Batch) -> dict[str, Tensor]:
    torch.manual_seed(5)
    return move(training, name).loss(batch)


def fixed(training: Training, number: int = 0) -> Batch:
    """A batch whose other views are made once."""
    batch = training.batch(number)
    again, other = batch.again(), batch.other()
    return batch._replace(again=lambda: again, other=lambda: other)


def same(found: dict[str, Tensor], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-6), name


# The equations, written out from what the networks say


def redrawn(net: nn.Module, clip: Tensor) -> Tensor:
    """A(x), frame by frame and video by video."""
    return torch.stack(
        [
            torch.stack([net(video[None, :, t : t + 1])[0, :, 0] for t in range(clip.shape[2])], 1)
            for video in clip
        ]
    )


def cross_entropy(logits: Tensor, labels: Tensor) -> float:
    return sum(-float(row.softmax(0)[label].log()) for row, label in zip(logits, labels, strict=True)) / len(
        labels
    )


def contrast(a: Tensor, b: Tensor, temperature: float) -> float:
    z = [*a, *b]
    total = 0.0
    for i in range(len(z)):
        like = [math.exp(float(F.cosine_similarity(z[i], other, 0)) / temperature) for other in z]
        total -= math.log(like[(i + len(a)) % len(z)] / (sum(like) - like[i]))
    return total / len(z)


def task_loss(training: Training, batch: Batch) -> float:
    networks = nets(training)
    return cross_entropy(networks["task"](redrawn(networks["redraw"], batch.clip)), batch.action)


def budget_loss(training: Training, batch: Batch) -> float:
    redraw, (budget,) = nets(training)["redraw"], nets(training)["budgets"]
    first, second = (budget.net(redrawn(redraw, v[:, :, None])[:, :, 0]) for v in (batch.first, batch.second))
    return contrast(first, second, 0.1)


@pytest.mark.parametrize("cap", [None, 0.0, 5.0])
@pytest.mark.parametrize("partner", [None, 0, 1])
@torch.no_grad()
def test_spact_descends_its_equation(cap, partner):
    training = lived(small(omega=0.3, cap=cap))
    batch = fixed(training)
    if partner is not None:  # the same picture, or what is worse than ignorance: the same as another's
        batch = batch._replace(second=batch.first.roll(partner, 0))
    use, found = task_loss(training, batch), budget_loss(training, batch)
    ignorant = math.log(2 * 4 - 1)
    assert partner is None or (found > ignorant + 0.1 if partner else found < ignorant - 0.1)
    kept = found if cap is None else min(found, ignorant + cap)
    same(terms(training, "hide", batch), {"task": use, "budget": -0.3 * kept})
    same(terms(training, "learn", batch), {"task": use, "budget": found})


@torch.no_grad()
def test_a_spatiotemporal_budget_sees_two_views_of_a_clip():
    training = lived(small(branch="spatiotemporal", budget=("small3d",), cap=None))
    batch, redraw, (budget,) = fixed(training), nets(training)["redraw"], nets(training)["budgets"]
    first, second = (budget.net(redrawn(redraw, clip)) for clip in (batch.clip, batch.again()))
    found = contrast(first, second, 0.1)
    same(terms(training, "hide", batch), {"task": task_loss(training, batch), "budget": -found})


@torch.no_grad()
def test_rotation_and_moco_in_place_of_contrast():
    training = lived(small(contrast="rotnet", cap=None))
    batch, redraw, (budget,) = fixed(training), nets(training)["redraw"], nets(training)["budgets"]
    drawn = redrawn(redraw, batch.first[:, :, None])[:, :, 0]
    turned = [cross_entropy(budget.net(drawn.rot90(k, (2, 3))), torch.full((4,), k)) for k in range(4)]
    assert float(terms(training, "hide", batch)["budget"]) == pytest.approx(-sum(turned) / 4, rel=1e-4)
    training = lived(small(contrast="moco", cap=None))
    batch, redraw, (budget,) = fixed(training), nets(training)["redraw"], nets(training)["budgets"]
    queue = budget.net.queue.clone()
    query, key = (
        F.normalize(net(redrawn(redraw, v[:, :, None])[:, :, 0]), dim=1)
        for net, v in ((budget.net.encoder, batch.first), (budget.net.momentum_encoder, batch.second))
    )
    scores = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.T], 1) / 0.1
    expected = -cross_entropy(scores, torch.zeros(4, dtype=torch.long))
    assert float(terms(training, "hide", batch)["budget"]) == pytest.approx(expected, rel=1e-4)
    assert torch.equal(budget.net.queue, queue)  # who hides is not remembered


@pytest.mark.parametrize("bound", [0.0, 0.3, 1.0])
@torch.no_grad()
def test_penalty_adds_what_exceeds_the_bound(bound):
    training = lived(Penalty(spact=small(cap=None), bound=bound, weight=0.7))
    batch = fixed(training)
    far = math.sqrt(float((batch.clip - redrawn(nets(training)["redraw"], batch.clip)).square().mean()))
    same(
        terms(training, "hide", batch),
        {
            "task": task_loss(training, batch),
            "budget": -budget_loss(training, batch),
            "penalty": 0.7 * max(0.0, far - bound),
        },
    )


@torch.no_grad()
def test_penalty_of_features():
    training = lived(Penalty(spact=small(), bound=0.001, space="feature"))
    batch, task, redraw = fixed(training), nets(training)["task"], nets(training)["redraw"]
    total = 0.0
    for x in batch.clip:
        a, b = (task.features(clip)[0] for clip in (x[None], redrawn(redraw, x[None])))
        total += max(0.0, math.sqrt(float((a / a.norm() - b / b.norm()).square().mean())) - 0.001)
    found = terms(training, "hide", batch)["penalty"]
    assert total > 0 and float(found) == pytest.approx(total / 4, rel=1e-3)


@torch.no_grad()
def test_tedspad_descends_its_equation():
    training = lived(TeDSPAD(spact=small(cap=None)))
    batch, task, redraw = fixed(training), nets(training)["task"], nets(training)["redraw"]
    f, near, far = (
        F.normalize(task.head(task.task.features(redrawn(redraw, clip))), dim=1)
        for clip in (batch.clip, batch.again(), batch.other())
    )
    apart = sum(max(0.0, float((f[i] - near[i]).norm() - (f[i] - far[i]).norm()) + 1) for i in range(4)) / 4
    use, found = task_loss(training, batch), budget_loss(training, batch)
    same(
        terms(training, "hide", batch),
        {"task": 0.7 * use, "distinct": 0.7 * 0.1 * apart, "budget": -found},
    )
    same(terms(training, "learn", batch), {"task": use, "distinct": 0.1 * apart, "budget": found})


def ignorances(answers: list[tuple[Tensor, Tensor]], kind: str) -> list[float]:
    found = []
    for logits, labels in answers:
        p = logits.softmax(1)
        if kind == "uniform":
            found.append(float(-(p.log() / p.shape[1]).sum(1).mean()))
        elif kind == "entropy":
            found.append(float((p * p.log()).sum(1).mean()))  # less the entropy
        else:
            found.append(-cross_entropy(logits, labels))
    return found


@pytest.mark.parametrize("kind", ["uniform", "entropy", "reversal"])
@torch.no_grad()
def test_adversarial_descends_the_strongest(kind):
    recipe = supervised(budget=("small2d", "small2d"), clip_budget=("small3d",), ignorance=kind, gamma=0.4)
    training = lived(recipe)
    check_supervised(training, kind, 0.4)


@torch.no_grad()
def test_bdq_and_stprivacy_play_the_same_game():
    recipe = BDQRecipe(game=supervised(ignorance="entropy", gamma=2.0, optimizer="sgd", cosine=True))
    training = lived(recipe)
    check_supervised(training, "entropy", 2.0, whole=True)
    training = lived(token_selection(price=3.0))
    redraw = nets(training)["redraw"]
    masks = redraw.drawn(fixed(training).clip)[1]
    shares = [[float(clip.mean()) for clip in mask] for mask in masks]
    off = sum((s - r) ** 2 for stage, r in zip(shares, (0.7, 0.49, 0.34), strict=True) for s in stage) / 12
    check_supervised(training, "reversal", 0.5, whole=True, more={"ratio": 3.0 * off})


def check_supervised(
    training: Training, kind: str, gamma: float, *, whole: bool = False, more: dict[str, float] | None = None
) -> None:
    batch, (redraw, task, seekers) = fixed(training), nets(training).values()
    drawn = redraw(batch.clip) if whole else redrawn(redraw, batch.clip)
    torch.manual_seed(5)
    frame = torch.randint(4, (4,))
    pictures = torch.stack([drawn[i, :, int(frame[i])] for i in range(4)])
    assert batch.who is not None
    answers = [(net(pictures), batch.who) for net in seekers.frames] + [
        (net(drawn), batch.who) for net in seekers.clips
    ]
    use = cross_entropy(task(drawn), batch.action)
    hidden = gamma * max(ignorances(answers, kind))
    same(terms(training, "hide", batch), {"task": use, "budget": hidden, **(more or {})})
    losses = [cross_entropy(*answer) for answer in answers]
    names = [f"budget{n}" for n in range(len(seekers.frames))]
    names += [f"clip_budget{n}" for n in range(len(seekers.clips))]
    same(terms(training, "learn", batch), {"task": use, **dict(zip(names, losses, strict=True))})


@torch.no_grad()
def test_elr_learns_from_all_motions_and_keeps_the_best(monkeypatch):
    training = ELR(stage=STAGE, factor=8, pool=5, count=2, task="small3d", steps=2).training(CPU, 1)
    batch, (task,) = fixed(training), move(training, "learn").modules
    task.eval()
    torch.manual_seed(5)
    which = torch.randint(5, (4,))
    coarse = [LowResolution(8, (int(k),), 5).eval()(x[None]) for k, x in zip(which, batch.clip, strict=True)]
    same(terms(training, "learn", batch), {"task": cross_entropy(task(torch.cat(coarse)), batch.action)})
    monkeypatch.setattr(elr, "choose", lambda *_: [4, 1])
    assert torch.equal(training.weights()["transforms"], elr.transforms(5)[[4, 1]])


@torch.no_grad()
def test_noisy_descends_its_equation():
    recipe = NoisyRecipe(
        stage=STAGE, width=4, task="small3d", budget="small2d", privacy=0.6, drawing=0, warming=1, playing=2
    )
    training = recipe.training(CPU, 1)
    batch, (redraw, task, budget) = fixed(training), nets(training).values()
    raw = {
        "task": cross_entropy(task(batch.clip), batch.action),
        "budget": cross_entropy(budget(batch.first), batch.private),  # type: ignore[arg-type]
    }
    same(terms(training, "warm", batch), raw)
    training.game._enter(1)  # type: ignore[union-attr]
    torch.manual_seed(5)
    noise = budget.features(torch.rand_like(batch.first)).mean(0)
    seen, shown = task.features(batch.clip), task.features(redrawn(redraw, batch.clip))
    people = budget.features(redrawn(redraw, batch.first[:, :, None])[:, :, 0])
    same(
        terms(training, "hide", batch),
        {
            "task": sum(float((a - b).square().sum()) for a, b in zip(seen, shown, strict=True))
            / seen.numel(),
            "noise": 0.6 * sum(float((a - noise).square().sum()) for a in people) / people.numel(),
        },
    )


@pytest.mark.parametrize("recipe", [small(), Penalty(spact=small()), TeDSPAD(spact=small()), supervised()])
@torch.no_grad()
def test_frames_of_a_clip_are_not_scrambled(recipe):
    redraw, clip = recipe.network().eval(), torch.rand(2, 3, 4, 32, 32)
    assert torch.allclose(redraw(clip), redrawn(redraw, clip), atol=1e-5)


# Gradients


def gradient(term: Tensor, network: nn.Module) -> float:
    if not term.requires_grad:
        return 0.0
    found = torch.autograd.grad(term, list(network.parameters()), allow_unused=True)
    return sum(float(g.abs().sum()) for g in found if g is not None)


def test_the_penalty_steers_above_the_bound_only():
    for bound, detached, steers in ((0.0, False, True), (0.9, False, False), (0.0, True, False)):
        training = Penalty(spact=small(), bound=bound, detached=detached).training(CPU, 1)
        term = terms(training, "hide", fixed(training))["penalty"]
        assert (gradient(term, nets(training)["redraw"]) > 0) == steers
        assert (float(term.detach()) > 0) == (bound == 0)


def test_no_bound_is_no_weight_is_spact():
    def played(recipe: Any) -> dict[str, Tensor]:
        training = recipe.training(CPU, 1)
        for number in range(5):
            training.game.train_step(training.batch(number))
        return {
            f"{name}.{key}": t for name, net in nets(training).items() for key, t in net.state_dict().items()
        }

    unbound = played(Penalty(spact=small(), bound=1.0))
    for other in (Penalty(spact=small(), bound=0.0, weight=0.0), small()):
        found = played(other)
        assert all(torch.equal(value, unbound[name]) for name, value in found.items())
    tight = played(Penalty(spact=small(), bound=0.0))
    assert any(not torch.equal(value, unbound[name]) for name, value in tight.items())


def test_above_the_cap_nothing_is_gained():
    for cap, steers in ((None, True), (5.0, True), (0.0, False)):
        training = lived(small(cap=cap))
        batch = training.batch(0)
        term = terms(training, "hide", batch._replace(second=batch.first.roll(1, 0)))["budget"]
        assert (gradient(term, nets(training)["redraw"]) > 0) == steers
        assert steers or -float(term.detach()) == pytest.approx(math.log(7))


# Who moves


def moved(training: Training, number: int) -> tuple[str, set[str], set[str]]:
    """The move of a turn, the networks of which weights moved, and those of which buffers did."""
    kinds = {}
    for name, net in nets(training).items():
        kinds[name] = dict(net.named_parameters()), dict(net.named_buffers())
    before = {
        n: [{k: t.detach().clone() for k, t in kind.items()} for kind in both] for n, both in kinds.items()
    }
    measured = training.game.train_step(training.batch(number))
    weights, buffers = (
        {
            n
            for n, both in kinds.items()
            if any(not torch.equal(t, before[n][i][k]) for k, t in both[i].items())
        }
        for i in (0, 1)
    )
    return measured.step_name, weights, buffers


@pytest.mark.parametrize("batch_stats", [False, True])
@pytest.mark.parametrize("contrast", ["nt_xent", "moco", "rotnet"])
def test_only_whose_turn_it_is_moves(contrast, batch_stats):
    training = small(
        drawing=1, warming=1, playing=3, repeats=2, batch_stats=batch_stats, contrast=contrast
    ).training(CPU, 1)
    seen = [moved(training, number) for number in range(5)]
    a, others = {"redraw"}, {"task", "budgets"}
    learn = "learn", others, others
    assert seen == [("draw", a, a), ("warm", others, others), ("hide", a, a), learn, learn]


def test_a_frozen_budget_never_moves_and_the_task_takes_its_turns():
    training = small(branch="frozen", playing=3, repeats=2, batch_stats=True).training(CPU, 1)
    learn = "learn", {"task"}, {"task"}
    assert [moved(training, number) for number in range(3)] == [
        ("hide", {"redraw"}, {"redraw"}),
        learn,
        learn,
    ]


@pytest.mark.parametrize("recipe", [supervised(batch_stats=True), token_selection()])
def test_only_whose_turn_it_is_moves_in_the_supervised_game(recipe):
    training = recipe.training(CPU, 1)
    a, others = {"redraw"}, {"task", "seekers"}
    own = a if any(True for _ in nets(training)["redraw"].buffers()) else set()
    assert [moved(training, number) for number in range(2)] == [("hide", a, own), ("learn", others, others)]


def test_lively_networks_have_the_statistics_of_the_batch():
    batch = fixed(small().training(CPU, 1))
    found = []
    for batch_stats in (False, True):
        training = small(batch_stats=batch_stats).training(CPU, 1)
        found.append(float(training.game.train_step(batch).terms["budget"]))
    assert found[0] != found[1]


def test_a_restart_makes_fresh_budget_networks_and_keeps_the_anonymizer():
    recipe = supervised(restart=10, playing=20, lr_others=1e-2)
    training = recipe.training(CPU, 1)
    assert recipe.steps == 10 + 5 + 10
    for number in range(10):
        training.game.train_step(training.batch(number))
    networks = nets(training)
    before = {name: {k: t.clone() for k, t in net.state_dict().items()} for name, net in networks.items()}
    training.game._enter(1)  # type: ignore[union-attr]
    for name in ("redraw", "task"):
        assert all(torch.equal(t, before[name][key]) for key, t in networks[name].state_dict().items())
    torch.manual_seed(104_729)
    fresh = adversarial.Seekers([of_frames("small2d", 32, STAGE)], []).state_dict()
    for key, tensor in networks["seekers"].state_dict().items():
        assert torch.equal(tensor, fresh[key]) and not torch.equal(tensor, before["seekers"][key])
    assert moved(training, 10)[:2] == ("catch up", {"task", "seekers"})


# Batches


def test_frames_that_do_not_fit_into_memory_are_read_from_disk(monkeypatch, tmp_path):
    whole = TrainingData(STAGE, CPU, 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(stage, "ROOM", 5 * whole.train.frames[:16].nbytes)
    small = TrainingData(STAGE, CPU, 3)
    assert (tmp_path / "veil" / "frames").is_dir()
    assert not list((tmp_path / "veil" / "frames").iterdir())  # gone with the process
    assert torch.equal(small.train.frames, whole.train.frames)
    for number in (0, 7):
        one, other = whole(number), small(number)
        for a, b in zip(one[:6], other[:6], strict=True):
            assert isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
        assert torch.equal(one.again(), other.again()) and torch.equal(one.other(), other.other())
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(VeilError, match=r"cannot take them \(Not a directory\).*XDG_CACHE_HOME.*stage\.held"):
        TrainingData(STAGE, CPU, 3)


def test_other_views_are_exact_where_networks_are_not():
    staged = TrainingData(STAGE, CPU, 0)
    for number in range(3):
        batch, views = staged(number), fixed(Training(None, staged, dict, dict), number)  # type: ignore[arg-type]
        with torch.autocast("cpu", torch.bfloat16):
            for found, right in ((batch.again(), views.again()), (batch.other(), views.other())):
                assert found.dtype == torch.float32 and torch.equal(found, right)


@pytest.mark.parametrize(
    "recipe",
    [
        TeDSPAD(spact=small(playing=2)),
        small(branch="spatiotemporal", budget=("small3d",), playing=2),
        Penalty(spact=small(playing=2), space="feature"),
        supervised(playing=2),
    ],
    ids=["tedspad", "spatiotemporal", "penalty", "adversarial"],
)
def test_a_game_is_played_in_bf16(recipe, monkeypatch):
    for module in (spact, adversarial):
        monkeypatch.setattr(module, "setup", lambda *_: Setup(precision="bf16"))
    training = recipe.training(CPU, 1)
    assert [moved(training, number)[0] for number in range(2)] == ["hide", "learn"]


def test_how_far_apart_partners_are():
    chosen, dice = torch.arange(12).repeat(50), torch.Generator().manual_seed(0)
    apart = {}
    for pairs in ("views", "frames", "near", "far"):
        here, there = TrainingData(on("long", pairs=pairs), CPU, 0)._partners(chosen, dice)
        assert ((here >= 0) & (here < 160) & (there >= 0) & (there < 160)).all()
        apart[pairs] = (here - there).abs()
    assert (apart["views"] == 0).all() and apart["frames"].float().mean() > 40
    assert apart["near"].min() == 1 and apart["near"].max() == 7
    assert apart["far"].min() == 65 and apart["far"].max() > 120
    here, there = TrainingData(on("actions", pairs="far"), CPU, 0)._partners(chosen, dice)
    assert (here == 0).all() and (there == 5).all()


def test_what_is_private_can_be_chosen():
    assert TrainingData(STAGE, CPU, 0).kinds == 32
    for target, ndim in (("identity", 1), ("attributes", 2)):
        staged = TrainingData(replace(STAGE, target=target), CPU, 0)  # type: ignore[arg-type]
        batch = staged(0)
        assert batch.private is not None and batch.who is not None
        assert batch.private.ndim == batch.who.ndim == ndim
        assert staged.kinds == len(
            staged.train.dataset.attributes if ndim == 2 else staged.train.dataset.identities
        )
    with pytest.raises(
        VeilError, match=r"tags do not say the identity of who is seen, .* they say attributes"
    ):
        TrainingData(on("tags", keep="attributes", target="identity"), CPU, 0)
    with pytest.raises(VeilError, match="they say nothing that is private"):
        TrainingData(on("actions", target="attributes"), CPU, 0)


def test_attributes_that_are_chosen_are_what_is_private():
    """The videos also say who is seen, which is not asked for."""
    known = TrainingData(STAGE, CPU, 0).train.dataset.attributes
    two = known[1], known[0]
    for play in (choosing(two), replace(STAGE, private=stage.Source(name="synthetic", attributes=two))):
        staged = TrainingData(play, CPU, 0)
        batch = staged(0)
        assert staged.kinds == 2 and batch.private is not None and batch.private.shape == (4, 2)
        assert [sample.attributes for sample in staged.people.samples] == [
            (sample.attributes[1], sample.attributes[0])
            for sample in TrainingData(STAGE, CPU, 0).people.samples
        ]


@torch.no_grad()
def test_several_actions_at_once_have_binary_losses():
    training = small(stage=on("tags", keep="attributes"), cap=None).training(CPU, 1)
    batch, networks = fixed(training), nets(training)
    p = networks["task"](redrawn(networks["redraw"], batch.clip)).sigmoid()
    assert p.shape == batch.action.shape == (4, 3) and batch.private is None
    right = sum(
        -math.log(float(q if y else 1 - q)) for q, y in zip(p.flatten(), batch.action.flatten(), strict=True)
    )
    assert float(terms(training, "hide", batch)["task"]) == pytest.approx(right / 12, rel=1e-4)
    assert 0 <= training.check()["action"] <= 1


@torch.no_grad()
def test_published_weights_see_what_they_were_made_for(tmp_path):
    clip, picture = torch.rand(2, 3, 4, 32, 32), torch.rand(2, 3, 32, 32)
    for make, of, x, table in (
        (video.make, of_clips, clip, video.VIDEO_NETS["small3d"]),
        (image.make, of_frames, picture, image.IMAGE_NETS["small2d"]),
    ):
        name = "small3d" if x is clip else "small2d"
        bare = make(name, 5, frames=4, size=32).eval()
        file = tmp_path / f"{name}.safetensors"
        save_file({key: value.contiguous() for key, value in bare.state_dict().items()}, file)
        found, fresh = of(name, 5, STAGE, str(file)).eval(), of(name, 5, STAGE)
        assert isinstance(fresh, type(bare)) and found.dim == bare.dim
        shape = 3, *[1] * (x.ndim - 2)
        seen = (x - torch.tensor(table.mean).view(shape)) / torch.tensor(table.std).view(shape)
        assert torch.allclose(found(x), bare(seen)) and torch.allclose(found.features(x), bare.features(seen))
    training = small(task_weights=str(tmp_path / "small3d.safetensors")).training(CPU, 1)
    assert training.check().keys() == {"action"}
    with torch.enable_grad():
        assert [moved(training, number)[1] for number in (0, 1)] == [{"redraw"}, {"task", "budgets"}]


# Through `veil train`

RECIPE = """
method = "spact"
width = 4
task = "small3d"
budget = ["small2d"]
drawing = 3
warming = 3
playing = 6

[stage]
size = 32
length = 4
batch = 4
stills = 4
"""
SUPERVISED = """
method = "adversarial"
net = "unet"
width = 4
task = "small3d"
budget = ["small2d"]
drawing = 0
warming = 2
playing = 20
restart = 10

[stage]
size = 32
length = 4
batch = 4
stills = 4
"""


@pytest.fixture
def recipe(tmp_path) -> Path:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path / "recipe.toml"


def refused(text: str, folder: Path, *sets: str) -> str:
    (folder / "recipe.toml").write_text(text)
    with pytest.raises(VeilError) as caught:
        train(folder / "recipe.toml", folder / "run", sets=sets, device="cpu")
    assert "\n" not in str(caught.value) and not (folder / "run").exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (("stage.sise=64",), "--set: there is no 'stage.sise' (did you mean 'size'?)"),
        (("stage.batch=0",), "stage.batch = 0 should be greater than or equal to 1"),
        (("task=small2d",), "there is no network of clips 'small2d' (did you mean 'small3d'?)"),
        (("budget=['r3d_18']",), "there is no network of frames 'r3d_18'"),
        (("branch=spatiotemporal",), "there is no network of clips 'small2d'"),
        (("budget=[]",), "a game needs at least one budget network"),
        (("branch=frozen", "stop=2.0"), "a frozen budget network measures no loss at which to stop"),
        (("stage.stills=1",), "needs at least two pairs: raise stage.stills, which is 1"),
        (
            ("branch=spatiotemporal", "budget=['small3d']", "stage.batch=1"),
            "needs at least two pairs: raise stage.batch, which is 1",
        ),
        (("stage.target=identity", "stage.use.name=actions"), "do not say the identity of who is seen"),
        (
            ("stage.private.root=/faces",),
            "recipe.toml with --set: 'stage.private.name' is missing, and it has no default.",
        ),
        (
            ("stage.use.root=/faces",),
            'recipe.toml with --set: in stage.use, name is "synthetic", whose videos are made, so that nothing of '
            "/faces would be read: set name to",
        ),
        (
            ("stage.target=identity", "stage.use.attributes=['female']"),
            'in stage, target = "identity" and use.attributes say two things',
        ),
        (
            ("stage.private.name=tags", "stage.use.attributes=['female']"),
            "use.attributes would not be looked at: set private.attributes",
        ),
        (
            ("stage.keep=attributes", "stage.target=attributes"),
            "the same attributes are to be kept and to be hidden",
        ),
        (
            ("stage.use.name=photographs", "stage.pairs=views"),
            "photographs has no actions, which are what is kept: choose other data, or set stage.keep",
        ),
        (("stage.use.name=actions", "stage.keep=attributes"), "actions has no attributes"),
        (("stage.use.name=same",), "videos of same do not say two different actions"),
        (("stage.use.name=utd-mhad",), "UTD-MHAD is read from disk: add --set stage.use.root=FOLDER"),
        (("seed=-1",), "--set: seed = -1 should be greater than or equal to 0"),
        (("seed=99999999999999999999",), "--set: seed = 99999999999999999999 should be less than 4294967296"),
        (("lr=inf",), "--set: lr = inf should be a finite number"),
        (("lr=nan",), "--set: lr = nan should be a finite number"),
        (("method=elr",), "the method is chosen by the recipe file"),
        (("task_weights=/nowhere.pt",), "the file of weights /nowhere.pt does not exist"),
    ],
)
def test_bad_recipes_are_one_sentence(sets, sentence, tmp_path):
    assert sentence in refused(RECIPE, tmp_path, *sets)


@pytest.mark.parametrize(
    ("text", "sets", "sentence"),
    [
        (
            SUPERVISED,
            ("stage.use.name=actions",),
            "videos of actions say neither who is seen nor any attribute",
        ),
        (
            SUPERVISED,
            ("stage.use.name=tags", "stage.keep=attributes"),
            "videos of tags say neither who is seen nor any attribute",
        ),
        (
            SUPERVISED,
            ("stage.private={name='vispr'}",),
            "VISPR is read from disk: add --set stage.private.root=",
        ),
        (
            'method = "penalty"',
            ("spact.stage.use.name=kth",),
            "KTH is read from disk: add --set spact.stage.use.root=",
        ),
        ('method = "bdq"', ("game.stage.length=1",), "raise game.stage.length, which is 1"),
        ('method = "bdq"', ("game.stage.use.root=x",), "with --set: in game.stage.use, name is"),
        (SUPERVISED, ("budget=['small3d']",), "there is no network of frames 'small3d'"),
        ('method = "elr"', ("count=9", "pool=8"), "of 8 transforms, 9 cannot be chosen: lower count"),
        ('method = "tedspad"', ("spact.stage.batch=1",), "raise spact.stage.batch"),
        ('method = "stprivacy"', ("game.stage.size=100",), "STPrivacy cuts clips into 2×16×16"),
        ('method = "noisy"', ("budget=small3d",), "there is no network of frames 'small3d'"),
        (
            'method = "bdq"',
            ("game.stage.size=32", "game.stage.pairs=views", "game.stage.private={name='photographs'}"),
            "shows nothing of what stands still, and photographs has stills",
        ),
    ],
)
def test_bad_recipes_of_other_games_are_one_sentence(text, sets, sentence, tmp_path):
    assert sentence in refused(text, tmp_path, *sets)


class Killed(BaseException):
    """What no one catches."""


def killed_at(step: int) -> Callable[..., None]:
    def progress(at: int, *_: Any) -> None:
        if at == step:
            raise Killed

    return progress


@pytest.mark.parametrize(
    ("text", "steps"),
    [(RECIPE, (2, 3, 5, 6)), (SUPERVISED, (12, 13))],  # before, at and after a border between games
    ids=["spact", "adversarial"],
)
def test_killed_and_resumed_it_is_the_same_run(text, steps, tmp_path):
    (tmp_path / "recipe.toml").write_text(text)
    whole = load_file(train(tmp_path / "recipe.toml", tmp_path / "whole", every=1, device="cpu"))
    broken = tmp_path / "broken"
    for place, step in enumerate(steps):
        with pytest.raises(Killed):
            train(
                tmp_path / "recipe.toml",
                broken,
                resume=place > 0,
                every=1,
                device="cpu",
                progress=killed_at(step),
            )
    found = load_file(train(tmp_path / "recipe.toml", broken, resume=True, every=1, device="cpu"))
    assert found.keys() == whole.keys() and all(torch.equal(t, whole[name]) for name, t in found.items())
    assert (broken / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()


def test_resume_with_another_recipe_is_refused(recipe, tmp_path):
    with pytest.raises(Killed):
        train(recipe, tmp_path / "run", every=2, device="cpu", progress=killed_at(4))
    with pytest.raises(VeilError, match=r"was begun with recipe\.stage\.batch = 4, not 8"):
        train(recipe, tmp_path / "run", sets=("stage.batch=8",), resume=True, device="cpu")


def test_a_loss_that_is_no_number_stops_the_run_where_it_can_go_on(recipe, tmp_path, monkeypatch):
    right, calls = spact.classification_loss, []

    def wrong(*answer: Tensor) -> Tensor:
        calls.append(1)
        return right(*answer) * (math.nan if len(calls) == 4 else 1)

    with monkeypatch.context() as patch:
        patch.setattr(spact, "classification_loss", wrong)
        with pytest.raises(
            VeilError,
            match=r"the term 'task' of move 'hide' is nan at step 7: begin anew with a lower learning rate \(now "
            r"lr_draw = 0.001, lr_warm = 0.001, lr = 0.0001, lr_others = 0.0001\); the checkpoint of step 6 is kept\.",
        ) as told:
            train(recipe, tmp_path / "run", every=2, device="cpu")
    assert "\n" not in str(told.value)
    assert json.loads((tmp_path / "run" / "checkpoints" / "index.json").read_text())["kept"] == [4, 6]
    found = load_file(train(recipe, tmp_path / "run", every=2, resume=True, device="cpu"))
    whole = load_file(train(recipe, tmp_path / "whole", every=2, device="cpu"))
    assert all(torch.equal(t, whole[name]) for name, t in found.items())


@pytest.mark.parametrize("every", [1, 50])
def test_a_run_that_cannot_go_on_does_not_stay(every, recipe, tmp_path, monkeypatch):
    """One value to standardise, first seen after drawing; a loss that is no number before there is a checkpoint."""
    sentence = (
        "has a single value for it: begin a new run with a higher stage.batch, stage.stills or stage.size."
    )
    sets = ("stage.batch=1", "stage.size=16", "stage.length=1", "drawing=2")
    with pytest.raises(VeilError, match=sentence):
        train(recipe, tmp_path / "run", sets=sets, every=every, device="cpu")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(spact, "classification_loss", lambda *_: torch.full((), math.nan, requires_grad=True))
    with pytest.raises(VeilError, match=r"is nan at step 1: .*; no checkpoint was made yet\.$"):
        train(recipe, tmp_path / "run", sets=("drawing=0",), every=every, device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_full_memory_is_one_sentence(recipe, tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore.")

    monkeypatch.setattr(spact, "classification_loss", full)
    with pytest.raises(VeilError) as told:
        train(recipe, tmp_path / "run", every=2, device="cpu")
    assert str(told.value) == (
        "this training does not fit into memory (CUDA out of memory): "
        "begin a new run with a lower stage.batch, stage.stills or stage.size."
    )


def test_a_goal_that_is_reached_ends_the_run(recipe, tmp_path):
    for _ in range(2):  # the second time it is finished already
        train(recipe, tmp_path / "run", sets=("stop=0.01",), device="cpu", resume=(tmp_path / "run").exists())
        about = json.loads((tmp_path / "run" / "run.json").read_text())
        records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
        assert (
            about["finished"] and max(record["step"] for record in records) == 8
        )  # of 12: draw, warm, hide, learn
