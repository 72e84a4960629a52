from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

import layouts
from errors import refuses
from layouts import SHARED, real
from veil import data
from veil.core import VeilError
from veil.data import Dataset, gait, recorded_actions, web_actions
from veil.data.labels import read_pickle

ANNOTATIONS = SHARED / "annotations"
needs_annotations = pytest.mark.skipif(not ANNOTATIONS.is_dir(), reason=f"{ANNOTATIONS} is not there")
needs_data = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason=f"{SHARED / 'data'} is not there")


def splits(dataset: Dataset) -> dict[str, int]:
    return dict(Counter(sample.split for sample in dataset.samples))


def test_ucf101_keeps_groups_together_and_ends_by_the_lists(tmp_path: Path) -> None:
    dataset = web_actions.ucf101(layouts.ucf101(tmp_path))
    assert dataset.actions == ("Archery", "Basketball")
    assert splits(dataset) == {"train": 2 * 17 * 2, "val": 2 * 1 * 2, "test": 2 * 7 * 2}
    groups = defaultdict(set)
    for sample in dataset.samples:
        groups[sample.id.rsplit("_", 1)[0]].add(sample.split)
    assert all(len(found) == 1 for found in groups.values())
    one = dataset.samples[0]
    assert one.path is not None and one.path.stem == one.id
    assert dataset.actions[one.action or 0] in one.id


def test_missing_videos_of_ucf101_are_noted(tmp_path: Path) -> None:
    layouts.ucf101(tmp_path)
    (tmp_path / "UCF-101" / "Archery" / "v_Archery_g01_c01.avi").unlink()
    dataset = web_actions.ucf101(tmp_path)
    assert dataset.notes == ("1 of 100 ucf101 videos are missing, such as v_Archery_g01_c01",)
    with refuses("no-samples"):
        web_actions.ucf101(tmp_path / "ucfTrainTestlist", labels=tmp_path)
    with refuses("label-file-missing"):
        web_actions.ucf101(tmp_path, split=3)


def test_videos_may_be_folders_of_frames(tmp_path: Path) -> None:
    layouts.ucf101(tmp_path)
    video = tmp_path / "UCF-101" / "Archery" / "v_Archery_g01_c01.avi"
    video.unlink()
    layouts.touch(video.with_suffix("") / "image_00001.jpg")
    assert not web_actions.ucf101(tmp_path).notes


@needs_annotations
def test_ucf101_has_the_published_sizes(tmp_path: Path) -> None:
    """Split 1 tests on the groups 1 to 7; the names of all videos are in the labels of VP-UCF101."""
    names = read_pickle(ANNOTATIONS / "vp" / "ucf101_privacy_attribute_label.pickle")
    files = [name.replace(".mp4", ".avi") for name in names]
    layouts.touch(*(tmp_path / "UCF-101" / file for file in files))
    tests = [file for file in files if int(file.split("_g")[1][:2]) <= 7]
    layouts.text(tmp_path / "testlist01.txt", *tests)
    layouts.text(tmp_path / "trainlist01.txt", *sorted(set(files) - set(tests)))
    dataset = web_actions.ucf101(tmp_path)
    sizes = splits(dataset)
    assert len(dataset.samples) == 13_320
    assert sizes["train"] + sizes["val"] == 9_537
    assert sizes["test"] == 3_783
    assert len(dataset.actions) == 101
    assert 0.04 < sizes["val"] / 9_537 < 0.1
    assert len({sample.action for sample in dataset.split("val")}) == 101


def test_hmdb51_leaves_out_the_unused_and_keeps_films_together(tmp_path: Path) -> None:
    dataset = web_actions.hmdb51(layouts.hmdb51(tmp_path))
    assert splits(dataset) == {"train": 12, "val": 4, "test": 6}
    assert dataset.notes == ("2 videos are in neither set of split 1 and are left out",)
    kinds = defaultdict(set)
    for sample in dataset.samples:
        if sample.split != "test":
            kinds[sample.action, web_actions.film(sample.id, dataset.actions[sample.action or 0])].add(
                sample.split
            )
    assert all(len(found) == 1 for found in kinds.values())
    assert len(web_actions.hmdb51(tmp_path, unused=True).samples) == 24


