"""Jobs: each in a process of its own, queued with a bound, and gone when it is over.

A job is one run of `veil.apps.serve.work`. It is told what to do by one line of JSON, tells by lines of JSON how far it is,
and ends with a result or with one sentence that says why there is none::

    {"done": 30, "total": 90, "words": "anonymizing"}     how far it is
    {"pair": 30, "heat": true}                            before-30.jpg, after-30.jpg (and heat-30.jpg) can be looked at
    {"result": {…}}   or   {"error": "…"}                 the end

So a video that breaks a decoder breaks one job: its process ends, what it had is deleted, its visitor is told in a sentence, and
the next job starts. Raw video is in a job's folder only while the job is; a finished one keeps its results, for a while.
What a process says in any other way is thrown away unread: it may tell of a video.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from veil.apps.serve.uploads import Limits
from veil.core import VeilError

State = Literal["waiting", "running", "done", "failed", "cancelled"]
Lane = Literal[
    "video", "audit", "short"
]  # a video waits for no audit, and what somebody looks on at for neither
COMMAND = (sys.executable, "-m", "veil.apps.serve.work")
SHORT = 60.0  # seconds that a short job may take
AUDITS, LOOKING = 1, 2  # audits and short jobs at once


@dataclass
class Job:
    """One piece of work for one visitor."""

    id: str
    owner: str
    task: Mapping[str, Any]
    folder: Path  # its results; `raw` in it is deleted when it ends
    lane: Lane
    state: State = "waiting"
    done: int = 0
    total: int | None = None
    words: str = ""
    pair: int | None = None  # the last one that can be looked at
    heat: bool = False  # whether there is a heat map with it
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    begun: float = 0.0
    moved: float = 0.0  # when the first progress was told
    first: int = 0  # how much was done then
    latest: float = 0.0  # when the last piece was done
    ended: float = 0.0
    process: subprocess.Popen[str] | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def raw(self) -> Path:
        """The folder of all that shows the video as it was."""
        return self.folder / "raw"

    def left(self, now: float | None = None) -> float | None:
        """About how many seconds it will take still; None where that cannot be known."""
        now = time.monotonic() if now is None else now
        if self.state != "running" or not self.total or self.done < self.first + 2:
            return None  # of large pieces, worked on side by side, the first comes late
        each, pieces = (self.latest - self.moved) / (self.done - self.first), self.total - self.done
        # While a piece takes longer than the others did, the time stands still: it does not grow.
        left = max(each * pieces - (now - self.latest), each * (pieces - 1))
        return left if left > 0 else None


class Jobs:
    """The queue, and the processes of the jobs that run."""

    def __init__(self, root: Path, limits: Limits, command: Sequence[str] = COMMAND) -> None:
        self.root, self.limits, self.command = root, limits, tuple(command)
        self._jobs: dict[str, Job] = {}
        self._lock = threading.RLock()
        self._closed = False
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)

    def submit(
        self, owner: str, task: Mapping[str, Any], raw: Path | None = None, lane: Lane = "video"
    ) -> Job:
        """Queue a task (`veil.apps.serve.work` has them all); `raw`, a folder, becomes the job's and goes with it."""
        with self._lock:
            self._admit(owner, lane)
            id_ = secrets.token_urlsafe(16)
            job = Job(id_, owner, task, self.root / id_, lane)
            job.folder.mkdir(mode=0o700)
            if raw:
                raw.rename(job.raw)
            self._jobs[id_] = job
            self._start()
        return job

    def check(self, owner: str, lane: Lane = "video") -> None:
        """Refuse what `submit` would refuse, before anything is given away for it."""
        with self._lock:
            self._admit(owner, lane)

    def get(self, owner: str, id_: str) -> Job:
        """One of the visitor's own."""
        with self._lock:
            job = self._jobs.get(id_)
        if job is None or job.owner != owner:
            raise VeilError("this is not here any more: results are deleted after a while. Start again.")
        return job

    def place(self, job: Job) -> int:
        """How many jobs come before this one."""
        with self._lock:
            waiting = [j for j in self._jobs.values() if j.state == "waiting" and j.lane == job.lane]
            return waiting.index(job) + 1 if job in waiting else 0

    def cancel(self, job: Job) -> None:
        """Stop it, or take it from the queue; nothing of it stays."""
        with self._lock:
            if job.state in ("waiting", "running"):
                self._end(job, "cancelled", error="cancelled: everything of it was deleted.")

    def discard(self, job: Job) -> None:
        """Delete it with its results."""
        self.cancel(job)
        with self._lock:
            self._jobs.pop(job.id, None)
        shutil.rmtree(job.folder, ignore_errors=True)

    def forget(self, owner: str) -> None:
        """Delete all of one visitor's."""
        with self._lock:
            own = [job for job in self._jobs.values() if job.owner == owner]
        for job in own:
            self.discard(job)

    def sweep(self, now: float | None = None) -> None:
        """Delete results that are old, and stop jobs that take too long."""
        now = time.monotonic() if now is None else now
        with self._lock:
            for job in [*self._jobs.values()]:
                most = SHORT if job.lane == "short" else self.limits.patience
                if job.state == "running" and now - job.begun > most:
                    self._end(
                        job,
                        "failed",
                        error=f"this took longer than {_span(most)}, and was stopped: try a shorter video.",
                    )
                elif job.over.is_set() and now - job.ended > self.limits.keep:
                    self.discard(job)

    def close(self) -> None:
        """Stop everything, and delete it."""
        with self._lock:
            self._closed = True
            jobs = [*self._jobs.values()]
        for job in jobs:
            self.discard(job)

    def active(self, owner: str) -> bool:
        """Whether anything of the visitor's runs or waits."""
        with self._lock:
            return any(j.owner == owner and not j.over.is_set() for j in self._jobs.values())

    def _admit(self, owner: str, lane: Lane) -> None:
        """Refuse what is too much."""
        if self._closed:
            raise VeilError("the server is being stopped: start it again.")
        active = [job for job in self._jobs.values() if job.lane == lane and not job.over.is_set()]
        if sum(job.owner == owner for job in active) >= self.limits.each:
            raise VeilError("you have as many jobs as you may at once: wait for one, or cancel it.")
        if sum(job.state == "waiting" for job in active) >= self.limits.waiting:
            raise VeilError("too many jobs are waiting already: try again in a few minutes.")

    def _start(self) -> None:
        """Start what there is room for; the lock is held."""
        for lane, most in (("video", self.limits.running), ("audit", AUDITS), ("short", LOOKING)):
            jobs = [job for job in self._jobs.values() if job.lane == lane]
            room = most - sum(job.state == "running" for job in jobs)
            for job in [job for job in jobs if job.state == "waiting"][: max(0, room)]:
                job.state, job.begun = "running", time.monotonic()
                threading.Thread(target=self._run, args=(job,), name="veil-job", daemon=True).start()

    def _run(self, job: Job) -> None:
        """One job from its start to its end, in a thread of its own."""
        try:
            with self._lock:
                if job.over.is_set():
                    return
                job.process = process = subprocess.Popen(
                    self.command,
                    cwd=job.folder,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,  # so that it can be ended with all that it has started
                )
            assert process.stdin and process.stdout
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps({**job.task, "folder": str(job.folder)}) + "\n")
                process.stdin.flush()
            # Its input stays open as long as the server lives: at its end, the job ends itself.
            told = False
            for line in process.stdout:
                told = self._hear(job, line) or told
            code = process.wait()
            process.stdout.close()
            with suppress(BrokenPipeError):
                process.stdin.close()
        except OSError as error:
            with self._lock:
                self._end(
                    job,
                    "failed",
                    error=f"the job could not be started ({error.strerror}): try again in a few minutes.",
                )
            return
        with self._lock:
            if not told:
                self._end(job, "failed", error=_broke(code))

    def _hear(self, job: Job, line: str) -> bool:
        """Take in one line; whether it was the last one that counts."""
        try:
            told = json.loads(line)
        except ValueError:
            return False
        if not isinstance(told, dict):
            return False
        with self._lock:
            if job.over.is_set():
                return True
            if "result" in told:
                job.result = dict(told["result"])
                self._end(job, "done")
            elif "error" in told:
                self._end(job, "failed", error=str(told["error"]))
            elif "pair" in told:
                job.pair, job.heat = int(told["pair"]), bool(told.get("heat"))
            elif "done" in told:
                done, total = int(told["done"]), told.get("total")
                if not job.moved or told.get("words", "") != job.words:
                    job.moved, job.first = time.monotonic(), done
                if done != job.done:
                    job.latest = time.monotonic()
                job.done, job.total, job.words = done, total, str(told.get("words", ""))
            return job.over.is_set()

    def _end(self, job: Job, state: State, error: str = "") -> None:
        """The last thing that happens to a job; the lock is held."""
        if job.over.is_set():
            return
        if (
            job.process
        ):  # also where it is done: its files are whole, and what it may have started is not needed
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(job.process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(5)  # nothing writes into the folder that is deleted next
        job.pair = None
        shutil.rmtree(job.raw if state == "done" else job.folder, ignore_errors=True)
        job.state, job.error, job.ended = state, error, time.monotonic()
        job.over.set()
        if not self._closed:
            self._start()


def _broke(code: int) -> str:
    """A sentence for a process that ended without a word."""
    if code == -signal.SIGKILL:
        why = "it was ended by the system, as happens when memory is short"
    elif code < 0:
        why = f"its process was ended by signal {-code}"
    else:
        why = f"its process ended with code {code}"
    return f"the job broke down ({why}), and everything of it was deleted: try another method or a smaller video."


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
