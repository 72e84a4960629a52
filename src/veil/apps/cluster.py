"""Work on a Ray cluster: items in, results out, by workers that are made once.

What travels is small: a path and its outcome, never pixels. A worker is a Ray actor that has a core, and maybe a share of a
GPU, to itself. Each gets one item after the other; where items are short, the next one is sent before the last result is
there. So it is known on which item a worker died: that item is given to another worker, and after `TRIES` deaths it is given
up, and nothing else is.

Ray Data has actors that do the same to rows of a table. It takes some ten milliseconds of processor time for each row that is
a task of its own; rows that share a task also fail together, and are reported together when the last of them is done.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

from veil.core import VeilError, missing_extra
from veil.media import processes

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
TRIES = 3  # workers that may die of an item before it is given up
_SHORT = 1.0  # seconds: a worker that is faster gets the next item ahead of its result
_STORE = 256 << 20  # bytes of results that wait, in a cluster that is started here; more would go to its disk


class GivenUp(NamedTuple):
    """Instead of a result: there will be none."""

    why: str


class VeilWorker(Generic[ItemT, ResultT]):
    """A worker as the cluster runs it, and as its lists name it."""

    def begin(self, make: Callable[[], Callable[[ItemT], ResultT]]) -> None:
        """Make the function; not on construction, whose errors Ray reports in its own way."""
        self._function = make()

    def run(self, item: ItemT) -> ResultT:
        """The result of one item."""
        return self._function(item)


@dataclass(eq=False)
class _Actor:
    """A worker as seen from here: the items whose results are due, oldest first; None stands for its start."""

    actor: Any
    given: deque[tuple[Any, int | None]]  # the future of the result, and which item
    since: float = 0.0  # when it began with the oldest
    ahead: bool = False  # whether it is given the next item before the last result is there


def check_workers(ray: str | None, workers: int | None, gpus: float) -> None:
    """Raise `VeilError` where these workers cannot be had; ``ray`` is the address, None: this machine's processes."""
    if workers is not None and workers < 1:
        raise VeilError(f"{workers} workers are too few: give 1 or more.", code="workers")
    if gpus < 0 or (gpus and ray is None):
        raise VeilError(
            f"--gpus-per-worker {gpus} needs --ray, and must not be negative: leave it out.",
            code="gpus-per-worker",
        )


def run_on_cluster(
    make: Callable[[], Callable[[ItemT], ResultT]],
    items: Sequence[ItemT],
    address: str,
    workers: int | None = None,
    gpus: float = 0,
) -> Generator[tuple[ItemT, ResultT | GivenUp]]:
    """Every item with its result, in the order in which they are ready.

    ``make`` is called once in each worker, and the function that it returns is called with each item; both must survive being pickled. The first of
    the items are begun first. Raises `VeilError` where there is no cluster at the address, or no worker can be made.
    """
    if not items:
        return
    ray, ours = connect(address, workers)
    running: list[_Actor] = []
    try:
        size = _size(ray, workers, gpus)
        actors = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(VeilWorker)
        made = ray.put(make)
        waiting = deque(range(len(items)))
        deaths: Counter[int | None] = Counter()  # by item; None: while a worker was made

        def assign(worker: _Actor) -> None:
            while waiting and len(worker.given) < 1 + worker.ahead:
                number = waiting.popleft()
                worker.given.append((worker.actor.run.remote(items[number]), number))

        while waiting or any(number is not None for worker in running for _, number in worker.given):
            while waiting and len(running) < size:
                actor = actors.remote()
                running.append(_Actor(actor, deque([(actor.begin.remote(made), None)])))
            oldest = {worker.given[0][0]: worker for worker in running}
            ray.wait([*oldest], num_returns=1)
            for ready in ray.wait([*oldest], num_returns=len(oldest), timeout=0)[0]:
                worker = oldest[ready]
                _, number = worker.given.popleft()
                result: ResultT | GivenUp | None = None
                try:
                    result = ray.get(ready)
                except ray.exceptions.RayTaskError as error:
                    if number is None:
                        raise _no_worker(error.cause) from error
                    result = GivenUp(f"this is a defect of Veil ({_line(error.cause)})")
                except ray.exceptions.RayError as error:  # the worker is dead, or its machine
                    running.remove(worker)
                    ray.kill(worker.actor)
                    waiting.extendleft(
                        following for _, following in reversed(worker.given) if following is not None
                    )
                    deaths[number] += 1
                    if deaths[number] < TRIES:
                        waiting.extend([] if number is None else [number])
                        continue
                    if number is None:
                        raise _no_worker(error) from error
                    result = GivenUp(f"{TRIES} workers died of it")
                else:
                    now = time.monotonic()
                    worker.ahead = number is not None and now - worker.since < _SHORT
                    worker.since = now
                if worker in running:
                    assign(worker)
                    if not worker.given:
                        running.remove(worker)
                        ray.kill(worker.actor)
                if number is not None:
                    yield items[number], cast(ResultT | GivenUp, result)
                deaths[None] = 0
    finally:
        for worker in running:
            ray.kill(worker.actor)
        if ours:
            ray.shutdown()


def connect(address: str, workers: int | None = None) -> tuple[Any, bool]:
    """Ray, connected to a cluster, and whether that is this call's doing; at ``local`` a cluster is started."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise missing_extra("--ray needs Ray", "ray") from None
    if ray.is_initialized():
        return ray, False
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        how |= {
            "include_dashboard": False,
            "num_cpus": workers or processes.cores(),
            "object_store_memory": _STORE,
        }
    try:
        with warnings.catch_warnings():
            # Of libraries that a fork would break: Ray's processes are replaced at once.
            warnings.filterwarnings("ignore", message=".*not fork-safe")
            ray.init(address=address, **how)
    except (OSError, RuntimeError, ValueError) as error:
        raise VeilError(
            f"there is no Ray cluster at '{address}' ({_line(error)}): start one with `ray start --head`, or use "
            "--ray local.",
            code="no-cluster",
        ) from error
    return ray, True


def _size(ray: Any, workers: int | None, gpus: float) -> int:
    """How many workers there is room for, or as many as were requested."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = max((machine.get("GPU", 0) for machine in machines), default=0)
    if gpus > most:  # Ray would wait for such a machine
        raise VeilError(
            f"--gpus-per-worker {gpus:g} was given, but no machine of the cluster has more than {most:g} GPUs: "
            "give less, or leave it out.",
            code="gpus-per-worker",
        )
    room = [
        min(int(m.get("CPU", 0)), int(m.get("GPU", 0) / gpus + 1e-6) if gpus else 1 << 30) for m in machines
    ]
    return workers or max(1, sum(room))


def _no_worker(why: object) -> VeilError:
    """The error that no worker could be made: the worker's own where that is a `VeilError`."""
    if isinstance(why, VeilError):
        return why
    return VeilError(
        f"no worker can be made in the cluster ({_line(why)}): check that all its machines have the same version of Veil.",
        code="no-worker",
    )


def _line(error: object) -> str:
    """The first line of an error's message, or its name."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
