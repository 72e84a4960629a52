"""Every command and example in the README runs."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

import clips
from conftest import ROOT, called, veil
from veil.apps.demo import sample
from veil.audit.suites import SUITES
from veil.data import synthetic

README = (ROOT / "README.md").read_text()
COMMANDS = [
    line for block in re.findall(r"```console\n(.*?)```", README, re.S) for line in block.splitlines()
]
pytestmark = pytest.mark.usefixtures("drawn_once")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with the files that the README speaks of."""
    home = tmp_path_factory.mktemp("home")
    clips.video(home / "visit.mp4", sample(20, (160, 120)), sound="aac")
    (home / "ward").mkdir()
    (home / "ward" / "one.mp4").write_bytes((home / "visit.mp4").read_bytes())
    Image.fromarray(sample(1)[0]).save(home / "portrait.png")
    (home / "stills").mkdir()
    Image.fromarray(sample(1)[0]).save(home / "stills" / "astronaut.png")
    (home / "blurred").mkdir()
    (home / "blurred" / "one.mp4").write_bytes((home / "visit.mp4").read_bytes())
    (home / "recipes").symlink_to(ROOT / "recipes")
    added = next(command for command in COMMANDS if command.startswith("veil template add"))
    assert (
        called(*shlex.split(added)[1:], cwd=home, env={"XDG_DATA_HOME": str(home / "data")}).returncode == 0
    )
    return home


def test_set_up_is_two_commands_and_ci_calls_them():
    assert COMMANDS[:2] == [
        "pip install . && veil demo",
        "pip install -e '.[dev]' && pytest -n auto --dist worksteal",
    ]
    ci = (ROOT / ".ci" / "run").read_text()
    assert "-e '.[dev]'" in ci and "\nveil demo" in ci and "\npytest -n auto" in ci


TRAINING = ("veil audit", "veil train")
FEATURES = [
    c for c in COMMANDS if c.startswith("veil features") or "splavu" in c
]  # each needs the one before


@pytest.mark.parametrize(
    "command",
    [c for c in COMMANDS if c.startswith("veil ") and not c.startswith(TRAINING) and c not in FEATURES],
)
def test_command(command, home, monkeypatch):
    if "--with runs/prototypes" in command and not (home / "runs" / "prototypes").exists():
        test_command_that_trains(next(c for c in COMMANDS if "prototypes-synthetic" in c), home, monkeypatch)
    if "--with prototypes.onnx" in command and not (home / "prototypes.onnx").exists():
        test_command(next(c for c in COMMANDS if c.startswith("veil export")), home, monkeypatch)
    if command.startswith("veil export") and (home / "prototypes.onnx").exists():
        return  # another test needed it before
    data = home / ("new" if " template add " in command else "data")  # commands may run in any order
    monkeypatch.setattr(synthetic, "show", partial(synthetic.show, size=32))
    run = veil if command == COMMANDS[2] else called  # the first as its reader runs it
    result = run(*shlex.split(command)[1:], cwd=home, env={"XDG_DATA_HOME": str(data)})
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith(TRAINING) and c not in FEATURES])
def test_command_that_trains(command, home, monkeypatch):
    """The same command, but for the work that goes into it."""
    if "--gallery" in command:
        pytest.importorskip("dlib")
    words = shlex.split(command)[1:]
    if words[0] == "train":
        if (home / words[-1]).exists():  # another test needed it before
            return
        count = "stage.use.options.count=60" if "prototypes" in command else "options.count=60"
        words += ["--set", "steps=3", "--set", count, "--device", "cpu"]
        words += ["--set", "stage.batch=4"] if "prototypes" in command else []
    elif "--videos" not in words:
        words += ["--jobs", "1"]  # to start others takes longer than what they would do
        suite = SUITES["quick"]
        efforts = {sees: replace(effort, steps=2, batch=4) for sees, effort in suite.efforts.items()}
        restoring = replace(suite.restoring, steps=2, batch=4)
        less = replace(suite, size=32, videos=60, efforts=efforts, restoring=restoring)
        monkeypatch.setitem(SUITES, "quick", less)
    done = called(*words, cwd=home, env={"XDG_CACHE_HOME": str(home / "cache")})
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_commands_for_features(home):
    """One after the other; the adapter is trained on few videos, and hardly."""
    pytest.importorskip("lance")
    less = (
        "detection=none",
        "action.options.count=24",
        "neighbours=4",
        "warming=1",
        "batch=8",
    )
    for command in FEATURES:
        words = shlex.split(command)[1:]
        if words[0] == "train":
            words += ["--device", "cpu", *(word for change in less for word in ("--set", change))]
        result = called(*words, cwd=home)
        assert result.returncode == 0, result.stderr


def test_python_examples(home):
    for code in re.findall(r"```python\n(.*?)```", README, re.S):
        done = subprocess.run([sys.executable, "-c", code], cwd=home, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_picture_is_there():
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README) + re.findall(
        r"\]\(((?:docs|bench|experiments|CONTRIBUTING)[^)]*)\)", README
    ):
        assert (ROOT / path).exists(), path
