"""A batch on several processes: of this machine, or of a Ray cluster."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import NamedTuple

from veil.apps.cluster import TRIES, GivenUp, run_on_cluster
from veil.apps.worker import BatchOptions, VideoOutcome, VideoTask, VideoWorker
from veil.media import processes
from veil.media.processes import end_with_parent


class _WorkerProcess(NamedTuple):
    """A worker process, the pipe to it, and what it works on."""

    process: SpawnProcess
    pipe: Connection
    task: VideoTask


def run_in_processes(
    options: BatchOptions, tasks: Iterable[VideoTask], workers: int
) -> Generator[VideoOutcome]:
    """The outcome of every video, in the order in which they end; a video whose worker died is tried again."""
    context = multiprocessing.get_context("spawn")  # threads of codecs and networks do not survive a fork
    waiting = deque(tasks)
    tries: dict[str, int] = {}
    running: dict[Connection, _WorkerProcess] = {}
    share = max(1, processes.cores() // max(1, workers))

    def start() -> None:
        near, far = context.Pipe()
        process = context.Process(target=_work, args=(far, options, share), daemon=True)
        process.start()
        far.close()
        assign(_WorkerProcess(process, near, waiting[0]))

    def assign(worker: _WorkerProcess) -> None:
        task = waiting.popleft()
        tries[task.target] = tries.get(task.target, 0) + 1
        running[worker.pipe] = worker._replace(task=task)
        with suppress(OSError):  # it is dead, and its pipe will end
            worker.pipe.send(task)

    try:
        while waiting or running:
            while waiting and len(running) < workers:
                start()
            for pipe in wait([*running]):
                assert isinstance(pipe, Connection)
                worker = running.pop(pipe)
                count = tries[worker.task.target]
                try:
                    outcome: VideoOutcome = pipe.recv()
                except (EOFError, OSError):
                    why = _end(worker)
                    if count < TRIES:
                        waiting.append(worker.task)
                    else:
                        why = f"{worker.task.source} was given up: {count} workers died of it ({why})."
                        yield VideoOutcome("failed", worker.task.target, worker.task.source, why, tries=count)
                    continue
                if waiting:
                    assign(worker)
                else:
                    _end(worker)
                yield outcome
    finally:
        for worker in running.values():
            worker.process.kill()
        for worker in running.values():
            _end(worker)


def _end(worker: _WorkerProcess) -> str:
    """End a process that is idle or dead; returns how it ended."""
    worker.pipe.close()
    worker.process.join()
    code = worker.process.exitcode or 0
    worker.process.close()
    if code == -signal.SIGKILL:
        return "it was killed, perhaps because memory ran out"
    return f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"


def _work(pipe: Connection, options: BatchOptions, share: int) -> None:
    """What a worker process does: receive tasks and send outcomes until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    end_with_parent()
    worker = VideoWorker(options, share)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(worker(task))


def run_in_cluster(
    options: BatchOptions, tasks: Sequence[VideoTask], address: str, workers: int | None, gpus: float
) -> Generator[VideoOutcome]:
    """The same on a Ray cluster: workers read and write where all its machines see it."""
    worker = partial(VideoWorker, options, share=None if gpus else 1, device="cuda" if gpus else None)
    with closing(run_on_cluster(worker, tasks, address, workers, gpus)) as answers:
        for task, answer in answers:
            if isinstance(answer, GivenUp):
                why = f"{task.source} was given up: {answer.why}."
                answer = VideoOutcome("failed", task.target, task.source, why, tries=TRIES)
            yield answer
