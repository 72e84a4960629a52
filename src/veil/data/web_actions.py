"""Trimmed actions from the web, films and television, one action per clip: UCF101, HMDB51, Kinetics-400, UCF Sports.

Each reader takes the folder of the dataset, reads names and label files only, and documents the layout of the files in
its docstring. ``labels`` is the folder of the label files where they are elsewhere. Videos may have any suffix, or be
folders of frames of the same name. Where a dataset has no validation split, a tenth of its training groups is held out,
chosen by name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from veil.core import VeilError
from veil.data.frames import read_frames
from veil.data.labels import read_lines, read_table
from veil.data.listing import dataset_folder, find, locate, media_files, select_present, video_id
from veil.data.sample import Dataset, Sample, Split
from veil.data.splits import hold_out
from veil.media.inputs import is_image, is_video, walk


def ucf101(root: Path, *, labels: Path | None = None, split: int = 1) -> Dataset:
    """UCF101 by its official lists; validation keeps the g-numbers (one person, one scene) together.

    ::

        root/UCF-101/Archery/v_Archery_g01_c01.avi
        root/ucfTrainTestlist/trainlist01.txt      Archery/v_Archery_g08_c01.avi 3
        root/ucfTrainTestlist/testlist01.txt       Archery/v_Archery_g01_c01.avi
    """
    root = dataset_folder(root, "UCF101")
    base = Path(labels or root)
    hint = "unpack UCF101TrainTestSplits-RecognitionTask.zip there, or name its folder with the option labels"
    rows: dict[str, tuple[str, Split]] = {}  # action and split of each video
    for kind in ("train", "test"):
        for line in read_lines(locate(base, f"{kind}list{split:02d}.txt", hint=hint)):
            action, _, file = line.split()[0].partition("/")
            rows[Path(file).stem] = action, kind
    groups = {name: (action, name.rsplit("_", 1)[0]) for name, (action, _) in rows.items()}
    return _dataset_of_lists("ucf101", root, rows, groups)


def hmdb51(root: Path, *, labels: Path | None = None, split: int = 1, unused: bool = False) -> Dataset:
    """HMDB51 by its official lists (1 train, 2 test, 0 neither); validation keeps a film together.

    ::

        root/brush_hair/April_09_brush_hair_u_nm_np1_ba_goo_0.avi
        root/testTrainMulti_7030_splits/brush_hair_test_split1.txt      April_09_..._goo_0.avi 1

    ``unused`` puts the videos of neither set, which may resemble test videos, into training.
    """
    root = dataset_folder(root, "HMDB51")
    ending = f"_test_split{split}.txt"
    lists = find(Path(labels or root), f"*{ending}")
    if not lists:
        raise VeilError(
            f"{labels or root} has no *{ending}: unpack test_train_splits.rar there, or name its folder with the option labels.",
            code="label-file-missing",
        )
    kinds: dict[str, Split] = {"1": "train", "2": "test"}
    if unused:
        kinds["0"] = "train"
    rows: dict[str, tuple[str, Split]] = {}
    left_out = 0
    for path in lists:
        action = path.name.removesuffix(ending)
        for line in read_lines(path):
            file, _, kind = line.rpartition(" ")
            if kind in kinds:
                rows[Path(file).stem] = action, kinds[kind]
            else:
                left_out += 1
    groups = {name: (action, film(name, action)) for name, (action, _) in rows.items()}
    notes = [f"{left_out:,} videos are in neither set of split {split} and are left out"] if left_out else []
    return _dataset_of_lists("hmdb51", root, rows, groups, notes)


def film(name: str, action: str) -> str:
    """The film of an HMDB51 clip: ``April_09_brush_hair_u_nm_np1_ba_goo_0`` from ``April_09``."""
    return name.rpartition(f"_{action}_")[0]


def kinetics400(root: Path, *, labels: Path | None = None, test: Literal["val", "test"] = "val") -> Dataset:
    """Kinetics-400 by its csv files. The papers report on ``val``, which is therefore the test split here.

    ::

        root/train/abseiling/0347ZoDXyP0_000095_000105.mp4      (folders of classes or not)
        root/annotations/train.csv      label,youtube_id,time_start,time_end,split
        root/annotations/val.csv        (or validate.csv)
    """
    root = dataset_folder(root, "Kinetics-400")
    base = Path(labels or root)
    hint = "get the annotation csv files of Kinetics-400, or name their folder with the option labels"
    rows: dict[str, tuple[str, Split]] = {}
    tests = (
        ("val.csv", "validate.csv", "kinetics_val.csv")
        if test == "val"
        else ("test.csv", "kinetics_test.csv")
    )
    files: dict[Split, tuple[str, ...]] = {"train": ("train.csv", "kinetics_train.csv"), "test": tests}
    for kind, names in files.items():
        path = locate(base, *names, hint=hint)
        for row in read_table(path, "label", "youtube_id", "time_start", "time_end"):
            rows[timed_name(row)] = row["label"].strip().replace("_", " "), kind
    found = with_times(rows, media_files(root))
    groups = {name: (action, name[:11]) for name, (action, _) in rows.items()}  # the id of the whole video
    return _dataset_of_lists("kinetics400", root, rows, groups, found=found)


def timed_name(row: Mapping[str, str]) -> str:
    """The file name of a part of a YouTube video: ``0347ZoDXyP0_000095_000105``."""
    return f"{row['youtube_id']}_{int(float(row['time_start'])):06d}_{int(float(row['time_end'])):06d}"


def with_times(names: Iterable[str], found: Mapping[str, Path]) -> dict[str, Path]:
    """Files by id and times, also where their names are the id alone."""
    return {name: found[key] for name in names for key in (name, name[:11]) if key in found} | dict(found)


def ucf_sports(root: Path, *, merged: bool = False) -> Dataset:
    """UCF Sports: the 13 folders of its archive are its actions, or with ``merged`` the 10 of the papers.

    ::

        root/Diving-Side/001/2538-5_70133.avi      as published; the frames beside the video are ignored
        root/Diving-Side/000.mp4                   or one file a clip

    There is no official split. Clips of one broadcast follow each other, so each action is cut into blocks:
    the first third tests (Lan et al. 2011), the last tenth of the rest validates.
    """
    root = dataset_folder(root, "UCF Sports")
    places: dict[str, dict[str, Path]] = defaultdict(dict)
    for here, names in walk(root):
        inside = here.relative_to(root).parts
        videos = [name for name in names if is_video(name)]
        if len(inside) >= 2 and re.fullmatch(r"\d+", inside[-1]) and (videos or any(map(is_image, names))):
            places[inside[-2]][inside[-1]] = here / videos[0] if videos else here
        elif inside and not re.fullmatch(r"\d+|gt|jpeg", inside[-1]):
            places[inside[-1]] |= {Path(name).stem: here / name for name in videos}
    places = {action: clips for action, clips in places.items() if clips}
    if not places:
        raise VeilError(
            f"{root} has no folder of clips like Diving-Side/001: unpack UCF Sports there.", code="no-samples"
        )
    title = {name: re.sub(r"-(Back|Front|Side)$", "", name) if merged else name for name in places}
    actions = tuple(sorted(set(title.values())))
    samples: list[Sample] = []
    for folder_name, clips in sorted(places.items()):
        count = len(clips)
        tests, validates = round(count / 3), max(round(0.1 * (count - round(count / 3))), int(count > 3))
        for place, (name, path) in enumerate(sorted(clips.items())):
            split: Split = "test" if place < tests else "val" if place >= count - validates else "train"
            samples.append(
                Sample(f"{folder_name}/{name}", split, path, action=actions.index(title[folder_name]))
            )
    return Dataset("ucf-sports", samples, read_frames, actions)


def _dataset_of_lists(
    name: str,
    root: Path,
    rows: dict[str, tuple[str, Split]],
    groups: dict[str, tuple[str, str]],
    notes: Iterable[str] = (),
    found: dict[str, Path] | None = None,
) -> Dataset:
    """A dataset with lists of all videos, their actions and splits; validation is held out of training."""
    have, missing = select_present(
        rows, media_files(root) if found is None else found, root, f"{name} videos"
    )
    held = hold_out(groups[video] for video, (_, split) in rows.items() if split == "train")
    actions = tuple(sorted({action for action, _ in rows.values()}))
    index = {action: place for place, action in enumerate(actions)}
    samples: list[Sample] = []
    for video, path in have.items():
        action, split = rows[video]
        if split == "train" and groups[video] in held:
            split = "val"
        samples.append(Sample(video_id(video), split, path, action=index[action]))
    return Dataset(name, samples, read_frames, actions, notes=(*notes, *missing))