@needs_annotations
@pytest.mark.parametrize("split", [1, 2, 3])
def test_hmdb51_has_the_published_sizes(split: int) -> None:
    dataset = web_actions.hmdb51(layouts.all_of_hmdb51(), labels=ANNOTATIONS / "hmdb51_splits", split=split)
    counted = Counter((sample.action, sample.split == "test") for sample in dataset.samples)
    assert len(dataset.actions) == 51
    assert all(counted[action, False] == 70 and counted[action, True] == 30 for action in range(51))
    assert dataset.notes == (f"1,666 videos are in neither set of split {split} and are left out",)
    assert len({sample.id for sample in dataset.samples}) == 5_100
    assert not any("#" in sample.id for sample in dataset.samples), "a # begins the name of a clip"
    assert len({sample.action for sample in dataset.split("val")}) == 51


def test_kinetics_tests_on_what_it_calls_val(tmp_path: Path) -> None:
    dataset = web_actions.kinetics400(layouts.kinetics400(tmp_path))
    assert splits(dataset) == {"train": 17, "val": 2, "test": 4}
    assert dataset.actions == ("abseiling", "air drumming")
    assert dataset.notes == ("2 of 25 kinetics400 videos are missing, such as train000000_000000_000010",)
    layouts.touch(tmp_path / "plain" / "train000000.mp4")
    assert "1 of 25" in web_actions.kinetics400(tmp_path).notes[0], "a file may be called by its id alone"


def test_kth_has_every_person_and_action_in_every_split(tmp_path: Path) -> None:
    dataset = recorded_actions.kth(layouts.kth(tmp_path))
    found = defaultdict(Counter)
    for sample in dataset.samples:
        found[sample.identity, sample.action][sample.split] += 1
    whole = [counts for key, counts in found.items() if key != (12, 1)]
    assert all(counts == {"train": 2, "val": 1, "test": 1} for counts in whole)
    scenarios = {sample.groups["scenario"] for sample in dataset.split("test")}
    assert len(scenarios) > 1, "the scenario must not give the split away"
    assert len(dataset.identities) == 25


def test_kth_is_cut_into_sequences(tmp_path: Path) -> None:
    whole = {sample.id: sample.split for sample in recorded_actions.kth(layouts.kth(tmp_path)).samples}
    parts = recorded_actions.kth(tmp_path, unit="sequence").samples
    assert len(parts) == 4 * len(whole)
    assert parts[0].id == "person01_boxing_d1#1-95"
    assert parts[0].span == (0, 95)
    assert parts[1].span == (95, 185)
    assert all(part.split == whole[part.id.partition("#")[0]] for part in parts)


@needs_annotations
def test_kth_has_the_published_sizes(tmp_path: Path) -> None:
    """599 videos, one being lost, and 2,391 sequences in the real list."""
    lines = (ANNOTATIONS / "kth" / "00sequences.txt").read_text().split("\n")
    names = [line.split()[0] for line in lines if line.strip()]
    layouts.touch(*(tmp_path / f"{name}_uncomp.avi" for name in names))
    videos = recorded_actions.kth(tmp_path)
    assert len(videos.samples) == 599 and not videos.notes
    assert (
        Counter(splits(videos)) == {"train": 300, "val": 150, "test": 149}
        or sum(splits(videos).values()) == 599
    )
    assert len(recorded_actions.kth(tmp_path, labels=ANNOTATIONS / "kth", unit="sequence").samples) == 2_391


def test_ipn_is_cut_into_gestures_with_gender(tmp_path: Path) -> None:
    dataset = recorded_actions.ipn(layouts.ipn(tmp_path))
    assert len(dataset.actions) == 13
    assert splits(dataset) == {"train": 40, "val": 4, "test": 8}
    one = next(sample for sample in dataset.samples if sample.id.startswith("1CM1_1_R_~1#"))
    assert (one.span, dataset.actions[one.action or 0]) == ((17, 55), "zoom out")
    assert (one.attributes, one.groups["gender"]) == ((1.0,), "female")
    people = defaultdict(set)
    for sample in dataset.samples:
        people[sample.identity].add(sample.split)
    assert len(people) == 13 and all(len(found) == 1 for found in people.values())
    (tmp_path / "annotations" / "metadata.csv").unlink()
    bare = recorded_actions.ipn(tmp_path)
    assert "gender is unknown" in bare.notes[0]
    assert bare.samples[0].attributes == ()


