"""Every example runs without arguments, prints what it should, and is named in the README and in the documentation."""

import contextlib
import importlib.util
import re
import runpy
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clips
from conftest import ROOT, called
from veil.apps.demo import sample
from veil.audit.recognition import RecognizerSpec
from veil.audit.suites import SUITES
from veil.media.sources import open_source
from veil.methods import ANONYMIZERS

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "hide_people": r"people\.mp4: 20 frames, person hidden in every one.*face or hair hidden.*by blur",
    "compare_methods": r"raw\n  action .*downsample:4x\n.*identity .*pixelate:16",
    "train_anonymizer": r"step 8 of 8: .*became \(1, 3, 32, 72, 96\)",
    "search_features": r"as they come .*the same action .*\nmotion subspace .*the same identity",
    "own_method": r"traces.*traces:16 is cell=16",
}


def test_each_is_short_and_named_where_people_look():
    assert {path.stem for path in EXAMPLES} == set(SAYS)
    for page in ("README.md", "docs/examples.md"):
        assert all(path.name in (ROOT / page).read_text() for path in EXAMPLES), page
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) <= 40, path
        assert f"python examples/{path.name}" in path.read_text()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: Path, monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setattr("veil.methods.ANONYMIZERS", ANONYMIZERS)
    monkeypatch.delitem(ANONYMIZERS, "traces", raising=False)
    with contextlib.suppress(SystemExit):
        runpy.run_path(str(path), run_name="__main__")
    ANONYMIZERS.pop("traces", None)
    assert re.search(SAYS[path.stem], capfd.readouterr().out, re.S)
    assert not list(tmp_path.iterdir())  # without arguments nothing is left behind


@pytest.fixture
def traces(monkeypatch):
    """The method of the worked example, registered as the example does it."""
    monkeypatch.setitem(ANONYMIZERS, "traces", ANONYMIZERS["blur"])  # so that it is put back
    spec = importlib.util.spec_from_file_location("own_method", ROOT / "examples" / "own_method.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_method", module)
    spec.loader.exec_module(module)
    return module.Traces


def test_the_method_of_ones_own_keeps_the_laws(traces):
    frames = sample(length=9, size=(48, 36))
    before = frames.copy()

    def whole(*cuts: int) -> np.ndarray:
        parts = np.split(frames, list(cuts))
        return np.concatenate([veiled.frames for veiled in traces(cell=4).stream(parts)])

    assert whole().shape == frames.shape and np.array_equal(before, frames)
    assert np.array_equal(whole(), whole(2, 7))
    assert set(np.unique(whole())) == {0, 255}
    assert (whole()[0] == 255).all()  # nothing has moved yet


def test_the_command_line_lists_it(traces, tmp_path):
    clips.video(tmp_path / "visit.mp4", sample(10, (64, 48)))
    done = called(
        "anonymize", "visit.mp4", "-o", "safe.mkv", "--codec", "ffv1", "--method", "traces:16", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    with contextlib.closing(open_source(tmp_path / "safe.mkv")) as source:
        frames = np.concatenate([window.frames for window in source.windows()])
    assert frames.shape == (10, 48, 64, 3) and (frames[0] > 250).all() and (frames[5:] < 5).any()
    wrong = called("anonymize", "visit.mp4", "-o", "no.mp4", "--method", "traces:cell=0", cwd=tmp_path)
    assert wrong.returncode == 2 and "cell=0" in wrong.stderr


def test_the_audit_runs_it(traces, tmp_path, monkeypatch):
    """The command of docs/add-a-method.md, with less work."""
    page = (ROOT / "docs" / "add-a-method.md").read_text()
    command = next(
        line for line in page.splitlines() if line.startswith("python examples/own_method.py audit")
    )
    less = replace(
        SUITES["quick"],
        size=32,
        videos=48,
        utility=(RecognizerSpec("kernel", "clips"),),
        attackers=(RecognizerSpec("kernel", "frames"),),
        knowledge=("oblivious", "adaptive"),
    )
    monkeypatch.setitem(SUITES, "quick", less)
    words = [*shlex.split(command)[2:], "--jobs", "1"]
    done = called(*words, cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    assert "traces:16" in done.stdout and list((tmp_path / "traces-audit").glob("*.html"))
