"""Weights are found in the right folder, checked, downloaded only on request, and never used when they are wrong."""

import hashlib

import pytest

from errors import refuses
from veil.nn import weights


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A table with one entry, whose hub is a local folder."""
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "own.onnx").write_bytes(b"weights")
    entry = weights.WeightsFile(
        "own.onnx",
        hashlib.sha256(b"weights").hexdigest(),
        7,
        "MIT",
        "detects people",
        url=(hub / "own.onnx").as_uri(),
    )
    monkeypatch.setattr(weights, "WEIGHTS", {"own": entry})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(weights.FOLDER_VARIABLE, str(tmp_path / "folder"))
    (tmp_path / "folder").mkdir()
    return tmp_path


def test_missing_weights_are_an_error_with_advice_and_not_fetched(own):
    with refuses("weights-missing") as raised:
        weights.find("own")
    assert "veil fetch own" in str(raised.value) and "VEIL_WEIGHTS" in str(raised.value)
    assert not (own / "cache").exists()


def test_weights_are_fetched_once(own):
    path = weights.fetch("own")
    assert path.read_bytes() == b"weights" and path == weights.find("own")
    (own / "hub" / "own.onnx").unlink()
    assert weights.fetch("own") == path


def test_the_users_folder_comes_first(own):
    weights.fetch("own")
    (own / "folder" / "own.onnx").write_bytes(b"weights")
    assert weights.find("own") == own / "folder" / "own.onnx"


def test_a_wrong_file_is_refused_and_not_kept(own):
    (own / "hub" / "own.onnx").write_bytes(b"evil")
    with refuses("weights-checksum"):
        weights.fetch("own")
    assert list((own / "cache" / "veil" / "weights").iterdir()) == []
    (own / "folder" / "own.onnx").write_bytes(b"evil")
    with refuses("weights-checksum"):
        weights.find("own")


def test_a_hub_out_of_reach(own):
    (own / "hub" / "own.onnx").unlink()
    with refuses("not-fetched"):
        weights.fetch("own")


def test_the_face_detector_is_shipped():
    assert weights.find("centerface").name == "centerface.onnx"
