from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import layouts
from errors import refuses
from layouts import SHARED
from veil.data import Dataset, attributes
from veil.data.labels import read_lines, read_pickle

ANNOTATIONS = SHARED / "annotations"
needs_annotations = pytest.mark.skipif(not ANNOTATIONS.is_dir(), reason=f"{ANNOTATIONS} is not there")
needs_data = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason=f"{SHARED / 'data'} is not there")


def splits(dataset: Dataset) -> dict[str, int]:
    return dict(Counter(sample.split for sample in dataset.samples))


def prevalence(dataset: Dataset, split: str = "test") -> np.ndarray:
    """By frames where samples are parts of videos."""
    chosen = [sample for sample in dataset.samples if sample.split == split and sample.attributes]
    weights = [sample.span[1] - sample.span[0] if sample.span else 1 for sample in chosen]
    return np.average([sample.attributes for sample in chosen], axis=0, weights=weights)


def test_vispr_reads_the_published_json(tmp_path: Path) -> None:
    root = layouts.vispr(tmp_path)
    dataset = attributes.vispr(root)
    assert splits(dataset) == {"train": 6, "val": 3, "test": 4}
    assert dataset.attributes == attributes.VISPR1
    marks = {sample.id: sample.attributes for sample in dataset.samples}
    assert marks["2017_train0000"] == (0, 1, 1, 0, 0, 0, 0)
    assert marks["2017_train0001"] == (0,) * 7
    assert marks["2017_val0002"] == (0, 0, 0, 0, 0, 0, 1)
    second = attributes.vispr(root, subset="vispr2")
    assert {sample.id: sample.attributes for sample in second.samples}["2017_val0002"] == (
        0,
        0,
        0,
        0,
        0,
        0,
        1,
    )
    assert attributes.vispr(root, subset="all").attributes == ("a0_safe", "a4_gender")


@needs_annotations
def test_vispr_subsets_are_attributes_of_vispr() -> None:
    rows = [line.split("\t")[1] for line in read_lines(ANNOTATIONS / "vispr" / "attributes.tsv")[1:]]
    assert len(rows) == 68
    assert {*attributes.VISPR1, *attributes.VISPR2} <= set(rows)
    assert len({*attributes.VISPR1, *attributes.VISPR2}) == 14


@needs_annotations
def test_vispr_lists_and_label_pickles_have_the_published_sizes(tmp_path: Path) -> None:
    base = ANNOTATIONS / "vispr"
    for split, count in (("train", 10_000), ("val", 4_167), ("test", 8_000)):
        names = [Path(line).stem for line in read_lines(base / f"{split}2017.txt")]
        assert len(set(names)) == count
        layouts.touch(*(tmp_path / f"{split}2017" / f"{name}.jpg" for name in names))
    dataset = attributes.vispr(tmp_path, labels=base)
    sizes = splits(dataset)
    assert sizes["train"] + sizes["val"] == 10_000 and 900 < sizes["val"] < 1_100
    assert sizes["test"] == 8_000
    assert prevalence(dataset) == pytest.approx([0.473, 0.464, 0.349, 0.291, 0.055, 0.032, 0.071], abs=6e-4)
    assert prevalence(dataset).mean() == pytest.approx(0.248, abs=5e-4), "chance cMAP"
    assert "a tenth of train2017 validates" in dataset.notes[0]
    with refuses("labels-invalid"):
        attributes.vispr(tmp_path, labels=base, subset="vispr2")


def test_pa_hmdb51_is_cut_where_attributes_change(tmp_path: Path) -> None:
    dataset = attributes.pa_hmdb51(layouts.pa_hmdb51(tmp_path))
    assert dataset.attributes == attributes.VISPR1[:6]
    name = layouts.hmdb_names("clap")[0]
    found = {sample.id: (sample.span, sample.attributes) for sample in dataset.samples if name in sample.id}
    assert found == {
        f"{name}#0-9": ((0, 10), (1, 1, 1, 0, 1, 0)),
        f"{name}#10-19": ((10, 20), (1, 1, 0, 1, 1, 0)),
        f"{name}#20-29": ((20, 30), (1, 1, 0, 0, 1, 0)),
    }
    assert {sample.span for sample in dataset.split("test")} == {(0, 10), (4, 10), (10, 20), (20, 30)}
    rest = [*dataset.split("train"), *dataset.split("val")]
    assert len(rest) == 22 and not any(sample.attributes for sample in rest)
    assert all(sample.action is not None for sample in dataset.samples)
    native = attributes.pa_hmdb51(tmp_path, outputs="native")
    assert native.attributes == attributes.PA_ATTRIBUTES
    assert {sample.attributes for sample in native.split("test")} == {(1, 1, 1, 1, 0), (1, 0, 1, 1, 0)}
    semi = attributes.pa_hmdb51(tmp_path, nudity="semi")
    assert {(sample.span, sample.attributes[4]) for sample in semi.split("test") if name in sample.id} == {
        ((0, 10), 0), ((10, 15), 0), ((15, 20), 1), ((20, 30), 1),
    }  # fmt: skip


