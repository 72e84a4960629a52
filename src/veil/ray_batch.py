"""The workers of a batch on a Ray cluster, by Ray Data.

A row is a path, never pixels: workers read and write the videos themselves, in a folder that all machines share or at
URLs. Each row is a block of its own, so that a worker that dies takes one video with it; Ray starts another worker and
gives it that video, as often as it takes. When to give a video up is for `Worker` to say.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from typing import Any

from veil import storage
from veil.core import VeilError
from veil.worker import Options, Outcome, Task, Worker

_WAVE = 10_000  # videos that Ray is told of at once: it keeps a record of each


class RayWorker:
    """A `Worker` as Ray Data calls it: a row in, a row out; it is made once for each worker process."""

    def __init__(self, options: Options, gpus: float) -> None:
        self._worker = Worker(options, share=1 if not gpus else None, device="cuda" if gpus else None)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The outcome of one path."""
        return {"outcome": self._worker(Task(row["source"], row["target"], row["output"])).line()}


def cluster(
    options: Options, tasks: Sequence[Task], address: str, workers: int | None, gpus: float
) -> Generator[Outcome]:
    """What came of every video, in the order in which they end; a video whose worker died is tried again."""
    ray, ours = join(address, workers)
    try:
        size = _size(ray, workers, gpus)
        for at in range(0, len(tasks), _WAVE):
            lost = {task.target: task for task in tasks[at : at + _WAVE]}
            for outcome in _wave(ray, options, tasks[at : at + _WAVE], size, gpus):
                lost.pop(outcome.target, None)
                yield outcome
            for task in lost.values():
                why = f"{task.source} was lost by the cluster: give the same command again."
                yield Outcome("failed", task.target, task.source, why)
    finally:
        if ours:
            ray.shutdown()


def join(address: str, workers: int | None = None) -> tuple[Any, bool]:
    """Ray, connected to a cluster, and whether that is this call's doing; at ``local`` a cluster is started."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its own worries are not the user's
    try:
        import ray  # pyright: ignore[reportMissingImports]
        import ray.data  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise VeilError("--ray needs Ray: pip install 'veil-video[ray]'.") from None
    if ray.is_initialized():
        return ray, False
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        how |= {"include_dashboard": False, "num_cpus": workers or storage.cores()}
    try:
        ray.init(address=address, **how)
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise VeilError(
            f"there is no Ray cluster at '{address}' ({why}): start one with `ray start --head`, or use --ray local."
        ) from error
    return ray, True


def _size(ray: Any, workers: int | None, gpus: float) -> int:
    """How many workers there is room for, or as many as are asked for."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = max((machine.get("GPU", 0) for machine in machines), default=0)
    if gpus > most:  # Ray would wait for such a machine
        raise VeilError(
            f"--gpus-per-worker {gpus:g} is asked for, but no machine of the cluster has more than {most:g} GPUs: "
            "give less, or leave it out."
        )
    room = [
        min(int(m.get("CPU", 0)), int(m.get("GPU", 0) / gpus + 1e-6) if gpus else 1 << 30) for m in machines
    ]
    return workers or max(1, sum(room))


def _wave(ray: Any, options: Options, tasks: Sequence[Task], size: int, gpus: float) -> Generator[Outcome]:
    """What came of as many videos as Ray is told of at once."""
    context = ray.data.DataContext.get_current()
    before = (
        context.max_errored_blocks,
        context.enable_progress_bars,
        context.execution_options.preserve_order,
    )
    context.max_errored_blocks = -1  # else the first one that is lost ends all others
    context.enable_progress_bars = False
    context.execution_options.preserve_order = False
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what is lost is told by name
    try:
        rows = ray.data.from_items([task._asdict() for task in tasks], override_num_blocks=len(tasks))
        outcomes = rows.map(
            RayWorker,
            fn_constructor_args=(options, gpus),
            compute=ray.data.ActorPoolStrategy(size=min(size, len(tasks)), max_tasks_in_flight_per_actor=2),
            num_cpus=1,
            num_gpus=gpus or None,
        )
        for row in outcomes.iter_rows():
            yield Outcome.read(row["outcome"])
    finally:
        logger.setLevel(level)
        context.max_errored_blocks, context.enable_progress_bars, context.execution_options.preserve_order = (
            before
        )
