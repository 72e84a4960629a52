"""Training of the learned anonymizers on tiny data: each loss, which modules are updated, when it ends, and what is refused."""

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

from errors import refuses
from veil.apps.train import train
from veil.core import VeilError
from veil.data import Dataset
from veil.data import read as read_data
from veil.data.sample import Sample
from veil.methods import adversarial, elr, spact
from veil.methods.adversarial import AdversarialRecipe
from veil.methods.bdq import BDQRecipe
from veil.methods.elr import ELRRecipe, LowResolution
from veil.methods.noisy import NoisyRecipe
from veil.methods.penalty import PenaltyRecipe
from veil.methods.spact import SPActRecipe
from veil.methods.stprivacy import STPrivacyRecipe
from veil.methods.tedspad import TeDSPADRecipe
from veil.nn import image, video
from veil.training import config, data_config, frame_cache
from veil.training.data import TrainingBatch, TrainingData
from veil.training.data_config import DataConfig, PrivateData
from veil.training.networks import clip_network, frame_network
from veil.training.recipe import Training
from veil.training.steps import Setup, Step

CPU = torch.device("cpu")
DATA = DataConfig(size=32, length=4, batch=4, image_pairs=4)
SMALL = {
    "data": {"size": 32, "length": 4, "skip": 2, "augment": "spact", "batch": 4, "image_pairs": 4},
    "utility": {"network": "small3d"},
    "budget": {"networks": ["small2d"]},
    "schedule": {
        "reconstruction_steps": 0,
        "warmup_steps": 0,
        "adversarial_steps": 8,
        "lr_anonymizer": 1e-4,
        "lr_others": 1e-4,
    },
}


def dataset(name: str, samples: list[Sample], *, length: int = 6, **vocabulary: Any) -> Dataset:
    """Samples with noise for frames."""

    def frames(sample: Sample) -> np.ndarray:
        chance = np.random.default_rng(int(sample.id))
        return chance.integers(0, 256, (length, 32, 32, 3), np.uint8)

    return Dataset(name, samples, frames, **vocabulary)


def samples(**known: Callable[[int], Any]) -> list[Sample]:
    """Twelve to learn from, six to look at; `known` gives the labels of the video of that number."""
    return [
        Sample(str(n), "train" if n < 12 else "val", **{key: value(n) for key, value in known.items()})
        for n in range(18)
    ]


@pytest.fixture(scope="module", autouse=True)
def world():
    """The synthetic dataset, rendered once, and small datasets with few labels."""
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
            data_config,
            "read_data",
            lambda name, root, **_: found[name] if name in found else read_data(name, root),
        )
        yield


def on(name: str, **more: Any) -> DataConfig:
    return replace(DATA, name=name, **more)


def recipe_of(kind: Any, *sections: dict[str, Any], **more: dict[str, Any]) -> Any:
    """A recipe from tables, each laid over those before it."""
    values: dict[str, Any] = {}
    for table in (*sections, more):
        values = {**values, **{key: {**values.get(key, {}), **value} for key, value in table.items()}}
    return config.checked(values, kind)


def small(**more: dict[str, Any]) -> SPActRecipe:
    return recipe_of(SPActRecipe, SMALL, {"anonymizer": {"width": 4}}, more)


def penalty(**more: dict[str, Any]) -> PenaltyRecipe:
    return recipe_of(PenaltyRecipe, SMALL, {"anonymizer": {"net": "unet", "width": 4}}, more)


def tedspad(**more: dict[str, Any]) -> TeDSPADRecipe:
    return recipe_of(TeDSPADRecipe, SMALL, {"anonymizer": {"net": "unet", "width": 4}}, more)


def supervised(**more: dict[str, Any]) -> AdversarialRecipe:
    return recipe_of(AdversarialRecipe, SMALL, {"anonymizer": {"net": "unet", "width": 4}}, more)


def bdq(**more: dict[str, Any]) -> BDQRecipe:
    return recipe_of(BDQRecipe, SMALL, more)


def token_selection(**more: dict[str, Any]) -> STPrivacyRecipe:
    of = {"dim": 24, "depth": 4, "stages": [1, 2, 3]}
    budget = {"uncertainty": "reversal", "weight": 0.5}
    return recipe_of(STPrivacyRecipe, SMALL, {"anonymizer": of, "budget": budget}, more)


def after_two_steps(recipe: Any) -> Training:
    """A training after two steps, with batch statistics of the last batch, so that the networks distinguish images."""
    training = recipe.training(CPU, 1)
    for net in nets(training).values():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                module.momentum = 1.0
    with torch.enable_grad():
        for number in (1, 2):
            training.phases.train_step(training.batch(number))
    return training


