"""Jobs: each runs in a process of its own, in bounded queues, and is deleted when it is over.

A job is one run of `veil.apps.serve.tasks`. It gets its task as one line of JSON, reports progress as lines of JSON, and ends
with a result or with one sentence about the error::

    {"done": 30, "total": 90, "message": "anonymizing"}   progress
    {"preview": 30, "heat": true}                         before-30.jpg, after-30.jpg (and heat-30.jpg) can be shown
    {"result": {…}}   or   {"error": "…"}                 the end

So a video that crashes a decoder ends one job only: the process ends, its files are deleted, its visitor gets a sentence, and
the next job starts. Raw video is in a job's folder only while the job runs; a finished job keeps its results, for a while.
All other output of a process is discarded unread, because it may describe a video.
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
Lane = Literal["video", "audit", "short"]  # a queue of its own each: a short job waits for no video
COMMAND = (sys.executable, "-m", "veil.apps.serve.tasks")
SHORT_SECONDS = 60.0  # after which a short job is stopped
AUDITS, SHORT_JOBS = 1, 2  # that run at once


@dataclass
class ServerJob:
    """One task of one visitor."""

    id: str
    owner: str
    task: Mapping[str, Any]
    folder: Path  # its results; `raw` in it is deleted when it ends
    lane: Lane
    state: State = "waiting"
    done: int = 0
    total: int | None = None
    message: str = ""
    preview: int | None = None  # the frame of the newest preview
    heat: bool = False  # whether the preview has a heat map
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    started_at: float = 0.0
    counted_from: float = 0.0  # when the current message was first reported
    done_before: int = 0  # how much was done then
    last_progress: float = 0.0  # when `done` last changed
    ended_at: float = 0.0
    process: subprocess.Popen[str] | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def raw(self) -> Path:
        """The folder of everything that shows the raw video."""
        return self.folder / "raw"

    def seconds_left(self, now: float | None = None) -> float | None:
        """An estimate of the remaining time; None where it is unknown."""
        now = time.monotonic() if now is None else now
        if self.state != "running" or not self.total or self.done < self.done_before + 2:
            return None  # of large units that run in parallel, the first one comes late
        each = (self.last_progress - self.counted_from) / (self.done - self.done_before)
        units = self.total - self.done
        # While a unit takes longer than the ones before, the estimate stops; it does not grow.
        left = max(each * units - (now - self.last_progress), each * (units - 1))
        return left if left > 0 else None


class JobQueue:
    """The queues, and the processes of the running jobs."""

    def __init__(self, root: Path, limits: Limits, command: Sequence[str] = COMMAND) -> None:
        self.root, self.limits, self.command = root, limits, tuple(command)
        self._jobs: dict[str, ServerJob] = {}
        self._lock = threading.RLock()
        self._closed = False
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)

    def submit(
        self, owner: str, task: Mapping[str, Any], raw: Path | None = None, lane: Lane = "video"
    ) -> ServerJob:
        """Queue a task of `veil.apps.serve.tasks`; `raw`, a folder, moves into the job's folder."""
        with self._lock:
            self._admit(owner, lane)
            id_ = secrets.token_urlsafe(16)
            job = ServerJob(id_, owner, task, self.root / id_, lane)
            job.folder.mkdir(mode=0o700)
            if raw:
                raw.rename(job.raw)
            self._jobs[id_] = job
            self._start()
        return job

    def check(self, owner: str, lane: Lane = "video") -> None:
        """Refuse what `submit` would refuse, before an upload is given away for it."""
        with self._lock:
            self._admit(owner, lane)

    def get(self, owner: str, id_: str) -> ServerJob:
        """One of the visitor's own."""
        with self._lock:
            job = self._jobs.get(id_)
        if job is None or job.owner != owner:
            raise VeilError(
                "this is not here any more: results are deleted after a while, so start again.", code="gone"
            )
        return job

    def position(self, job: ServerJob) -> int:
        """The job's place in its queue, from 1; 0 where it does not wait."""
        with self._lock:
            waiting = [j for j in self._jobs.values() if j.state == "waiting" and j.lane == job.lane]
            return waiting.index(job) + 1 if job in waiting else 0

    def cancel(self, job: ServerJob) -> None:
        """Stop a job or remove it from its queue, with all its files."""
        with self._lock:
            if job.state in ("waiting", "running"):
                self._end(job, "cancelled", error="cancelled: all files of this job were deleted.")

    def discard(self, job: ServerJob) -> None:
        """Delete a job with its results."""
        self.cancel(job)
        with self._lock:
            self._jobs.pop(job.id, None)
        shutil.rmtree(job.folder, ignore_errors=True)

    def forget(self, owner: str) -> None:
        """Delete all jobs of one visitor."""
        with self._lock:
            own = [job for job in self._jobs.values() if job.owner == owner]
        for job in own:
            self.discard(job)

    def sweep(self, now: float | None = None) -> None:
        """Delete old results, and stop jobs that take too long."""
        now = time.monotonic() if now is None else now
        with self._lock:
            for job in [*self._jobs.values()]:
                longest = SHORT_SECONDS if job.lane == "short" else self.limits.job_seconds
                if job.state == "running" and now - job.started_at > longest:
                    self._end(
                        job,
                        "failed",
                        error=f"this took longer than {_duration(longest)} and was stopped: try a shorter video.",
                    )
                elif job.over.is_set() and now - job.ended_at > self.limits.keep:
                    self.discard(job)

    def close(self) -> None:
        """Stop and delete everything."""
        with self._lock:
            self._closed = True
            jobs = [*self._jobs.values()]
        for job in jobs:
            self.discard(job)

    def active(self, owner: str) -> bool:
        """Whether a job of the visitor runs or waits."""
        with self._lock:
            return any(j.owner == owner and not j.over.is_set() for j in self._jobs.values())

    def _admit(self, owner: str, lane: Lane) -> None:
        """Refuse a job beyond the limits."""
        if self._closed:
            raise VeilError("the server is stopping: start it again.", code="server-stopping")
        active = [job for job in self._jobs.values() if job.lane == lane and not job.over.is_set()]
        if sum(job.owner == owner for job in active) >= self.limits.per_visitor:
            raise VeilError(
                f"you have {self.limits.per_visitor} jobs already, which is the limit: wait for one, or cancel it.",
                code="visitor-queue-full",
            )
        if sum(job.state == "waiting" for job in active) >= self.limits.waiting:
            raise VeilError("too many jobs are waiting: try again in a few minutes.", code="queue-full")

    def _start(self) -> None:
        """Start the jobs that there is room for; the lock is held."""
        for lane, most in (("video", self.limits.running), ("audit", AUDITS), ("short", SHORT_JOBS)):
            jobs = [job for job in self._jobs.values() if job.lane == lane]
            room = most - sum(job.state == "running" for job in jobs)
            for job in [job for job in jobs if job.state == "waiting"][: max(0, room)]:
                job.state, job.started_at = "running", time.monotonic()
                threading.Thread(target=self._run, args=(job,), name="veil-job", daemon=True).start()

    def _run(self, job: ServerJob) -> None:
        """One job from start to end, in a thread of its own."""
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
                    start_new_session=True,  # so that it can be killed with all its children
                )
            assert process.stdin and process.stdout
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps({**job.task, "folder": str(job.folder)}) + "\n")
                process.stdin.flush()
            # Its standard input stays open as long as the server lives: the job ends itself when it closes.
            ended = False
            for line in process.stdout:
                ended = self._receive(job, line) or ended
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
            if not ended:
                self._end(job, "failed", error=_crash_message(code))

    def _receive(self, job: ServerJob, line: str) -> bool:
        """Handle one line of a job's output; True: the job has ended."""
        try:
            report = json.loads(line)
        except ValueError:
            return False
        if not isinstance(report, dict):
            return False
        with self._lock:
            if job.over.is_set():
                return True
            if "result" in report:
                job.result = dict(report["result"])
                self._end(job, "done")
            elif "error" in report:
                self._end(job, "failed", error=str(report["error"]))
            elif "preview" in report:
                job.preview, job.heat = int(report["preview"]), bool(report.get("heat"))
            elif "done" in report:
                done, message = int(report["done"]), str(report.get("message", ""))
                if not job.counted_from or message != job.message:
                    job.counted_from, job.done_before = time.monotonic(), done
                if done != job.done:
                    job.last_progress = time.monotonic()
                job.done, job.total, job.message = done, report.get("total"), message
            return job.over.is_set()

    def _end(self, job: ServerJob, state: State, error: str = "") -> None:
        """End a job once; the lock is held."""
        if job.over.is_set():
            return
        if job.process:  # also of a finished job, whose files are complete: its children are not needed
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(job.process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(5)  # nothing writes into the folder that is deleted next
        job.preview = None
        shutil.rmtree(job.raw if state == "done" else job.folder, ignore_errors=True)
        job.state, job.error, job.ended_at = state, error, time.monotonic()
        job.over.set()
        if not self._closed:
            self._start()


def _crash_message(code: int) -> str:
    """A sentence for a process that ended without a result."""
    if code == -signal.SIGKILL:
        why = "the system killed it, as happens when memory is short"
    elif code < 0:
        why = f"its process was ended by signal {-code}"
    else:
        why = f"its process ended with code {code}"
    return f"the job crashed ({why}) and its files were deleted: try another method or a smaller video."


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
