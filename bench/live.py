"""Live: how late the picture is and how many frames a second are shown; and how soon an exported model has begun.

    python bench/live.py delay [--seconds 8] [--size 640x480] [METHOD…]
    python bench/live.py start [--runs 5]

`delay` shows a looped video at its own 30 frames a second, as from a camera, and prints milliseconds from the moment a frame came in
to the moment it was shown, and the processor's milliseconds for a frame, decoding included. `start` is the whole of `veil anonymize --with model.onnx` for a video of one frame, from the shell
until the file is there, beside what Python and Veil need before any model is read; the goal is two seconds. On a machine that has other
work, compare the processor time.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

from veil.apps.demo import sample
from veil.apps.live.run import live
from veil.core import Frames
from veil.media.sinks import open_sink
from veil.media.video import FrameTime, VideoInfo
from veil.methods import make

METHODS = ["downsample", "pixelate:region=frame", "blacken", "selective", "prototypes"]


class NullSink:
    """A sink that shows nothing, so that the rest is measured."""

    def show(self, frame: Frames, tick: int, *, placeholder: bool) -> bool:
        return True

    def poll(self) -> bool:
        return True

    def describe(self) -> str:
        return ""

    def close(self) -> None:
        pass


def video(path: Path, size: tuple[int, int], length: int = 90) -> Path:
    info = VideoInfo(*size, fps=Fraction(30), time_base=Fraction(1, 30))
    with open_sink(path, info) as sink:
        sink.write(sample(length, size), [FrameTime(i, 1) for i in range(length)])
    return path


def delay(methods: list[str], size: tuple[int, int], seconds: float) -> None:
    print(
        f"| method at {size[0]}×{size[1]} | looks ahead | late, median | 95 % | shown a second | dropped | processor, a frame |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        source = video(Path(folder) / "in.mp4", size)
        for name in methods:
            method = make(name)
            list(method.stream([sample(2, size)]))  # weights are read before the clock runs
            before = time.process_time()
            found = live(str(source), [NullSink()], method, loop=True, seconds=seconds)
            work = 1000 * (time.process_time() - before) / max(1, found.captured - found.dropped)
            middle, most = found.delay
            print(
                f"| {Path(name).name} | {1000 * (method.ahead() or 0) / 30:.0f} ms | {middle:.0f} ms | {most:.0f} ms "
                f"| {found.shown / found.seconds:.1f} | {found.dropped + found.late} of {found.captured} | {work:.0f} ms |",
                flush=True,
            )


def start(runs: int) -> None:
    from veil.apps.export.write import export

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = video(folder / "in.mp4", (640, 480), 1)
        export("prototypes", folder / "model.onnx")
        export("prototypes", folder / "int8.onnx", int8=True)
        veil = [sys.executable, "-m", "veil"]
        anonymize = [*veil, "anonymize", str(source), "--overwrite", "-o", str(folder / "out.mp4"), "--with"]
        commands = {
            "veil --version": [*veil, "--version"],
            "--with model.onnx": [*anonymize, str(folder / "model.onnx")],
            "--with int8.onnx": [*anonymize, str(folder / "int8.onnx")],
        }
        for name, command in commands.items():
            took, work = [], []
            for _ in range(runs):
                before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                took.append(time.perf_counter() - begun)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                work.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            print(
                f"{name:20} {statistics.median(took):.2f} s in the median, {max(took):.2f} s at most; "
                f"{statistics.median(work):.2f} s of processor time",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    late = verbs.add_parser("delay")
    late.add_argument("methods", nargs="*")
    late.add_argument("--seconds", type=float, default=8)
    late.add_argument("--size", default="640x480")
    verbs.add_parser("start").add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    if given.verb == "start":
        start(given.runs)
    else:
        width, height = map(int, given.size.split("x"))
        delay(given.methods or METHODS, (width, height), given.seconds)


if __name__ == "__main__":
    main()