def nets(training: Training) -> dict[str, Any]:
    return training.phases._networks  # type: ignore[union-attr]


def step_of(training: Training, name: str) -> Step[TrainingBatch]:
    phases: Any = training.phases
    return getattr(phases, "phase", phases)._states[name].step


def terms(training: Training, name: str, batch: TrainingBatch) -> dict[str, Tensor]:
    torch.manual_seed(5)
    return step_of(training, name).loss(batch)


def fixed(training: Training, number: int = 0) -> TrainingBatch:
    """A batch whose other views are made once."""
    batch = training.batch(number)
    view, clip = batch.other_view(), batch.other_clip()
    return batch._replace(other_view=lambda: view, other_clip=lambda: clip)


def same(found: dict[str, Tensor], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-6), name


# The equations, written out from the networks' outputs


def anonymized_by(net: nn.Module, clip: Tensor) -> Tensor:
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


def utility_loss(training: Training, batch: TrainingBatch) -> float:
    networks = nets(training)
    return cross_entropy(networks["utility"](anonymized_by(networks["anonymizer"], batch.clip)), batch.action)


def budget_loss(training: Training, batch: TrainingBatch) -> float:
    anonymizer, (budget,) = nets(training)["anonymizer"], nets(training)["budget"]
    first, second = (
        budget.net(anonymized_by(anonymizer, v[:, :, None])[:, :, 0]) for v in (batch.first, batch.second)
    )
    return contrast(first, second, 0.1)


@pytest.mark.parametrize("cap", [None, 0.0, 5.0])
@pytest.mark.parametrize("partner", [None, 0, 1])
@torch.no_grad()
def test_spact_descends_its_equation(cap, partner):
    training = after_two_steps(small(budget={"weight": 0.3, "cap": cap}))
    batch = fixed(training)
    if partner is not None:  # the same picture, or what is worse than ignorance: the same as another's
        batch = batch._replace(second=batch.first.roll(partner, 0))
    use, found = utility_loss(training, batch), budget_loss(training, batch)
    ignorant = math.log(2 * 4 - 1)
    assert partner is None or (found > ignorant + 0.1 if partner else found < ignorant - 0.1)
    kept = found if cap is None else min(found, ignorant + cap)
    same(terms(training, "anonymize", batch), {"utility": use, "budget": -0.3 * kept})
    same(terms(training, "utility_and_budget", batch), {"utility": use, "budget": found})


@torch.no_grad()
def test_a_spatiotemporal_budget_sees_two_views_of_a_clip():
    training = after_two_steps(
        small(budget={"branch": "spatiotemporal", "networks": ["small3d"], "cap": None})
    )
    batch, anonymizer, (budget,) = fixed(training), nets(training)["anonymizer"], nets(training)["budget"]
    first, second = (budget.net(anonymized_by(anonymizer, clip)) for clip in (batch.clip, batch.other_view()))
    found = contrast(first, second, 0.1)
    same(terms(training, "anonymize", batch), {"utility": utility_loss(training, batch), "budget": -found})


@torch.no_grad()
def test_rotation_and_moco_in_place_of_contrast():
    training = after_two_steps(small(budget={"contrast": "rotnet", "cap": None}))
    batch, anonymizer, (budget,) = fixed(training), nets(training)["anonymizer"], nets(training)["budget"]
    anonymized = anonymized_by(anonymizer, batch.first[:, :, None])[:, :, 0]
    turned = [cross_entropy(budget.net(anonymized.rot90(k, (2, 3))), torch.full((4,), k)) for k in range(4)]
    assert float(terms(training, "anonymize", batch)["budget"]) == pytest.approx(-sum(turned) / 4, rel=1e-4)
    training = after_two_steps(small(budget={"contrast": "moco", "cap": None}))
    batch, anonymizer, (budget,) = fixed(training), nets(training)["anonymizer"], nets(training)["budget"]
    queue = budget.net.queue.clone()
    query, key = (
        F.normalize(net(anonymized_by(anonymizer, v[:, :, None])[:, :, 0]), dim=1)
        for net, v in ((budget.net.encoder, batch.first), (budget.net.momentum_encoder, batch.second))
    )
    scores = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.T], 1) / 0.1
    expected = -cross_entropy(scores, torch.zeros(4, dtype=torch.long))
    assert float(terms(training, "anonymize", batch)["budget"]) == pytest.approx(expected, rel=1e-4)
    assert torch.equal(budget.net.queue, queue)  # who hides is not remembered


