"""Recipes: what a file may hold and may not, and that writing and reading it changes nothing."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field
from pydantic.dataclasses import dataclass

from errors import refuses
from veil.core import VeilError
from veil.training.config import as_dict, checked, kind_of, read, schema, to_toml


@dataclass(frozen=True)
class Optim:
    lr: Annotated[float, Field(gt=0, description="learning rate")] = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    clip: Annotated[float | None, Field(ge=0)] = 1.0


@dataclass(frozen=True)
class DataConfig:
    name: str
    steps: int = 10


@dataclass(frozen=True)
class Recipe:
    epochs: Annotated[int, Field(ge=1)]
    net: Literal["unet", "unet++"] = "unet"
    optim: Optim = Optim()
    stages: tuple[DataConfig, ...] = ()
    weights: dict[str, float] = Field(default_factory=dict)
    folder: Path | None = None
    flip: bool = True
    size: int | tuple[int, int] = 112
    note: str | None = "-"

    def __post_init__(self) -> None:
        if self.epochs == 13:
            raise ValueError("13 epochs are unlucky")
        if self.epochs == 14:
            raise VeilError("14 epochs are a fortnight")


@dataclass(frozen=True)
class Outer:
    inner: Recipe = Field(default_factory=lambda: Recipe(5, "unet++", Optim(0.1, (0.2, 0.3)), note="kept"))
    spare: Recipe | None = None

    PRESETS: ClassVar[dict[str, Any]] = {"slow": {"inner": {"optim": {"lr": 0.01}}}}


def recipe(tmp_path: Path, text: str, *sets: str) -> Recipe:
    path = tmp_path / "r.toml"
    path.write_text(text)
    return read(path, Recipe, sets)


FULL = """
method = "spact"
epochs = 3
net = "unet++"
folder = "a/b"
size = [8, 9]

[optim]
lr = 1
betas = [0.5, 0.9]
clip = "none"

[[stages]]
name = "one"
[[stages]]
name = "two"
steps = 4