def test_sbu_has_every_pair_in_every_split(tmp_path: Path) -> None:
    dataset = recorded_actions.sbu(layouts.sbu(tmp_path))
    assert dataset.identities == ("s01s02", "s03s04"), "who acts makes no other pair"
    found = defaultdict(Counter)
    for sample in dataset.samples:
        found[sample.identity][sample.split] += 1
    assert all(set(counts) == {"train", "val", "test"} for counts in found.values())
    one = next(sample for sample in dataset.samples if sample.id == "s02s01/08/001")
    assert dataset.actions[one.action or 0] == "punching"


def test_ntu_cross_subject_and_cross_view(tmp_path: Path) -> None:
    root = layouts.ntu60(tmp_path)
    dataset = recorded_actions.ntu60(root)
    assert len(dataset.samples) == 40 * 3 * 2, "actions and people of NTU 120 are left out"
    assert splits(dataset) == {"train": 18 * 6, "val": 2 * 6, "test": 20 * 6}
    view = recorded_actions.ntu60(root, protocol="view")
    assert {sample.groups["camera"] for sample in view.split("test")} == {"1"}
    assert {sample.groups["camera"] for sample in view.split("train")} == {"2"}


@pytest.mark.parametrize(("protocol", "with_brush"), [("bias-f", "female"), ("bias-m", "male")])
def test_ntu_bias_has_exactly_these_people(
    tmp_path: Path, protocol: recorded_actions.NTUProtocol, with_brush: str
) -> None:
    dataset = recorded_actions.ntu60(layouts.ntu60(tmp_path), protocol=protocol)
    women, men = {1, 15, 16, 17, 18, 28, 39}, {7, 8, 10, 20, 25, 27, 37}
    assert women | men == recorded_actions.NTU_BIAS_TRAIN
    most = women - {39} | {10} if with_brush == "female" else men - {10} | {39}
    rest = men - {10} | {39} if with_brush == "female" else women - {39} | {10}
    seen = defaultdict(set)
    for sample in (*dataset.split("train"), *dataset.split("val")):
        seen[sample.action].add((sample.identity or 0) + 1)
    assert seen == {3: most, 0: rest, 59: rest}
    tested = {(sample.identity or 0) + 1 for sample in dataset.split("test")}
    assert tested == {2, 5, 6, 11, 12, 13, 14, 22, 23, 24, 26, 29, 30, 31, 32, 33, 34, 35, 36, 38}
    genders = Counter(sample.groups["gender"] for sample in dataset.split("test"))
    assert genders["male"] == genders["female"] == 10 * 3 * 2
    fair = recorded_actions.ntu60(tmp_path, protocol="fair")
    assert len(fair.split("train")) + len(fair.split("val")) == 14 * 3 * 2
    views = defaultdict(set)
    for sample in dataset.samples:
        views[sample.identity, sample.action].add(sample.split)
    assert all(len(found) == 1 for found in views.values()), "the views of one performance stay together"


def test_toyota_is_cross_subject(tmp_path: Path) -> None:
    dataset = recorded_actions.toyota_smarthome(layouts.toyota_smarthome(tmp_path))
    tested = {dataset.identities[sample.identity or 0] for sample in dataset.split("test")}
    assert tested == {"p02", "p10", "p14"}
    assert dataset.split("val")
    assert {sample.groups["gender"] for sample in dataset.samples if "_p14_" in sample.id} == {"male"}
    assert (len(dataset.actions), len(dataset.identities)) == (31, 18)


def test_casia_b_has_gallery_and_probe(tmp_path: Path) -> None:
    dataset = gait.casia_b(layouts.casia_b(tmp_path))
    people = {
        split: {dataset.identities[sample.identity or 0] for sample in dataset.split(split)}
        for split in ("train", "val", "test")
    }
    assert people == {"train": {"001", "002", "064"}, "val": {"065", "074"}, "test": {"075", "124"}}
    roles = {sample.id: sample.groups["role"] for sample in dataset.samples}
    assert (roles["001-nm-04-090"], roles["001-nm-05-090"], roles["001-bg-01-000"]) == (
        "gallery",
        "probe",
        "probe",
    )
    assert roles["002-nm-01-090"] == "gallery", "silhouettes count as frames"
    everybody = gait.casia_b(tmp_path, protocol="all")
    assert splits(everybody) == {"test": len(dataset.samples)}


