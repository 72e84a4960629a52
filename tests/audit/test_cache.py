"""The audit's cache: it holds no frame, is its owner's alone, and is never found for other code, weights or data."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from errors import refuses
from veil.audit import cache, provenance
from veil.audit.audit_data import AuditData
from veil.audit.cache import AuditCache, cache_folder, forget
from veil.audit.recognition import RecognizerSpec, TrainingBudget
from veil.audit.reconstruction import ReconstructionBudget
from veil.audit.runner import NO_RECONSTRUCTION, run_audit
from veil.audit.suites import Suite
from veil.cli import main
from veil.data import Dataset, Sample
from veil.methods import make

SUITE = Suite(
    about="solved, not trained",
    size=16,
    frames=2,
    videos=None,
    seeds=1,
    utility=(),
    attackers=(RecognizerSpec("kernel", "frames"), RecognizerSpec("small2d", "frames")),
    budgets={"frames": TrainingBudget(steps=2, rounds=1, batch=8, views=2)},
    reconstruction=ReconstructionBudget(steps=2, batch=4, width=4),
    knowledge=("adaptive",),
    encodings=("8-bit",),
)
METHOD = """
import numpy as np
from veil.core import Anonymizer, Veiled

class Shade(Anonymizer):
    def stream(self, windows):
        for frames in windows:
            yield Veiled(frames // {divisor}, None)

    def params(self):
        return {{}}
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data() -> AuditData:
    """Noise, darker of one person than of the other."""
    rng = np.random.default_rng(0)
    videos = {
        f"v{i}": rng.integers(60 * (i // 5 % 2), 200, (2, 16, 16, 3)).astype(np.uint8) for i in range(30)
    }
    splits = ("train", "train", "train", "val", "test")
    samples = [Sample(f"v{i}", splits[i % 5], identity=i // 5 % 2) for i in range(30)]
    return AuditData(Dataset("noise", samples, lambda sample: videos[sample.id], identities=("a", "b")))


@pytest.fixture
def trained(monkeypatch) -> list[RecognizerSpec]:
    """What is trained."""
    from veil.audit import experiment

    found, train = [], experiment.train_recognizer
    monkeypatch.setattr(
        experiment,
        "train_recognizer",
        lambda spec, *args, **more: found.append(spec) or train(spec, *args, **more),
    )
    return found


def test_no_frame_is_on_disk(data, tmp_path):
    method = {"blur": make("blur:region=frame"), "raw": None}
    run_audit(method, data, replace(SUITE, knowledge=("adaptive", "reconstruction")), cache=tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    videos = 18  # that are trained on: a frame of each would make as many rows
    for path in tmp_path.glob("*.safetensors"):
        shapes = {name: tensor.shape for name, tensor in load_file(path).items()}
        pixels = {
            name: shape for name, shape in shapes.items() if len(shape) == 2 and shape[1] >= 3 * 16 * 16
        }
        assert not pixels and all(shape[:1] != (videos,) for shape in shapes.values()), shapes


def test_a_cached_result_has_the_same_rows_and_pictures(data, tmp_path, trained):
    suite = replace(SUITE, knowledge=("adaptive", "reconstruction"))
    (first,) = run_audit({"blur": make("blur:region=frame")}, data, suite, cache=tmp_path)
    count = len(trained)
    (again,) = run_audit({"blur": make("blur:region=frame")}, data, suite, cache=tmp_path)
    assert len(trained) == count and again.rows == first.rows and again.raw == first.raw
    for one, other in zip(first.pictures, again.pictures, strict=True):
        assert np.array_equal(one.raw, other.raw) and np.array_equal(one.anonymized, other.anonymized)
        assert one.reconstructed is not None and other.reconstructed is None
    assert NO_RECONSTRUCTION in again.untested and NO_RECONSTRUCTION not in first.untested


def test_an_edited_method_is_audited_again(data, tmp_path, monkeypatch, trained):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "shading.py"
    counts = []
    for divisor in (2, 2, 50):
        file.write_text(METHOD.format(divisor=divisor))
        importlib.invalidate_caches()
        sys.modules.pop("shading", None)
        shade = importlib.import_module("shading").Shade()
        run_audit({"shade": shade}, data, SUITE, cache=tmp_path / "cached")
        counts.append(len(trained))
    sys.modules.pop("shading", None)
    assert counts[0] == counts[1] < counts[2]


def test_a_changed_model_is_audited_again(data, tmp_path, trained):
    path = tmp_path / "faces.onnx"
    counts = []
    for content in (b"one", b"one", b"other"):
        path.write_bytes(content)
        run_audit(
            {"blur": make("blur:region=frame", detector=str(path))}, data, SUITE, cache=tmp_path / "cached"
        )
        counts.append(len(trained))
    assert counts[0] == counts[1] < counts[2]


def test_edited_code_of_the_audit_finds_no_old_result(data, tmp_path, monkeypatch, trained):
    run_audit({"raw": None}, data, SUITE, cache=tmp_path)
    count, statements = len(trained), provenance._statements
    monkeypatch.setattr(
        provenance,
        "_statements",
        lambda file, state: "edited" if file.name == "recognizer_training.py" else statements(file, state),
    )
    run_audit({"raw": None}, data, SUITE, cache=tmp_path)
    assert len(trained) == 2 * count


def test_other_data_finds_no_old_result(data, tmp_path, trained):
    run_audit({"raw": None}, data, SUITE, cache=tmp_path)
    count = len(trained)
    light = replace(data.utility, frames=lambda sample: 255 - data.utility.frames(sample))
    run_audit({"raw": None}, AuditData(light), SUITE, cache=tmp_path)
    assert len(trained) == 2 * count


def test_fresh_measures_its_own_audit_again_and_leaves_others(data, tmp_path, trained):
    other = replace(SUITE, size=12)
    for suite in (SUITE, other):
        run_audit({"blur": make("blur:region=frame")}, data, suite, cache=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    count = len(trained)
    run_audit({"blur": make("blur:region=frame")}, data, SUITE, cache=tmp_path, fresh=True)
    assert len(trained) == count + count // 2
    after = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert before.keys() == after.keys()
    same = [path for path in before if before[path] == after[path]]
    assert len(same) == len(before) / 2  # those of the other audit
    run_audit({"blur": make("blur:region=frame")}, data, other, cache=tmp_path)
    assert len(trained) == count + count // 2


@pytest.mark.parametrize("exists", [False, True])
def test_the_folder_is_its_owners_alone(tmp_path, exists):
    folder = tmp_path / "audit"
    if exists:
        folder.mkdir(mode=0o755)
    AuditCache(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def called(*arguments: str) -> object:
    """The exit code of the command line."""
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    return exit_.value.code


def test_forget_deletes_the_cache_and_nothing_else(capsys):
    folder = cache_folder()
    AuditCache(folder)
    (folder / "result-1.json").write_text("{}")
    beside = folder.parent / "weights"
    beside.mkdir()
    assert called("audit", "--forget") == 0
    assert str(folder) in capsys.readouterr().out.replace("\n", "")
    assert not folder.exists() and beside.is_dir()
    assert forget() == 0


def test_forget_audits_nothing(capsys):
    assert called("audit", "blur", "--forget") == 2
    assert "--forget" in capsys.readouterr().err


def test_a_cache_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with refuses("cache-not-writable"):
        AuditCache(tmp_path / "file" / "audit")


def test_a_truncated_entry_is_not_used(tmp_path):
    store = AuditCache(tmp_path)
    place = store.place("result", "key")
    place.write_text("{")
    assert store.load(place) is None
    assert place != store.place("result", "other") and cache.LAYOUT


def test_entries_are_found_by_their_whole_key(tmp_path):
    store = AuditCache(tmp_path)
    assert store.place("result", {"a": 1}, [2]) == store.place("result", {"a": 1}, [2])
    assert store.place("result", {"a": 1}, [2]) != store.place("result", {"a": 1}, [3])
    assert Path(store.place("recognizer", 1)).suffix == ".safetensors"
