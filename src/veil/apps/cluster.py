"""Work shared out over a Ray cluster: things in, answers out, by workers that are made once.

What travels is small: a path and what came of it, never pixels. A worker is a Ray actor that has a core, and maybe a share
of a GPU, to itself. Each is handed one thing after the other; where things are short the next one is there before the last
is answered. So it is known what a worker was at when it died: that thing is given to another worker, and when `TRIES`
have died of it, it is lost, and nothing else is.

Ray Data has actors that do the same to rows of a table. It takes some ten milliseconds of processor time for each row that is
a task of its own; and rows that share a task share its fate, and are told of together when the last of them is done.
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

from veil.core import VeilError
from veil.media import storage

ThingT = TypeVar("ThingT")
AnswerT = TypeVar("AnswerT")
TRIES = 3  # workers that may die of a thing before it counts as lost
_SHORT = 1.0  # seconds: a worker that answers faster is given the next thing ahead
_STORE = 256 << 20  # bytes of answers that wait, in a cluster that is started here; more would go to its disk


class Lost(NamedTuple):
    """Instead of an answer: there will be none."""

    why: str


class VeilWorker(Generic[ThingT, AnswerT]):
    """A worker as the cluster runs it, and as its lists name it."""

    def begin(self, make: Callable[[], Callable[[ThingT], AnswerT]]) -> None:
        """Make what answers; not on construction, whose errors Ray tells in words of its own."""
        self._answer = make()

    def answer(self, thing: ThingT) -> AnswerT:
        """What came of one thing."""
        return self._answer(thing)


@dataclass(eq=False)
class _Hand:
    """A worker from here: what it was given and has not answered, oldest first; None is to begin."""

    actor: Any
    given: deque[tuple[Any, int | None]]  # what Ray answers by, and which thing
    since: float = 0.0  # when it began with the oldest
    ahead: bool = False  # whether it is given the next thing before it has answered


def refuse(ray: str | None, workers: int | None, gpus: float) -> None:
    """Raise `VeilError` where no workers can be had as asked for; ``ray`` is the address, None: this machine's processes."""
    if workers is not None and workers < 1:
        raise VeilError(f"{workers} workers can do nothing; give 1 or more")
    if gpus < 0 or (gpus and ray is None):
        raise VeilError(f"--gpus-per-worker {gpus} is for --ray, and above 0: leave it out.")


def spread(
    make: Callable[[], Callable[[ThingT], AnswerT]],
    things: Sequence[ThingT],
    address: str,
    workers: int | None = None,
    gpus: float = 0,
) -> Generator[tuple[ThingT, AnswerT | Lost]]:
    """Every thing with its answer, in the order in which they are answered.

    ``make`` is called once in each worker, and what it makes answers things; both must survive being pickled. The first of
    the things are begun first. Raises `VeilError` where there is no cluster at the address, or no worker can be made.
    """
    if not things:
        return
    ray, ours = join(address, workers)
    hands: list[_Hand] = []
    try:
        size = _size(ray, workers, gpus)
        actors = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(VeilWorker)
        made = ray.put(make)
        waiting = deque(range(len(things)))
        deaths: Counter[int | None] = Counter()  # by thing; None: while a worker was made

        def give(hand: _Hand) -> None:
            while waiting and len(hand.given) < 1 + hand.ahead:
                number = waiting.popleft()
                hand.given.append((hand.actor.answer.remote(things[number]), number))

        while waiting or any(number is not None for hand in hands for _, number in hand.given):
            while waiting and len(hands) < size:
                actor = actors.remote()
                hands.append(_Hand(actor, deque([(actor.begin.remote(made), None)])))
            oldest = {hand.given[0][0]: hand for hand in hands}
            ray.wait([*oldest], num_returns=1)
            for answered in ray.wait([*oldest], num_returns=len(oldest), timeout=0)[0]:
                hand = oldest[answered]
                _, number = hand.given.popleft()
                answer: AnswerT | Lost | None = None
                try:
                    answer = ray.get(answered)
                except ray.exceptions.RayTaskError as error:
                    if number is None:
                        raise _unmade(error.cause) from error
                    answer = Lost(f"this is a mistake of Veil's ({_line(error.cause)})")
                except ray.exceptions.RayError as error:  # the worker is dead, or its machine
                    hands.remove(hand)
                    ray.kill(hand.actor)
                    waiting.extendleft(
                        following for _, following in reversed(hand.given) if following is not None
                    )
                    deaths[number] += 1
                    if deaths[number] < TRIES:
                        waiting.extend([] if number is None else [number])
                        continue
                    if number is None:
                        raise _unmade(error) from error
                    answer = Lost(f"{TRIES} workers died of it")
                else:
                    now = time.monotonic()
                    hand.ahead = number is not None and now - hand.since < _SHORT
                    hand.since = now
                if hand in hands:
                    give(hand)
                    if not hand.given:
                        hands.remove(hand)
                        ray.kill(hand.actor)
                if number is not None:
                    yield things[number], cast(AnswerT | Lost, answer)
                deaths[None] = 0
    finally:
        for hand in hands:
            ray.kill(hand.actor)
        if ours:
            ray.shutdown()


def join(address: str, workers: int | None = None) -> tuple[Any, bool]:
    """Ray, connected to a cluster, and whether that is this call's doing; at ``local`` a cluster is started."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise VeilError("--ray needs Ray: pip install 'veil-video[ray]'.") from None
    if ray.is_initialized():
        return ray, False
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        how |= {
            "include_dashboard": False,
            "num_cpus": workers or storage.cores(),
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
            "--ray local."
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


def _unmade(why: object) -> VeilError:
    """That there will be no workers: in the words of the worker where they are a sentence."""
    if isinstance(why, VeilError):
        return why
    return VeilError(
        f"no worker can be made in the cluster ({_line(why)}): is the same version of Veil on all its machines?"
    )


def _line(error: object) -> str:
    """The first line of what an error says, or its name."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