def test_utd_mhad_takes_depth_color_or_mp4(tmp_path: Path) -> None:
    root = layouts.utd_mhad(tmp_path / "published")
    depth = recorded_actions.utd_mhad(root)
    assert {str(sample.path)[-10:] for sample in depth.samples} == {"_depth.mat"}
    assert [sample.split for sample in depth.samples[:4]] == ["train", "train", "val", "test"]
    assert depth.actions[depth.samples[0].action or 0] == "squat"
    assert {str(sample.path)[-10:] for sample in recorded_actions.utd_mhad(root, kind="color").samples} == {
        "_color.avi"
    }
    frames = depth.frames(depth.samples[0])
    assert frames.shape == (5, 24, 32, 3)
    assert frames[0, 0, 0, 0] == 0 and frames[0, 10, 15, 0] > frames[0, 20, 0, 0] > 0


@needs_data
def test_utd_mhad_as_it_is() -> None:
    dataset = data.read("utd-mhad", SHARED / "data" / "utd_mhad_depth")
    assert len(dataset.samples) == 861
    assert splits(dataset) == {"train": 432, "val": 216, "test": 213}
    assert len({sample.identity for sample in dataset.split("test")}) == 8
    assert len({sample.action for sample in dataset.split("test")}) == 27
    frames = dataset.frames(next(sample for sample in dataset.samples if sample.id == "a10_s1_t1"))
    assert frames.shape == (76, 128, 128, 3)


def test_ucf_sports_as_published_and_merged(tmp_path: Path) -> None:
    dataset = web_actions.ucf_sports(layouts.ucf_sports(tmp_path))
    assert dataset.actions == ("Diving-Side", "Golf-Swing-Back", "Golf-Swing-Side")
    assert splits(dataset) == {"train": 12, "val": 3, "test": 6}
    assert all(str(sample.path).endswith(".avi") for sample in dataset.samples)
    assert web_actions.ucf_sports(tmp_path, merged=True).actions == ("Diving", "Golf-Swing")


def test_ucf_sports_as_it_is() -> None:
    dataset = data.read("ucf-sports", real("ucf_sports"))
    assert (len(dataset.samples), len(dataset.actions)) == (133, 13)
    assert len(web_actions.ucf_sports(real("ucf_sports"), merged=True).actions) == 10
    assert all(
        len({sample.action for sample in dataset.split(split)}) == 13 for split in ("train", "val", "test")
    )
    frames = dataset.frames(dataset.samples[0])
    assert frames.shape[0] == 55 and min(frames.shape[1:3]) == 144


@pytest.mark.parametrize("name", [name for name in data.DATASETS if name != "synthetic"])
def test_every_reader_refuses_an_empty_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(VeilError) as raised:
        data.read(name, tmp_path)
    assert str(tmp_path) in str(raised.value)
    assert raised.value.code in ("no-samples", "label-file-missing") and "\n" not in str(raised.value)
    with refuses("dataset-folder-missing"):
        data.read(name, tmp_path / "nowhere")
    with refuses("dataset-folder-not-given"):
        data.read(name)
    with refuses("dataset-option-unknown"):
        data.read(name, tmp_path, colour=1)
    doc = data.DATASETS[name].__doc__
    assert doc is not None and "root/" in doc, "a reader shows how the files must lie"


def test_an_option_has_its_choices(tmp_path: Path) -> None:
    with refuses("dataset-option-invalid") as raised:
        data.read("ntu60", tmp_path, protocol="bias")
    assert "bias-f" in str(raised.value)
    with refuses("dataset-option-invalid"):
        data.read("ucf101", tmp_path, split="1")
    with refuses("dataset-option-invalid"):
        data.read("ucf101", tmp_path, labels=2019)
    assert len(data.read("ucf101", layouts.ucf101(tmp_path), split=1, labels=tmp_path).samples) == 100


def test_an_unknown_name_suggests_a_similar_one() -> None:
    with refuses("dataset-unknown") as raised:
        data.read("ucf-101", Path())
    assert "ucf101" in str(raised.value)
    # fmt: off
    assert set(data.DATASETS) == {
        "ucf101", "hmdb51", "kinetics400", "kth", "ipn", "sbu", "ntu60", "toyota-smarthome", "casia-b",
        "utd-mhad", "ucf-sports", "vispr", "pa-hmdb51", "vp-ucf101", "vp-hmdb51", "p-hvu", "utkface", "thumos14",
        "ucf-crime", "synthetic",
    }
    # fmt: on