[weights]
task = 1
"""


def test_a_file_becomes_a_recipe(tmp_path):
    assert recipe(tmp_path, FULL) == Recipe(
        epochs=3,
        net="unet++",
        optim=Optim(lr=1.0, betas=(0.5, 0.9), clip=None),
        stages=(DataConfig("one"), DataConfig("two", 4)),
        weights={"task": 1.0},
        folder=Path("a/b"),
        size=(8, 9),
    )
    assert kind_of(tmp_path / "r.toml") == "spact"
    assert recipe(tmp_path, "epochs = 1") == Recipe(epochs=1)


def test_set_changes_the_file(tmp_path):
    sets = [
        "optim.lr=0.5",
        "net = unet++",
        "epochs=7",
        "optim.betas=[0.1, 0.2]",
        "flip=false",
        "weights.task=2",
    ]
    made = recipe(tmp_path, "epochs = 3", *sets, "optim.clip=none", "folder=x = y", "size=[1,2]")
    assert made.optim == Optim(0.5, (0.1, 0.2), None)
    assert (made.epochs, made.net, made.flip, made.weights) == (7, "unet++", False, {"task": 2})
    assert (made.folder, made.size) == (Path("x = y"), (1, 2))


def test_a_part_of_a_table_is_laid_over_its_default(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text("[inner]\nflip = false\n[inner.optim]\nclip = 2")
    made = read(path, Outer, ["inner.weights.task=1"])
    optim = Optim(0.1, (0.2, 0.3), 2.0)
    assert made.inner == Recipe(5, "unet++", optim, weights={"task": 1.0}, flip=False, note="kept")
    assert made.spare is None and checked(as_dict(made), Outer) == made
    path.write_text('preset = "slow"\n[spare]\nepochs = 2\noptim.clip = "none"')
    made = read(path, Outer)
    assert made.inner == Recipe(5, "unet++", Optim(0.01, (0.2, 0.3)), note="kept")
    assert made.spare == Recipe(2, optim=Optim(clip=None))  # which has no default but that of its own class
    for text, code, key in (
        ("[inner.optim]\nbeta = 1", "recipe-key-unknown", "inner.optim.beta"),
        ("[inner.optim]\nlr = -1", "recipe-value-invalid", "inner.optim.lr"),
        ("[spare]\nflip = true", "recipe-key-missing", "spare.epochs"),
    ):
        path.write_text(text)
        with refuses(code) as raised:
            read(path, Outer)
        assert key in str(raised.value) and "r.toml" in str(raised.value)
    path.write_text("")
    with refuses("recipe-value-invalid") as raised:
        read(path, Outer, ["inner.optim.lr=-1"])
    assert "--set" in str(raised.value) and "r.toml" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("epochs = 3\nepoch = 4", "recipe-key-unknown", "'epochs'"),
        ("epochs = 3\n[optim]\nlearning = 1", "recipe-key-unknown", "'optim.learning'"),
        ("epochs = 3\n[optim]\nbeta = 1", "recipe-key-unknown", "'betas'"),
        ("epochs = 3\n[[stages]]\nname = 'a'\nstep = 1", "recipe-key-unknown", "'stages.0.step'"),
        ("", "recipe-key-missing", "'epochs'"),
        ("epochs = 3\n[[stages]]\nsteps = 1", "recipe-key-missing", "'stages.0.name'"),
        ("epochs = '3'", "recipe-value-invalid", 'epochs = "3"'),
        ("epochs = true", "recipe-value-invalid", "epochs = true"),
        ("epochs = 0", "recipe-value-invalid", "epochs = 0"),
        ("epochs = 3\nnet = 'vnet'", "recipe-value-invalid", "'unet' or 'unet++'"),
        ("epochs = 3\n[optim]\nlr = -1", "recipe-value-invalid", "optim.lr = -1"),
        ("epochs = 3\noptim = 4", "recipe-value-invalid", "optim = 4"),
        ("epochs = 3\nsize = 'big'", "recipe-value-invalid", 'size = "big"'),
        ("epochs = 3\n[optim]\nbetas = [0.9, 'x']", "recipe-value-invalid", 'optim.betas.1 = "x"'),
        ("epochs = 13", "recipe-value-invalid", "13 epochs are unlucky."),
        ("epochs = 14", "", "14 epochs are a fortnight"),
        ("epochs = 1\nnet = unet", "toml-invalid", "line 2, column 7"),
    ],
)
def test_mistakes_in_a_file(tmp_path, text, code, part):
    with refuses(code) as raised:
        recipe(tmp_path, text)
    assert part in str(raised.value) and "r.toml" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("optim.lr=fast", "recipe-value-invalid", 'optim.lr = "fast"'),
        ("optim.rl=1", "recipe-key-unknown", "'lr'"),
        ("epochs", "set-invalid", "epochs"),
        ("optim..lr=1", "set-invalid", "optim..lr"),
        ("epochs.many=1", "set-invalid", "'epochs'"),
        ("epochs=14", "", "r.toml with --set"),
        ("optim={lr = -1}", "recipe-value-invalid", "optim.lr = -1"),
        ("stages=[{steps = 1}]", "recipe-key-missing", "'stages.0.name'"),
        ("method=elr", "method-not-settable", "method=elr"),
    ],
)
def test_mistakes_in_set(tmp_path, text, code, part):
    with refuses(code) as raised:
        recipe(tmp_path, "epochs = 3", text)
    assert part in str(raised.value) and "--set" in str(raised.value)


def test_files_that_cannot_be_read(tmp_path):
    with refuses("unreadable"):
        read(tmp_path / "none.toml", Recipe)
    with refuses("unreadable"):
        read(tmp_path, Recipe)
    (tmp_path / "b.toml").write_bytes(b"a = '\xff'")
    with refuses("toml-invalid"):
        kind_of(tmp_path / "b.toml")
    (tmp_path / "c.toml").write_text("epochs = 1")
    with refuses("method-missing"):
        kind_of(tmp_path / "c.toml")


def test_what_is_written_reads_the_same(tmp_path):
    for made in (
        Recipe(epochs=1),
        Recipe(epochs=1, note=None),
        recipe(tmp_path, FULL),
        Recipe(2, weights={"odd key": 1e-9, 'q"\n\x7f': math.inf}, folder=Path('a "b"\\ü\U0001f600')),
    ):
        path = tmp_path / "again.toml"
        path.write_text(to_toml(made, "spact"))
        assert read(path, Recipe) == made and kind_of(path) == "spact"
        plain = as_dict(made)
        assert checked(json.loads(json.dumps(plain)), Recipe) == made
    assert to_toml(DataConfig("a", 2)) == 'name = "a"\nsteps = 2\n'


def test_the_schema_has_what_a_form_needs():
    found = schema(Recipe)
    assert found["required"] == ["epochs"] and found["properties"]["epochs"]["minimum"] == 1
    assert found["properties"]["net"]["enum"] == ["unet", "unet++"]
    assert found["$defs"]["Optim"]["properties"]["lr"]["description"] == "learning rate"
    json.dumps(found)


def test_reading_a_recipe_never_loads_torch():
    code = "import sys, veil.training.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
