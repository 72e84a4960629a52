"""Fingerprints change with what a number depends on, and with nothing else."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import veil
from veil.audit import provenance
from veil.audit.provenance import (
    data_fingerprint,
    method_fingerprint,
    source_fingerprint,
    suite_fingerprint,
    weights_fingerprint,
)
from veil.audit.suites import SUITES
from veil.data import Dataset, Sample, read
from veil.methods import make
from veil.people import templates


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A copy of the package whose files can be edited."""
    copy = tmp_path / "veil"
    shutil.copytree(Path(veil.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "_root", lambda: copy)
    return copy


def test_statements_count_and_comments_do_not(package):
    before = source_fingerprint("veil.methods.filters")
    assert source_fingerprint("veil.methods.filters") == before
    path = package / "methods" / "filters.py"
    path.write_text(path.read_text() + "\n# a comment\n")
    assert source_fingerprint("veil.methods.filters") == before
    path.write_text(path.read_text() + "\nANSWER = 42\n")
    assert source_fingerprint("veil.methods.filters") != before


def test_what_a_method_imports_counts_and_what_it_does_not_import_does_not(package):
    before = source_fingerprint("veil.methods.selective")
    (package / "methods" / "exported.py").write_text("ANSWER = 42\n")
    assert source_fingerprint("veil.methods.selective") == before
    path = package / "people" / "templates.py"
    path.write_text(path.read_text() + "\nANSWER = 42\n")
    assert source_fingerprint("veil.methods.selective") != before


def test_a_model_that_was_exported_again_is_another_method(package):
    prototypes, blur = make("prototypes"), make("blur")
    before, other = method_fingerprint(prototypes), method_fingerprint(blur)
    with (package / "methods" / "prototypes.onnx").open("ab") as file:
        file.write(b"x")
    assert method_fingerprint(prototypes) != before and method_fingerprint(blur) == other


@pytest.mark.parametrize("shipped", ["parts.onnx", "lite0.onnx"])
def test_every_shipped_model_of_selective_counts(package, shipped):
    before = weights_fingerprint(make("selective"))
    with (package / "people" / shipped).open("ab") as file:
        file.write(b"x")
    assert weights_fingerprint(make("selective")) != before


def test_a_file_that_a_parameter_names_counts_by_its_content(tmp_path):
    path = tmp_path / "faces.onnx"
    path.write_bytes(b"one")
    before = method_fingerprint(make("blur", detector=str(path)))
    path.write_bytes(b"two!")
    assert method_fingerprint(make("blur", detector=str(path))) != before


def test_an_edited_template_is_another_method(tmp_path, monkeypatch):
    monkeypatch.setattr(templates, "folder", lambda: tmp_path)
    picture = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
    templates.add("badge", picture, [(10, 10)])
    badge = make("selective", hide="face+badge")
    before, without = method_fingerprint(badge), method_fingerprint(make("selective"))
    templates.add("badge", picture, [(60, 40)], overwrite=True)
    assert method_fingerprint(badge) != before and method_fingerprint(make("selective")) == without


def test_data_counts_by_labels_files_and_rendered_frames(tmp_path):
    path = tmp_path / "a.avi"
    path.write_bytes(b"one")
    samples = [Sample("a", "train", path=path, action=0), Sample("b", "test", action=1)]
    dark = Dataset("some", samples, lambda sample: np.zeros((2, 4, 4, 3), np.uint8), ("x", "y"))
    before = data_fingerprint(dark)
    assert data_fingerprint(dark) == before
    assert data_fingerprint(replace(dark, samples=[samples[0], replace(samples[1], action=0)])) != before
    assert data_fingerprint(replace(dark, frames=lambda _: np.ones((2, 4, 4, 3), np.uint8))) != before
    path.write_bytes(b"three")
    assert data_fingerprint(dark) != before


def test_rendered_data_of_another_size_is_other_data():
    small, large = (read("synthetic", count=6, size=size) for size in (16, 24))
    assert data_fingerprint(small) != data_fingerprint(large)


def test_a_suite_counts_by_its_settings_and_by_the_code_that_evaluates(package):
    suite = SUITES["quick"]
    before = suite_fingerprint(suite)
    assert suite_fingerprint(replace(suite, about="other words")) == before
    assert suite_fingerprint(replace(suite, size=57)) != before
    path = package / "audit" / "recognition.py"
    path.write_text(path.read_text() + "\nANSWER = 42\n")
    assert suite_fingerprint(suite) != before
