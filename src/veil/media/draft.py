"""Writing a file so that it is whole or not there at all."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from veil.core import VeilError, io_errors


class Draft:
    """A hidden file beside its place, which gets its name only when it is whole.

    As a context it is published where the block ends without an error, and removed where not; an `OSError` in the
    block becomes a `VeilError`. Several drafts in one `with` (or `ExitStack`) are published together or not at all.
    """

    def __init__(self, place: Path, *, overwrite: bool, sync: bool = True) -> None:
        """``sync``: write the file through to the disk before it gets its name."""
        self.place, self._overwrite, self._sync = place, overwrite, sync
        self.path = place.with_name(f".veil-{secrets.token_hex(6)}{place.suffix.lower()}")
        with io_errors(place, "written"):
            self._refuse()
            if not place.parent.is_dir():
                raise VeilError(f"{place.parent} is not a folder: make it first.", code="folder-missing")
            self.path.touch(exist_ok=False)
            self._mode = stat.S_IMODE(self.path.stat().st_mode)  # what the umask gives

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.publish()
            elif isinstance(error, OSError):
                with io_errors(self.place, "written"):
                    raise error
        finally:
            self.discard()

    def _refuse(self) -> None:
        if self.place.is_dir():
            raise VeilError(f"{self.place} is a folder: name a file in it.", code="output-is-folder")
        if self.place.exists() and not self._overwrite:
            raise VeilError(
                f"{self.place} exists already: name another file, or pass --overwrite to replace it.",
                code="output-exists",
            )

    def publish(self) -> None:
        """Give the file its name."""
        with io_errors(self.place, "written"):
            self._refuse()
            # safetensors puts a file of its own there, which only its owner may read.
            if stat.S_IMODE(self.path.stat().st_mode) != self._mode:
                self.path.chmod(self._mode)
            if self._sync:
                with self.path.open("rb") as file:
                    os.fsync(file.fileno())
            self.path.replace(self.place)

    def discard(self) -> None:
        """Remove the draft, unless it is published."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