@needs_annotations
def test_pa_hmdb51_has_the_published_sizes() -> None:
    root = layouts.all_of_hmdb51()
    six = attributes.pa_hmdb51(root, labels=ANNOTATIONS / "pa_hmdb51")
    tests = six.split("test")
    assert len({sample.id.partition("#")[0] for sample in tests}) == 515
    assert len(six.split("train")) + len(six.split("val")) == 6_766 - 515
    assert len(six.actions) == 51
    # Of the 52,413 frames with any annotation, two lack one attribute.
    assert sum(sample.span[1] - sample.span[0] for sample in tests if sample.span) == 52_411
    assert six.notes == ("2 frames lack one of the five attributes and are left out",)
    assert prevalence(six) == pytest.approx([0.972, 0.980, 0.368, 0.382, 0.597, 0.157], abs=6e-4)
    assert prevalence(six).mean() == pytest.approx(0.576, abs=5e-4), "chance cMAP"
    semi = attributes.pa_hmdb51(root, labels=ANNOTATIONS / "pa_hmdb51", nudity="semi")
    assert prevalence(semi).mean() == pytest.approx(0.502, abs=5e-4)
    native = attributes.pa_hmdb51(root, labels=ANNOTATIONS / "pa_hmdb51", outputs="native")
    assert prevalence(native) == pytest.approx([0.972, 0.750, 0.980, 0.597, 0.157], abs=6e-4)
    assert prevalence(native).mean() == pytest.approx(0.691, abs=5e-4)


def test_vp_adds_attributes_to_the_videos_of_others(tmp_path: Path) -> None:
    layouts.ucf101(tmp_path / "ucf")
    videos = [f"{a}/v_{a}_g{g:02d}_c01.mp4" for a in ("Archery", "Basketball") for g in range(1, 26)]
    layouts.vp(tmp_path / "labels", "ucf101", videos)
    dataset = attributes.vp_ucf101(tmp_path / "ucf", labels=tmp_path / "labels")
    assert len(dataset.samples) == 50
    assert "50 videos have no attributes" in dataset.notes[-1]
    assert dataset.samples[0].attributes in ((1, 0, 1, 0, 0), (1, 1, 1, 0, 0))
    layouts.hmdb51(tmp_path / "hmdb")
    names = [
        f"{action}/{name}.mp4" for action in ("clap", "brush_hair") for name in layouts.hmdb_names(action)
    ]
    layouts.vp(tmp_path / "hmdb", "hmdb51", names)
    assert splits(attributes.vp_hmdb51(tmp_path / "hmdb")) == {"train": 12, "val": 4, "test": 6}
    assert len(attributes.vp_hmdb51(tmp_path / "hmdb", unused=True).samples) == 24
    layouts.pickled(
        tmp_path / "hmdb" / "hmdb51_privacy_attribute_label.pickle", {names[0]: np.array([[1, 2, 0, 0, 0]])}
    )
    with refuses("labels-invalid"):
        attributes.vp_hmdb51(tmp_path / "hmdb")


@needs_annotations
def test_vp_has_the_published_sizes() -> None:
    ucf = read_pickle(ANNOTATIONS / "vp" / "ucf101_privacy_attribute_label.pickle")
    hmdb = read_pickle(ANNOTATIONS / "vp" / "hmdb51_privacy_attribute_label.pickle")
    assert (len(ucf), len(hmdb)) == (13_320, 6_766)
    root, lists = layouts.all_of_hmdb51(), ANNOTATIONS / "hmdb51_splits"
    dataset = attributes.vp_hmdb51(root, labels=ANNOTATIONS / "vp", splits=lists)
    sizes = splits(dataset)
    assert (sizes["train"] + sizes["val"], sizes["test"]) == (3_570, 1_530)
    whole = attributes.vp_hmdb51(root, labels=ANNOTATIONS / "vp", splits=lists, unused=True)
    assert len(whole.samples) == 6_766


