"""Recipes: what a file says, what it may not say, and that it says the same after being written."""

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
    for text, sentence in (
        ("[inner.optim]\nbeta = 1", "r.toml: there is no 'inner.optim.beta' (did you mean 'betas'?)"),
        ("[inner.optim]\nlr = -1", "r.toml: inner.optim.lr = -1 should be greater than 0."),
        ("[spare]\nflip = true", "r.toml: 'spare.epochs' is missing, and it has no default."),
    ):
        path.write_text(text)
        with pytest.raises(VeilError) as told:
            read(path, Outer)
        assert sentence in str(told.value)
    path.write_text("")
    with pytest.raises(VeilError, match=r"^--set: inner\.optim\.lr = -1 should be greater than 0\.$"):
        read(path, Outer, ["inner.optim.lr=-1"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "epochs = 3\nepoch = 4",
            "r.toml: there is no 'epoch' (did you mean 'epochs'?); it has epochs, net,",
        ),
        ("epochs = 3\n[optim]\nlearning = 1", "r.toml: there is no 'optim.learning'"),
        ("epochs = 3\n[optim]\nbeta = 1", "there is no 'optim.beta' (did you mean 'betas'?)"),
        (
            "epochs = 3\n[[stages]]\nname = 'a'\nstep = 1",
            "there is no 'stages.0.step' (did you mean 'steps'?)",
        ),
        ("", "r.toml: 'epochs' is missing, and it has no default."),
        ("epochs = 3\n[[stages]]\nsteps = 1", "r.toml: 'stages.0.name' is missing"),
        ("epochs = '3'", 'r.toml: epochs = "3" should be a valid integer.'),
        ("epochs = true", "r.toml: epochs = true should be a valid integer."),
        ("epochs = 0", "r.toml: epochs = 0 should be greater than or equal to 1."),
        ("epochs = 3\nnet = 'vnet'", "r.toml: net = \"vnet\" should be 'unet' or 'unet++'."),
        ("epochs = 3\n[optim]\nlr = -1", "r.toml: optim.lr = -1 should be greater than 0."),
        ("epochs = 3\noptim = 4", "r.toml: optim = 4 should be a table."),
        ("epochs = 3\nsize = 'big'", 'r.toml: size = "big" should be a valid integer.'),
        ("epochs = 3\n[optim]\nbetas = [0.9, 'x']", 'r.toml: optim.betas.1 = "x" should be a valid number.'),
        ("epochs = 13", "r.toml: 13 epochs are unlucky."),
        ("epochs = 14", "r.toml: 14 epochs are a fortnight"),
        ("epochs = 1\nnet = unet", "r.toml is no TOML: Invalid value (at line 2, column 7)."),
    ],
)
def test_mistakes_in_a_file_are_one_sentence(tmp_path, text, sentence):
    with pytest.raises(VeilError) as told:
        recipe(tmp_path, text)
    assert sentence in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("optim.lr=fast", '--set: optim.lr = "fast" should be a valid number.'),
        ("optim.rl=1", "--set: there is no 'optim.rl' (did you mean 'lr'?)"),
        ("epochs", "--set epochs: write it as KEY=VALUE or KEY.SUB=VALUE."),
        ("optim..lr=1", "write it as KEY=VALUE"),
        ("epochs.many=1", "--set epochs.many=1: 'epochs' is a value and has nothing in it."),
        ("epochs=14", "r.toml with --set: 14 epochs are a fortnight"),
        ("optim={lr = -1}", "--set: optim.lr = -1 should be greater than 0."),
        ("stages=[{steps = 1}]", "--set: 'stages.0.name' is missing, and it has no default."),
        ("method=elr", "--set method=elr: the method is chosen by the recipe file; name another file."),
    ],
)
def test_mistakes_in_set_are_one_sentence(tmp_path, text, sentence):
    with pytest.raises(VeilError) as told:
        recipe(tmp_path, "epochs = 3", text)
    assert sentence in str(told.value)


def test_files_that_cannot_be_read(tmp_path):
    with refuses("unreadable"):
        read(tmp_path / "none.toml", Recipe)
    with refuses("unreadable"):
        read(tmp_path, Recipe)
    (tmp_path / "b.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(VeilError, match=r"b\.toml is no TOML"):
        kind_of(tmp_path / "b.toml")
    (tmp_path / "c.toml").write_text("epochs = 1")
    with pytest.raises(
        VeilError, match=r'c\.toml does not say of which method it is; begin it with method = "'
    ):
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


def test_the_schema_tells_a_form_what_it_needs():
    told = schema(Recipe)
    assert told["required"] == ["epochs"] and told["properties"]["epochs"]["minimum"] == 1
    assert told["properties"]["net"]["enum"] == ["unet", "unet++"]
    assert told["$defs"]["Optim"]["properties"]["lr"]["description"] == "learning rate"
    json.dumps(told)


def test_reading_a_recipe_never_loads_torch():
    code = "import sys, veil.training.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