@pytest.mark.parametrize("bound", [0.0, 0.3, 1.0])
@torch.no_grad()
def test_penalty_adds_what_exceeds_the_bound(bound):
    training = after_two_steps(penalty(budget={"cap": None}, penalty={"bound": bound, "weight": 0.7}))
    batch = fixed(training)
    far = math.sqrt(
        float((batch.clip - anonymized_by(nets(training)["anonymizer"], batch.clip)).square().mean())
    )
    same(
        terms(training, "anonymize", batch),
        {
            "utility": utility_loss(training, batch),
            "budget": -budget_loss(training, batch),
            "penalty": 0.7 * max(0.0, far - bound),
        },
    )


@torch.no_grad()
def test_penalty_of_features():
    training = after_two_steps(penalty(penalty={"bound": 0.001, "space": "feature"}))
    batch, utility, anonymizer = fixed(training), nets(training)["utility"], nets(training)["anonymizer"]
    total = 0.0
    for x in batch.clip:
        a, b = (utility.features(clip)[0] for clip in (x[None], anonymized_by(anonymizer, x[None])))
        total += max(0.0, math.sqrt(float((a / a.norm() - b / b.norm()).square().mean())) - 0.001)
    found = terms(training, "anonymize", batch)["penalty"]
    assert total > 0 and float(found) == pytest.approx(total / 4, rel=1e-3)


@torch.no_grad()
def test_tedspad_descends_its_equation():
    training = after_two_steps(tedspad(budget={"cap": None}))
    batch, utility, anonymizer = fixed(training), nets(training)["utility"], nets(training)["anonymizer"]
    f, near, far = (
        F.normalize(utility.head(utility.utility.features(anonymized_by(anonymizer, clip))), dim=1)
        for clip in (batch.clip, batch.other_view(), batch.other_clip())
    )
    apart = sum(max(0.0, float((f[i] - near[i]).norm() - (f[i] - far[i]).norm()) + 1) for i in range(4)) / 4
    use, found = utility_loss(training, batch), budget_loss(training, batch)
    same(
        terms(training, "anonymize", batch),
        {"utility": 0.7 * use, "distinctiveness": 0.7 * 0.1 * apart, "budget": -found},
    )
    same(
        terms(training, "utility_and_budget", batch),
        {"utility": use, "distinctiveness": 0.1 * apart, "budget": found},
    )


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
    recipe = supervised(
        budget={
            "networks": ["small2d", "small2d"],
            "clip_networks": ["small3d"],
            "uncertainty": kind,
            "weight": 0.4,
        }
    )
    training = after_two_steps(recipe)
    check_supervised(training, kind, 0.4)


@torch.no_grad()
def test_bdq_and_stprivacy_descend_the_supervised_losses():
    training = after_two_steps(bdq())
    check_supervised(training, "entropy", 2.0, whole=True)
    training = after_two_steps(token_selection(ratio={"weight": 3.0}))
    anonymizer = nets(training)["anonymizer"]
    masks = anonymizer.anonymize(fixed(training).clip)[1]
    shares = [[float(clip.mean()) for clip in mask] for mask in masks]
    off = sum((s - r) ** 2 for stage, r in zip(shares, (0.7, 0.49, 0.34), strict=True) for s in stage) / 12
    check_supervised(training, "reversal", 0.5, whole=True, more={"ratio": 3.0 * off})


def check_supervised(
    training: Training, kind: str, gamma: float, *, whole: bool = False, more: dict[str, float] | None = None
) -> None:
    batch, (anonymizer, utility, classifiers) = fixed(training), nets(training).values()
    anonymized = anonymizer(batch.clip) if whole else anonymized_by(anonymizer, batch.clip)
    torch.manual_seed(5)
    frame = torch.randint(4, (4,))
    images = torch.stack([anonymized[i, :, int(frame[i])] for i in range(4)])
    assert batch.clip_private is not None
    answers = [(net(images), batch.clip_private) for net in classifiers.frames] + [
        (net(anonymized), batch.clip_private) for net in classifiers.clips
    ]
    use = cross_entropy(utility(anonymized), batch.action)
    hidden = gamma * max(ignorances(answers, kind))
    same(terms(training, "anonymize", batch), {"utility": use, "budget": hidden, **(more or {})})
    losses = [cross_entropy(*answer) for answer in answers]
    names = [f"budget{n}" for n in range(len(classifiers.frames))]
    names += [f"clip_budget{n}" for n in range(len(classifiers.clips))]
    same(
        terms(training, "utility_and_budget", batch),
        {"utility": use, **dict(zip(names, losses, strict=True))},
    )


