"""The training of adapters: their losses as loops, that each phase updates its modules, and what is refused."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from errors import refuses
from feature_banks import made_bank
from veil.apps.train import train
from veil.features import matching, splavu, subspace
from veil.features.adapter import anonymized
from veil.features.matching import MatchingModules, MatchingRecipe, candidates, divergence_from_chance
from veil.features.registry import ADAPTER_RECIPES, load
from veil.features.splavu import SPLAVUModules, SPLAVURecipe
from veil.features.subspace import SubspaceRecipe
from veil.features.training_data import FeatureBatch, FeatureBatches, FeatureSource
from veil.training import config
from veil.training.fit import fit
from veil.training.losses import nt_xent

CPU = torch.device("cpu")
MODULES = {"splavu": splavu, "subspace": subspace, "matching": matching}
HERE = {"name": "synthetic", "batch": 2}
SMALL: dict[str, dict[str, Any]] = {
    "data": {"name": "synthetic", "batch": 16},
    "utility": {
        "detection": {"width": 16, "hidden": 16, "levels": 2, "bins": 2},
        "anomaly": {"widths": [64, 64, 64], "depths": [1, 1, 1]},
    },
}
NETWORK = {"anonymizer": {"heads": 2, "layers": 1}}
STEPS: dict[str, dict[str, Any]] = {
    "splavu": {**NETWORK, "schedule": {"reconstruction_steps": 2, "warmup_steps": 1, "adversarial_steps": 3}},
    "matching": {**NETWORK, "schedule": {"warmup_steps": 1, "adversarial_steps": 3}},
    "subspace": {"schedule": {"steps": 3}},
}


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other."""
    out: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
            out[key] = merged(out[key], value) if both else value
    return out


def recipe(method: str, **changes: Any) -> Any:
    """A small recipe, with changes by section."""
    return config.checked(merged(SMALL, STEPS[method], changes), ADAPTER_RECIPES[method])


def batches(r: Any, banks: dict[str, Any], *, static: bool = True) -> FeatureBatches:
    return FeatureBatches(r.data, banks, CPU, seed=r.seed, static=static)


def test_the_static_budget_is_nt_xent_of_two_static_clips():
    bank = made_bank()
    r = recipe("splavu")
    modules = SPLAVUModules(r, {"action": bank}, CPU)
    batch = batches(r, {"action": bank})(0)
    naive = nt_xent(
        torch.stack([modules.adapter(pair[:1][None])[0, 0] for pair in batch.stills]),
        torch.stack([modules.adapter(pair[1:][None])[0, 0] for pair in batch.stills]),
        0.1,
    )
    assert torch.allclose(modules.static_loss(batch), naive, atol=1e-5)
    budget = modules.adversarial(batch)["budget"]
    bound = math.log(2 * len(batch.stills) - 1) + 0.5
    assert torch.allclose(budget, -torch.clamp(naive, max=bound), atol=1e-5)


def test_latent_consistency_is_the_mean_over_clips_and_numbers():
    bank = made_bank(clips=3)
    r = recipe("splavu", budget={"weight": 0.0}, utility={"consistency_weight": 100.0})
    modules = SPLAVUModules(r, {"action": bank}, CPU)
    batch = batches(r, {"action": bank})(3)
    after = modules.adapter(batch.clips, batch.mask).detach()
    parts = [
        float((after[i, j, k] - batch.clips[i, j, k]) ** 2)
        for i in range(4)
        for j in range(int(batch.mask[i].sum()))
        for k in range(16)
    ]
    few = FeatureBatch(batch.clips[:4], batch.mask[:4], batch.action[:4], batch.stills, batch.appearance)
    terms = modules.adversarial(few)
    assert float(terms["consistency"].detach()) == pytest.approx(100 * sum(parts) / len(parts), rel=1e-4)
    assert "budget" not in terms


def test_the_divergence_of_a_matcher_from_chance_as_a_loop():
    torch.manual_seed(0)
    action = torch.tensor([0, 1, 0, 0])
    allowed = candidates(action)
    assert (
        allowed.tolist()
        == [[True, False, True, True], [False, True, False, False]] + [[True, False, True, True]] * 2
    )
    logits = torch.randn(2, 4, 4).masked_fill(~allowed, -math.inf)
    log_p = logits.log_softmax(-1)
    for m in range(2):
        for i in range(4):
            js = [j for j in range(4) if allowed[i, j]]
            total = sum(math.exp(logits[m, i, j]) for j in js)
            naive = sum(
                (1 / len(js)) * (math.log(1 / len(js)) - math.log(math.exp(logits[m, i, j]) / total))
                for j in js
            )
            assert float(divergence_from_chance(log_p, allowed)[m, i]) == pytest.approx(naive, abs=1e-5)
    even = torch.zeros(1, 4, 4).masked_fill(~allowed, -math.inf).log_softmax(-1)
    assert torch.allclose(divergence_from_chance(even, allowed), torch.zeros(1, 4), atol=1e-6)


