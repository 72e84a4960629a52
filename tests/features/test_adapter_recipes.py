"""Every recipe of an adapter is read, and trains on tiny features of data in the true layout; the papers' rows have their recipe."""

import math
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import layouts
from recipe_files import FILES, PAPER, WatchedFit, command, short
from tiny import Tiny
from veil import methods
from veil.apps import train as training
from veil.data import DATASETS, Sample, read
from veil.features import encoders
from veil.features.bank import Bank, VideoFeatures, collected
from veil.features.encoders import ENCODERS
from veil.features.registry import ADAPTER_RECIPES, load
from veil.features.splavu import SPLAVURecipe
from veil.features.training_data import FeatureSource
from veil.training import config

RECIPES = [path for path in FILES if config.kind_of(path) in ADAPTER_RECIPES]
PAPERS = [path for path in RECIPES if path.parent == PAPER]
DIM = 32  # 16 heads of 2
TINY = (
    "data.batch=6", "utility.detection.width=16", "utility.detection.hidden=16", "utility.detection.levels=2",
    "utility.detection.bins=2", "utility.anomaly.widths=[64, 64, 64]", "utility.anomaly.depths=[1, 1, 1]",
)  # fmt: skip
PHASES = {  # the steps of each phase, by its key
    "splavu": {"reconstruction_steps": 1, "warmup_steps": 1, "adversarial_steps": 2},
    "matching": {"warmup_steps": 1, "adversarial_steps": 2},
    "subspace": {"steps": 2},
}
# What a recipe changes of the paper's adapter and weights, by its name.
CHANGED: dict[str, dict[str, object]] = {
    "splavu-t5-no-task": {"utility.weight": 0.0},
    "splavu-t5-no-budget": {"budget.weight": 0.0},
    "splavu-t5-no-consistency": {"utility.consistency_weight": 0.0},
    "splavu-t8-mlp1": {"anonymizer.network": "mlp", "anonymizer.layers": 1},
    "splavu-t8-mlp3": {"anonymizer.network": "mlp"},
    "splavu-t8-mlp5": {"anonymizer.network": "mlp", "anonymizer.layers": 5},
    "splavu-t8-attention1": {"anonymizer.layers": 1},
    "splavu-t8-attention5": {"anonymizer.layers": 5},
    "splavu-t9-consistency1": {"utility.consistency_weight": 1.0},
    "splavu-t9-consistency10": {"utility.consistency_weight": 10.0},
    "splavu-t9-consistency1000": {"utility.consistency_weight": 1000.0},
    "splavu-t10-heads4": {"anonymizer.heads": 4},
    "splavu-t10-heads16": {"anonymizer.heads": 16},
}


def values(recipe: Any) -> dict[str, Any]:
    """The values of a recipe by their dotted keys."""
    found: dict[str, Any] = {}

    def add(table: dict[str, Any], at: str) -> None:
        for key, value in table.items():
            add(value, f"{at}{key}.") if isinstance(value, dict) else found.update({at + key: value})

    add(config.as_dict(recipe), "")
    return found