@torch.no_grad()
def test_elr_learns_from_all_transforms_and_keeps_the_best(monkeypatch):
    training = recipe_of(
        ELRRecipe,
        {key: SMALL[key] for key in ("data", "utility")},
        anonymizer={"factor": 8, "pool": 5, "count": 2},
        schedule={"steps": 2},
    ).training(CPU, 1)
    batch, (utility,) = fixed(training), step_of(training, "utility").modules
    utility.eval()
    torch.manual_seed(5)
    which = torch.randint(5, (4,))
    coarse = [LowResolution(8, (int(k),), 5).eval()(x[None]) for k, x in zip(which, batch.clip, strict=True)]
    same(
        terms(training, "utility", batch),
        {"utility": cross_entropy(utility(torch.cat(coarse)), batch.action)},
    )
    monkeypatch.setattr(elr, "choose", lambda *_: [4, 1])
    assert torch.equal(training.weights()["transforms"], elr.transforms(5)[[4, 1]])


@torch.no_grad()
def test_noisy_descends_its_equation():
    recipe = recipe_of(
        NoisyRecipe,
        {key: SMALL[key] for key in ("data", "utility")},
        anonymizer={"width": 4},
        budget={"network": "small2d", "weight": 0.6},
        schedule={"reconstruction_steps": 0, "warmup_steps": 1, "adversarial_steps": 2},
    )
    training = recipe.training(CPU, 1)
    batch, (anonymizer, utility, budget) = fixed(training), nets(training).values()
    raw = {
        "utility": cross_entropy(utility(batch.clip), batch.action),
        "budget": cross_entropy(budget(batch.first), batch.private),  # type: ignore[arg-type]
    }
    same(terms(training, "warmup", batch), raw)
    training.phases._enter(1)  # type: ignore[union-attr]
    torch.manual_seed(5)
    noise = budget.features(torch.rand_like(batch.first)).mean(0)
    seen, shown = utility.features(batch.clip), utility.features(anonymized_by(anonymizer, batch.clip))
    people = budget.features(anonymized_by(anonymizer, batch.first[:, :, None])[:, :, 0])
    same(
        terms(training, "anonymize", batch),
        {
            "utility": sum(float((a - b).square().sum()) for a, b in zip(seen, shown, strict=True))
            / seen.numel(),
            "noise": 0.6 * sum(float((a - noise).square().sum()) for a in people) / people.numel(),
        },
    )


@pytest.mark.parametrize("recipe", [small(), penalty(), tedspad(), supervised()])
@torch.no_grad()
def test_frames_of_a_clip_are_not_scrambled(recipe):
    anonymizer, clip = recipe.network().eval(), torch.rand(2, 3, 4, 32, 32)
    assert torch.allclose(anonymizer(clip), anonymized_by(anonymizer, clip), atol=1e-5)


# Gradients


def gradient(term: Tensor, network: nn.Module) -> float:
    if not term.requires_grad:
        return 0.0
    found = torch.autograd.grad(term, list(network.parameters()), allow_unused=True)
    return sum(float(g.abs().sum()) for g in found if g is not None)


def test_the_penalty_has_a_gradient_above_the_bound_only():
    for bound, detached, steers in ((0.0, False, True), (0.9, False, False), (0.0, True, False)):
        training = penalty(penalty={"bound": bound, "detached": detached}).training(CPU, 1)
        term = terms(training, "anonymize", fixed(training))["penalty"]
        assert (gradient(term, nets(training)["anonymizer"]) > 0) == steers
        assert (float(term.detach()) > 0) == (bound == 0)


def test_penalty_without_bound_or_weight_is_spact():
    def played(recipe: Any) -> dict[str, Tensor]:
        training = recipe.training(CPU, 1)
        for number in range(5):
            training.phases.train_step(training.batch(number))
        return {
            f"{name}.{key}": t for name, net in nets(training).items() for key, t in net.state_dict().items()
        }

    unbound = played(penalty(penalty={"bound": 1.0}))
    for other in (penalty(penalty={"bound": 0.0, "weight": 0.0}), small()):
        found = played(other)
        assert all(torch.equal(value, unbound[name]) for name, value in found.items())
    tight = played(penalty(penalty={"bound": 0.0}))
    assert any(not torch.equal(value, unbound[name]) for name, value in tight.items())


def test_above_the_cap_the_budget_has_no_gradient():
    for cap, steers in ((None, True), (5.0, True), (0.0, False)):
        training = after_two_steps(small(budget={"cap": cap}))
        batch = training.batch(0)
        term = terms(training, "anonymize", batch._replace(second=batch.first.roll(1, 0)))["budget"]
        assert (gradient(term, nets(training)["anonymizer"]) > 0) == steers
        assert steers or -float(term.detach()) == pytest.approx(math.log(7))


# Which modules are updated


