"""How a batch scales: two workers against one, and Ray against the pool of processes.

    python bench/batch.py [--clips 20] [--short 200] [--rounds 3]

*two / one*: clips that are costly to compute and cheap to decode and encode, through a method that uses one core. Target:
1.8 on two cores. One worker has both cores for itself, so what its decoder and encoder do beside the method counts for it.
*ray / pool*: many short clips, two workers each; the cluster runs already, workers do not. Target: Ray takes at most 15 %
longer. `whole` is the time from the command to the last outcome; `running` leaves out the first four outcomes, and
with them the start of the workers, which counts for little in a batch of hours. Whoever has no cluster (``--ray local``) waits
for its start, too, which is recorded apart.

All take turns, and the ratios are of the best of all rounds, since the machine may have other work; the medians are of the
ratios of neighbours. *cpu* is disturbed less by it. *two / one, cpu*: twice the processor seconds a clip of one worker by those
of two, which is what two cores would give that had nothing else to do. *ray / pool, cpu*: processor seconds a clip, of
the workers and of all that serves them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Generator
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from veil.apps.batch import tasks_of
from veil.apps.cluster import connect
from veil.apps.pool import run_in_cluster, run_in_processes
from veil.apps.worker import BatchOptions, VideoOutcome, VideoTask
from veil.media.sinks import open_sink
from veil.media.video import FrameTime, VideoInfo


def clips(folder: Path, count: int, frames: int, size: tuple[int, int]) -> None:
    """Smooth pictures that move a little: nothing to do for a codec."""
    folder.mkdir(parents=True)
    height, width = size
    y, x = np.mgrid[0:height, 0:width]
    for number in range(count):
        shades = [(x + 2 * y + 3 * i + number) % 256 for i in range(frames)]
        pixels = np.stack([np.repeat(shade[..., None] // 2, 3, 2) for shade in shades]).astype(np.uint8)
        info = VideoInfo(width, height, Fraction(25), frames, Fraction(1, 25))
        with open_sink(folder / f"{number:04}.mp4", info) as sink:
            sink.write(pixels, [FrameTime(i, 1) for i in range(frames)])


class Timed(NamedTuple):
    """How long a batch took."""

    rate: float  # videos a second, once the workers run
    seconds: float  # from its start to its end
    cpu: float  # processor seconds for each video, once the workers run and until the first of them ends


def used() -> float:
    """Processor seconds of this process and of all below it: workers, and what a cluster is made of."""
    seconds: dict[int, float] = {}
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        process = int(place.parent.name)
        parents[process] = int(fields[1])
        seconds[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # with those of its dead
    ours = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(seconds[process] for process in ours)


def timed(outcomes: Generator[VideoOutcome], total: int, skip: int = 4) -> Timed:
    begun, first, cpu = time.monotonic(), 0.0, 0.0
    for count, outcome in enumerate(outcomes, 1):
        if outcome.state != "done":
            raise SystemExit(f"{outcome.source}: {outcome.why}")
        if count == skip:
            first, cpu = time.monotonic(), -used()
        if count == total - skip:
            cpu += used()
    end = time.monotonic()
    return Timed((total - skip) / (end - first), end - begun, cpu / (total - 2 * skip))


def main() -> None:
    parser = argparse.ArgumentParser(description="How a batch scales.")
    parser.add_argument("--clips", type=int, default=20)
    parser.add_argument("--short", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    costly = BatchOptions(method="blur:kernel=199,sigma=90", region="frame", quality=51)
    cheap = BatchOptions(method="pixelate:block=8", region="frame")
    begun = time.monotonic()
    connect("local", 2)
    start = time.monotonic() - begun
    found: dict[str, list[Timed]] = {"one": [], "two": [], "pool": [], "ray": []}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        clips(root / "costly", given.clips, 12, (240, 320))
        clips(root / "short", given.short, 24, (240, 320))
        for number in range(given.rounds):

            def tasks(kind: str, run: str) -> list[VideoTask]:
                return tasks_of([str(root / kind)], str(root / f"{run}-{number}"))  # noqa: B023 (called at once)

            found["one"].append(timed(run_in_processes(costly, tasks("costly", "one"), 1), given.clips))
            found["two"].append(timed(run_in_processes(costly, tasks("costly", "two"), 2), given.clips))
            found["pool"].append(timed(run_in_processes(cheap, tasks("short", "pool"), 2), given.short))
            found["ray"].append(
                timed(run_in_cluster(cheap, tasks("short", "ray"), "auto", 2, 0), given.short)
            )
            print(
                json.dumps({kind: [round(x, 3) for x in runs[-1]] for kind, runs in found.items()}),
                flush=True,
            )
    rate = {kind: max(run.rate for run in runs) for kind, runs in found.items()}
    whole = {kind: min(run.seconds for run in runs) for kind, runs in found.items()}
    cpu = {kind: min(run.cpu for run in runs) for kind, runs in found.items()}
    turns = [*zip(found["pool"], found["ray"], strict=True)]
    recorded = {
        "two / one": round(rate["two"] / rate["one"], 2),
        "two / one, cpu": round(2 * cpu["one"] / cpu["two"], 2),
        "ray / pool, running": round(rate["pool"] / rate["ray"], 2),
        "ray / pool, running, median": round(median(one.rate / other.rate for one, other in turns), 2),
        "ray / pool, whole": round(whole["ray"] / whole["pool"], 2),
        "ray / pool, whole, median": round(median(other.seconds / one.seconds for one, other in turns), 2),
        "ray / pool, cpu": round(cpu["ray"] / cpu["pool"], 2),
        "start of the cluster, seconds": round(start, 1),
        "clips a second": {kind: round(value, 2) for kind, value in rate.items()},
        "seconds": {kind: round(value, 1) for kind, value in whole.items()},
    }
    print(json.dumps(recorded, indent=1))


if __name__ == "__main__":
    main()
