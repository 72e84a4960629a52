"""The manifest of a batch: ``OUT/manifest.jsonl``, with one line for every event.

A line is on the disk before the next step is taken, and one that was broken off counts as not written::

    {"state": "begun", "target": "a/b.mp4", "source": "/in/a/b.mp4"}           from here on the target belongs to this batch
    {"state": "done", …, "input": {"sha256": …, "bytes": …, "changed": …}, "output": {…}, "seconds": …, "options": {…}}
    {"state": "failed", …, "why": "one sentence"}
    {"state": "refused", …, "why": "one sentence"}                             the target belongs to something else, and stays
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from veil.apps.worker import VideoOutcome
from veil.core import VeilError


class Manifest:
    """The last outcome of every video; kept on disk, and in use by one batch at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise VeilError(
                f"{path} is in use by another batch: wait for it, or name another folder.",
                code="manifest-in-use",
            ) from None
        except OSError:
            pass  # a file system without locks
        self.last: dict[str, VideoOutcome] = {}
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break  # torn: the machine stopped in the middle of it
            try:
                outcome = VideoOutcome.read(line.decode())
            except (ValueError, KeyError, TypeError):
                if self._file.read(1) == b"":
                    break  # its end reached the disk, its beginning did not
                raise VeilError(
                    f"line {number} of {self.path} is not of a batch: remove that line, or name another folder.",
                    code="manifest-damaged",
                ) from None
            whole += len(line)
            self._remember(outcome)
        self._file.truncate(whole)

    def _remember(self, outcome: VideoOutcome) -> None:
        if outcome.state != "refused":  # which does not concern what is there
            self.last[outcome.target] = outcome

    def add(self, outcomes: Iterable[VideoOutcome]) -> None:
        """Record outcomes; they are on the disk when this returns."""
        outcomes = list(outcomes)
        if not outcomes:
            return
        self._file.write("".join(f"{outcome.line()}\n" for outcome in outcomes).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        for outcome in outcomes:
            self._remember(outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
