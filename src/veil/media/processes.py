"""Worker processes of one machine: they end with their parent, share its cores, and have a folder each."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import stat
import tempfile
import threading
from itertools import count
from pathlib import Path

from veil.core import VeilError


def end_with_parent(pipe: int | None = None, *, group: bool = False) -> None:
    """End this process as soon as its parent is gone, however that ended; a thread waits for it.

    A process of `multiprocessing` has a sentinel of its parent; another one gives the number of a `pipe` that its parent
    holds open. With `group`, all processes of its group are ended with it.
    """
    parent = multiprocessing.parent_process()
    if pipe is None and parent is None:
        raise RuntimeError("a process that multiprocessing did not start needs a pipe to its parent")

    def wait() -> None:
        if pipe is not None:
            while os.read(pipe, 1024):
                pass
        elif parent is not None:
            parent.join()
        if group:
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, name="veil-parent", daemon=True).start()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerSlot:
    """A worker's share of its machine: a number that no other worker has, and a folder of its own.

    Both are released when the process ends, however it ends; the next worker with the number empties the folder.
    """

    def __init__(self) -> None:
        root = Path(tempfile.gettempdir()) / f"veil-batch-{os.getuid()}"
        root.mkdir(mode=0o700, exist_ok=True)
        about = root.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise VeilError(
                f"{root} is not a folder of yours: remove it, or set TMPDIR to another folder.",
                code="unsafe-folder",
            )
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
        """Run on this many cores, not those of other workers; libraries then start as many threads."""
        if not hasattr(os, "sched_setaffinity"):
            return
        cores = sorted(os.sched_getaffinity(0))
        if share < len(cores):
            start = self.number * share
            os.sched_setaffinity(0, {cores[(start + i) % len(cores)] for i in range(share)})