def read_recipe(path: Path) -> Any:
    return config.read(path, ADAPTER_RECIPES[config.kind_of(path)])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The folder of a dataset by its name, in the published layout; its videos are empty."""

    @cache
    def made(name: str) -> Path:
        root = tmp_path_factory.mktemp(name)
        getattr(layouts, name.replace("-", "_"))(root)
        return root

    return made


@pytest.fixture(scope="module")
def banks():
    """In place of `FeatureSource.bank`: the true reader, and random features."""

    @cache
    def random(name: str, root: str | None, options: tuple[Any, ...], encoder: str) -> Bank:
        dataset = read(name, root, **dict(options))
        rng = torch.Generator().manual_seed(0)

        def one(sample: Sample) -> VideoFeatures:
            number = 24 if name in ("thumos14", "ucf-crime") or "kind" in dict(options) else 3
            clips, stills = torch.randn(number, DIM, generator=rng), torch.randn(4, DIM, generator=rng)
            return VideoFeatures(sample, clips, torch.arange(number) * 0.5, 0.5 * number, 0.5, stills)

        videos = [one(sample) for sample in dataset.samples]
        words = {"actions": dataset.actions, "identities": dataset.identities}
        return collected(videos, encoder, "f" * 64, DIM, **words)

    def bank(self: FeatureSource, encoder: str, weights: str | None, device: torch.device) -> Bank:
        assert self.name is not None and encoder in ENCODERS
        return random(self.name, self.root, tuple(self.options.items()), encoder)

    return bank


def at(path: Path, data: Any) -> tuple[str, ...]:
    """Where the data of a recipe are, by the keys that its header names; few videos where they are synthetic."""
    sources = read_recipe(path).data.sources()
    keys = {name: "data" if name == "action" else f"data.{name}" for name in sources}
    small = tuple(f"{keys[name]}.batch=2" for name in sources if name != "action")
    if path.parent != PAPER:
        return small + tuple(f"{key}.options.count={40 if key == 'data' else 20}" for key in keys.values())
    named = re.findall(r"--set (\S+)\.root=", command(path))
    assert named == list(keys.values())
    return small + tuple(f"{key}.root={data(sources[name].name)}" for name, key in keys.items())


def sets(path: Path, data: Any) -> tuple[str, ...]:
    phases = PHASES[config.kind_of(path)]
    return (*TINY, *(f"schedule.{key}={count}" for key, count in phases.items()), *at(path, data))


def test_there_are_recipes():
    assert len(PAPERS) == 28 and len(RECIPES) == 31
    assert set(CHANGED) <= {path.stem for path in PAPERS}


FAST = {"subspace", "splavu", "matching", "splavu-t8-mlp1"}  # one of each network; the others train as `slow`
TRAINED = [pytest.param(p, marks=() if p.stem in FAST else pytest.mark.slow, id=short(p)) for p in RECIPES]


@pytest.mark.parametrize("path", TRAINED)
def test_each_phase_changes_its_modules(path, data, banks, tmp_path, monkeypatch):
    watched = WatchedFit()
    monkeypatch.setattr(training, "fit", watched)
    monkeypatch.setattr(FeatureSource, "bank", banks)
    recipe, method = read_recipe(path), config.kind_of(path)
    static = () if recipe.data.static_batch is None else ("data.static_batch=6",)
    file = training.train(path, tmp_path / "run", sets=(*sets(path, data), *static), device="cpu")
    seen = [result.step_name for result, _ in watched.steps]
    if method == "subspace":
        assert set(seen) == {"heads"}
    elif method == "matching":
        assert seen[0] == "warmup" and set(seen[1:]) == {"anonymize", "match"}
    else:
        assert seen[:2] == ["reconstruct", "warmup"] and set(seen[2:]) == {"anonymize"}
    tasks = set(recipe.data.sources())
    weight = getattr(recipe.utility, "weight", 1.0)
    for result, changed in watched.steps:
        terms, modules = result.terms, {name.partition("/")[0] for name in changed}
        assert terms and all(math.isfinite(float(term)) for term in terms.values())
        of_tasks = {name.partition(" ")[0] for name in terms}
        if result.step_name == "reconstruct":
            assert modules == {"adapter"}
        elif result.step_name == "heads":
            assert modules == tasks == of_tasks
        elif result.step_name == "warmup":
            assert "adapter" not in modules and (not weight or tasks <= modules)
        elif result.step_name == "match":
            assert modules == {"matchers"}
        else:
            assert "adapter" in modules and (not weight or tasks <= modules)
            assert of_tasks - {"budget", "consistency"} == tasks
            assert ("budget" in terms) == bool(recipe.budget.weight)
            assert bool(terms["consistency"]) == bool(recipe.utility.consistency_weight)
            used = [float(value) for name, value in terms.items() if name.partition(" ")[0] in tasks]
            assert any(used) == bool(weight)
    adapter = load(file.parent)
    assert adapter.encoder == recipe.data.encoder
    clips = torch.randn(2, 3, DIM)
    assert torch.isfinite(adapter(clips)).all() and not torch.allclose(adapter(clips), clips)


def test_features_are_extracted_when_training_begins(tmp_path, monkeypatch):
    """The same without a stand-in for the features: videos are read, and encoded by a small network."""
    path, names = PAPER / "splavu-t1-videomae-b.toml", []
    video = layouts.write_video(tmp_path / "video.mp4", layouts.pictures(64, 16, 16))
    for name in ("kinetics400", "thumos14", "ucf_crime"):
        for empty in getattr(layouts, name)(tmp_path / name).rglob("*.mp4"):
            shutil.copy(video, empty)

    def make(name: str, weights: str | None, device: torch.device) -> Tiny:
        names.append(name)
        return Tiny(name)

    monkeypatch.setattr(encoders, "make", make)
    roots = sets(path, lambda name: tmp_path / name.replace("-", "_"))
    file = training.train(path, tmp_path / "run", sets=roots, device="cpu")
    assert names == ["videomae-b"] * 3
    assert load(file.parent).fingerprint == Tiny("videomae-b").fingerprint


@pytest.mark.parametrize("path", PAPERS, ids=short)
def test_it_is_the_papers_but_for_what_its_row_states(path):
    recipe = read_recipe(path)
    paper = config.checked({"data": {"name": "hmdb51"}, **SPLAVURecipe.PRESETS["paper"]}, SPLAVURecipe)
    found, expected = values(recipe), values(paper)
    same = [key for key in expected if not key.startswith(("data.", "schedule."))] + [
        "schedule.lr_anonymizer",
        "data.batch",
    ]
    differs = {key: found[key] for key in same if found[key] != expected[key] and key != "budget.cap"}
    assert differs == CHANGED.get(path.stem, {})
    assert recipe.budget.cap is None and recipe.data.encoder in ENCODERS and recipe.data.encoder != "veil"
    data, schedule = recipe.data, recipe.schedule
    assert schedule.lr_anonymizer == schedule.lr_action
    assert data.detection is None or (data.detection.name, schedule.lr_detection) == (
        "thumos14",
        schedule.lr_anonymizer,
    )
    assert data.anomaly is None or (data.anomaly.name, schedule.lr_anomaly) == (
        "ucf-crime",
        schedule.lr_anonymizer,
    )


@pytest.mark.parametrize("path", PAPERS, ids=short)
def test_a_header_states_commands_and_results(path):
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert "# Not run here: the data are not at hand." in header
    assert "# The paper reports (in percent):" in header
    words = shlex.split(command(path).removeprefix("#"))
    assert words[:5] == ["veil", "train", f"recipes/paper/{path.name}", "-o", f"runs/{path.stem}"]
    encoder, extracted = read_recipe(path).data.encoder, set()
    for line in header:
        match shlex.split(line.removeprefix("#")) if line.startswith("#   veil features") else []:
            case [_, _, "extract", "-o", store, "--encoder", used, "--data", name, "--root", _, *_]:
                assert name in DATASETS and used == encoder
                extracted.add(store)
            case [_, _, "anonymize", store, "--with", run, "-o", target, "--keep-private"]:
                assert (
                    store in extracted
                    and run == f"runs/{path.stem}"
                    and target.startswith(f"stores/{path.stem}-")
                )
            case other:
                assert not other
    assert extracted


def rows() -> list[list[str]]:
    """The table of SPLAVU's rows: row, table, recipe, evaluated on, what is reported."""
    lines = (PAPER / "README.md").read_text().partition("\n## Features: SPLAVU")[2].splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if line.startswith("| splavu-")
    ]


def test_every_row_of_the_paper_has_its_recipe_or_a_reason():
    assert len(rows()) == len({row[0] for row in rows()}) == 65
    trained = set()
    for name, table, how, on, reported in rows():
        for place in on.split(", "):
            assert place.partition(":")[0] in DATASETS, name
        assert re.fullmatch(r"[\w@.-]+ = [\d.]+(, [\w@.-]+ = [\d.]+)*", reported), name
        if linked := re.fullmatch(r"\[(\S+\.toml)\]\(\1\)", how):
            assert f"#   {table}, on {on}: {reported}" in (PAPER / linked[1]).read_text().splitlines(), name
            trained.add(linked[1])
        elif filtered := re.match(r"videos after `(\S+)`, then features", how):
            methods.make(filtered[1])
        elif run := re.match(r"videos after a run of \[\S+\]\((\S+)\), then features", how):
            assert (PAPER / run[1]).is_file()
        else:
            assert how.endswith(", as they are") or how.startswith("none: "), name
    assert trained == {path.name for path in PAPERS}
