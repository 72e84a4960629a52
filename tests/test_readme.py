"""Every command and example in the README runs.

A command that reads what another one writes (`--with runs/prototypes` after `veil train … -o runs/prototypes`) runs after that
one; each runs once in all, and each has a test of its own.
"""

import re
import shlex
import subprocess
import sys
import tomllib
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
LINES = [line for block in re.findall(r"```console\n(.*?)```", README, re.S) for line in block.splitlines()]
COMMANDS = [line for line in LINES if line.startswith("veil ")]
PACKAGES = {"--gallery": "dlib", "veil features": "lance"}  # of extras that a command needs
SMALLER = {  # settings with which a recipe is trained here, by its method
    "prototypes": ("schedule.steps=3", "data.batch=4", "data.options.count=60"),
    "recognize": ("schedule.steps=3", "data.options.count=60"),
    "subspace": (
        "data.detection=none",
        "data.options.count=24",
        "anonymizer.neighbours=4",
        "schedule.steps=1",
        "data.batch=8",
    ),
}
pytestmark = pytest.mark.usefixtures("rendered_once")


def output(command: str) -> str:
    """What a command makes: the argument of -o, or the name of a template."""
    arguments = shlex.split(command)
    if arguments[1:3] == ["template", "add"]:
        return arguments[3]
    return arguments[arguments.index("-o") + 1] if "-o" in arguments else ""


def prerequisites(command: str) -> list[str]:
    """The earlier commands of the README whose output this one reads."""
    read = {part for argument in shlex.split(command) for part in argument.split(",")} - {output(command)}
    return [earlier for earlier in COMMANDS[: COMMANDS.index(command)] if output(earlier) in read]


def trains(command: str) -> bool:
    """Whether a command, or one that it needs, trains a network."""
    return command.startswith(("veil audit", "veil train")) or any(map(trains, prerequisites(command)))


def smaller(command: str) -> list[str]:
    """The arguments of a command, with less work than the README's reader has it do."""
    arguments = shlex.split(command)[1:]
    if arguments[0] == "train":
        method = tomllib.loads((ROOT / arguments[1]).read_text())["method"]
        settings = [word for setting in SMALLER[method] for word in ("--set", setting)]
        return [*arguments, "--device", "cpu", *settings]
    if arguments[0] == "audit" and "--videos" not in arguments:
        return [*arguments, "--jobs", "1"]  # starting more processes would take longer than the work
    return arguments


class Reader:
    """Runs commands of the README in one folder, each once."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._results: dict[str, subprocess.CompletedProcess[str]] = {}

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """The result of a command, after those that it needs."""
        if command not in self._results:
            for earlier in prerequisites(command):
                assert self.run(earlier).returncode == 0, f"{earlier} failed, which comes before {command}"
            run = veil if command == COMMANDS[0] else called  # the first one as its reader runs it
            env = {name: str(self.home / name) for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME")}
            self._results[command] = run(*smaller(command), cwd=self.home, env=env)
        return self._results[command]


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Reader:
    """In a folder with the files that the README names."""
    home = tmp_path_factory.mktemp("home")
    clips.video(home / "visit.mp4", sample(20, (160, 120)), sound="aac")
    for folder in ("ward", "blurred"):
        (home / folder).mkdir()
        (home / folder / "one.mp4").write_bytes((home / "visit.mp4").read_bytes())
    Image.fromarray(sample(1)[0]).save(home / "portrait.png")
    (home / "stills").mkdir()
    Image.fromarray(sample(1)[0]).save(home / "stills" / "astronaut.png")
    (home / "recipes").symlink_to(ROOT / "recipes")
    return Reader(home)


@pytest.fixture
def small_suite(monkeypatch):
    """The quick suite and the pictures of datasets, made smaller."""
    suite = SUITES["quick"]
    budgets = {key: replace(budget, steps=2, batch=4) for key, budget in suite.budgets.items()}
    reconstruction = replace(suite.reconstruction, steps=2, batch=4)
    smallest = replace(suite, size=32, videos=60, budgets=budgets, reconstruction=reconstruction)
    monkeypatch.setitem(SUITES, "quick", smallest)
    monkeypatch.setattr(synthetic, "show", partial(synthetic.show, size=32))


def test_set_up_is_two_commands_and_ci_calls_them():
    assert LINES[:2] == [
        "pip install . && veil demo",
        "pip install -e '.[dev]' && pytest -n auto --dist worksteal",
    ]
    ci = (ROOT / ".ci" / "run").read_text()
    assert "-e '.[dev]'" in ci and "\nveil demo" in ci and "\npytest -n auto" in ci


def test_commands_run_after_those_that_they_need():
    needed = {command: prerequisites(command) for command in COMMANDS}
    assert len(COMMANDS) == len(needed) > 10  # each is there once
    assert all(needed[c] for c in COMMANDS if "--with" in c or c.startswith("veil template show"))


@pytest.mark.usefixtures("small_suite")
@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=[pytest.mark.slow] if trains(c) else []) for c in COMMANDS],
)
def test_command(command, reader):
    for part, package in PACKAGES.items():
        if part in command:
            pytest.importorskip(package, reason=f"the command needs {package}, which is not installed")
    result = reader.run(command)
    assert result.returncode == 0, result.stderr


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_python_example(code, reader):
    done = subprocess.run([sys.executable, "-c", code], cwd=reader.home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_files_that_it_links_are_there():
    links = re.findall(r"!?\[[^\]]*\]\((?!https?:|#)([^)#]+)", README)
    assert links
    for path in links:
        assert (ROOT / path).exists(), path
