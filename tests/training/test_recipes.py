"""Every recipe is read and trained for two steps on tiny data in the published layout; headers state what the papers report."""

import json
import math
import re
import shlex
import shutil
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from PIL import Image

import layouts
from recipe_files import FILES, FOLDER, PAPER, WatchedFit, command, short
from veil import methods
from veil.apps import train as training
from veil.data import DATASETS
from veil.methods.recipes import RECIPES as ANONYMIZERS
from veil.training import config
from veil.training.run import Run

PAPERS = [path for path in FILES if path.parent == PAPER and config.kind_of(path) in ANONYMIZERS]
# Of each method one that keeps its networks; those of the others are small here.
WHOLE = {
    "spact-t1-ucf101-ours",
    "spact-t1-ucf101-supervised",
    "spact-t1-ucf101-noisy",
    "penalty-t1-vp-hmdb51-b03",
    "penalty-t1-vp-hmdb51-stprivacy",
    "selective-t2-kth-bdq",
    "selective-t2-kth-elr-s16",
}
STEPS = {
    "elr": ["utility", "utility"],
    "prototypes": ["anonymize", "anonymize"],
    "noisy": ["warmup", "anonymize", "anonymize"],
}  # of other methods, one of each
SECTIONS = {"data", "anonymizer", "utility", "budget", "schedule", "seed"}
pytestmark = pytest.mark.usefixtures("rendered_once")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The folder of a dataset by its name, made once: real, small videos and pictures in the published layout."""
    chance = np.random.default_rng(0)
    spare = tmp_path_factory.mktemp("spare")

    def clip(number: int, frames: int) -> Path:
        path = spare / f"{number}-{frames}.mp4"
        if not path.exists():
            small = chance.integers(0, 256, (frames, 6, 8, 3), np.uint8)
            layouts.write_video(path, np.kron(small, np.ones((1, 6, 6, 1), np.uint8)))
        return path

    @cache
    def made(name: str) -> Path:
        root = tmp_path_factory.mktemp(name)
        if name == "ucf101":
            layouts.ucf101(root, groups=10)
        elif name == "pa-hmdb51":
            layouts.pa_hmdb51(root)
        elif name == "vp-hmdb51":
            layouts.hmdb51(root)
            names = [
                f"{action}/{n}.mp4" for action in ("clap", "brush_hair") for n in layouts.hmdb_names(action)
            ]
            layouts.vp(root, "hmdb51", names)
        elif name == "p-hvu":
            tags = ("abseiling|rope|cliff", "walking|dog|park", "abseiling|dog|park")
            videos = {f"train{number:06d}": tags[number % 3] for number in range(9)}
            layouts.p_hvu(root, videos, {f"val{number:08d}": tags[number] for number in range(3)})
        elif name == "utd-mhad":  # two actions, and motion
            layouts.utd_mhad(root)
            for path in sorted((root / "Depth").glob("a27*")):
                for action in ("a26", "a27"):
                    depth = chance.integers(500, 3000, (24, 32, 5), np.uint16)
                    scipy.io.savemat(path.with_name(path.name.replace("a27", action)), {"d_depth": depth})
        else:
            getattr(layouts, name)(root)
        for number, path in enumerate(sorted(root.rglob("*"))):
            if path.suffix in (".avi", ".mp4"):
                shutil.copy(clip(number % 4, 90 if name == "ipn" else 8), path)
            elif path.name == "rgb_000001.png":
                for frame in range(1, 6):
                    picture = chance.integers(0, 256, (36, 48, 3), np.uint8)
                    Image.fromarray(picture).save(path.with_name(f"rgb_{frame:06d}.png"))
            elif path.suffix == ".jpg":
                Image.fromarray(chance.integers(0, 256, (36, 48, 3), np.uint8)).save(path)
        return root

    return made


def at(path: Path, data: Any) -> tuple[str, ...]:
    """Where the data of a recipe are, by the keys that its header names."""
    recipe = config.read(path, training.RECIPES[config.kind_of(path)])
    section = recipe.data  # type: ignore[attr-defined]
    keys = re.findall(r"--set (\S+\.root)=", command(path))
    names = {"data.root": section.name, "data.private.root": section.private and section.private.name}
    return tuple(f"{key}={data(names[key])}" for key in keys)


def small(path: Path) -> tuple[str, ...]:
    """The recipe on little data, for two steps, and with small networks unless it keeps its own."""
    method = config.kind_of(path)
    recipe: Any = config.read(path, training.RECIPES[method])
    values = {"size": 32, "length": 4, "batch": 2, "image_pairs": 2, "max_frames": 8}
    sets = [f"data.{key}={value}" for key, value in values.items()]
    if recipe.data.name == "synthetic":
        sets.append("data.options.count=60")
    if method == "prototypes":  # has no other networks
        return (*sets, "schedule.steps=2", "anonymizer.width=8")
    if method == "elr":
        size = max(32, recipe.anonymizer.factor)
        sets += ["schedule.steps=2", "anonymizer.pool=3", "anonymizer.count=2", f"data.size={size}"]
    else:
        warmup = int(method == "noisy")
        sets += ["schedule.reconstruction_steps=0", f"schedule.warmup_steps={warmup}"]
        sets.append("schedule.adversarial_steps=2")
    if path.stem in WHOLE:
        return tuple(sets)
    sets.append("utility.network=small3d")
    if method == "stprivacy":
        sets += ["anonymizer.dim=24", "anonymizer.depth=4", "anonymizer.stages=[1, 2, 3]"]
    elif method not in ("elr", "bdq"):
        sets.append("anonymizer.width=8")
        if getattr(recipe.anonymizer, "net", "") == "unet++":
            sets.append("anonymizer.net=unet")
    if method == "noisy":
        sets.append("budget.network=small2d")
    elif method != "elr":
        net = "small3d" if getattr(recipe.budget, "branch", "") == "spatiotemporal" else "small2d"
        networks = [name if name == "mobilenet_v1" else net for name in recipe.budget.networks]
        sets.append(f"budget.networks={json.dumps(networks)}")
    return tuple(sets)


@pytest.mark.parametrize("path", FILES, ids=short)
def test_it_is_read(path):
    kind = training.RECIPES[config.kind_of(path)]
    recipe = config.read(path, kind)
    assert recipe.steps >= 2
    assert config.checked(config.as_dict(recipe), kind) == recipe


FAST = {"spact", "bdq", "prototypes"}  # one of each kind of anonymizer; the others train as `slow`
TRAINED = [
    pytest.param(p, marks=() if p.stem in FAST else pytest.mark.slow, id=short(p))
    for p in FILES
    if config.kind_of(p) in ANONYMIZERS
]


@pytest.mark.parametrize("path", TRAINED)
def test_two_steps_update_their_modules_only(path, data, tmp_path, monkeypatch):
    watch = WatchedFit()
    monkeypatch.setattr(training, "fit", watch)
    if path.stem in WHOLE:  # their checkpoints have gigabytes
        monkeypatch.setattr(Run, "save", lambda *_, **__: None)
    file = training.train(path, tmp_path / "run", sets=(*small(path), *at(path, data)), device="cpu")
    method = config.kind_of(path)
    seen = [measured.step_name for measured, _ in watch.steps]
    assert seen == STEPS.get(method, ["anonymize", "utility_and_budget"])
    for measured, moved in watch.steps:
        assert measured.terms and all(math.isfinite(float(term)) for term in measured.terms.values())
        networks = {name.partition("/")[0] for name in moved}
        if measured.step_name == "anonymize":
            assert networks <= {"anonymizer", "anonymize.0"} and networks
        else:
            assert "anonymizer" not in networks and networks & {"utility", "utility.0"}
    frames = np.random.default_rng(1).integers(0, 256, (5, 36, 48, 3), np.uint8)
    output = np.concatenate([part.frames for part in methods.load(file.parent).stream([frames])])
    assert output.shape == frames.shape and output.dtype == np.uint8 and (output != frames).any()
    shutil.rmtree(file.parent)  # some are large


@pytest.mark.parametrize("method", sorted(ANONYMIZERS))
def test_a_part_of_a_table_keeps_the_rest_of_the_recipe(method, tmp_path):
    path, kind = tmp_path / "recipe.toml", ANONYMIZERS[method]
    path.write_text(f'method = "{method}"')
    whole = config.as_dict(config.read(path, kind))
    changed: Any = config.as_dict(config.read(path, kind, ("data.max_frames=17",)))
    changed["data"]["max_frames"] = 160
    assert changed == whole


@pytest.mark.parametrize("method", sorted(ANONYMIZERS))
def test_every_method_has_the_same_sections(method):
    """A method without opponents has no budget; one with an added term has one section more."""
    own = {"penalty": {"penalty"}, "tedspad": {"distinctiveness"}, "stprivacy": {"ratio"}}
    found = {field.name for field in fields(ANONYMIZERS[method])}  # type: ignore[arg-type]
    assert found - own.get(method, set()) == SECTIONS - (
        {"budget"} if method in ("elr", "prototypes") else set()
    )


def test_presets_are_laid_over_the_recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('method = "penalty"\npreset = "paper"')
    recipe: Any = config.read(path, ANONYMIZERS["penalty"])
    assert (recipe.anonymizer.net, recipe.utility.network, recipe.budget.cap) == ("unet++", "i3d_r50", None)
    assert (recipe.data.size, recipe.data.batch, recipe.data.skip) == (224, 8, 4)


@pytest.mark.parametrize(
    ("kind", "preset"),
    [(kind, preset) for kind in ANONYMIZERS.values() for preset in getattr(kind, "PRESETS", {})],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_preset_is_valid(kind, preset, tmp_path):
    (tmp_path / "recipe.toml").write_text(f'preset = "{preset}"')
    assert config.read(tmp_path / "recipe.toml", kind).steps


def rows() -> list[tuple[str, ...]]:
    """The table of the papers' rows: row, table, recipe or command, evaluated on, what is reported."""
    lines = (PAPER / "README.md").read_text().partition("\n## Features")[0].splitlines()
    cells = [
        tuple(cell.strip() for cell in line.strip("|").split(" | "))
        for line in lines
        if line.startswith("| ")
    ]
    return cells[1:]


