"""Untrimmed videos: actions with a start and an end, and rare anomalies.

A sample is a whole video. With ``features`` (a folder of .npy files) its path is that file instead of the
video.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from veil.core import VeilError
from veil.data.frames import read_frames
from veil.data.labels import read_json, read_lines
from veil.data.listing import dataset_folder, find, locate, media_files, select_present
from veil.data.sample import Dataset, Sample, Segment, Split
from veil.data.splits import hold_out
from veil.media.inputs import walk


def thumos14(root: Path, *, labels: Path | None = None, features: Path | None = None) -> Dataset:
    """THUMOS14: as everybody does, its validation videos train and its test videos test.

    ::

        root/videos/video_validation_0000051.mp4
        root/annotations/thumos14.json
            {"database": {"video_validation_0000051": {"subset": "Validation", "duration": 169.8,
             "annotations": [{"label": "Billiards", "segment": [4.2, 9.1], "label_id": 2}, ...]}, ...}}

    MultiTHUMOS's json is read as well. A tenth of the training videos validates. "Ambiguous" segments are
    left out.
    """
    root = dataset_folder(root, "THUMOS14")
    hint = "get the annotation json of THUMOS14, or name its folder with the option labels"
    path = locate(Path(labels or root), "thumos*14*.json", "*thumos*.json", hint=hint)
    content = read_json(path)
    database = content.get("database") if isinstance(content, dict) else None
    if not isinstance(database, dict):
        raise VeilError(
            f'{path} has no "database" of videos: download the annotation json of THUMOS14.',
            code="labels-invalid",
        )
    videos = {name: entry for name, entry in database.items() if re.match(r"video_(validation|test)_", name)}
    actions = _vocabulary(videos)
    index = {action: place for place, action in enumerate(actions)}
    have, notes = _select_present(videos, root, features, "THUMOS14 videos")
    training = [name for name in videos if name.startswith("video_validation_")]
    held = hold_out([("", name) for name in training])
    samples: list[Sample] = []
    for name, file in have.items():
        split: Split = "test" if name.startswith("video_test_") else "val" if ("", name) in held else "train"
        segments = [
            Segment(float(part["segment"][0]), float(part["segment"][1]), index[part["label"]])
            for part in videos[name].get("annotations", ())
            if part["label"] in index
        ]
        samples.append(Sample(name, split, file, segments=tuple(sorted(segments))))
    return Dataset("thumos14", samples, read_frames, actions, notes=tuple(notes))


def _vocabulary(videos: dict[str, Any]) -> tuple[str, ...]:
    """The actions by their ids where the file has them, else by name."""
    ids: dict[str, int] = {}
    for entry in videos.values():
        for part in entry.get("annotations", ()):
            if part["label"].lower() != "ambiguous":
                ids[part["label"]] = int(part.get("label_id", -1))
    return tuple(sorted(ids, key=lambda action: (ids[action], action)))


# fmt: off
CRIMES = (
    "Abuse", "Arrest", "Arson", "Assault", "Burglary", "Explosion", "Fighting", "RoadAccidents", "Robbery",
    "Shooting", "Shoplifting", "Stealing", "Vandalism",
)
# fmt: on
_FPS = 30  # of every UCF-Crime video
_SNIPPET = 16  # frames for each feature vector


def ucf_crime(root: Path, *, labels: Path | None = None, features: Path | None = None) -> Dataset:
    """UCF-Crime: 1,610 training videos of which only the kind is known, 290 test videos with times.

    ::

        root/Anomaly-Videos-Part-1/Abuse/Abuse001_x264.mp4
        root/Anomaly_Train.txt, Anomaly_Test.txt      Abuse/Abuse001_x264.mp4
            (or ucf-crime.list and ucf-crime-test.list of .npy files, as anomaly detectors have them)
        root/Temporal_Anomaly_Annotation_for_Testing_Videos.txt    Abuse028_x264.mp4  Abuse  165  240  -1  -1
            (or gt-ucf.npy: one number a frame, all test videos of the list in a row; needs ``features``)

    Action 0 is normal. Segments are in seconds at 30 frames a second. A tenth of the training videos
    validates.
    """
    root = dataset_folder(root, "UCF-Crime")
    base = Path(labels or root)
    hint = "get the lists of UCF-Crime, or name their folder with the option labels"
    train = read_lines(locate(base, "Anomaly_Train.txt", "ucf-crime.list", "ucf-i3d.list", hint=hint))
    test = read_lines(locate(base, "Anomaly_Test.txt", "ucf-crime-test.list", "ucf-i3d-test.list", hint=hint))
    kinds: dict[str, Split] = {_crime_name(line): "train" for line in train}
    kinds |= {_crime_name(line): "test" for line in test}
    have, notes = _select_present(kinds, root, features, "UCF-Crime videos")
    held = hold_out([(_crime(name), name) for name, split in kinds.items() if split == "train"])
    times, more = _crime_times(base, [_crime_name(line) for line in test], have)
    actions = ("Normal", *CRIMES)
    samples: list[Sample] = []
    for name, file in have.items():
        action = actions.index(_crime(name))
        split = "val" if (_crime(name), name) in held else kinds[name]
        segments = tuple(Segment(start / _FPS, end / _FPS, action) for start, end in times.get(name, ()))
        samples.append(Sample(name, split, file, action=action, segments=segments))
    return Dataset("ucf-crime", samples, read_frames, actions, notes=(*notes, *more))


def _crime_name(line: str) -> str:
    """``Abuse/Abuse001_x264.mp4`` and ``data/features/Abuse001_x264.npy`` are both ``Abuse001_x264``."""
    return Path(line.split()[0]).stem


def _crime(name: str) -> str:
    kind = re.match(r"[A-Za-z]+", name)
    found = kind[0] if kind else ""
    if found not in CRIMES and not found.startswith("Normal"):
        raise VeilError(f"{name} is not a video of UCF-Crime: check the lists.", code="labels-invalid")
    return found if found in CRIMES else "Normal"


def _crime_times(
    base: Path, tests: list[str], have: dict[str, Path]
) -> tuple[dict[str, list[tuple[int, int]]], list[str]]:
    """First and one past the last frame of each anomaly, by video."""
    times: dict[str, list[tuple[int, int]]] = {}
    files = find(base, "Temporal_Anomaly_Annotation*.txt")
    if files:
        for line in read_lines(files[0]):
            name, _, *frames = line.split()
            numbers = [int(frame) for frame in frames]
            pairs = zip(numbers[::2], numbers[1::2], strict=False)
            times[Path(name).stem] = [(start, end) for start, end in pairs if start >= 0]
        return times, []
    truths = find(base, "gt-ucf.npy")
    if not truths:
        return {}, [f"{base} has no times of anomalies, so that frames cannot be scored"]
    if any(name not in have or have[name].suffix != ".npy" for name in tests):
        return {}, [
            f"{truths[0]} can be cut into videos only with the features of all of them; use features="
        ]
    truth = _load(truths[0]).reshape(-1)
    at = 0
    for name in tests:
        length = _load(have[name]).shape[0] * _SNIPPET
        marks = np.concatenate(([0], truth[at : at + length] > 0, [0])).astype(np.int8)
        edges = np.flatnonzero(np.diff(marks)).tolist()
        times[name] = list(zip(edges[::2], edges[1::2], strict=True))
        at += length
    if at != len(truth):
        return {}, [
            f"{truths[0]} has {len(truth):,} frames, and the features {at:,}; they do not belong together"
        ]
    return times, []


def _load(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise VeilError(
            f"{path} is not a readable array: download it again.", code="array-unreadable"
        ) from error


def _select_present(
    listed: dict[str, Any], root: Path, features: Path | None, what: str
) -> tuple[dict[str, Path], list[str]]:
    if features is None:
        return select_present(listed, media_files(root), root, what)
    base = dataset_folder(features, f"features of {what}")
    arrays = {
        Path(name).stem: here / name for here, names in walk(base) for name in names if name.endswith(".npy")
    }
    return select_present(listed, arrays, base, f"features of {what}")
