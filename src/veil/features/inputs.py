"""Videos to extract features from: files, folders and patterns, with the labels of a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

from veil.core import VeilError
from veil.data.frames import read_frames
from veil.data.labels import read_table
from veil.data.listing import video_id
from veil.data.sample import Dataset, Sample, Segment, Split
from veil.data.splits import deal
from veil.media.inputs import find_inputs


def read_videos(
    inputs: Sequence[str], labels: str | Path | None = None, known: frozenset[str] = frozenset()
) -> Dataset:
    """Files, folders and patterns as a dataset; a label must be of one of these videos, or of a ``known`` one.

    The id of a video in a folder is its path there, that of any other its file name (see `veil.media.inputs`). Videos without a split are assigned
    one by their names.
    """
    found: dict[str, Path] = {}
    for name, path in _found(inputs):
        if name in found and found[name].resolve() != path.resolve():
            raise VeilError(
                f"{found[name]} and {path} would both be called {name}: rename one, or give a folder that holds both.",
                code="video-duplicate",
            )
        found.setdefault(name, path)
    samples = [Sample(name, deal(name), path) for name, path in found.items()]
    return (
        Dataset("videos", samples, read_frames) if labels is None else _labelled(samples, Path(labels), known)
    )


def _found(inputs: Sequence[str]) -> Iterator[tuple[str, Path]]:
    if not inputs:
        raise VeilError(
            "there is nothing to extract: name videos, a folder, or a dataset with --data.",
            code="input-missing",
        )
    for one in find_inputs(inputs, kinds=("video",)):
        yield video_id(one.place.as_posix()), Path(one.name)


_NAMES = ("id", "path", "video")  # what the column that names the video may be called
_PEOPLE = ("identity", "person")


def _labelled(samples: Sequence[Sample], path: Path, known: frozenset[str]) -> Dataset:
    """Videos with the labels of a table.

    Its columns are ``id,split,action,identity,attribute:NAME,…,segments``, all but the first at will; others are groups.
    """
    rows = read_table(path)
    columns = list(rows[0]) if rows else []
    key = next((name for name in _NAMES if name in columns), None)
    if key is None:
        raise VeilError(
            f"{path} has no column {' or '.join(_NAMES)} that names the videos: add one as its first.",
            code="labels-column",
        )
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        name = video_id(row[key].strip())
        if name in lines:
            raise VeilError(f"{path} has two lines for {name}: leave one of them.", code="labels-duplicate")
        lines[name] = {column: value.strip() for column, value in row.items()}
    matched = _matched(samples, lines, path, known)
    people = next((name for name in _PEOPLE if name in columns), None)
    attributes = [name for name in columns if name.startswith("attribute:")]
    plain = {key, "split", "action", people, "segments", *attributes}
    parts = {name: _segments(row.get("segments", ""), path, name) for name, row in lines.items()}
    actions = {row.get("action", "") for row in lines.values()} | {
        p[2] for some in parts.values() for p in some
    }
    actions, identities = (
        tuple(sorted(filter(None, names)))
        for names in (actions, {row[people] for row in lines.values()} if people else set())
    )
    made = []
    for sample, name in zip(samples, matched, strict=True):
        row = lines[name]
        split = row.get("split") or sample.split
        if split not in get_args(Split):
            raise VeilError(
                f"{path} puts {name} into the split {split!r}: choose from {', '.join(get_args(Split))}.",
                code="labels-split",
            )
        values = [_attribute(row[column], path, name, column) for column in attributes]
        made.append(
            replace(
                sample,
                split=cast(Split, split),
                action=actions.index(row["action"]) if row.get("action") else None,
                identity=identities.index(row[people]) if people and row[people] else None,
                attributes=tuple(values) if any(value == value for value in values) else (),
                groups={name: value for name, value in row.items() if name not in plain and value},
                segments=tuple(
                    Segment(start, end, actions.index(label)) for start, end, label in parts[name]
                ),
            )
        )
    names = tuple(column.removeprefix("attribute:") for column in attributes)
    return Dataset("videos", made, read_frames, actions, names, identities)


def _matched(
    samples: Sequence[Sample], lines: Mapping[str, Any], path: Path, known: frozenset[str]
) -> list[str]:
    """The line of every video: by its id, its id without ending, or its file name; every line must be of a video."""
    matched: list[str] = []
    for sample in samples:
        assert sample.path is not None
        names = (sample.id, str(Path(sample.id).with_suffix("")), sample.path.name, sample.path.stem)
        name = next((name for name in (str(sample.path), *names) if name in lines), None)
        if name is None:
            raise VeilError(
                f"{path} has no line for the video {sample.id}: add one, or leave the video out.",
                code="labels-missing",
            )
        matched.append(name)
    if len(set(matched)) < len(matched):
        name = next(name for name in matched if matched.count(name) > 1)
        raise VeilError(
            f"{path} has one line {name} for several videos: name each by its path in the folder.",
            code="labels-ambiguous",
        )
    extra = set(lines) - set(matched) - known - {str(Path(name).with_suffix("")) for name in known}
    if extra:
        name = next(name for name in lines if name in extra)
        raise VeilError(
            f"{path} has a line for {name}, and there is no such video: check the name, or remove the line.",
            code="labels-unknown-video",
        )
    return matched


def _attribute(text: str, path: Path, name: str, column: str) -> float:
    if text in ("", "0", "1"):
        return float(text or "nan")
    raise VeilError(
        f"{path} has {text!r} in the column {column} for {name}: write 0, 1 or nothing.", code="labels-value"
    )


def _segments(text: str, path: Path, name: str) -> list[tuple[float, float, str]]:
    """``1.5-4 wave; 6-7.25 run`` as seconds and actions."""
    found = []
    for part in filter(None, map(str.strip, text.split(";"))):
        match = re.fullmatch(r"([\d.]+)\s*-\s*([\d.]+)\s+(.+)", part)
        if not match or not float(match[1]) < float(match[2]):
            raise VeilError(
                f"{path} has {part!r} in the segments of {name}: write START-END ACTION; …, in seconds.",
                code="labels-segments",
            )
        found.append((float(match[1]), float(match[2]), match[3]))
    return sorted(found)
