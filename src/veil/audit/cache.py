"""The audit's cache: results, and the weights of the recognizers of raw video; never a frame.

An entry is found by the fingerprints of what it was computed from (`veil.audit.provenance`). It is written whole or
not at all. The folder is readable by its owner only, because recognizers of raw video recognize people.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from veil.audit import result as results
from veil.audit.result import Result
from veil.core import VeilError, io_errors
from veil.media import folders
from veil.media.draft import Draft

LAYOUT = 2  # of the entries; another number makes all of them stale

Kind = Literal["result", "recognizer"]
_SUFFIXES: dict[Kind, str] = {"result": ".json", "recognizer": ".safetensors"}


def cache_folder() -> Path:
    """Where this user's audits are cached."""
    return folders.cache_folder("audit")


def forget() -> int:
    """Delete this user's audit cache; the number of files that it held."""
    folder = cache_folder()
    count = sum(path.is_file() for path in folder.rglob("*")) if folder.is_dir() else 0
    with io_errors(folder, "deleted"), suppress(FileNotFoundError):
        shutil.rmtree(folder)
    return count


class AuditCache:
    """Entries in a folder."""

    def __init__(self, folder: Path) -> None:
        advice = "set XDG_CACHE_HOME to another folder"
        with io_errors(f"the cache folder {folder}", "made", advice=advice, code="cache-not-writable"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)  # where it was there already, or a umask applied
        self._folder = folder

    def place(self, kind: Kind, *key: Any) -> Path:
        """The file of the entry with this key, whether it exists or not."""
        text = json.dumps([LAYOUT, *key], sort_keys=True, default=str)
        return self._folder / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}{_SUFFIXES[kind]}"

    def discard(self, places: Iterable[Path]) -> None:
        """Delete these entries."""
        for place in places:
            place.unlink(missing_ok=True)

    def save(self, place: Path, result: Result) -> None:
        """Write a result without its pictures."""
        with Draft(place, overwrite=True, sync=False) as draft:
            results.save(result, draft.path)

    def load(self, place: Path) -> Result | None:
        """A cached result, without pictures; None where there is none that can be read."""
        try:
            return results.load(place) if place.exists() else None
        except VeilError:
            return None
