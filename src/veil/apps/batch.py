"""Many videos: the path of `anonymize_video`, shared out to the processes of this machine or of a Ray cluster.

What happens to one video never touches another (`veil.apps.worker`). A video whose worker died is given to another one.

``OUT/manifest.jsonl`` tells what came of every video, a line each time. A line is on the disk before the next step
is taken, and one that was broken off is as if it had not been begun::

    {"state": "begun", "target": "a/b.mp4", "source": "/in/a/b.mp4"}           from here on the target is this batch's
    {"state": "done", …, "input": {"sha256": …, "bytes": …, "changed": …}, "output": {…}, "seconds": …, "options": {…}}
    {"state": "failed", …, "why": "one sentence"}
    {"state": "refused", …, "why": "one sentence"}                             the target is somebody else's, and stays so
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from veil.apps.cluster import TRIES, Lost, refuse, spread
from veil.apps.worker import STAGE, Options, Outcome, Task, Worker
from veil.core import VeilError
from veil.media import storage
from veil.media.inputs import find_inputs
from veil.media.outputs import output_name
from veil.media.storage import is_url
from veil.media.video import Codec

Progress = Callable[[int, int], Any]  # is told how many MB of video are done, of how many
_NAMED = 20  # how many videos that failed are named on the terminal; the manifest names all


@dataclass(frozen=True)
class Batch:
    """What came of a batch."""

    manifest: Path
    done: int
    kept: int  # were done before
    failed: tuple[tuple[str, str], ...]  # sources, and why
    seconds: float

    def sentences(self) -> list[str]:
        """What to tell the user."""
        rate = f" in {self.seconds:.0f} s" if self.done else ""
        before = f", {self.kept:,} were done before" if self.kept else ""
        said = [f"{self.done:,} videos done{rate}{before}; {self.manifest} tells of each."]
        if self.failed:
            said.append(
                f"{len(self.failed):,} of {self.done + self.kept + len(self.failed):,} videos failed:"
            )
            said += [
                f"  {why}" if source in why else f"  {source}: {why}" for source, why in self.failed[:_NAMED]
            ]
            said += [f"  and {len(self.failed) - _NAMED:,} more"] if len(self.failed) > _NAMED else []
        return said


# The manifest


class Manifest:
    """What came of every video, the last word on each; kept on disk, and in use by one batch at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise VeilError(
                f"{path} is in use by another batch: wait for it, or name another folder."
            ) from None
        except OSError:
            pass  # a file system without locks
        self.last: dict[str, Outcome] = {}
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
                outcome = Outcome.read(line.decode())
            except (ValueError, KeyError, TypeError):
                if self._file.read(1) == b"":
                    break  # its end reached the disk, its beginning did not
                raise VeilError(
                    f"line {number} of {self.path} is not of a batch: remove that line, or name another folder."
                ) from None
            whole += len(line)
            self._learn(outcome)
        self._file.truncate(whole)

    def _learn(self, outcome: Outcome) -> None:
        if outcome.state != "refused":  # which tells nothing of what is there
            self.last[outcome.target] = outcome

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Take outcomes down; they are on the disk when this returns."""
        outcomes = list(outcomes)
        if not outcomes:
            return
        self._file.write("".join(f"{outcome.line()}\n" for outcome in outcomes).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        for outcome in outcomes:
            self._learn(outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


# Many


def anonymize_videos(
    inputs: Sequence[str],
    output: str | Path,
    options: Options = Options(),
    *,
    workers: int | None = None,
    ray: str | None = None,
    gpus_per_worker: float = 0,
    manifest: str | Path | None = None,
    overwrite: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> Batch:
    """Anonymize many videos into a folder, as far as they can be: one that fails, fails alone.

    inputs    files, folders, patterns such as ``in/**/*.mp4``, or URLs of these; what is in a folder is mirrored
    output    a folder, or the URL of one; then ``manifest`` must name a file
    workers   processes [one for each core]
    ray       the address of a Ray cluster (``auto``: the one this machine is part of; ``local``: one of this machine alone)
    gpus_per_worker  of a Ray cluster: 0.25 lets four workers share a GPU
    overwrite replace files that another program, or this one with other options, has written
    verify    read what was done before and compare its checksums, instead of trusting size and time

    What the manifest calls done is skipped, as long as the input is the same and the output is there. Raises `VeilError`
    where nothing can be begun.
    """
    folder = storage.absolute(str(output))
    refuse(ray, workers, gpus_per_worker)
    if is_url(folder) and manifest is None:
        raise VeilError(
            f"{folder} cannot be appended to: say with --manifest which file is to tell what is done."
        )
    if not is_url(folder) and Path(folder).exists() and not Path(folder).is_dir():
        raise VeilError(f"{folder} is a file, and a batch needs a folder: name a folder with -o.")
    if options.learned:
        options = replace(options, method=str(options.learned.absolute()))
    options.make()  # what is wrong with the method is wrong for every video
    tasks = tasks_of(inputs, folder, options.codec)
    begun = time.monotonic()
    with Manifest(Path(manifest) if manifest else Path(folder) / "manifest.jsonl") as told:
        stage = storage.joined(folder, Path(STAGE))
        storage.remove(stage)  # of a batch that was killed
        try:
            return _run(
                tasks, told, options, begun, workers, ray, gpus_per_worker, overwrite, verify, progress
            )
        finally:
            storage.remove(stage)


def tasks_of(inputs: Sequence[str], output: str, codec: Codec = "h264") -> list[Task]:
    """Every video once, with the place of its output; two for one place are refused."""
    if not inputs:
        raise VeilError("there is nothing to do: name videos, folders, or a pattern such as 'in/**/*.mp4'.")
    found = find_inputs(inputs, exclude=None if is_url(output) else Path(output), stored=True)
    tasks: dict[str, Task] = {}
    for name, place in found:
        task = Task(storage.absolute(name), output_name(place, codec).as_posix(), output)
        other = tasks.setdefault(task.target, task)
        if other.source != task.source:
            raise VeilError(
                f"{other.source} and {task.source} would both be written to {task.place}: rename one, or give each "
                "a batch of its own."
            )
        if task.place == task.source:
            raise VeilError(f"{task.source} would be written over itself: name another folder with -o.")
    return list(tasks.values())


def _run(
    tasks: list[Task],
    manifest: Manifest,
    options: Options,
    begun: float,
    workers: int | None,
    ray: str | None,
    gpus: float,
    overwrite: bool,
    verify: bool,
    progress: Progress | None,
) -> Batch:
    told = options.told()
    if not overwrite:
        _refuse_other(manifest, tasks, told)
    todo: list[tuple[int, Task]] = []  # with its size
    failed: dict[str, Outcome] = {}
    kept = 0
    for task in tasks:
        try:
            state = _state(task, manifest.last.get(task.target), told, overwrite, verify)
            size = storage.stamp(task.source) if state == "to do" else None
        except (VeilError, OSError) as error:
            failed[task.target] = Outcome("refused", task.target, task.source, str(error))
            continue
        if state == "done":
            kept += 1
        else:
            todo.append((size.bytes if size else 0, task))
    # From here on the targets are this batch's, and a restart may write over them; a refused one is not.
    manifest.add([*failed.values(), *(Outcome("begun", task.target, task.source) for _, task in todo)])
    # The longest first: else one of them may be begun last, and all other cores wait for it.
    todo.sort(key=lambda sized: -sized[0])
    weights = {task.target: max(1, size >> 20) for size, task in todo}
    total, passed, done = sum(weights.values()), 0, 0
    if progress:
        progress(passed, total)
    work = [task for _, task in todo]
    if ray is None:
        outcomes = pool(options, work, min(workers or storage.cores(), len(work)))
    else:
        outcomes = cluster(options, work, ray, workers, gpus)
    try:
        for outcome in outcomes:
            outcome = replace(outcome, options=told)
            manifest.add([outcome])
            if outcome.state == "failed":
                failed[outcome.target] = outcome
            else:
                done += 1
            passed += weights[outcome.target]
            if progress:
                progress(passed, total)
    finally:
        outcomes.close()
    named = tuple((outcome.source, str(outcome.why)) for outcome in failed.values())
    return Batch(manifest.path, done, kept, named, time.monotonic() - begun)


def _refuse_other(manifest: Manifest, tasks: Sequence[Task], told: Mapping[str, Any]) -> None:
    """A folder holds what was made in one way; else nobody would know what is protected how."""
    for task in tasks:
        last = manifest.last.get(task.target)
        if last and last.state == "done" and last.options is not None and last.options != told:
            key = next(key for key in {**last.options, **told} if last.options.get(key) != told.get(key))
            raise VeilError(
                f"{task.place} was made with {key} {last.options.get(key)}, and now it is to be {told.get(key)}: name "
                "another folder, or pass --overwrite."
            )


def _state(
    task: Task, last: Outcome | None, told: dict[str, Any], overwrite: bool, verify: bool
) -> Literal["done", "to do"]:
    """Whether a video is done already, by what the manifest says of its target; `VeilError`: it is not ours to write."""
    if last is None:
        if not overwrite and storage.stamp(task.place) is not None:
            raise VeilError(
                f"{task.place} exists already and is of no batch here: pass --overwrite to replace it."
            )
        return "to do"
    if last.state != "done" or last.input is None or last.output is None:
        return "to do"
    same = last.input.same(task.source, verify=verify)
    if last.source != task.source and not same and not overwrite:
        raise VeilError(f"{task.place} was made of {last.source}: name another folder, or pass --overwrite.")
    if last.options != told and same:
        return "to do"  # which `_refuse_other` has allowed
    return "done" if same and last.output.same(task.place, verify=verify) else "to do"


# A pool of processes


class _Hand(NamedTuple):
    """A worker process, the pipe to it, and what it works on."""

    process: SpawnProcess
    pipe: Connection
    task: Task


def pool(options: Options, tasks: Iterable[Task], workers: int) -> Generator[Outcome]:
    """What came of every video, in the order in which they end; a video whose worker died is tried again."""
    context = multiprocessing.get_context("spawn")  # threads of codecs and networks do not survive a fork
    waiting = deque(tasks)
    tries: dict[str, int] = {}
    hands: dict[Connection, _Hand] = {}
    share = max(1, storage.cores() // max(1, workers))

    def employ() -> None:
        near, far = context.Pipe()
        process = context.Process(target=_serve, args=(far, options, share), daemon=True)
        process.start()
        far.close()
        give(_Hand(process, near, waiting[0]))

    def give(hand: _Hand) -> None:
        task = waiting.popleft()
        tries[task.target] = tries.get(task.target, 0) + 1
        hands[hand.pipe] = hand._replace(task=task)
        with suppress(OSError):  # it is dead, which its silence tells
            hand.pipe.send(task)

    try:
        while waiting or hands:
            while waiting and len(hands) < workers:
                employ()
            for pipe in wait([*hands]):
                assert isinstance(pipe, Connection)
                hand = hands.pop(pipe)
                count = tries[hand.task.target]
                try:
                    outcome: Outcome = pipe.recv()
                except (EOFError, OSError):
                    why = _end(hand)
                    if count < TRIES:
                        waiting.append(hand.task)
                    else:
                        why = f"{hand.task.source} was given up: {count} workers died of it ({why})."
                        yield Outcome("failed", hand.task.target, hand.task.source, why, tries=count)
                    continue
                if waiting:
                    give(hand)
                else:
                    _end(hand)
                yield outcome
    finally:
        for hand in hands.values():
            hand.process.kill()
        for hand in hands.values():
            _end(hand)


def _end(hand: _Hand) -> str:
    """Let a process go that has nothing to do or is dead, and say how it ended."""
    hand.pipe.close()
    hand.process.join()
    code = hand.process.exitcode or 0
    hand.process.close()
    if code == -signal.SIGKILL:
        return "it was killed, perhaps for want of memory"
    return f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"


def _serve(pipe: Connection, options: Options, share: int) -> None:
    """The life of a worker process: paths in, outcomes out, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)  # nobody is left to take what is made

    threading.Thread(target=watch, daemon=True).start()
    worker = Worker(options, share)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(worker(task))


# A cluster


def cluster(
    options: Options, tasks: Sequence[Task], address: str, workers: int | None, gpus: float
) -> Generator[Outcome]:
    """The same on a Ray cluster: workers read and write where all its machines see it."""
    worker = partial(Worker, options, share=None if gpus else 1, device="cuda" if gpus else None)
    with closing(spread(worker, tasks, address, workers, gpus)) as answers:
        for task, answer in answers:
            if isinstance(answer, Lost):
                why = f"{task.source} was given up: {answer.why}."
                answer = Outcome("failed", task.target, task.source, why, tries=TRIES)
            yield answer