@pytest.mark.parametrize(
    ("method", "preset", "steps"),
    [
        ("splavu", "paper", {"reconstruct", "warmup", "anonymize"}),
        ("splavu", "released", {"reconstruct", "warmup", "anonymize"}),
        ("matching", "ours", {"warmup", "anonymize", "match"}),
        ("subspace", "ours", {"heads"}),
    ],
)
def test_every_preset_trains_with_all_tasks(method, preset, steps):
    kind: Any = ADAPTER_RECIPES[method]
    data = {"data": {"detection": HERE, "anomaly": HERE}}
    r = config.checked(merged(kind.PRESETS[preset], SMALL, STEPS[method], data), kind)
    long = made_bank(videos=30, clips=6, long=True)
    training = MODULES[method].train_on(r, {"action": made_bank(), "detection": long, "anomaly": long}, CPU)
    before = {name: value.clone() for name, value in training.weights().items()}
    seen = {measured.step_name for measured in fit(training.phases, map(training.batch, range(r.steps)))}
    assert seen == steps
    after = training.weights()
    changed = any(not torch.equal(before[name], after[name]) for name in before)
    assert changed == (method != "subspace")  # which is computed before the first step
    assert set(training.check()) == {"action accuracy", "moved"}
    assert training.batch(5).clips.equal(training.batch(5).clips)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "anonymizer"),
    [
        ("matching", {"projection": "motion", "dims": 8}),
        ("matching", {"projection": "discriminant"}),
        ("subspace", {"dims": 2}),
        ("subspace", {"neighbours": 16}),
    ],
)
def test_it_hides_the_identity_and_keeps_the_action(method, anonymizer):
    """Against an attacker that is trained on the output; made features, where both are known."""
    from veil.audit.features.probes import train_probe

    bank = made_bank(videos=450, dim=16)
    steps = {"schedule": {"adversarial_steps": 30}} if method == "matching" else {}
    r = recipe(method, data={"batch": 128}, anonymizer=anonymizer, **steps)
    training = MODULES[method].train_on(r, {"action": bank}, CPU)
    for _ in fit(training.phases, map(training.batch, range(r.steps))):
        pass
    adapter = r.adapter(16)
    adapter.load_weights(training.weights())
    after = anonymized(adapter.eval(), bank)

    def accuracy(of, target):
        parts = [of.split(name) for name in ("train", "val", "test")]
        return train_probe("kernel", target, *parts).score.value

    assert accuracy(bank, "identity") > 0.9 and accuracy(bank, "action") > 0.9
    assert accuracy(after, "action") > 0.9
    assert accuracy(after, "identity") < 0.5


@pytest.mark.parametrize("method", ADAPTER_RECIPES)
def test_a_run_is_trained_loaded_and_refuses_other_features(method, tmp_path, monkeypatch):
    bank = made_bank()
    monkeypatch.setattr(FeatureSource, "bank", lambda *_: bank)
    path = tmp_path / "r.toml"
    path.write_text(config.to_toml(recipe(method), method))
    train(path, tmp_path / "run", device="cpu")
    adapter = load(tmp_path / "run")
    assert (adapter.name, adapter.encoder, adapter.fingerprint) == (method, "made", "f" * 16)
    assert adapter.dim == 16
    out = anonymized(adapter, bank)
    assert out.clips.shape == bank.clips.shape and not torch.allclose(out.clips, bank.clips)
    with refuses("features-of-another-encoder"):
        anonymized(adapter, replace(bank, fingerprint="0" * 16))
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**about, "kind": "spact"}))
    with refuses("run-kind"):
        load(tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "changes", "value"),
    [
        ("subspace", {"anonymizer": {"projection": "none", "neighbours": 0}}, "projection"),
        ("splavu", {"schedule": dict.fromkeys(STEPS["splavu"]["schedule"], 0)}, "schedule"),
        ("matching", {"schedule": dict.fromkeys(STEPS["matching"]["schedule"], 0)}, "schedule"),
        ("splavu", {"data": {"static_batch": 99}}, "static_batch"),
        ("splavu", {"data": {"name": "none"}}, "store"),
        ("splavu", {"data": {"store": "b"}}, "store"),
        ("splavu", {"anonymizer": {"keeps": 3}}, "anonymizer.keeps"),
    ],
)
def test_impossible_recipes_are_refused(method, changes, value):
    from veil.core import VeilError

    with pytest.raises(VeilError) as refused:
        recipe(method, **changes)
    assert value in str(refused.value)


def test_unsuitable_data_is_refused():
    bank = made_bank()
    with refuses("static-clips-missing"):
        batches(recipe("splavu"), {"action": replace(bank, stills=bank.stills[:, :1])})
    with refuses("too-few-references"):
        subspace.train_on(recipe("subspace", anonymizer={"neighbours": 99}), {"action": bank}, CPU)
    one = bank.take([i for i, s in enumerate(bank.samples) if s.action == 0])
    with refuses("one-label"):
        matching.train_on(recipe("matching"), {"action": one}, CPU)
    with refuses("anomaly-one-kind"):
        batches(recipe("splavu", data={"anomaly": HERE}), {"action": bank, "anomaly": one})
    with refuses("features-do-not-mix"):
        r = recipe("matching", data={"anomaly": HERE})
        MatchingModules(r, {"action": bank, "anomaly": replace(bank, fingerprint="0")}, CPU)
    for concept in ("identity", "attributes"):
        blank = tuple(
            replace(s, identity=None, attributes=()) if i else s for i, s in enumerate(bank.samples)
        )
        some = replace(bank, samples=(replace(blank[0], attributes=(1.0,)), *blank[1:]), attributes=("a",))
        with refuses("label-missing"):
            r = recipe("subspace", anonymizer={"projection": f"leace-{concept}", "neighbours": 0})
            subspace.train_on(r, {"action": some}, CPU)
    with refuses("segments-missing"):
        batches(recipe("splavu", data={"detection": HERE}), {"action": bank, "detection": bank})


def test_the_defaults_are_the_papers():
    here = {"data": {"name": "synthetic"}}
    paper = config.checked(merged(SPLAVURecipe.PRESETS["paper"], here), SPLAVURecipe)
    assert paper == config.checked(here, SPLAVURecipe)
    assert (paper.anonymizer.layers, paper.anonymizer.heads, paper.utility.consistency_weight) == (3, 8, 100)
    assert config.checked(here, SubspaceRecipe).anonymizer.dims == 20
    assert config.checked(here, MatchingRecipe).anonymizer.dims is None
