from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import layouts
from layouts import real
from veil.data import synthetic
from veil.data.check import PUBLISHED, SHOWN, DatasetCheck, check, contact_sheet


def test_what_cannot_be_read_is_not_usable(tmp_path: Path) -> None:
    found = check("ucf101", tmp_path)
    assert (found.usable, found.exit_code) == (False, 2)
    assert found.problem is not None and "trainlist01.txt" in found.problem
    assert json.loads(json.dumps(found.as_dict()))["usable"] is False
    layouts.ucf101(tmp_path)
    empty = check("ucf101", tmp_path, sheet=4)
    assert empty.exit_code == 2 and "none of 4 samples could be decoded" in str(empty.problem)
    assert check("ucf101", tmp_path, sheet=0).exit_code == 0, "without a look, names are enough"
    assert check("nonsense", tmp_path).exit_code == 2


def test_a_usable_dataset_is_counted_and_shown(tmp_path: Path) -> None:
    layouts.ucf101(tmp_path, groups=9)
    for path in tmp_path.rglob("*.avi"):
        path.unlink()
        layouts.write_video(path.with_suffix(".mp4"), layouts.pictures(4, 32, 24))
    layouts.text(tmp_path / "UCF-101" / "Archery" / "v_Archery_g01_c01.mp4", "broken")
    found = check("ucf101", tmp_path, sheet=36)
    assert found.exit_code == 0
    counts = {count.what: (count.found, count.published) for count in found.counts}
    assert (
        counts["training"] == (8, 9_537) and counts["test"] == (28, 3_783) and counts["actions"] == (2, 101)
    )
    assert found.actions == {"Archery": 18, "Basketball": 18}
    assert any("v_Archery_g01_c01.mp4" in note for note in found.notes)
    assert found.sheet is not None and found.sheet.size == (960, 6 * 176)
    text = "\n".join(found.lines())
    assert "usable" in text and "(published: 9,537)" in text
    values = json.loads(json.dumps(found.as_dict()))
    assert values["counts"][0] == {"what": "samples", "found": 36, "published": None}


def test_prevalences_are_by_frames(tmp_path: Path) -> None:
    found = check("pa-hmdb51", layouts.pa_hmdb51(tmp_path), sheet=0)
    assert found.prevalences["test"]["a9_face_complete"] == pytest.approx((10 + 6) / 56)
    assert set(found.prevalences) == {"test"}
    counts = {count.what: count.found for count in found.counts}
    assert counts["test videos"] == 2
    assert any("a12_semi_nudity 1.000" in line for line in found.lines())


def test_every_name_is_listed(tmp_path: Path) -> None:
    found = check("synthetic", None, {"count": 24, "size": 32}, sheet=0)
    lines = found.lines(60)
    assert max(map(len, lines)) <= 60
    text = " ".join(line.strip() for line in lines)
    assert f"actions: {', '.join(synthetic.ACTIONS)} attributes: {', '.join(synthetic.ATTRIBUTES)} " in text
    assert not any(line.endswith(("sit", "pick")) for line in lines), "a name is torn apart"
    values = json.loads(json.dumps(found.as_dict()))
    assert values["actions"] == dict.fromkeys(synthetic.ACTIONS, 2)
    assert values["attributes"] == list(synthetic.ATTRIBUTES)
    layouts.thumos14(tmp_path, features=True)
    untrimmed = check("thumos14", tmp_path, {"features": tmp_path / "features"})
    assert untrimmed.actions == {"CliffDiving": 25, "Diving": 25}, "by the segments of its videos"


def test_thousands_of_tags_are_for_the_json() -> None:
    names = tuple(f"tag {i}" for i in range(SHOWN + 1))
    found = DatasetCheck("tags", "", prevalences={"train": dict.fromkeys(names, 0.5)}, attributes=names)
    text = " ".join(found.lines())
    assert "--json names all" in text and text.count("0.500") == SHOWN
    assert found.as_dict()["attributes"] == names


def test_features_are_usable_without_a_picture(tmp_path: Path) -> None:
    layouts.thumos14(tmp_path, features=True)
    found = check("thumos14", tmp_path, {"features": tmp_path / "features"})
    assert found.usable and found.sheet is None
    assert any("no contact sheet" in note for note in found.notes)


def test_a_contact_sheet_has_a_place_for_everything() -> None:
    tiles = [
        (np.full((h, w, 3), 50, np.uint8), "a long title that does not fit")
        for h, w in ((10, 500), (500, 10), (8, 8))
    ]
    sheet = contact_sheet(tiles, columns=2, side=100)
    assert sheet.size == (200, 2 * 116)
    assert np.asarray(sheet).min() < 100


def test_every_dataset_on_disk_has_published_counts() -> None:
    from veil.data import DATASETS

    assert set(PUBLISHED) == set(DATASETS) - {"synthetic"}


@pytest.mark.parametrize(
    ("name", "folder", "samples"),
    [("utd-mhad", "utd_mhad_depth", 861), ("ucf-sports", "ucf_sports", 133), ("utkface", "utkface", 9_778)],
)
def test_the_real_datasets_are_usable(name: str, folder: str, samples: int) -> None:
    found = check(name, real(folder), sheet=12)
    assert found.exit_code == 0, found.problem
    assert {count.what: count.found for count in found.counts}["samples"] == samples
    assert found.sheet is not None
    assert not [note for note in found.notes if "no train" in note or "no val" in note or "no test" in note]