def moved(training: Training, number: int) -> tuple[str, set[str], set[str]]:
    """The move of a turn, the networks of which weights moved, and those of which buffers did."""
    kinds = {}
    for name, net in nets(training).items():
        kinds[name] = dict(net.named_parameters()), dict(net.named_buffers())
    before = {
        n: [{k: t.detach().clone() for k, t in kind.items()} for kind in both] for n, both in kinds.items()
    }
    measured = training.phases.train_step(training.batch(number))
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
def test_a_step_updates_its_modules_only(contrast, batch_stats):
    steps = {"reconstruction_steps": 1, "warmup_steps": 1, "adversarial_steps": 3, "repeats": 2}
    budget = {"batch_stats": batch_stats, "contrast": contrast}
    training = small(schedule=steps, budget=budget).training(CPU, 1)
    seen = [moved(training, number) for number in range(5)]
    a, others = {"anonymizer"}, {"utility", "budget"}
    learn = "utility_and_budget", others, others
    assert seen == [("reconstruct", a, a), ("warmup", others, others), ("anonymize", a, a), learn, learn]


def test_a_frozen_budget_is_never_updated():
    training = small(
        budget={"branch": "frozen", "batch_stats": True}, schedule={"adversarial_steps": 3, "repeats": 2}
    ).training(CPU, 1)
    learn = "utility_and_budget", {"utility"}, {"utility"}
    assert [moved(training, number) for number in range(3)] == [
        ("anonymize", {"anonymizer"}, {"anonymizer"}),
        learn,
        learn,
    ]


@pytest.mark.parametrize("recipe", [supervised(budget={"batch_stats": True}), token_selection()])
def test_a_supervised_step_updates_its_modules_only(recipe):
    training = recipe.training(CPU, 1)
    a, others = {"anonymizer"}, {"utility", "budget"}
    own = a if any(True for _ in nets(training)["anonymizer"].buffers()) else set()
    assert [moved(training, number) for number in range(2)] == [
        ("anonymize", a, own),
        ("utility_and_budget", others, others),
    ]


def test_batch_stats_normalise_frozen_networks_by_the_batch():
    batch = fixed(small().training(CPU, 1))
    found = []
    for batch_stats in (False, True):
        training = small(budget={"batch_stats": batch_stats}).training(CPU, 1)
        found.append(float(training.phases.train_step(batch).terms["budget"]))
    assert found[0] != found[1]


def test_a_restart_makes_fresh_budget_networks_and_keeps_the_anonymizer():
    recipe = supervised(budget={"restart_every": 10}, schedule={"adversarial_steps": 20, "lr_others": 1e-2})
    training = recipe.training(CPU, 1)
    assert recipe.steps == 10 + 5 + 10
    for number in range(10):
        training.phases.train_step(training.batch(number))
    networks = nets(training)
    before = {name: {k: t.clone() for k, t in net.state_dict().items()} for name, net in networks.items()}
    training.phases._enter(1)  # type: ignore[union-attr]
    for name in ("anonymizer", "utility"):
        assert all(torch.equal(t, before[name][key]) for key, t in networks[name].state_dict().items())
    torch.manual_seed(104_729)
    fresh = adversarial.PrivacyClassifiers([frame_network("small2d", 32, DATA)], []).state_dict()
    for key, tensor in networks["budget"].state_dict().items():
        assert torch.equal(tensor, fresh[key]) and not torch.equal(tensor, before["budget"][key])
    assert moved(training, 10)[:2] == ("catch_up", {"utility", "budget"})


# Batches


