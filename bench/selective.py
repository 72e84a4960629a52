"""Selective obfuscation: how fast it is beside the paper's setting, and whether motion survives it.

    python bench/selective.py paper [--device cpu|cuda] [--frames N]    milliseconds a frame of the paper's setting
    python bench/selective.py speed VIDEO [--seconds 10]                `veil anonymize`, end to end, and how many times quicker
    python bench/selective.py motion VIDEO... [--seconds 4]             how well flow is found on the noise; a table
    python bench/selective.py stills DATA                               what is hidden of labelled photographs (test split)

The paper's setting is the keys of DINO ViT-S/8 at stride 4, the shorter side at 224 pixels, and the flow of RAFT (large)
by 12 updates, on frames of 640 × 480. Its weights are random here: the time does not depend on them.
Targets: 25 frames a second end to end on two cores and 100 times the paper's setting on the same CPU; the paper's
setting in 10 ms a frame on an H200; flow three times as near to the original's as with noise that is new in each frame.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import cv2
import numpy as np

if TYPE_CHECKING:
    from veil.methods.noise import Carry
    from veil.nn.flow import Raft, Speed
    from veil.people.descriptors import Keys

SIZE = (480, 640)
UPDATES = 12
Array = np.ndarray[Any, Any]


def bare_packages() -> None:
    """As bare packages, veil and veil.nn import nothing else: `paper` also runs on a GPU machine without av or pydantic."""
    source = Path(__file__).resolve().parents[1] / "src" / "veil"
    for name, folder in (("veil", source), ("veil.nn", source / "nn")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]


# Speed


def networks(device: str) -> tuple[Keys, Raft]:
    """The paper's networks, with random weights."""
    import torch
    from torchvision.models.optical_flow import raft_large

    from veil.nn.flow import Raft
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
    told = (
        "of the networks alone / from numpy arrays to numpy arrays"
        if gpu
        else "on the clock / of the processor"
    )
    print(
        f"ViT-S/8 keys, stride 4, 224 px, and RAFT (large), {UPDATES} updates, {SIZE[1]} × {SIZE[0]}, on {device} ({named}); "
        f"random weights, on which the time does not depend. Milliseconds a frame, {told}; target on an H200: 10.\n"
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


# Motion


def frames_of(video: Path, length: float, start: float, longest: int = 640) -> Iterator[Array]:
    """Frames ``(H, W, 3)`` of some seconds of a video, the longer side at most `longest` pixels."""
    reading = cv2.VideoCapture(str(video))
    rate = reading.get(cv2.CAP_PROP_FPS) or 25
    first, last = round(start * rate), round((start + length) * rate)
    for number in range(last):
        there, frame = reading.read()
        if not there:
            return
        if number < first:
            continue
        scale = min(1.0, longest / max(frame.shape[:2]))
        size = round(frame.shape[1] * scale), round(frame.shape[0] * scale)
        yield cv2.cvtColor(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)


def flow_between(before: Array, after: Array, how: Speed) -> tuple[Array, Array]:
    """Forward flow ``(H, W, 2)`` in pixels of the frames, and where ``(H, W)`` going there and back agrees."""
    from veil.nn.flow import Dis, enlarge, inconsistent

    dis = Dis(how)
    small = dis.see(before), dis.see(after)
    forward, back = dis.between(*small)
    size = before.shape[0], before.shape[1]
    scale = np.array([size[1] / small[0].shape[1], size[0] / small[0].shape[0]], np.float32)
    sure = ~inconsistent(forward, back)
    return enlarge(forward * scale, size), cv2.resize(sure.view(np.uint8), size[::-1]).astype(bool)


class Truth:
    """What is known of one step of a video: how far ``(N, 2)`` the pixels at ``(N, 2)`` (x, y) of the first frame move."""

    def __init__(self, at: Array, moved: Array):
        fast = np.linalg.norm(moved, axis=-1) > 1
        self.at, self.moved = at[fast], moved[fast]

    def errors(self, flow: Array) -> Array:
        """End-point errors of a flow ``(H, W, 2)``."""
        x, y = np.rint(self.at).astype(int).T
        return np.linalg.norm(flow[y, x] - self.moved, axis=-1)


def estimated(frames: list[Array], how: Speed) -> list[Truth]:
    """The flow of the video itself for the truth, where going there and back agrees; none where the scene changes."""
    from veil.nn.flow import Dis, Motions

    told, motions = [], Motions(Dis(how))
    cuts = [motion is not None and motion.cut for motion in map(motions.step, frames)]
    for cut, (before, after) in zip(cuts[1:], pairwise(frames), strict=True):
        flow, sure = flow_between(before, after, how)
        y, x = np.nonzero(sure if not cut else np.zeros_like(sure))
        keep = slice(None, None, 7)  # neighbours tell the same
        told.append(Truth(np.stack([x[keep], y[keep]], -1), flow[y[keep], x[keep]]))
    return told


def joints_of_the_world(index: int, size: int = 384, length: int = 40) -> tuple[list[Array], list[Truth]]:
    """A clip of the synthetic world, and the way of each joint that is in the picture, as its skeletons tell."""
    from veil.data.synthetic import World

    frames, truth = World(0, size, fps=25).render([index], "clips", length=length)
    joints = truth.joints[0, :, truth.there[0]].double().numpy()  # (T, P, POINTS, 2)
    told = []
    for before, after in pairwise(joints.reshape(length, -1, 2)):
        inside = ((before > 8) & (before < size - 9)).all(-1)
        told.append(Truth(before[inside], (after - before)[inside]))
    return list(frames[0].numpy()), told


def sheets(length: int = 25) -> tuple[list[Array], list[Truth]]:
    """A textured sheet that moves over another one, both at a constant speed that is known at every pixel."""
    size, far, near, edge = SIZE, np.array([2.3, -0.8]), np.array([-3.1, 1.7]), 120
    y, x = np.mgrid[: size[0], : size[1]]

    def sheet(seed: int, sigma: float) -> Array:
        soft = np.random.default_rng(seed).standard_normal((size[0] + 240, size[1] + 240, 3))
        soft = cv2.GaussianBlur(soft.astype(np.float32), (0, 0), sigma)
        return np.clip(128 + 45 * soft / soft.std(), 0, 255)

    def inside(t: int) -> Array:
        cx, cy = np.array([400, 200]) + near * t
        return (abs(x - cx) < 90) & (abs(y - cy) < 110)

    under, over, frames, told = sheet(1, 3.0), sheet(2, 2.0), [], []
    for t in range(length):
        both = []
        for picture, speed in ((under, far), (over, near)):
            dx, dy = speed * t - edge
            moved = cv2.warpAffine(
                picture, np.array([[1, 0, dx], [0, 1, dy]]), size[::-1], flags=cv2.INTER_CUBIC
            )
            both.append(moved)
        now = inside(t)
        frames.append(np.rint(np.where(now[..., None], both[1], both[0]).clip(0, 255)).astype(np.uint8))
        moved = np.where(now[..., None], near, far)
        tx, ty = x + moved[..., 0], y + moved[..., 1]
        stays = (tx > 2) & (tx < size[1] - 3) & (ty > 2) & (ty < size[0] - 3)
        hidden = (
            ~now & inside(t + 1)[ty.astype(int).clip(0, size[0] - 1), tx.astype(int).clip(0, size[1] - 1)]
        )
        at = (stays & ~hidden) & (x % 5 == 2) & (y % 5 == 2)
        told.append(Truth(np.stack([x[at], y[at]], -1), moved[at]))
    return frames, told[:-1]


class Row:
    """Errors for one video, carry by carry."""

    def __init__(self, name: str):
        from veil.methods.noise import Carry

        self.name = name
        self.carries: tuple[Carry, ...] = get_args(Carry)
        self.errors: dict[str, list[Array]] = {carry: [] for carry in ("original", *self.carries)}
        self.moved: list[Array] = []

    def add(self, frames: list[Array], truth: list[Truth], how: Speed) -> None:
        """Hide whole frames by the noise, look for its flow in each pair, and compare."""
        from veil.methods.noise import CarriedNoise

        self.moved += [np.linalg.norm(step.moved, axis=-1) for step in truth]
        for carry in self.errors:
            noise = None if carry == "original" else CarriedNoise(carry)  # type: ignore[arg-type]
            shown = frames if noise is None else [noise.step(frame) for frame in frames]
            for step, (before, after) in zip(truth, pairwise(shown), strict=True):
                if len(step.at):
                    self.errors[carry].append(step.errors(flow_between(before, after, how)[0]))

    def line(self, *, original: bool) -> str:
        error = {carry: float(np.median(np.concatenate(all_))) for carry, all_ in self.errors.items()}
        ours, theirs = (
            np.array([np.median(pair) for pair in self.errors[carry]]) for carry in ("recursive", "iid")
        )
        told = [
            self.name,
            f"{len(ours)}",
            f"{np.median(np.concatenate(self.moved)):.1f}",
            f"{error['original']:.2f}" if original else "–",
            *(f"{error[carry]:.2f}" for carry in self.carries),
            *(f"{error['iid'] / error[carry]:.1f}" for carry in ("recursive", "eq4", "released", "static")),
            f"{error['eq4'] / error['recursive']:.1f}",
            f"{100 * float((theirs >= 3 * ours).mean()):.0f} %",
        ]
        return f"| {' | '.join(told)} |"


def motion(videos: list[Path], length: float, start: float, how: Speed, clips: int) -> None:
    row = Row("")
    print(
        "Whole frames are replaced by noise. Median end-point error in pixels of the flow found on the noise (DIS, "
        f"{how}) against that of the original, or against the truth where it is known, at places that move by more than "
        "a pixel; all pairs of frames that have such places.\n"
    )
    heads = ["video", "pairs", "motion, px", "original", *row.carries]
    heads += [f"iid / {carry}" for carry in ("recursive", "eq4", "released", "static")]
    heads += ["eq4 / recursive", "pairs with iid ≥ 3 × recursive"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    row = Row("truth: sheets")
    row.add(*sheets(), how)
    print(row.line(original=True), flush=True)
    if clips:
        row = Row(f"truth: joints in {clips} clips of the synthetic world")
        for index in range(clips):
            row.add(*joints_of_the_world(index), how)
        print(row.line(original=True), flush=True)
    for video in videos:
        frames = list(frames_of(video, length, start))
        row = Row(video.name)
        row.add(frames, estimated(frames, how), how)
        print(row.line(original=False) if any(map(len, row.moved)) else f"| {video.name} | 0 |", flush=True)


def stills(data: Path, methods: list[str]) -> None:
    from veil.methods import make
    from veil.people.part_network import PEOPLE, read_parts

    shots = read_parts(data, ("test",))["test"]
    print("Share of the labelled pixels that is hidden, over all photographs of the test split.\n")
    print(f"| method ({len(shots.sources)} photographs) | people | faces | background |\n|---|---|---|---|")
    for method in methods:
        anonymizer, hidden, there = make(method), np.zeros(3), np.zeros(3)
        for index in range(len(shots.sources)):
            height, width = shots.sizes[index].tolist()
            image = np.ascontiguousarray(shots.images[index, :, :height, :width].permute(1, 2, 0).numpy())
            labels = shots.labels[index, :height, :width].numpy()
            (out,) = (part.frames[0] for part in anonymizer.stream([image[None]]))
            changed = (out != image).any(-1)
            for kind, chosen in enumerate((np.isin(labels, PEOPLE), labels == 2, labels == 0)):
                hidden[kind] += changed[chosen].sum()
                there[kind] += chosen.sum()
        print(f"| `{method}` | {' | '.join(f'{share:.3f}' for share in hidden / there)} |", flush=True)


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
    sub = commands.add_parser("motion")
    sub.add_argument("videos", nargs="*", type=Path)
    sub.add_argument("--seconds", type=float, default=4)
    sub.add_argument("--start", type=float, default=0, help="seconds that are left out first")
    sub.add_argument("--flow", choices=("fast", "medium", "fine"), default="medium")
    sub.add_argument("--clips", type=int, default=8, help="of the synthetic world")
    sub = commands.add_parser("stills")
    sub.add_argument("data", type=Path)
    sub.add_argument(
        "--methods", nargs="+", default=["selective", "selective:tiles=1,also=none", "selective:tiles=3"]
    )
    given = parser.parse_args()
    if given.command == "paper":
        bare_packages()
        paper(given.device, given.frames)
    elif given.command == "speed":
        speed(given.video, given.seconds, given.method, given.rounds)
    elif given.command == "stills":
        stills(given.data, given.methods)
    else:
        motion(given.videos, given.seconds, given.start, given.flow, given.clips)


if __name__ == "__main__":
    main()
