"""Every recipe of SPLAVU is read, and plays on tiny features of data in the true layout; the papers' rows have their recipe."""

import math
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from test_recipes import FILES, PAPER, Watch, command, short

from data import layouts
from tiny import Tiny
from veil import methods
from veil.apps import train as training
from veil.data import DATASETS, Sample, read
from veil.features import splavu
from veil.features.bank import Bank, Features, collected
from veil.features.encoders import ENCODERS
from veil.features.splavu import SPLAVU, Source
from veil.training import config

RECIPES = [path for path in FILES if config.kind_of(path) == "splavu"]
PAPERS = [path for path in RECIPES if path.parent == PAPER]
DIM = 32  # 16 heads of 2
TINY = (
    "drawing=1", "warming=1", "playing=2", "batch=6", "pairs=6", "detection_batch=2", "anomaly_batch=2",
    "detector.width=16", "detector.hidden=16", "detector.levels=2", "detector.bins=2",
    "watcher.widths=[64, 64, 64]", "watcher.depths=[1, 1, 1]",
)  # fmt: skip
# What a recipe changes of the paper's adapter and weights, by its name.
CHANGED: dict[str, dict[str, object]] = {
    "splavu-t5-no-task": {"task_weight": 0.0},
    "splavu-t5-no-budget": {"budget": "none"},
    "splavu-t5-no-consistency": {"consistency": 0.0},
    "splavu-t8-mlp1": {"net": "mlp", "layers": 1},
    "splavu-t8-mlp3": {"net": "mlp"},
    "splavu-t8-mlp5": {"net": "mlp", "layers": 5},
    "splavu-t8-attention1": {"layers": 1},
    "splavu-t8-attention5": {"layers": 5},
    "splavu-t9-consistency1": {"consistency": 1.0},
    "splavu-t9-consistency10": {"consistency": 10.0},
    "splavu-t9-consistency1000": {"consistency": 1000.0},
    "splavu-t10-heads4": {"heads": 4},
    "splavu-t10-heads16": {"heads": 16},
}
SAME = (
    "net",
    "layers",
    "heads",
    "ratio",
    "budget",
    "task_weight",
    "budget_weight",
    "consistency",
    "batch",
    "lr",
)


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
    """In place of `Source.bank`: the true reader, and features that are drawn by chance."""

    @cache
    def drawn(name: str, root: str | None, options: tuple[Any, ...], encoder: str) -> Bank:
        dataset = read(name, root, **dict(options))
        dice = torch.Generator().manual_seed(0)

        def one(sample: Sample) -> Features:
            number = 24 if name in ("thumos14", "ucf-crime") or "kind" in dict(options) else 3
            clips, stills = torch.randn(number, DIM, generator=dice), torch.randn(4, DIM, generator=dice)
            return Features(sample, clips, torch.arange(number) * 0.5, 0.5 * number, 0.5, stills)

        videos = [one(sample) for sample in dataset.samples]
        words = {"actions": dataset.actions, "identities": dataset.identities}
        return collected(videos, encoder, "f" * 64, DIM, **words)

    def bank(self: Source, encoder: str, weights: str | None, device: torch.device) -> Bank:
        assert self.data is not None and encoder in ENCODERS
        return drawn(self.data, self.root, tuple(self.options.items()), encoder)

    return bank


def at(path: Path, data: Any) -> tuple[str, ...]:
    """Where the data of a recipe are, by the keys that its header names; few videos where they are made."""
    sources = config.read(path, SPLAVU).sources()
    if path.parent != PAPER:
        return tuple(f"{name}.options.count={40 if name == 'action' else 20}" for name in sources)
    keys = re.findall(r"--set (\w+)\.root=", command(path))
    assert keys == list(sources)
    return tuple(f"{key}.root={data(sources[key].data)}" for key in keys)


def test_there_are_recipes():
    assert len(PAPERS) == 28 and len(RECIPES) == 31
    assert set(CHANGED) <= {path.stem for path in PAPERS}