def test_frames_that_do_not_fit_into_memory_are_read_from_disk(monkeypatch, tmp_path):
    whole = TrainingData(DATA, CPU, 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(frame_cache, "MEMORY_LIMIT", 5 * whole.train.frames[:16].nbytes)
    small = TrainingData(DATA, CPU, 3)
    assert (tmp_path / "veil" / "frames").is_dir()
    assert not list((tmp_path / "veil" / "frames").iterdir())  # gone with the process
    assert torch.equal(small.train.frames, whole.train.frames)
    for number in (0, 7):
        one, other = whole(number), small(number)
        for a, b in zip(one[:6], other[:6], strict=True):
            assert isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
        assert torch.equal(one.other_view(), other.other_view()) and torch.equal(
            one.other_clip(), other.other_clip()
        )
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with refuses("frame-cache-full"):
        TrainingData(DATA, CPU, 3)


def test_other_views_are_in_full_precision_under_autocast():
    data = TrainingData(DATA, CPU, 0)
    for number in range(3):
        batch, views = data(number), fixed(Training(None, data, dict, dict), number)  # type: ignore[arg-type]
        with torch.autocast("cpu", torch.bfloat16):
            for found, right in (
                (batch.other_view(), views.other_view()),
                (batch.other_clip(), views.other_clip()),
            ):
                assert found.dtype == torch.float32 and torch.equal(found, right)


@pytest.mark.parametrize(
    "recipe",
    [
        tedspad(),
        small(budget={"branch": "spatiotemporal", "networks": ["small3d"]}),
        penalty(penalty={"space": "feature"}),
        supervised(),
    ],
    ids=["tedspad", "spatiotemporal", "penalty", "adversarial"],
)
def test_training_runs_in_bf16(recipe, monkeypatch):
    for module in (spact, adversarial):
        monkeypatch.setattr(module, "mixed_precision", lambda *_: Setup(precision="bf16"))
    training = recipe.training(CPU, 1)
    assert [moved(training, number)[0] for number in range(2)] == ["anonymize", "utility_and_budget"]


def test_how_far_apart_the_images_of_a_pair_are():
    chosen, rng = torch.arange(12).repeat(50), torch.Generator().manual_seed(0)
    apart = {}
    for pairs in ("views", "frames", "near", "far"):
        here, there = TrainingData(on("long", pairs=pairs), CPU, 0)._pair_times(chosen, rng)
        assert ((here >= 0) & (here < 160) & (there >= 0) & (there < 160)).all()
        apart[pairs] = (here - there).abs()
    assert (apart["views"] == 0).all() and apart["frames"].float().mean() > 40
    assert apart["near"].min() == 1 and apart["near"].max() == 7
    assert apart["far"].min() == 65 and apart["far"].max() > 120
    here, there = TrainingData(on("actions", pairs="far"), CPU, 0)._pair_times(chosen, rng)
    assert (here == 0).all() and (there == 5).all()


def test_what_is_private_can_be_chosen():
    assert TrainingData(DATA, CPU, 0).n_private == 32
    for target, ndim in (("identity", 1), ("attributes", 2)):
        data = TrainingData(replace(DATA, target=target), CPU, 0)  # type: ignore[arg-type]
        batch = data(0)
        assert batch.private is not None and batch.clip_private is not None
        assert batch.private.ndim == batch.clip_private.ndim == ndim
        assert data.n_private == len(
            data.train.dataset.attributes if ndim == 2 else data.train.dataset.identities
        )
    with refuses("private-target-missing"):
        TrainingData(on("tags", keep="attributes", target="identity"), CPU, 0)
    with refuses("private-target-missing"):
        TrainingData(on("actions", target="attributes"), CPU, 0)


def test_attributes_that_are_chosen_are_what_is_private():
    """The videos also have identities, which are not used."""
    known = TrainingData(DATA, CPU, 0).train.dataset.attributes
    two = known[1], known[0]
    for play in (
        replace(DATA, attributes=two),
        replace(DATA, private=PrivateData(name="synthetic", attributes=two)),
    ):
        data = TrainingData(play, CPU, 0)
        batch = data(0)
        assert data.n_private == 2 and batch.private is not None and batch.private.shape == (4, 2)
        assert [sample.attributes for sample in data.people.samples] == [
            (sample.attributes[1], sample.attributes[0])
            for sample in TrainingData(DATA, CPU, 0).people.samples
        ]


@torch.no_grad()
def test_several_actions_per_video_have_binary_losses():
    training = small(data={"name": "tags", "keep": "attributes"}, budget={"cap": None}).training(CPU, 1)
    batch, networks = fixed(training), nets(training)
    p = networks["utility"](anonymized_by(networks["anonymizer"], batch.clip)).sigmoid()
    assert p.shape == batch.action.shape == (4, 3) and batch.private is None
    right = sum(
        -math.log(float(q if y else 1 - q)) for q, y in zip(p.flatten(), batch.action.flatten(), strict=True)
    )
    assert float(terms(training, "anonymize", batch)["utility"]) == pytest.approx(right / 12, rel=1e-4)
    assert 0 <= training.check()["action"] <= 1


@torch.no_grad()
def test_published_weights_get_standardized_inputs(tmp_path):
    clip, picture = torch.rand(2, 3, 4, 32, 32), torch.rand(2, 3, 32, 32)
    for make, of, x, table in (
        (video.make, clip_network, clip, video.VIDEO_NETS["small3d"]),
        (image.make, frame_network, picture, image.IMAGE_NETS["small2d"]),
    ):
        name = "small3d" if x is clip else "small2d"
        bare = make(name, 5, frames=4, size=32).eval()
        file = tmp_path / f"{name}.safetensors"
        save_file({key: value.contiguous() for key, value in bare.state_dict().items()}, file)
        found, fresh = of(name, 5, DATA, str(file)).eval(), of(name, 5, DATA)
        assert isinstance(fresh, type(bare)) and found.dim == bare.dim
        shape = 3, *[1] * (x.ndim - 2)
        seen = (x - torch.tensor(table.mean).view(shape)) / torch.tensor(table.std).view(shape)
        assert torch.allclose(found(x), bare(seen)) and torch.allclose(found.features(x), bare.features(seen))
    training = small(utility={"weights": str(tmp_path / "small3d.safetensors")}).training(CPU, 1)
    assert training.check().keys() == {"action"}
    with torch.enable_grad():
        assert [moved(training, number)[1] for number in (0, 1)] == [{"anonymizer"}, {"utility", "budget"}]


# Through `veil train`

RECIPE = """
method = "spact"

[data]
size = 32
length = 4
batch = 4
image_pairs = 4

[anonymizer]
width = 4

[utility]
network = "small3d"

[budget]
networks = ["small2d"]

[schedule]
reconstruction_steps = 3
warmup_steps = 3
adversarial_steps = 6
"""
SUPERVISED = """
method = "adversarial"

[data]
size = 32
length = 4
batch = 4
image_pairs = 4

[anonymizer]
net = "unet"
width = 4

[utility]
network = "small3d"

[budget]
networks = ["small2d"]
restart_every = 10

[schedule]
reconstruction_steps = 0
warmup_steps = 2
adversarial_steps = 20
"""


@pytest.fixture
def recipe(tmp_path) -> Path:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path / "recipe.toml"


def refused(text: str, folder: Path, *sets: str) -> VeilError:
    (folder / "recipe.toml").write_text(text)
    with pytest.raises(VeilError) as caught:
        train(folder / "recipe.toml", folder / "run", sets=sets, device="cpu")
    assert "\n" not in str(caught.value) and not (folder / "run").exists()
    return caught.value


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        (("data.sise=64",), "data.sise"),
        (("data.batch=0",), "data.batch = 0"),
        (("data.private.root=/faces",), "data.private.name"),
        (("seed=-1",), "seed = -1"),
        (("seed=99999999999999999999",), "seed = 99999999999999999999"),
        (("schedule.lr_others=inf",), "schedule.lr_others = inf"),
        (("schedule.lr_others=nan",), "schedule.lr_others = nan"),
        (("method=elr",), "method"),
        (("utility.weights=/nowhere.pt",), "/nowhere.pt"),
    ],
)
def test_bad_values_are_named_by_their_key(sets, key, tmp_path):
    assert key in str(refused(RECIPE, tmp_path, *sets))


