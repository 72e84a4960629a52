"""`veil train`: a recipe becomes a run, killed or not, with one process or two."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from errors import refuses
from veil.apps.train import RECIPES, train
from veil.core import VeilError
from veil.methods.recipes import RECIPES as pixels
from veil.nn import video
from veil.training import run_files
from veil.training.phase import Phase
from veil.training.run import Run
from veil.training.steps import StepResult

RECIPE = """
method = "recognize"

[utility]
network = "small3d"

[schedule]
steps = 12

[data]
size = 32
length = 4
batch = 8
max_frames = 4
options = { count = 60 }
"""
KILLED = """
import os, signal, sys
from veil.apps.train import train
from veil.training.run import Run

saved = Run.save

def save(self, *arguments, **options):
    saved(self, *arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

Run.save = save
train(*sys.argv[1:], every=6, device="cpu")
"""  # the process ends after its first checkpoint
pytestmark = pytest.mark.usefixtures("rendered_once")


@pytest.fixture
def recipe(tmp_path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


@pytest.mark.slow
def test_a_run_leaves_weights_that_begin_an_attack(recipe, tmp_path):
    seen = []
    weights = train(
        recipe, tmp_path / "run", every=4, device="cpu", progress=lambda *done: seen.append(done[:2])
    )
    assert seen == [(4, 12), (8, 12), (12, 12)]
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (
        about["finished"]
        and about["kind"] == "recognize"
        and about["recipe"]["data"]["options"] == {"count": 60}
    )
    net = video.make("small3d", 12, frames=4, size=32, weights=weights)
    assert all(torch.equal(value, load_file(weights)[name]) for name, value in net.state_dict().items())
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "val" in r] == [4, 8, 12]
    assert (tmp_path / "run" / "log.svg").exists()


@pytest.mark.slow
def test_killed_and_resumed_it_is_the_same_run(recipe, tmp_path):
    train(recipe, tmp_path / "whole", every=6, device="cpu")
    broken = tmp_path / "broken"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(recipe), str(broken)])
    assert killed.returncode == -signal.SIGKILL
    assert not (broken / "weights.safetensors").exists()
    train(recipe, broken, every=6, device="cpu", resume=True)
    whole = load_file(tmp_path / "whole" / "weights.safetensors")
    assert all(
        torch.equal(value, whole[name]) for name, value in load_file(broken / "weights.safetensors").items()
    )
    assert (broken / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()


@pytest.mark.slow
def test_two_processes_make_one_run(recipe, tmp_path):
    pytest.importorskip("lightning_fabric")
    train(recipe, tmp_path / "run", sets=("schedule.steps=4",), devices=2, device="cpu")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"]
    assert load_file(tmp_path / "run" / "weights.safetensors")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (RECIPE.replace('"recognize"', '"spactt"'), "spactt"),
        (RECIPE.replace("steps", "stepps"), "schedule.stepps"),
        (RECIPE.replace("steps = 12", 'steps = "many"'), "steps"),
        (RECIPE.replace('"small3d"', '"smal3d"'), "smal3d"),
        (RECIPE + 'target = "nothing"', "target"),
        (RECIPE.replace("60 }", '60, kind = "stills" }\ntarget = "identity"'), "identity"),
        ("steps = 3", "method"),
    ],
)
def test_an_error_of_a_recipe_names_the_value(text, value, tmp_path):
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(VeilError) as caught:
        train(tmp_path / "recipe.toml", tmp_path / "run", device="cpu")
    assert value in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_resume_with_another_recipe_is_refused(recipe, tmp_path):
    train(recipe, tmp_path / "run", every=6, device="cpu")
    with refuses("run-differs"):
        train(recipe, tmp_path / "run", sets=("schedule.lr=0.5",), resume=True, device="cpu")
    with refuses("run-exists"):
        train(recipe, tmp_path / "run", device="cpu")


def test_what_cannot_be_trained_on_is_one_sentence(recipe, tmp_path):
    for device, devices, code in (("tpu", 1, "device-unusable"), ("cpu", 0, "no-devices")):
        with refuses(code) as raised:
            train(recipe, tmp_path / "run", device=device, devices=devices)
        assert "\n" not in str(raised.value)
    with refuses("data-root-missing"):
        train(recipe, tmp_path / "run", sets=("data.name=utd-mhad", "data.options={}"), device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence(recipe, tmp_path):
    with refuses("device-unusable"):
        train(recipe, tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()


def test_a_disk_that_is_full_at_last_leaves_nothing_half_written(recipe, tmp_path, monkeypatch):
    write = run_files.save_file

    def full(tensors: dict[str, torch.Tensor], path: Path, *more: Any) -> None:
        if Path(path).parent.name == "run":
            Path(path).write_bytes(b"half")
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        write(tensors, path, *more)

    with monkeypatch.context() as patch:
        patch.setattr(run_files, "save_file", full)
        with refuses("unwritable"):
            train(recipe, tmp_path / "run", sets=("schedule.steps=2",), device="cpu")
    assert not [path.name for path in (tmp_path / "run").iterdir() if "veil-" in path.name]
    assert train(recipe, tmp_path / "run", sets=("schedule.steps=2",), resume=True, device="cpu").is_file()


def test_a_crash_before_the_first_checkpoint_keeps_the_log(recipe, tmp_path, monkeypatch):
    step = Phase.train_step

    def third_fails(phase: Phase[Any], batch: Any) -> StepResult:
        if phase.step == 2:
            raise OSError("the data are gone")
        return step(phase, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Phase, "train_step", third_fails)
        with pytest.raises(OSError, match="gone"):
            train(recipe, tmp_path / "run", device="cpu")
    (record,) = Run.open(tmp_path / "run").records()
    assert record["step"] == 2 and record["terms"]
    assert train(recipe, tmp_path / "run", resume=True, device="cpu").is_file()


def test_every_recipe_has_a_reader():
    assert all(hasattr(kind, "training") for kind in RECIPES.values())
    assert RECIPES.keys() > pixels.keys()