@needs_annotations
def test_the_columns_of_vp_agree_with_pa_hmdb51() -> None:
    """Each column of VP-HMDB51 but gender is most like the attribute of PA-HMDB51 that it is documented as."""
    vp = read_pickle(ANNOTATIONS / "vp" / "hmdb51_privacy_attribute_label.pickle")
    root = layouts.all_of_hmdb51()
    native = attributes.pa_hmdb51(root, labels=ANNOTATIONS / "pa_hmdb51", outputs="native")
    marks: dict[str, np.ndarray] = {}
    for sample in native.split("test"):
        name = sample.id.partition("#")[0]
        marks[name] = np.maximum(marks.get(name, np.zeros(5)), sample.attributes)
    labels = {Path(name).stem.replace("#", "~"): vector[0] for name, vector in vp.items()}
    joined = np.array([[*labels[name], *marks[name]] for name in marks])
    likeness = np.corrcoef(joined.T)[:5, 5:]
    assert attributes.VP_ATTRIBUTES == attributes.PA_ATTRIBUTES
    for column in (0, 1, 3, 4):
        assert likeness[column].argmax() == column
        assert likeness[column, column] > 0.4


def test_p_hvu_is_selected_in_two_steps(tmp_path: Path) -> None:
    val = {
        "val00000001": "abseiling|rope|cliff|happy",
        "val00000002": "abseiling|rope",  # no scene
        "val00000003": "dog|park",  # no action of its own: still tests
    }
    train = {
        "train000001": "abseiling|rope|cliff",
        "train000002": "walking|dog|park",  # no action of the test set
        "train000003": "abseiling|walking|dog|park|happy",  # walking is dropped
        "train000004": "abseiling|happy|rope",  # no scene
    }
    dataset = attributes.p_hvu(layouts.p_hvu(tmp_path, train, val))
    assert dataset.attributes == (
        "action:abseiling",
        "object:dog",
        "object:rope",
        "scene:cliff",
        "scene:park",
    )
    found = {sample.id[:11]: (sample.split == "test", sample.attributes) for sample in dataset.samples}
    assert found == {
        "val00000001": (True, (1, 0, 1, 1, 0)),
        "val00000003": (True, (0, 1, 0, 0, 1)),
        "train000001": (False, (1, 0, 1, 1, 0)),
        "train000003": (False, (1, 1, 0, 0, 1)),
    }
    scenes = attributes.p_hvu(tmp_path, categories=("scene",))
    assert scenes.attributes == ("scene:cliff", "scene:park")
    one = scenes.samples[0]
    moved = dataclasses.replace(one, split="val")
    assert (moved.split, moved.attributes) == ("val", one.attributes)
    assert one == dataclasses.replace(moved, split=one.split)


def test_utkface_as_published(tmp_path: Path) -> None:
    dataset = attributes.utkface(layouts.utkface(tmp_path))
    assert len(dataset.samples) == 40
    assert "1 images are not named age_gender_race_time" in dataset.notes[0]
    one = next(sample for sample in dataset.samples if sample.id.startswith("26_1_2_"))
    assert one.groups == {"gender": "female", "race": "asian", "age": "18 to 39"}
    marks = dict(zip(dataset.attributes, one.attributes, strict=True))
    assert {name for name, mark in marks.items() if mark} == {"female", "asian", "18 to 39"}


@needs_data
def test_utkface_as_it_is() -> None:
    dataset = attributes.utkface(SHARED / "data" / "utkface")
    assert len(dataset.samples) == 9_778
    sizes = splits(dataset)
    assert all(
        abs(sizes[split] / 9_778 - share) < 0.02
        for split, share in (("train", 0.7), ("val", 0.1), ("test", 0.2))
    )
    assert dataset.frames(dataset.samples[0]).shape == (1, 112, 112, 3)
    shares = prevalence(dataset)
    assert shares[1:6].sum() == pytest.approx(1) and shares[6:].sum() == pytest.approx(1)