def test_every_row_of_the_papers_has_its_recipe_or_command():
    assert len(rows()) == 241 and len({row[0] for row in rows()}) == 241
    trained = set()
    for name, table, how, _, reported in rows():
        linked = re.fullmatch(r"\[(\S+\.toml)\]\(\1\)", how)
        if linked:
            text = (PAPER / linked[1]).read_text()
            assert table.partition(" ")[2] in text and reported in text, name
            trained.add(linked[1])
        else:
            for audit in re.findall(r"`([^`]+)`", how):
                audited_run(audit)
    assert trained == {path.name for path in PAPERS}
    assert "None was run here" in (PAPER / "README.md").read_text()


@pytest.mark.parametrize("path", [path for path in FILES if path.parent == FOLDER], ids=short)
def test_a_header_states_command_hardware_time_and_expected_score(path):
    header = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))
    assert f"#   veil train recipes/{path.name} -o runs/" in header
    for word in ("hardware", "time: ", "expected"):
        assert word in header.lower(), word


@pytest.mark.parametrize("path", PAPERS, ids=short)
def test_a_paper_header_states_command_and_reported_scores(path):
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert "# Not run here: the data are not at hand." in header
    assert any(line.startswith("# The paper reports") for line in header)
    words = shlex.split(command(path).removeprefix("#"))
    assert words[:5] == ["veil", "train", f"recipes/paper/{path.name}", "-o", f"runs/{path.stem}"]
    audits = [line.removeprefix("#").strip() for line in header if line.startswith("#   veil audit")]
    assert audits
    for audit in audits:
        assert audited_run(audit) == f"runs/{path.stem}"


