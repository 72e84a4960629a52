"""Files in folders, or at fsspec's URLs (``s3://``, ``gs://``, ``hdfs://``, …).

A video is processed as a local file: one at a URL is copied to the worker's own folder first, and its output is uploaded
under a hidden name and moved, so that what has its name is whole.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from veil.core import io_errors


class FileStamp(NamedTuple):
    """What shows, without reading it, that a file is the same as before."""

    bytes: int
    changed: str  # when it was last changed, or another version mark of its storage


def is_url(name: str) -> bool:
    """Whether a name is the URL of a file elsewhere."""
    return bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name)) and not name.startswith("file://")


def absolute(name: str) -> str:
    """A URL as it is; a path so that it means the same in any folder."""
    if name.startswith("file://"):
        name = unquote(urlsplit(name).path)
    return name if is_url(name) else str(Path(name).absolute())


def join(folder: str, place: PurePosixPath | Path) -> str:
    """The name of what is in a folder, which may be a URL."""
    return f"{folder.rstrip('/')}/{place.as_posix()}" if is_url(folder) else str(Path(folder) / place)


def stamp(name: str) -> FileStamp | None:
    """The stamp of a file; None: it is not there."""
    if not is_url(name):
        try:
            found = Path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStamp(found.st_size, str(found.st_mtime_ns))
    with _storage_errors(name, "reached"):
        system, path = _system(name)
        try:
            info = system.info(path)
        except FileNotFoundError:
            return None
    return _stamp(info)


def is_folder(url: str) -> bool:
    """Whether a URL is that of a folder."""
    with _storage_errors(url, "listed"):
        system, path = _system(url)
        return system.isdir(path.rstrip("/"))


def list_files(base: str, pattern: str) -> dict[Path, str]:
    """The URLs of the files that match a pattern, by their paths below the base."""
    with _storage_errors(pattern, "listed"):
        system, matched = _system(pattern)
        root = _system(base)[1]
        found = system.glob(matched, detail=True)
        return {
            Path(PurePosixPath(name).relative_to(root)): system.unstrip_protocol(name)
            for name, info in found.items()
            if info.get("type") == "file"
        }


def local_copy(name: str, folder: Path) -> Path:
    """The file itself, or a copy of it in the folder."""
    if not is_url(name):
        return Path(name)
    copy = folder / f"{secrets.token_hex(6)}{PurePosixPath(urlsplit(name).path).suffix}"
    with _storage_errors(name, "read"):
        system, path = _system(name)
        system.get_file(path, str(copy))
    return copy


def publish(file: Path, place: str) -> None:
    """Move a whole file to its place, over what was there; the folder is made where there is none."""
    if not is_url(place):
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
        return
    with _storage_errors(place, "written"):
        system, path = _system(place)
        parent, _, last = path.rpartition("/")
        hidden = f"{parent}/.veil-{secrets.token_hex(6)}-{last}"
        system.makedirs(parent, exist_ok=True)
        try:
            system.put_file(str(file), hidden)
            _replace(system, hidden, path)
        except BaseException:
            with suppress(Exception):
                system.rm_file(hidden)
            raise


def _replace(system: Any, new: str, path: str) -> None:
    """Move a file over another one; until it is in place, the old one is kept."""
    if not system.exists(path):
        system.mv(new, path)
        return
    with suppress(Exception):  # most storages replace in one step; the others refuse, or do nothing
        system.mv(new, path)
    system.invalidate_cache()
    if not system.exists(new):
        return
    old = f"{new}-old"
    system.mv(path, old)
    try:
        system.mv(new, path)
    except BaseException:
        system.mv(old, path)
        raise
    system.rm_file(old)


def sha256(name: str | Path) -> str:
    """The checksum of a file's content."""
    if is_url(str(name)):
        with _storage_errors(str(name), "read"):
            system, path = _system(str(name))
            with system.open(path, "rb") as file:
                digest = hashlib.sha256()
                while block := file.read(1 << 20):
                    digest.update(block)
                return digest.hexdigest()
    with Path(name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Attempt(NamedTuple):
    """One attempt at a task; its mark is removed when it ends, so that a mark that stays is of a worker that died."""

    others: int  # marks of earlier attempts at the same task
    folder: Path | None  # to write in; None: the mark is at a URL


@contextmanager
def attempt(folder: str, key: str) -> Iterator[Attempt]:
    """Mark an attempt at a task in a folder that all workers see, until it ends."""
    name = f"{key}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    if not is_url(folder):
        own = Path(folder) / name
        others = len([*Path(folder).glob(f"{key}-*")])
        own.mkdir(parents=True)
        try:
            yield Attempt(others, own)
        finally:
            shutil.rmtree(own, ignore_errors=True)
        return
    with _storage_errors(folder, "written"):
        system, path = _system(folder)
        system.makedirs(path, exist_ok=True)
        system.invalidate_cache()
        others = len(system.glob(f"{path}/{key}-*"))
        system.pipe_file(f"{path}/{name}", b"-")
    try:
        yield Attempt(others, None)
    finally:
        with suppress(Exception):
            system.rm_file(f"{path}/{name}")


def remove(folder: str) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if not is_url(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with _storage_errors(folder, "removed"):
        system, path = _system(folder)
        with suppress(FileNotFoundError):
            system.rm(path, recursive=True)


def _system(name: str) -> tuple[Any, str]:
    import fsspec

    return fsspec.core.url_to_fs(name)


def _stamp(info: dict[str, Any]) -> FileStamp:
    marks = (
        info.get(key)
        for key in ("ETag", "etag", "LastModified", "last_modified", "mtime", "modified", "created")
    )
    return FileStamp(int(info.get("size") or 0), str(next((mark for mark in marks if mark), "")))


def _storage_errors(name: str, action: str) -> AbstractContextManager[None]:
    """Turn whatever a storage's library raises into one sentence; each has its own exception for the same thing."""
    shown = re.sub(r"//[^/@]*@", "//", name).split("?")[0]  # messages hold no password
    return io_errors(shown, action, advice="check the name and your rights", errors=(Exception,))