BDQ, ELR, TEDSPAD, STPRIVACY, NOISY, PENALTY = (
    f'method = "{name}"' for name in ("bdq", "elr", "tedspad", "stprivacy", "noisy", "penalty")
)


@pytest.mark.parametrize(
    ("text", "sets", "code", "value"),
    [
        (RECIPE, ("utility.network=small2d",), "network-unknown", "small2d"),
        (RECIPE, ("budget.networks=['r3d_18']",), "network-unknown", "r3d_18"),
        (RECIPE, ("budget.branch=spatiotemporal",), "network-unknown", "small2d"),
        (RECIPE, ("budget.networks=[]",), "budget-empty", "budget.networks"),
        (RECIPE, ("budget.branch=frozen", "budget.stop=2.0"), "stop-of-frozen-budget", "budget.stop"),
        (RECIPE, ("data.image_pairs=1",), "too-few-pairs", "data.image_pairs"),
        (
            RECIPE,
            ("budget.branch=spatiotemporal", "budget.networks=['small3d']", "data.batch=1"),
            "too-few-pairs",
            "data.batch",
        ),
        (RECIPE, ("data.target=identity", "data.name=actions"), "private-target-missing", "identity"),
        (RECIPE, ("data.root=/faces",), "synthetic-root", "/faces"),
        (
            RECIPE,
            ("data.target=identity", "data.attributes=['female']"),
            "private-label-conflict",
            "data.attributes",
        ),
        (
            RECIPE,
            ("data.private.name=tags", "data.attributes=['female']"),
            "attributes-unused",
            "data.private.attributes",
        ),
        (RECIPE, ("data.keep=attributes", "data.target=attributes"), "kept-and-hidden", "data.keep"),
        (RECIPE, ("data.name=photographs", "data.pairs=views"), "label-to-keep-missing", "photographs"),
        (RECIPE, ("data.name=actions", "data.keep=attributes"), "label-to-keep-missing", "data.keep"),
        (RECIPE, ("data.name=same",), "action-labels-missing", "same"),
        (RECIPE, ("data.name=utd-mhad",), "data-root-missing", "--set data.root="),
        (SUPERVISED, ("data.name=actions",), "private-labels-missing", "actions"),
        (SUPERVISED, ("data.name=tags", "data.keep=attributes"), "private-labels-missing", "tags"),
        (SUPERVISED, ("data.private={name='vispr'}",), "data-root-missing", "--set data.private.root="),
        (SUPERVISED, ("budget.networks=['small3d']",), "network-unknown", "small3d"),
        (PENALTY, ("data.name=kth",), "data-root-missing", "--set data.root="),
        (BDQ, ("data.length=1",), "clip-too-short", "data.length"),
        (BDQ, ("data.root=x",), "synthetic-root", "data.root"),
        (ELR, ("anonymizer.count=9", "anonymizer.pool=8"), "too-many-transforms", "anonymizer.count"),
        (TEDSPAD, ("data.batch=1",), "too-few-clips", "data.batch"),
        (STPRIVACY, ("data.size=100",), "tubelets-do-not-fit", "100"),
        (NOISY, ("budget.network=small3d",), "network-unknown", "small3d"),
        (
            BDQ,
            ("data.size=32", "data.pairs=views", "data.private={name='photographs'}"),
            "private-images-without-motion",
            "photographs",
        ),
    ],
)
def test_bad_recipes_are_refused_in_one_sentence(text, sets, code, value, tmp_path):
    error = refused(text, tmp_path, *sets)
    assert error.code == code and value in str(error)


