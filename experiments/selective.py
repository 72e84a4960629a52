"""Selective obfuscation: whether motion survives it, and what it hides of labelled photographs.

    python -m experiments.selective motion VIDEO... [--seconds 4]     how well flow is found on the noise; a table
    python -m experiments.selective stills DATA                       what is hidden of labelled photographs (test split)

Target: flow three times as near to the original's as with noise that is new in each frame.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import cv2
import numpy as np

from veil.data.synthetic import VideoGenerator
from veil.methods import make
from veil.methods.noise import CarriedNoise, Carry
from veil.nn.flow import Dis, MotionEstimator, Speed, enlarge, inconsistent
from veil.training.part_network.dataset import PEOPLE, read_labelled_images

SIZE = (480, 640)
Array = np.ndarray[Any, Any]


def frames_of(video: Path, length: float, start: float, longest: int = 640) -> Iterator[Array]:
    """Frames ``(H, W, 3)`` of some seconds of a video, the longer side at most `longest` pixels."""
    reading = cv2.VideoCapture(str(video))
    rate = reading.get(cv2.CAP_PROP_FPS) or 25
    first, last = round(start * rate), round((start + length) * rate)
    for number in range(last):
        decoded, frame = reading.read()
        if not decoded:
            return
        if number < first:
            continue
        scale = min(1.0, longest / max(frame.shape[:2]))
        size = round(frame.shape[1] * scale), round(frame.shape[0] * scale)
        yield cv2.cvtColor(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)


def flow_between(before: Array, after: Array, how: Speed) -> tuple[Array, Array]:
    """Forward flow ``(H, W, 2)`` in pixels of the frames, and where ``(H, W)`` going there and back agrees."""
    dis = Dis(how)
    small = dis.prepare(before), dis.prepare(after)
    forward, back = dis.estimate(*small)
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
    truths, motions = [], MotionEstimator(Dis(how))
    cuts = [motion is not None and motion.cut for motion in map(motions.step, frames)]
    for cut, (before, after) in zip(cuts[1:], pairwise(frames), strict=True):
        flow, sure = flow_between(before, after, how)
        y, x = np.nonzero(sure if not cut else np.zeros_like(sure))
        keep = slice(None, None, 7)  # neighbours move alike
        truths.append(Truth(np.stack([x[keep], y[keep]], -1), flow[y[keep], x[keep]]))
    return truths


def joints_of_a_clip(index: int, size: int = 384, length: int = 40) -> tuple[list[Array], list[Truth]]:
    """A synthetic clip, and the motion of each visible joint, by its skeletons."""
    frames, truth = VideoGenerator(0, size, fps=25).render([index], "clips", length=length)
    joints = truth.joints[0, :, truth.present[0]].double().numpy()  # (T, P, POINTS, 2)
    truths = []
    for before, after in pairwise(joints.reshape(length, -1, 2)):
        inside = ((before > 8) & (before < size - 9)).all(-1)
        truths.append(Truth(before[inside], (after - before)[inside]))
    return list(frames[0].numpy()), truths


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

    under, over, frames, truths = sheet(1, 3.0), sheet(2, 2.0), [], []
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
        truths.append(Truth(np.stack([x[at], y[at]], -1), moved[at]))
    return frames, truths[:-1]


class Row:
    """Errors for one video, carry by carry."""

    def __init__(self, name: str):
        self.name = name
        self.carries: tuple[Carry, ...] = get_args(Carry)
        self.errors: dict[str, list[Array]] = {carry: [] for carry in ("original", *self.carries)}
        self.moved: list[Array] = []

    def add(self, frames: list[Array], truth: list[Truth], how: Speed) -> None:
        """Hide whole frames by the noise, look for its flow in each pair, and compare."""
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
        cells = [
            self.name,
            f"{len(ours)}",
            f"{np.median(np.concatenate(self.moved)):.1f}",
            f"{error['original']:.2f}" if original else "–",
            *(f"{error[carry]:.2f}" for carry in self.carries),
            *(f"{error['iid'] / error[carry]:.1f}" for carry in ("recursive", "eq4", "released", "static")),
            f"{error['eq4'] / error['recursive']:.1f}",
            f"{100 * float((theirs >= 3 * ours).mean()):.0f} %",
        ]
        return f"| {' | '.join(cells)} |"


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
        row = Row(f"truth: joints in {clips} clips of the synthetic dataset")
        for index in range(clips):
            row.add(*joints_of_a_clip(index), how)
        print(row.line(original=True), flush=True)
    for video in videos:
        frames = list(frames_of(video, length, start))
        row = Row(video.name)
        row.add(frames, estimated(frames, how), how)
        print(row.line(original=False) if any(map(len, row.moved)) else f"| {video.name} | 0 |", flush=True)


def stills(data: Path, methods: list[str]) -> None:
    shots = read_labelled_images(data, ("test",))["test"]
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
    sub = commands.add_parser("motion")
    sub.add_argument("videos", nargs="*", type=Path)
    sub.add_argument("--seconds", type=float, default=4)
    sub.add_argument("--start", type=float, default=0, help="seconds that are left out first")
    sub.add_argument("--flow", choices=("fast", "medium", "fine"), default="medium")
    sub.add_argument("--clips", type=int, default=8, help="of the synthetic dataset")
    sub = commands.add_parser("stills")
    sub.add_argument("data", type=Path)
    sub.add_argument(
        "--methods", nargs="+", default=["selective", "selective:tiles=1,also=none", "selective:tiles=3"]
    )
    given = parser.parse_args()
    if given.command == "stills":
        stills(given.data, given.methods)
    else:
        motion(given.videos, given.seconds, given.start, given.flow, given.clips)


if __name__ == "__main__":
    main()
