"""Which files go in and where they come out, for one input or many."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from veil.core import VeilError
from veil.media.video import OUTPUT_SUFFIXES, Codec, is_image, is_video


class Job(NamedTuple):
    """One thing to anonymize, and the file to write."""

    source: str
    target: Path


def plan(inputs: list[str], output: str, codec: Codec = "h264") -> list[Job]:
    """Pair every input with its output; what is in folders is mirrored in the output folder (see `mirrored`).

    One input that is no folder and no pattern may name its output file; anything else needs an output folder, which need not exist.
    """
    out = Path(output)
    several = any(Path(name).is_dir() or is_pattern(name) for name in inputs)
    into = output.endswith(("/", os.sep)) or out.is_dir()
    if len(inputs) == 1 and not several and not into:
        return [Job(inputs[0], out)]
    if out.exists() and not out.is_dir():
        raise VeilError(f"{out} is a file, and several outputs need a folder: name a folder with -o.")
    found = mirrored(inputs, out)
    places = [renamed(place, codec) for _, place in found]
    often = Counter(places)
    # a.avi and a.mov would both become a.mp4; then both keep their whole name.
    jobs = [
        Job(source, out / (place if often[place] == 1 else place.with_name(old.name + place.suffix)))
        for (source, old), place in zip(found, places, strict=True)
    ]
    twice = [target for target, count in Counter(job.target for job in jobs).items() if count > 1]
    if twice:
        raise VeilError(
            f"two inputs would both be written to {twice[0]}: rename one, or anonymize them separately."
        )
    return jobs


def mirrored(inputs: Sequence[str], out: Path) -> list[tuple[str, Path]]:
    """Every source, and its place below the output folder.

    A folder is walked; a pattern such as ``in/**/*.mp4`` is tried, and its place is counted from the last folder
    without a wildcard, ``in``. Anything else is kept under its own name.
    """
    found: list[tuple[str, Path]] = []
    for name in inputs:
        if Path(name).is_dir():
            found += [(str(path), path.relative_to(name)) for path in _walk(Path(name), out)]
        elif is_pattern(name):
            found += [(str(path), path.relative_to(fixed(name))) for path in _fitting(name, out)]
        else:
            found.append((name, Path(_file_name(name))))
    return found


def is_pattern(name: str) -> bool:
    """Whether a name has wildcards, and is not simply a file of that name."""
    return "://" not in name and glob.has_magic(name) and not Path(name).exists()


def fixed(pattern: str) -> str:
    """The folder in which everything lies that a pattern fits."""
    parts = pattern.split("/")
    plain = parts[: next(i for i, part in enumerate(parts) if glob.has_magic(part))]
    return "/".join(plain) or ("/" if pattern.startswith("/") else ".")


def _fitting(pattern: str, out: Path) -> list[Path]:
    """The videos and stills that a pattern fits, except those in the output folder."""
    names = glob.glob(pattern, recursive=True)  # noqa: PTH207 (Path.glob takes no absolute ones)
    found = [path for path in map(Path, sorted(names)) if is_video(path) or is_image(path)]
    found = [path for path in found if path.is_file() and not path.resolve().is_relative_to(out.resolve())]
    if not found:
        raise VeilError(f"no video and no picture fits the pattern {pattern}: check it, and quote it.")
    return found


def _walk(folder: Path, out: Path) -> list[Path]:
    """The videos and stills below a folder, except hidden ones and those in the output folder."""

    def refuse(error: OSError) -> None:
        raise VeilError(f"the folder {error.filename} cannot be read: {error.strerror}.")

    found = []
    for here, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and (Path(here) / f).resolve() != out.resolve()
        )
        found += [Path(here) / name for name in sorted(names) if not name.startswith(".")]
    found = [path for path in found if is_video(path) or is_image(path)]
    if not found:
        raise VeilError(f"the folder {folder} holds no video and no picture: name a folder that does.")
    return found


def _file_name(source: str) -> str:
    """The file name under which a source is kept in an output folder."""
    if source.isdecimal() and not Path(source).exists():
        return f"camera{source}.mp4"
    if "://" in source:
        last = re.sub(r"[?#].*", "", source).rstrip("/").rpartition("/")[2]
        return re.sub(r"[^\w.-]", "_", last) or "stream"
    return Path(source).name


def renamed(place: Path, codec: Codec) -> Path:
    """The name of the output for an input of this name: its ending is one that holds the codec."""
    if is_image(place):
        return place
    suffixes = OUTPUT_SUFFIXES[codec]
    return place if place.suffix.lower() in suffixes else place.with_suffix(suffixes[0])