class Killed(BaseException):
    """What no one catches."""


def killed_at(step: int) -> Callable[..., None]:
    def progress(at: int, *_: Any) -> None:
        if at == step:
            raise Killed

    return progress


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "steps"),
    [(RECIPE, (2, 3, 5, 6)), (SUPERVISED, (12, 13))],  # before, at and after a border between phases
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
    with refuses("run-differs") as caught:
        train(recipe, tmp_path / "run", sets=("data.batch=8",), resume=True, device="cpu")
    assert "data.batch" in str(caught.value)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run_where_it_can_be_resumed(recipe, tmp_path, monkeypatch):
    right, calls = spact.classification_loss, []

    def wrong(*answer: Tensor) -> Tensor:
        calls.append(1)
        return right(*answer) * (math.nan if len(calls) == 4 else 1)

    with monkeypatch.context() as patch:
        patch.setattr(spact, "classification_loss", wrong)
        with refuses("loss-not-finite") as caught:
            train(recipe, tmp_path / "run", every=2, device="cpu")
    message = str(caught.value)
    assert "\n" not in message and all(
        part in message for part in ("utility", "anonymize", "7", "schedule.lr_anonymizer = 0.0001", "step 6")
    )
    assert json.loads((tmp_path / "run" / "checkpoints" / "index.json").read_text())["kept"] == [4, 6]
    found = load_file(train(recipe, tmp_path / "run", every=2, resume=True, device="cpu"))
    whole = load_file(train(recipe, tmp_path / "whole", every=2, device="cpu"))
    assert all(torch.equal(t, whole[name]) for name, t in found.items())


@pytest.mark.parametrize("every", [1, 50])
def test_a_run_that_cannot_be_resumed_is_removed(every, recipe, tmp_path, monkeypatch):
    """One value for batch normalisation, first seen after reconstruction; a loss that is NaN before the first checkpoint."""
    sets = ("data.batch=1", "data.size=16", "data.length=1", "schedule.reconstruction_steps=2")
    with refuses("batch-too-small"):
        train(recipe, tmp_path / "run", sets=sets, every=every, device="cpu")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(spact, "classification_loss", lambda *_: torch.full((), math.nan, requires_grad=True))
    with refuses("loss-not-finite"):
        train(recipe, tmp_path / "run", sets=("schedule.reconstruction_steps=0",), every=every, device="cpu")
    assert not (tmp_path / "run").exists()


def test_out_of_memory_is_one_sentence(recipe, tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore.")

    monkeypatch.setattr(spact, "classification_loss", full)
    with refuses("out-of-memory") as caught:
        train(recipe, tmp_path / "run", every=2, device="cpu")
    assert "data.batch, data.image_pairs or data.size" in str(caught.value)


def test_a_goal_that_is_reached_ends_the_run(recipe, tmp_path):
    for _ in range(2):  # the second time it is finished already
        train(
            recipe,
            tmp_path / "run",
            sets=("budget.stop=0.01",),
            device="cpu",
            resume=(tmp_path / "run").exists(),
        )
        about = json.loads((tmp_path / "run" / "run.json").read_text())
        records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
        assert (
            about["finished"] and max(record["step"] for record in records) == 8
        )  # of 12: reconstruct, warmup, anonymize, utility_and_budget
