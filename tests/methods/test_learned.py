"""Runs of `veil train` as anonymizers: the laws, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import clips
from small_runs import RECIPES, whole
from veil.apps.demo import sample
from veil.apps.train import train
from veil.cli import main
from veil.core import VeilError
from veil.methods import learned, load, make
from veil.methods.learned import Learned

pytestmark = pytest.mark.usefixtures("rendered_once")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, rendered_once) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name, text in RECIPES.items():
        (folder / f"{name}.toml").write_text(text)
        train(folder / f"{name}.toml", folder / name, device="cpu")
    return {name: folder / name for name in RECIPES}


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return sample(length=41, size=(96, 72))


@pytest.mark.parametrize("name", RECIPES)
def test_the_laws_hold(name, runs, frames):
    anonymizer = load(runs[name])
    before = frames.copy()
    after = whole(anonymizer, frames)
    assert after.shape == frames.shape and after.dtype == np.uint8
    assert np.array_equal(before, frames) and not np.array_equal(after, frames)
    for lengths in ((1,) * 41, (16, 16, 9), (3, 38)):
        assert np.array_equal(whole(anonymizer, frames, *lengths), after)
    assert f'method = "{anonymizer.name}"' in RECIPES[name]
    again = Learned(**anonymizer.params())
    assert np.array_equal(whole(again, frames), after)
    assert np.array_equal(whole(make(str(runs[name])), frames), after)
    assert len(whole(anonymizer, frames[:1])) == 1
    assert whole(anonymizer, frames[:2, :5, :7]).shape == (2, 5, 7, 3)


@pytest.mark.parametrize("name", RECIPES)
def test_the_number_of_frames_at_once_makes_no_difference(name, runs, frames, monkeypatch):
    """A GPU takes many frames at once, a CPU a few."""
    few = whole(load(runs[name]), frames)
    monkeypatch.setattr(learned, "CHUNK", 64)
    many = whole(load(runs[name]), frames)
    assert np.abs(few.astype(int) - many).max() <= 1


def test_a_frame_depends_on_nothing_beyond_what_the_network_sees(runs, frames):
    """Of a block of 8 with 4 ahead, frames 2 apart, frame 0 sees up to frame 22."""
    other = frames.copy()
    other[30:] = 255 - other[30:]
    one, two = whole(load(runs["ahead"]), frames), whole(load(runs["ahead"]), other)
    assert np.array_equal(one[:16], two[:16]) and not np.array_equal(one[24:], two[24:])


def test_detail_that_the_network_did_not_produce_does_not_leave(runs):
    """At 32 pixels, every second row of a fine grating is gone."""
    fine = np.zeros((2, 512, 512, 3), np.uint8)
    fine[:, ::2] = 255
    after = whole(load(runs["frames"]), fine).astype(int)
    assert np.abs(np.diff(after, axis=1)).max() < 32


def test_the_command_line_takes_a_run(runs, tmp_path, capsys):
    video = clips.video(tmp_path / "in.mp4", clips.pictures(20))
    for arguments in (["--with", str(runs["frames"])], ["--method", str(runs["frames"])]):
        with pytest.raises(SystemExit) as stopped:
            main(["anonymize", str(video), "-o", str(tmp_path / "out.mp4"), "--overwrite", *arguments])
        assert stopped.value.code == 0, capsys.readouterr().err
        assert (tmp_path / "out.mp4").exists()


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (lambda run: (run / "weights.safetensors").unlink(), "weights.safetensors"),
        (lambda run: (run / "weights.safetensors").write_bytes(b"no"), "weights.safetensors"),
        (lambda run: (run / "run.json").write_text("{}"), "run.json"),
        (lambda run: _edit(run, kind="recognize"), "'recognize'"),
        (lambda run: _edit(run, kind="superveil"), "'superveil'"),
        (
            lambda run: save_file({"other": torch.zeros(1)}, run / "weights.safetensors"),
            'Missing key(s) in state_dict: "net.',
        ),
        (lambda run: _edit(run, recipe={"anonymizer": {"width": -1}}), "anonymizer.width"),
    ],
)
def test_what_is_not_a_run_is_refused_in_one_sentence(change, value, runs, tmp_path, frames):
    import shutil

    run = tmp_path / "run"
    shutil.copytree(runs["frames"], run)
    change(run)
    with pytest.raises(VeilError) as caught:
        whole(load(run), frames)
    assert value in str(caught.value) and "\n" not in str(caught.value)


def _edit(run: Path, **values: object) -> None:
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**about, **values}))


def test_with_and_method_conflict(runs, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["anonymize", "x.mp4", "-o", "y.mp4", "--with", str(runs["frames"]), "--method", "blur"])
    assert stopped.value.code == 2 and "--method" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["anonymize", "x.mp4", "-o", "y.mp4", "--with", str(tmp_path)])
    assert stopped.value.code == 2 and "--with" in capsys.readouterr().err
