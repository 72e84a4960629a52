"""Files wherever they are: in folders, or at fsspec's URLs (``s3://``, ``gs://``, ``hdfs://``, …).

A video is worked on as a local file: one at a URL is copied to the worker's own folder first, and its output is uploaded
under a hidden name and moved, so that what has its name is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from veil.core import VeilError
from veil.media.inputs import fixed
from veil.media.video import is_image, is_video


class Stamp(NamedTuple):
    """What tells, without reading it, that a file is the same as before."""

    bytes: int
    changed: str  # when it was last changed, or another mark that its storage gives it


def is_url(name: str) -> bool:
    """Whether a name is the URL of a file elsewhere."""
    return bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name)) and not name.startswith("file://")


def absolute(name: str) -> str:
    """A URL as it is; a path so that it means the same in any folder."""
    if name.startswith("file://"):
        name = unquote(urlsplit(name).path)
    return name if is_url(name) else str(Path(name).absolute())


def joined(folder: str, place: PurePosixPath | Path) -> str:
    """The name of what is in a folder, which may be a URL."""
    return f"{folder.rstrip('/')}/{place.as_posix()}" if is_url(folder) else str(Path(folder) / place)


def stamp(name: str) -> Stamp | None:
    """The stamp of a file; None: it is not there."""
    if not is_url(name):
        try:
            found = Path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Stamp(found.st_size, str(found.st_mtime_ns))
    with _told(name, "reached"):
        system, path = _system(name)
        try:
            info = system.info(path)
        except FileNotFoundError:
            return None
    return _stamp(info)


def fitting(pattern: str) -> list[tuple[str, Path]]:
    """The videos and stills at URLs that a pattern fits, and the place of each below its fixed part."""
    with _told(pattern, "listed"):
        system, inside = _system(pattern)
        if not re.search(r"[*?[]", inside):
            folder = inside.rstrip("/")
            if not system.isdir(folder):
                return [(pattern, Path(PurePosixPath(inside).name))]
            inside, root = f"{folder}/**", folder
        else:
            root = fixed(inside)
        names = sorted(name for name in system.glob(inside) if is_video(name) or is_image(name))
    hidden = [name for name in names if any(part.startswith(".") for part in name.split("/"))]
    found = [name for name in names if name not in set(hidden)]
    if not found:
        raise VeilError(f"no video and no picture fits {pattern}: check it.")
    return [(system.unstrip_protocol(name), Path(PurePosixPath(name).relative_to(root))) for name in found]


def at_hand(name: str, folder: Path) -> Path:
    """The file itself, or a copy of it in the folder."""
    if not is_url(name):
        return Path(name)
    copy = folder / f"{secrets.token_hex(6)}{PurePosixPath(urlsplit(name).path).suffix}"
    with _told(name, "read"):
        system, path = _system(name)
        system.get_file(path, str(copy))
    return copy


def publish(file: Path, place: str) -> None:
    """Give a file that is whole its place: at once, whatever was there; the folder is made if need be."""
    if not is_url(place):
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
        return
    with _told(place, "written"):
        system, path = _system(place)
        parent, _, last = path.rpartition("/")
        hidden = f"{parent}/.veil-{secrets.token_hex(6)}-{last}"
        system.makedirs(parent, exist_ok=True)
        try:
            system.put_file(str(file), hidden)
            if system.exists(path):  # not every storage moves over what is there
                system.rm_file(path)
            system.mv(hidden, path)
        except BaseException:
            with suppress(Exception):
                system.rm_file(hidden)
            raise


def sha256(name: str | Path) -> str:
    """The checksum of a file's content."""
    if is_url(str(name)):
        with _told(str(name), "read"):
            system, path = _system(str(name))
            with system.open(path, "rb") as file:
                digest = hashlib.sha256()
                while block := file.read(1 << 20):
                    digest.update(block)
                return digest.hexdigest()
    with Path(name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Trace(NamedTuple):
    """Of work on a thing: whoever works on it again sees it, unless the work came to an end."""

    others: int  # traces of earlier work on the same, by workers that died
    folder: Path | None  # to write in; None: the trace is at a URL


@contextmanager
def trace(stage: str, key: str) -> Iterator[Trace]:
    """Leave a trace of the work on a thing in a folder that all workers see, and wipe it out when the work ends."""
    name = f"{key}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    if not is_url(stage):
        folder = Path(stage) / name
        others = len([*Path(stage).glob(f"{key}-*")])
        folder.mkdir(parents=True)
        try:
            yield Trace(others, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    with _told(stage, "written"):
        system, path = _system(stage)
        system.makedirs(path, exist_ok=True)
        system.invalidate_cache()
        others = len(system.glob(f"{path}/{key}-*"))
        system.pipe_file(f"{path}/{name}", b"-")
    try:
        yield Trace(others, None)
    finally:
        with suppress(Exception):
            system.rm_file(f"{path}/{name}")


def remove(folder: str) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if not is_url(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with _told(folder, "removed"):
        system, path = _system(folder)
        with suppress(FileNotFoundError):
            system.rm(path, recursive=True)


class Slot:
    """A worker's place on its machine: a number that no other worker has, and a folder of its own.

    Both are given back when the worker's process ends, however it ends; who takes the number next empties the folder.
    """

    def __init__(self) -> None:
        root = Path(tempfile.gettempdir()) / f"veil-batch-{os.getuid()}"
        root.mkdir(mode=0o700, exist_ok=True)
        about = root.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise VeilError(f"{root} is not a folder of yours: remove it, or set TMPDIR to another folder.")
        for number in count():
            lock = os.open(
                root / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._lock = lock  # never closed by hand: it ends with the process
            self.number, self.folder = number, root / str(number)
            break
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)

    def take_cores(self, share: int) -> None:
        """Keep to as many cores, others than those of other workers; libraries then start as many threads."""
        if not hasattr(os, "sched_setaffinity"):
            return
        cores = sorted(os.sched_getaffinity(0))
        if share < len(cores):
            start = self.number * share
            os.sched_setaffinity(0, {cores[(start + i) % len(cores)] for i in range(share)})


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _system(name: str) -> tuple[Any, str]:
    import fsspec

    return fsspec.core.url_to_fs(name)


def _stamp(info: dict[str, Any]) -> Stamp:
    marks = (
        info.get(key)
        for key in ("ETag", "etag", "LastModified", "last_modified", "mtime", "modified", "created")
    )
    return Stamp(int(info.get("size") or 0), str(next((mark for mark in marks if mark), "")))


@contextmanager
def _told(name: str, what: str) -> Iterator[None]:
    """Make one sentence of whatever a storage's library raises; they have an exception each for the same thing."""
    shown = re.sub(r"//[^/@]*@", "//", name).split("?")[0]  # messages hold no password
    try:
        yield
    except VeilError:
        raise
    except ImportError as error:
        raise VeilError(f"{shown} could not be {what}: {error}.") from error
    except ValueError as error:
        raise VeilError(f"{shown} could not be {what} ({error}): use a URL that fsspec knows.") from error
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise VeilError(f"{shown} could not be {what} ({why}): check the name and your rights.") from error
