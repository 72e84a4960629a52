"""The one discovery of inputs: which files are meant by names, folders, patterns and URLs.

1. A *video* or an *image* (a picture) is known by its suffix, in small letters or capitals; `kinds` chooses among them.
2. A *name* of one file, camera or stream stands for itself, whatever its suffix, and is not looked at: one that is
   missing fails alone, when it is opened.
3. A *folder* is searched with all folders below it. Links to folders are followed, each real folder once.
4. A *pattern* is a name with ``*``, ``?``, ``[…]`` or ``**`` (any folders) of which no file exists. It finds files only;
   a folder that matches it is not searched.
5. Hidden files and folders (their names begin with a dot) are skipped wherever they were not named, and with them the
   drafts of outputs that are being written.
6. Only regular files are found, also through links: no folders, pipes, sockets or broken links.
7. What lies in `exclude`, the output folder, is skipped.
8. Inputs come in the order in which they were given; within a folder or pattern, files come by name before folders by name.
9. A folder that cannot be read, and a folder or pattern in which nothing is found, is an error.
10. A *URL* of a folder or with a pattern follows the same rules where `stored`: at an fsspec storage. Else it is the
    name of a stream.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from veil.core import VeilError, io_errors
from veil.media import storage

# fmt: off
VIDEO_SUFFIXES = frozenset([
    ".3gp", ".asf", ".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts",
    ".mxf", ".ogv", ".ts", ".vob", ".webm", ".wmv",
])
# fmt: on
IMAGE_SUFFIXES = frozenset([".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"])

Kind = Literal["video", "image"]
ALL_KINDS: tuple[Kind, ...] = ("video", "image")


class Input(NamedTuple):
    """One thing to read."""

    name: str  # a path, the number of a camera, or a URL
    place: Path  # its path below the folder, or the fixed part of the pattern, that it was found in; else its file name


def is_image(path: str | Path | PurePosixPath) -> bool:
    """Whether the name is that of a picture."""
    return PurePosixPath(path).suffix.lower() in IMAGE_SUFFIXES


def is_video(path: str | Path | PurePosixPath) -> bool:
    """Whether the name is that of a video."""
    return PurePosixPath(path).suffix.lower() in VIDEO_SUFFIXES


def find_inputs(
    names: Sequence[str],
    *,
    kinds: Collection[Kind] = ALL_KINDS,
    exclude: Path | None = None,
    stored: bool = False,
) -> list[Input]:
    """Every input that the names, folders, patterns and URLs mean, by the rules above."""
    found: list[Input] = []
    for name in names:
        if "://" in name and not name.startswith("file://"):
            found += _at_url(name, kinds) if stored else [Input(name, Path(_stream_name(name)))]
            continue
        name = storage.absolute(name) if name.startswith("file://") else name
        if Path(name).is_dir():
            folder = Path(name)
            files = find_files(folder, kinds, exclude=exclude)
            found += [Input(str(path), path.relative_to(folder)) for path in files]
        elif is_pattern(name):
            base = Path(fixed_part(name))
            matches = dict.fromkeys(glob.glob(name, recursive=True))  # noqa: PTH207 (Path.glob takes no absolute ones)
            files = [path for path in map(Path, matches) if path.is_file() and not _is_in(path, exclude)]
            places = _chosen([path.relative_to(base) for path in files], kinds)
            if not places:
                raise _nothing(f"no {_either(kinds)} matches the pattern {name}: check it, and quote it.")
            found += [Input(str(base / place), place) for place in places]
        else:
            found.append(Input(name, Path(_camera_name(name))))
    return found


def find_files(
    folder: Path, kinds: Collection[Kind] = ALL_KINDS, *, exclude: Path | None = None
) -> list[Path]:
    """The files below a folder, by the rules above; at least one."""
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise VeilError(f"{folder} {problem}: name a folder.", code="not-a-folder")
    places = [(here / name).relative_to(folder) for here, names in walk(folder, exclude) for name in names]
    found = [folder / place for place in _chosen(places, kinds)]
    if not found:
        raise _nothing(f"the folder {folder} holds no {_either(kinds)}: name a folder that does.")
    return found


def walk(root: Path, exclude: Path | None = None) -> Iterator[tuple[Path, list[str]]]:
    """Every folder from the root down, and the names of the regular files in it, sorted and without hidden ones."""
    visited: set[str] = set()
    waiting = [root]
    while waiting:
        here = waiting.pop()
        real = os.path.realpath(here)
        if real in visited:
            continue
        visited.add(real)
        with io_errors(f"the folder {here}"), os.scandir(here) as entries:
            types = {entry.name: _type(entry) for entry in entries if not entry.name.startswith(".")}
        names = sorted(types)
        yield here, [name for name in names if types[name] == "file"]
        folders = [here / name for name in names if types[name] == "folder"]
        waiting += [folder for folder in reversed(folders) if not _is_in(folder, exclude)]


def _type(entry: os.DirEntry[str]) -> Literal["file", "folder", "other"]:
    """What an entry is, or what it links to."""
    try:
        return "folder" if entry.is_dir() else "file" if entry.is_file() else "other"
    except OSError:  # a link to itself
        return "other"


def is_pattern(name: str) -> bool:
    """Whether a name has wildcards, and is not simply a file of that name."""
    return "://" not in name and glob.has_magic(name) and not Path(name).exists()


def fixed_part(pattern: str) -> str:
    """The folder, or its URL, in which everything lies that a pattern matches."""
    parts = pattern.split("/")
    fixed = parts[: next(i for i, part in enumerate(parts) if glob.has_magic(part))]
    return "/".join(fixed) or ("/" if pattern.startswith("/") else ".")


def _at_url(name: str, kinds: Collection[Kind]) -> list[Input]:
    """The inputs at a storage."""
    if glob.has_magic(name):
        base, pattern = fixed_part(name), name
    elif storage.is_folder(name):
        base, pattern = name.rstrip("/"), f"{name.rstrip('/')}/**"
    else:
        return [Input(name, Path(PurePosixPath(name).name))]
    urls = storage.list_files(base, pattern)
    places = _chosen(list(urls), kinds)
    if not places:
        raise _nothing(f"no {_either(kinds)} is at {name}: check it.")
    return [Input(urls[place], place) for place in places]


def _chosen(places: Sequence[Path], kinds: Collection[Kind]) -> list[Path]:
    """Of places below a folder: those of these kinds that are not hidden, files before folders, by name."""
    wanted = [place for place in places if _kind(place) in kinds]
    visible = [place for place in wanted if not any(part.startswith(".") for part in place.parts)]
    return sorted(visible, key=lambda place: [*((1, part) for part in place.parts[:-1]), (0, place.name)])


def _kind(place: Path) -> Kind | None:
    return "video" if is_video(place) else "image" if is_image(place) else None


def _either(kinds: Collection[Kind]) -> str:
    names = {"video": "video", "image": "picture"}
    return " and no ".join(names[kind] for kind in ALL_KINDS if kind in kinds)


def _nothing(message: str) -> VeilError:
    return VeilError(message, code="no-inputs")


def _is_in(path: Path, folder: Path | None) -> bool:
    return folder is not None and path.resolve().is_relative_to(folder.resolve())


def _camera_name(name: str) -> str:
    """The file name under which the output of a named input is kept in an output folder."""
    return f"camera{name}.mp4" if name.isdecimal() and not Path(name).exists() else Path(name).name


def _stream_name(url: str) -> str:
    last = re.sub(r"[?#].*", "", url).rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w.-]", "_", last) or "stream"
