"""Writing a file so that it is whole or not there at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from veil.core import VeilError


class Draft:
    """A hidden file beside its place, which takes its name only when it is whole."""

    def __init__(self, place: Path, *, overwrite: bool) -> None:
        self.place, self._overwrite = place, overwrite
        self.path = place.with_name(f".veil-{secrets.token_hex(6)}{place.suffix.lower()}")
        with self.told():
            self._refuse()
            if not place.parent.is_dir():
                raise VeilError(f"{place.parent} is no folder; make it first")
            self.path.touch(exist_ok=False)
            self._mode = stat.S_IMODE(self.path.stat().st_mode)  # what the umask gives

    def _refuse(self) -> None:
        if self.place.is_dir():
            raise VeilError(f"{self.place} is a folder; name a file in it")
        if self.place.exists() and not self._overwrite:
            raise VeilError(f"{self.place} exists already; pass --overwrite to replace it")

    @contextmanager
    def told(self) -> Iterator[None]:
        """Make one sentence for the user of whatever goes wrong while writing."""
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            raise VeilError(
                f"{self.place} could not be written ({why}); free some space or choose another folder"
            ) from error

    def publish(self) -> None:
        """Give the file its name."""
        with self.told():
            self._refuse()
            # safetensors puts a file of its own there, which only its owner may read.
            if stat.S_IMODE(self.path.stat().st_mode) != self._mode:
                self.path.chmod(self._mode)
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            self.path.replace(self.place)

    def discard(self) -> None:
        """Remove what is left of the draft; nothing, once it is published."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
