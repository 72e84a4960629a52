"""What lies on disk: files by their names, never opened."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from veil.core import VeilError
from veil.media.inputs import is_image, is_video


class NoFolder(VeilError):
    """A dataset is to be read, but nothing says from where."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is read from disk; give the folder that holds it")
        self.what = what


def folder(root: Path | str | None, what: str) -> Path:
    """The root of a dataset, which must be there."""
    if root is None:
        raise NoFolder(what)
    if not Path(root).is_dir():
        raise VeilError(f"{root} is no folder; give the one that holds {what}")
    return Path(root)


def find(base: Path, *patterns: str) -> list[Path]:
    """What fits the first pattern that fits anything, in the folder or up to two levels below it, sorted."""
    for pattern in patterns:
        for depth in ("", "*/", "*/*/"):
            if found := sorted(base.glob(depth + pattern)):
                return found
    return []


def locate(base: Path, *patterns: str, hint: str) -> Path:
    """The first of what `find` finds; if there is nothing, the error says what to do."""
    if base.is_file() and any(base.match(pattern) for pattern in patterns):
        return base
    found = find(base, *patterns)
    if not found:
        raise VeilError(f"{base} holds no {' or '.join(patterns)}; {hint}")
    return found[0]


def walk(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder below the root, and the names of its files, sorted; links are followed, in no circle."""
    been: set[str] = set()
    for here, folders, names in os.walk(root, followlinks=True):
        real = os.path.realpath(here)
        if real in been:
            folders.clear()
            continue
        been.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield Path(here), sorted(name for name in names if not name.startswith("."))


def media(root: Path) -> dict[str, Path]:
    """Every video and every folder of frames below the root, by its name without ending."""
    found: dict[str, Path] = {}
    for here, names in walk(root):
        videos = [name for name in names if is_video(name)]
        for name in videos:
            found.setdefault(Path(name).stem, here / name)
        if not videos and here != root and any(is_image(name) for name in names):
            found.setdefault(here.name, here)
    return found


def video_id(name: str) -> str:
    """A video's name as an id, in which ``#`` would begin the name of a clip."""
    return name.replace("#", "~")


def present(
    listed: Iterable[str], found: Mapping[str, Path], root: Path, what: str
) -> tuple[dict[str, Path], list[str]]:
    """Those of the listed names that were found, and what to say of the others; none at all is an error."""
    names = list(listed)
    have = {name: found[name] for name in names if name in found}
    if not have:
        example = f", such as {names[0]}" if names else ""
        raise VeilError(f"{root} holds none of the {len(names):,} {what}{example}; unpack them there")
    gone = [name for name in names if name not in found]
    notes = [f"{len(gone):,} of {len(names):,} {what} are not there, such as {gone[0]}"] if gone else []
    return have, notes
