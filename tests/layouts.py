"""Writes tiny datasets in the layouts in which people have the real ones on disk.

Videos are empty files unless `write_video` makes them: a reader must not look into them.
"""

from __future__ import annotations

import atexit
import csv
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from veil.media.sinks import open_sink
from veil.media.video import FrameTime, VideoInfo

SHARED = Path(__file__).parents[1].parent / "shared"


def real(folder: str) -> Path:
    """A real dataset of the folder 'shared', or a skipped test."""
    path = SHARED / "data" / folder
    if not path.is_dir():
        pytest.skip(f"the dataset {folder} is not in the folder 'shared' beside the checkout")
    return path


HMDB_NAME = "Film{film}_{action}_u_nm_np1_ba_goo_{number}"


@cache
def all_of_hmdb51() -> Path:
    """Every video of HMDB51 by its name, empty; made once, as there are 6,766."""
    root = Path(tempfile.mkdtemp(prefix="veil-hmdb51-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for path in (SHARED / "annotations" / "hmdb51_splits").glob("*_test_split1.txt"):
        action = path.name.partition("_test_split")[0]
        touch(*(root / action / line.split(" ")[0] for line in path.read_text().splitlines() if line.strip()))
    return root


def text(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT))


def pickled(path: Path, thing: object, protocol: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(thing, protocol))
    return path


def pictures(count: int, width: int = 64, height: int = 48) -> np.ndarray:
    """Smooth frames ``(T, H, W, 3)``, each of its own brightness."""
    ramp = np.linspace(0, 100, width, dtype=np.float64)[None, None, :, None]
    level = 20 + 120 * np.arange(count)[:, None, None, None] / max(1, count - 1)
    return np.broadcast_to(ramp + level, (count, height, width, 3)).astype(np.uint8)


def write_video(path: Path, frames: np.ndarray | None = None) -> Path:
    """A real video, without loss where its name ends in .mkv."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = pictures(20) if frames is None else frames
    info = VideoInfo(frames.shape[2], frames.shape[1], Fraction(25), time_base=Fraction(1, 250))
    codec = "ffv1" if path.suffix == ".mkv" else "h264"
    with open_sink(path, info, codec=codec) as sink:
        sink.write(np.ascontiguousarray(frames), [FrameTime(10 * at, 10) for at in range(len(frames))])
    return path


def stills(folder: Path, names: Iterable[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(names):
        Image.fromarray(np.full((24, 32, 3), 10 * place, np.uint8)).save(folder / name)


def ucf101(root: Path, groups: int = 25) -> Path:
    train, test = [], []
    for label, action in enumerate(("Archery", "Basketball"), 1):
        for group in range(1, groups + 1):
            for number in (1, 2):
                file = f"{action}/v_{action}_g{group:02d}_c{number:02d}.avi"
                touch(root / "UCF-101" / file)
                (test.append(file) if group <= 7 else train.append(f"{file} {label}"))
    lists = root / "ucfTrainTestlist"
    text(lists / "classInd.txt", "1 Archery", "2 Basketball")
    text(lists / "trainlist01.txt", *train)
    text(lists / "testlist01.txt", *test)
    return root


def hmdb_names(action: str, count: int = 12) -> list[str]:
    return [HMDB_NAME.format(film=place // 2, action=action, number=place) for place in range(count)]


def hmdb51(root: Path, actions: Sequence[str] = ("clap", "brush_hair")) -> Path:
    for action in actions:
        names = hmdb_names(action)
        touch(*(root / action / f"{name}.avi" for name in names))
        kinds = [1] * 8 + [2] * 3 + [0]
        lines = [f"{name}.avi {kind} " for name, kind in zip(names, kinds, strict=True)]
        text(root / "testTrainMulti_7030_splits" / f"{action}_test_split1.txt", *lines)
    return root


def kinetics400(root: Path) -> Path:
    header = ("label", "youtube_id", "time_start", "time_end", "split")
    for split, count in (("train", 20), ("val", 5)):
        rows = [
            (("abseiling", "air drumming")[n % 2], f"{split}{n:06d}xx"[:11], n, n + 10, split)
            for n in range(count)
        ]
        table(root / "annotations" / f"{split}.csv", header, rows)
        touch(*(root / split / row[0] / f"{row[1]}_{row[2]:06d}_{row[3]:06d}.mp4" for row in rows[1:]))
    return root


def kth(root: Path) -> Path:
    lines = []
    for person in (1, 13, 25):
        for action in ("boxing", "handclapping", "walking"):
            for scenario in range(1, 5):
                name = f"person{person:02d}_{action}_d{scenario}"
                if name != "person13_handclapping_d3":
                    touch(root / action / f"{name}_uncomp.avi")
                    lines.append(f"{name}\t\tframes\t1-95, 96-185, 186-245, 246-360")
    text(root / "00sequences.txt", *lines)
    return root


def ipn(root: Path) -> Path:
    header = ("video", "label", "id", "t_start", "t_end", "frames")
    people = {"Train": [f"1CM42_{n}" for n in range(10, 21)], "Test": ["1CM1_1", "1CM1_2"]}
    metadata = []
    for split, names in people.items():
        rows = []
        for person, number in ((person, number) for person in names for number in (1, 2)):
            video = f"{person}_R_#{number}"
            touch(root / "videos" / f"{video}.avi")
            metadata.append((video, 200, "W" if person.endswith("1") else "M", "Right"))
            rows += [
                (video, "D0X", 1, 1, 17, 17),
                (video, "G11", 14, 18, 55, 38),
                (video, "B0A", 2, 56, 90, 35),
            ]
        table(root / "annotations" / f"Annot_{split}List.txt", header, rows)
    table(root / "annotations" / "metadata.csv", ("Video Name", "Frames", "Sex", "Hand"), metadata)
    return root


def sbu(root: Path) -> Path:
    for pair in ("s01s02", "s02s01", "s03s04"):
        for action in range(1, 9):
            for take in ("001", "002"):
                place = root / pair / f"{action:02d}" / take
                touch(place / "rgb_000001.png", place / "depth_000001.png", place / "skeleton_pos.txt")
    return root


def ntu60(root: Path) -> Path:
    for person in range(1, 41):
        for action in (1, 4, 60, 61):
            for camera in (1, 2):
                name = f"S001C{camera:03d}P{person:03d}R001A{action:03d}_rgb.avi"
                touch(root / "nturgb+d_rgb" / name)
    touch(root / "nturgb+d_rgb" / "S001C001P041R001A001_rgb.avi")
    return root


def toyota_smarthome(root: Path) -> Path:
    for person in (2, 3, 4, 10, 14, 25):
        for video in range(20):
            touch(root / "mp4" / f"Walk_p{person:02d}_r00_v{video:02d}_c03.mp4")
            touch(root / "mp4" / f"Cook.Cleandishes_p{person:02d}_r01_v{video:02d}_c03.mp4")
    return root


def casia_b(root: Path) -> Path:
    for person in (1, 64, 65, 74, 75, 124):
        for walk in ("nm-01", "nm-04", "nm-05", "bg-01", "cl-02"):
            touch(*(root / "video" / f"{person:03d}-{walk}-{view}.avi" for view in ("000", "090")))
    touch(root / "silhouettes" / "002" / "nm-01" / "090" / "002-nm-01-090-001.png")
    return root


def utd_mhad(root: Path) -> Path:
    """The published depth files: MATLAB, unsigned 16 bit, height by width by time."""
    import scipy.io

    for person in (1, 8):
        for trial in range(1, 5):
            depth = np.full((24, 32, 5), 3000, np.uint16)
            depth[6:18, 10:20] = 1500 + 10 * trial
            depth[:3] = 0
            path = root / "Depth" / f"a27_s{person}_t{trial}_depth.mat"
            path.parent.mkdir(parents=True, exist_ok=True)
            scipy.io.savemat(path, {"d_depth": depth}, do_compression=True)
            touch(root / "RGB" / f"a27_s{person}_t{trial}_color.avi")
            touch(root / "Skeleton" / f"a27_s{person}_t{trial}_skeleton.mat")
    return root


def ucf_sports(root: Path) -> Path:
    for action in ("Diving-Side", "Golf-Swing-Back", "Golf-Swing-Side"):
        for number in range(1, 8):
            place = root / "ucf action" / action / f"{number:03d}"
            touch(place / f"2538-5_7013{number}.avi", place / "00001.jpg", place / "gt" / "00001.txt")
    return root


def vispr(root: Path) -> Path:
    labels = (["a4_gender", "a9_face_complete"], ["a0_safe"], ["a65_rel_social", "a11_tattoo"])
    for split, count in (("train", 6), ("val", 3), ("test", 4)):
        for place in range(count):
            name = f"2017_{split}{place:04d}"
            touch(root / "images" / f"{split}2017" / f"{name}.jpg")
            record = {"id": name, "image_path": f"images/{split}2017/{name}.jpg", "labels": labels[place % 3]}
            text(root / "annotations" / f"{split}2017" / f"{name}.json", json.dumps(record))
    rows = ["idx\tattribute_id\tgroup\tdescription", "0\ta0_safe\tSafe\tSafe", "4\ta4_gender\tPerson\tGender"]
    text(root / "attributes.tsv", *rows)
    return root


def pa_hmdb51(root: Path) -> Path:
    """HMDB51, of which the first video of each action is marked; the second action lacks frames 0 to 3."""
    hmdb51(root)
    for action, first in (("clap", 0), ("brush_hair", 4)):
        marks = {
            "face": [[first, 9, 2], [10, 19, 1], [20, 29, 0]],
            "skin_color": [[first, 29, [1, 2]]],
            "gender": [[first, 29, 1]],
            "nudity": [[first, 14, 1], [15, 29, 2]],
            "relationship": [[first, 29, 0]],
            "review": True,
        }
        record = {f"{hmdb_names(action)[0]}.avi": marks}
        text(root / "PrivacyAttributes" / f"{action}.json", json.dumps(record))
    return root


def vp(root: Path, name: str, videos: Iterable[str]) -> Path:
    marks = {video: np.array([[1, place % 2, 1, 0, 0]]) for place, video in enumerate(videos)}
    return pickled(root / f"{name}_privacy_attribute_label.pickle", marks)


HVU_TAGS = {"abseiling": "action", "walking": "action", "rope": "object", "dog": "object"}
HVU_TAGS |= {"cliff": "scene", "park": "scene", "happy": "attribute"}


def p_hvu(root: Path, train: Mapping[str, str], val: Mapping[str, str]) -> Path:
    """Videos by id, each with its tags, ``a|b|c``."""
    table(root / "HVU_Tags_Categories_V1.0.csv", ("Tag", "Category"), HVU_TAGS.items())
    for kind, videos in (("Train", train), ("Val", val)):
        rows = [(tags, name, 5, 15) for name, tags in videos.items()]
        table(root / f"HVU_{kind}_V1.0.csv", ("Tags", "youtube_id", "time_start", "time_end"), rows)
        touch(*(root / kind / f"{name}_000005_000015.mp4" for name in videos))
    return root


def utkface(root: Path) -> Path:
    names = [f"{age}_{gender}_{race}_201701161840246{age:02d}.jpg.chip.jpg" for age in (5, 26, 50, 90)
             for gender in (0, 1) for race in range(5)]  # fmt: skip
    touch(*(root / "UTKFace" / name for name in names))
    touch(root / "UTKFace" / "61_1_20170109150557335.jpg.chip.jpg")  # one of three that are really so named
    return root


def thumos14(root: Path, features: bool = False) -> Path:
    database: dict[str, Any] = {}
    for kind, count in (("validation", 20), ("test", 5)):
        for place in range(count):
            parts = [
                {"label": "Diving", "label_id": 1, "segment": [4.5, 9.0]},
                {"label": "CliffDiving", "label_id": 0, "segment": [1.5, 9.0]},
                {"label": "Ambiguous", "label_id": 2, "segment": [10.0, 11.0]},
            ]
            name = f"video_{kind}_{place:07d}"
            database[name] = {"subset": kind.title(), "duration": 20.0, "fps": 30.0, "annotations": parts}
            touch(root / "videos" / f"{name}.mp4")
            if features:
                (root / "features").mkdir(exist_ok=True)
                np.save(root / "features" / f"{name}.npy", np.zeros((4, 8), np.float32))
    text(root / "annotations" / "thumos14.json", json.dumps({"version": "1", "database": database}))
    return root


def ucf_crime(root: Path) -> Path:
    train = [f"Abuse/Abuse{n:03d}_x264.mp4" for n in range(1, 11)]
    train += [f"Training_Normal_Videos_Anomaly/Normal_Videos{n:03d}_x264.mp4" for n in range(1, 11)]
    test = ["Abuse/Abuse028_x264.mp4", "Testing_Normal_Videos_Anomaly/Normal_Videos_003_x264.mp4"]
    text(root / "Anomaly_Detection_splits" / "Anomaly_Train.txt", *train)
    text(root / "Anomaly_Detection_splits" / "Anomaly_Test.txt", *test)
    times = (
        "Abuse028_x264.mp4  Abuse  165  240  300  360  ",
        "Normal_Videos_003_x264.mp4  Normal  -1  -1  -1  -1  ",
    )
    text(root / "Temporal_Anomaly_Annotation_for_Testing_Videos.txt", *times)
    touch(*(root / "Anomaly-Videos" / file for file in train + test))
    return root