@pytest.mark.parametrize("page", ["learned", "protocols/utd-mhad", "protocols/ucf-sports-utkface"])
def test_commands_for_novel_labels_train_with_some_and_audit_others(page):
    commands = re.findall(
        r"^    (veil (?:train|audit) .*)$", (FOLDER.parent / "docs" / f"{page}.md").read_text(), re.M
    )
    pairs = 0
    for train, audit in pairwise(map(shlex.split, commands)):
        if train[1] != "train" or audit[:3] != ["veil", "audit", train[4]]:
            continue
        recipe, sets = FOLDER.parent / train[2], train[6::2]
        made: Any = config.read(recipe, training.RECIPES[config.kind_of(recipe)], sets)
        labels = {"--actions": made.data.actions, "--attributes": made.data.private_attributes}
        for flag, learned in labels.items():
            assert bool(learned) == (flag in audit)
            if learned:
                audited = audit[audit.index(flag) + 1 :]
                assert len(audited) > 1 and not {*audited} & {*learned}
                pairs += 1
    assert pairs


def audited_run(audit: str) -> str:
    """The method of an audit whose other words are checked."""
    words = shlex.split(audit)
    assert words[:2] == ["veil", "audit"] and words[-2:] == ["--suite", "full"]
    method, given = words[2], dict(zip(words[3::2], words[4::2], strict=True))
    assert given["--data"] in DATASETS and given.get("--private", "vispr") == "vispr"
    if not method.startswith("runs/") and method != "raw":
        methods.make(method)
    return method
