"""Selective obfuscation: how fast it is beside the paper's setting.

    python bench/selective.py paper [--device cpu|cuda] [--frames N]    milliseconds a frame of the paper's setting
    python bench/selective.py speed VIDEO [--seconds 10]                `veil anonymize`, end to end, and how many times quicker

The paper's setting is the keys of DINO ViT-S/8 at stride 4, the shorter side at 224 pixels, and the flow of RAFT (large)
by 12 updates, on frames of 640 × 480. Its weights are random here: the time does not depend on them.
Targets: 25 frames a second end to end on two cores and 100 times the paper's setting on the same CPU; the paper's
setting in 10 ms a frame on an H200.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np

if TYPE_CHECKING:
    from veil.nn.raft import Raft
    from veil.people.descriptors import Keys

SIZE = (480, 640)
UPDATES = 12


def networks(device: str) -> tuple[Keys, Raft]:
    """The paper's networks, with random weights."""
    import torch
    from torchvision.models.optical_flow import raft_large

    from veil.nn.raft import Raft
    from veil.people.descriptors import Keys, _transformer

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        keys, flow = Path(folder) / "keys.pth", Path(folder) / "raft.pth"
        torch.save(_transformer("dino-s8").state_dict(), keys)
        torch.save(raft_large(weights=None).state_dict(), flow)
        return Keys("dino-s8", keys, 4, 224, device), Raft(flow, device, longest=max(SIZE), updates=UPDATES)


class Spent(NamedTuple):
    """What a frame takes: seconds on the clock and, which other programs disturb less, of the processor."""

    clock: float
    processor: float


def spent(work: Callable[[], object], rounds: int, frames: int, device: str = "cpu", warm: int = 1) -> Spent:
    """The median of some calls, after a few to warm up; on a GPU until it is done."""
    import torch

    taken = []
    for _ in range(warm + rounds):
        begun, busy = time.perf_counter(), time.process_time()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        taken.append((time.perf_counter() - begun, time.process_time() - busy))
    clock, processor = np.median(taken[warm:], axis=0) / frames
    return Spent(float(clock), float(processor))


class Paper:
    """The paper's networks, and as many frames at once as there are in a batch."""

    def __init__(self, device: str, batch: int = 1):
        self.keys, self.raft = networks(device)
        self.frames = np.random.default_rng(0).integers(0, 256, (batch + 1, *SIZE, 3), np.uint8)
        self.small, self.pictures = self.keys.tensor(self.frames[1:]), self.raft.tensor(self.frames)

    def alone(self, part: str, *, back: bool) -> None:
        """The networks alone: ``keys``, ``flow`` or ``both``."""
        if part != "flow":
            self.keys.vectors(self.small)
        if part != "keys":
            self.raft.flows(self.pictures, back=back)

    def whole(self, part: str, *, back: bool) -> None:
        """From arrays to arrays."""
        if part != "flow":
            self.keys.many(self.frames[1:])
        if part != "keys":
            self.raft.flows(self.raft.tensor(self.frames), back=back).cpu().numpy()


def paper(device: str, rounds: int) -> None:
    import torch

    gpu = device.startswith("cuda")
    named = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} threads"
    columns = (
        "of the networks alone / from numpy arrays to numpy arrays"
        if gpu
        else "on the clock / of the processor"
    )
    print(
        f"ViT-S/8 keys, stride 4, 224 px, and RAFT (large), {UPDATES} updates, {SIZE[1]} × {SIZE[0]}, on {device} ({named}); "
        f"random weights, on which the time does not depend. Milliseconds a frame, {columns}; target on an H200: 10.\n"
    )
    print("| at once | flow | keys | flow | both |\n|---|---|---|---|---|", flush=True)
    for batch in (1, 8) if gpu else (1,):
        setting = Paper(device, batch)
        for back in (False, True):
            cells = []
            for part in ("keys", "flow", "both"):
                warm = 5 if gpu else 1
                two = spent(partial(setting.alone, part, back=back), rounds, batch, device, warm)
                if gpu:
                    array = spent(partial(setting.whole, part, back=back), rounds, batch, device, warm)
                    two = Spent(two.clock, array.clock)
                cells.append(f"{1000 * two[0]:.1f} / {1000 * two[1]:.1f}")
            print(f"| {batch} | {'both ways' if back else 'one way'} | {' | '.join(cells)} |", flush=True)


def rescaled(video: Path, out: Path, length: float) -> tuple[int, float]:
    """The beginning of a video at 640 × 480, and how many frames it has at how many a second."""
    import av

    count = 0
    with av.open(str(video)) as reading, av.open(str(out), "w") as writing:
        source = reading.streams.video[0]
        rate = source.average_rate or 25
        stream = writing.add_stream("libx264", rate=rate, options={"preset": "veryfast", "crf": "18"})
        stream.width, stream.height, stream.pix_fmt = SIZE[1], SIZE[0], "yuv420p"
        for frame in reading.decode(source):
            if count >= length * rate:
                break
            small = cv2.resize(frame.to_ndarray(format="rgb24"), SIZE[::-1], interpolation=cv2.INTER_AREA)
            writing.mux(stream.encode(av.VideoFrame.from_ndarray(small.astype(np.uint8), format="rgb24")))
            count += 1
        writing.mux(stream.encode(None))
    return count, float(rate)


def speed(video: Path, length: float, method: str, rounds: int) -> None:
    from veil.apps.pipeline import anonymize_video

    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "source.mp4", Path(folder) / "out.mp4"
        count, rate = rescaled(video, source, length)
        ours = spent(lambda: anonymize_video(source, out, method, overwrite=True), rounds, count, warm=0)
    setting = Paper("cpu")
    there = spent(lambda: setting.alone("both", back=False), 1, 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(
        f"{video.name}, {count} frames of {SIZE[1]} × {SIZE[0]} at {rate:.4g} a second, {cores} cores, decode to encode, "
        f"the median of {rounds}; the paper's setting with flow one way.\n"
    )
    print("| | frames/s | ms a frame | processor ms a frame | times the paper's setting, by processor |")
    print("|---|---|---|---|---|")
    for name, took in ((f"`{method}`", ours), ("the paper's setting", there)):
        rate, times = 1 / took.clock, there.clock / took.clock
        busy = there.processor / took.processor
        print(
            f"| {name} | {rate:.2f} | {1000 * took.clock:.1f} | {1000 * took.processor:.1f} | {times:.0f}, {busy:.0f} |"
        )
    print("| target | 25 | 40 | | 100 |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("paper")
    sub.add_argument("--device", default="cpu")
    sub.add_argument("--frames", type=int, default=3, help="how many times each part is timed")
    sub = commands.add_parser("speed")
    sub.add_argument("video", type=Path)
    sub.add_argument("--seconds", type=float, default=10)
    sub.add_argument("--method", default="selective")
    sub.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.command == "paper":
        paper(given.device, given.frames)
    else:
        speed(given.video, given.seconds, given.method, given.rounds)


if __name__ == "__main__":
    main()