@pytest.mark.parametrize("path", RECIPES, ids=short)
def test_two_turns_move_the_adapter_and_every_head(path, data, banks, tmp_path, monkeypatch):
    watch = Watch()
    monkeypatch.setattr(training, "fit", watch)
    monkeypatch.setattr(Source, "bank", banks)
    recipe = config.read(path, SPLAVU)
    file = training.train(path, tmp_path / "run", sets=(*TINY, *at(path, data)), device="cpu")
    seen = [measured.move for measured, _ in watch.repeats]
    more = ["match"] if recipe.budget == "match" else []
    first = ["draw", "warm"] if recipe.net != "none" else ["warm"]  # nothing to draw with
    assert seen[: len(first)] == first and set(seen[len(first) :]) == {"hide", *more}
    tasks = set(recipe.sources())
    for measured, moved in watch.repeats:
        terms, networks = measured.terms, {name.partition("/")[0] for name in moved}
        assert terms and all(math.isfinite(float(term)) for term in terms.values())
        if measured.move == "draw":
            assert networks == {"adapter"}
        elif measured.move == "warm":
            assert "adapter" not in networks and (not recipe.task_weight or tasks <= networks)
        elif measured.move == "hide" and recipe.net == "none":
            assert networks == tasks == {name.partition(" ")[0] for name in terms}
        elif measured.move == "hide":
            assert "adapter" in networks and (not recipe.task_weight or tasks <= networks)
            assert {name.partition(" ")[0] for name in terms} - {"budget", "consistency"} == tasks
            assert ("budget" in terms) == (recipe.budget != "none")
            assert bool(terms["consistency"]) == bool(recipe.consistency)
            used = [float(value) for name, value in terms.items() if name.partition(" ")[0] in tasks]
            assert any(used) == bool(recipe.task_weight)
        else:
            assert networks == {"matchers"}
    adapter = splavu.load(file.parent)
    assert adapter.encoder == recipe.encoder
    clips = torch.randn(2, 3, DIM)
    assert torch.isfinite(adapter(clips)).all() and not torch.allclose(adapter(clips), clips)


def test_features_are_extracted_when_training_begins(tmp_path, monkeypatch):
    """The same without a stand-in for the features: videos are read, and encoded by a small network."""
    path, asked = PAPER / "splavu-t1-videomae-b.toml", []
    video = layouts.footage(tmp_path / "video.mp4", layouts.pictures(64, 16, 16))
    for name in ("kinetics400", "thumos14", "ucf_crime"):
        for empty in getattr(layouts, name)(tmp_path / name).rglob("*.mp4"):
            shutil.copy(video, empty)

    def make(name: str, weights: str | None, device: torch.device) -> Tiny:
        asked.append(name)
        return Tiny(name)

    monkeypatch.setattr(splavu.encoders, "make", make)
    roots = at(path, lambda name: tmp_path / name.replace("-", "_"))
    file = training.train(path, tmp_path / "run", sets=(*TINY, *roots), device="cpu")
    assert asked == ["videomae-b"] * 3
    assert splavu.load(file.parent).fingerprint == Tiny("videomae-b").fingerprint


@pytest.mark.parametrize("path", PAPERS, ids=short)
def test_it_is_the_papers_but_for_what_its_row_says(path):
    recipe = config.read(path, SPLAVU)
    paper = config.checked({"action": {"data": "hmdb51"}, **SPLAVU.PRESETS["paper"]}, SPLAVU)
    differs = {name: getattr(recipe, name) for name in SAME if getattr(recipe, name) != getattr(paper, name)}
    assert differs == CHANGED.get(path.stem, {})
    assert recipe.cap is None and recipe.encoder in ENCODERS and recipe.encoder != "veil"
    assert recipe.lr == recipe.lr_action
    assert recipe.detection is None or (recipe.detection.data, recipe.lr_detection) == ("thumos14", recipe.lr)
    assert recipe.anomaly is None or (recipe.anomaly.data, recipe.lr_anomaly) == ("ucf-crime", recipe.lr)


@pytest.mark.parametrize("path", PAPERS, ids=short)
def test_a_header_says_how_and_what(path):
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert "# Not run here: the data are not at hand." in header
    assert "# The paper reports (in percent):" in header
    words = shlex.split(command(path).removeprefix("#"))
    assert words[:5] == ["veil", "train", f"recipes/paper/{path.name}", "-o", f"runs/{path.stem}"]
    recipe, extracted = config.read(path, SPLAVU), set()
    for line in header:
        match shlex.split(line.removeprefix("#")) if line.startswith("#   veil features") else []:
            case [_, _, "extract", "-o", store, "--encoder", recipe.encoder, "--data", name, "--root", _, *_]:
                assert name in DATASETS
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


def test_every_row_of_the_paper_has_its_recipe_or_says_why_not():
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
