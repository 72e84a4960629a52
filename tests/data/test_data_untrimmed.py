from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import layouts
from errors import refuses
from layouts import SHARED
from veil.data import Dataset, Segment, untrimmed
from veil.data.labels import read_json, read_lines

ANNOTATIONS = SHARED / "annotations"
needs_annotations = pytest.mark.skipif(not ANNOTATIONS.is_dir(), reason=f"{ANNOTATIONS} is not there")


def splits(dataset: Dataset) -> dict[str, int]:
    return dict(Counter(sample.split for sample in dataset.samples))


def test_thumos_trains_on_validation(tmp_path: Path) -> None:
    dataset = untrimmed.thumos14(layouts.thumos14(tmp_path))
    assert dataset.actions == ("CliffDiving", "Diving"), "by their ids, and without the ambiguous"
    assert splits(dataset) == {"train": 18, "val": 2, "test": 5}
    assert dataset.samples[0].segments == (Segment(1.5, 9.0, 0), Segment(4.5, 9.0, 1))


def test_thumos_with_features(tmp_path: Path) -> None:
    layouts.thumos14(tmp_path, features=True)
    dataset = untrimmed.thumos14(tmp_path, features=tmp_path / "features")
    assert {sample.path.suffix for sample in dataset.samples if sample.path} == {".npy"}
    with refuses("features-not-frames"):
        dataset.frames(dataset.samples[0])


@needs_annotations
def test_multithumos_is_read_as_well(tmp_path: Path) -> None:
    base = ANNOTATIONS / "thumos14"
    database = read_json(base / "multithumos_anno.json")["database"]
    layouts.touch(*(tmp_path / f"{name}.mp4" for name in database))
    dataset = untrimmed.thumos14(tmp_path, labels=base)
    assert len(dataset.samples) == len(database) == 20
    assert splits(dataset)["test"] == 10
    assert set(dataset.actions) <= set(read_lines(base / "category_idx.txt"))
    assert sum(len(sample.segments) for sample in dataset.samples) == 703


def test_ucf_crime_has_times_for_test_only(tmp_path: Path) -> None:
    dataset = untrimmed.ucf_crime(layouts.ucf_crime(tmp_path))
    assert splits(dataset) == {"train": 18, "val": 2, "test": 2}
    assert {sample.action for sample in dataset.split("val")} == {0, 1}
    tests = {sample.id: sample for sample in dataset.split("test")}
    assert tests["Abuse028_x264"].segments == (Segment(5.5, 8.0, 1), Segment(10.0, 12.0, 1))
    assert tests["Normal_Videos_003_x264"].segments == ()
    assert not any(sample.segments for sample in dataset.split("train"))


def test_ucf_crime_cuts_the_frame_truth_by_the_features(tmp_path: Path) -> None:
    layouts.text(tmp_path / "ucf-crime.list", "data/Abuse001_x264.npy", "data/Normal_Videos001_x264.npy")
    layouts.text(
        tmp_path / "ucf-crime-test.list", "data/Normal_Videos_003_x264.npy", "data/Abuse028_x264.npy"
    )
    (tmp_path / "features").mkdir()
    for name, length in (("Abuse001", 3), ("Normal_Videos001", 3), ("Normal_Videos_003", 2), ("Abuse028", 4)):
        np.save(tmp_path / "features" / f"{name}_x264.npy", np.zeros((length, 1, 8), np.float32))
    truth = np.zeros(16 * 6)
    truth[32 + 30 : 32 + 60] = 1
    np.save(tmp_path / "gt-ucf.npy", truth)
    dataset = untrimmed.ucf_crime(tmp_path, features=tmp_path / "features")
    found = {sample.id: sample.segments for sample in dataset.split("test")}
    assert found == {"Normal_Videos_003_x264": (), "Abuse028_x264": (Segment(1.0, 2.0, 1),)}
    np.save(tmp_path / "gt-ucf.npy", truth[:-16])
    assert "do not belong together" in untrimmed.ucf_crime(tmp_path, features=tmp_path / "features").notes[0]


@needs_annotations
def test_ucf_crime_has_the_published_sizes(tmp_path: Path) -> None:
    base = ANNOTATIONS / "ucf_crime"
    for file in ("ucf-i3d.list", "ucf-i3d-test.list"):
        layouts.touch(*(tmp_path / f"{Path(line).stem}.mp4" for line in read_lines(base / file)))
    dataset = untrimmed.ucf_crime(tmp_path, labels=base)
    sizes = splits(dataset)
    assert (sizes["train"] + sizes["val"], sizes["test"]) == (1_610, 290)
    normal = Counter((sample.split == "test", sample.action == 0) for sample in dataset.samples)
    assert normal == {(False, False): 810, (False, True): 800, (True, False): 140, (True, True): 150}
    assert len(dataset.actions) == 14
    assert "has no times of anomalies" in dataset.notes[0]
