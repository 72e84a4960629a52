"""Veil against deface on the same files, both as command lines, end to end, on this machine.

    pip install deface
    python bench/faces.py VIDEO... [--rounds 3] [--json FILE]

For each file the two programs run in turn, `--rounds` times, each with its defaults; the ratio of their frame rates
is that of the medians. Of the area that deface hides (its own code on its own detections, threshold 0.2), the share
that Veil hides too comes from the report of the very run that was timed.

Targets on two cores: 3 times deface's frame rate at 1768 x 994, 2 times at 768 x 576, at 99 % of its area.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from veil.media.sources import open_source


def images(video: Path) -> Iterator[np.ndarray]:
    source = open_source(video)
    for window in source.windows():
        yield from window.frames
    source.close()


class Cost(NamedTuple):
    wall: float  # seconds
    cpu: float  # processor seconds of the program and its children


def timed(command: list[str]) -> Cost:
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(time.perf_counter() - begun, used)


def hidden_by_deface(video: Path) -> Iterator[np.ndarray]:
    """For each frame, the pixels that deface changes with its defaults: its own code, on a picture of noise."""
    from deface.centerface import CenterFace  # pyright: ignore[reportMissingImports]
    from deface.deface import anonymize_frame  # pyright: ignore[reportMissingImports]

    find, noise = CenterFace(), None
    for image in images(video):
        if noise is None:
            noise = np.random.default_rng(0).integers(0, 256, image.shape, np.uint8)
        changed = noise.copy()
        found, _ = find(image, threshold=0.2)
        anonymize_frame(found, changed, 1.3, "blur", True, False, None, 20)
        yield (changed != noise).any(-1)


def hidden_by_veil(report: Path, height: int, width: int) -> Iterator[np.ndarray]:
    """For each frame of a report, the pixels inside the ellipses of its regions."""
    for frame in json.loads(report.read_text())["frames"]:
        hidden = np.zeros((height, width), bool)
        for region in frame["regions"]:
            x0, y0, x1, y1 = region["box"]
            rows = slice(*np.clip([int(y0), int(y1) + 1], 0, height))
            cols = slice(*np.clip([int(x0), int(x1) + 1], 0, width))
            y, x = np.mgrid[rows, cols] + 0.5
            down, across = (y - (y0 + y1) / 2) / (y1 - y0) * 2, (x - (x0 + x1) / 2) / (x1 - x0) * 2
            hidden[rows, cols] |= down**2 + across**2 <= 1
        yield hidden


def compare(video: Path, rounds: int) -> dict:
    times: dict[str, list[Cost]] = {"deface": [], "veil": []}
    with tempfile.TemporaryDirectory() as folder:
        out, report = Path(folder) / "out.mp4", Path(folder) / "report.json"
        commands = {
            "deface": [str(Path(sys.executable).with_name("deface")), str(video), "-o", str(out)],
            "veil": [
                sys.executable,
                "-m",
                "veil",
                "anonymize",
                "--method",
                "blacken",
                str(video),
                "-o",
                str(out),
                "--region",
                "face",
            ],
        }
        commands["veil"] += ["--report", str(report)]
        for _ in range(rounds):
            for name, command in commands.items():
                out.unlink(missing_ok=True)
                report.unlink(missing_ok=True)
                times[name].append(timed(command))
        frames = area = both = veil = 0
        first = next(images(video))
        for theirs, ours in zip(
            hidden_by_deface(video), hidden_by_veil(report, *first.shape[:2]), strict=True
        ):
            frames += 1
            area += int(theirs.sum())
            both += int((theirs & ours).sum())
            veil += int(ours.sum())
    walls = {name: statistics.median(cost.wall for cost in costs) for name, costs in times.items()}
    cpus = {name: statistics.median(cost.cpu for cost in costs) for name, costs in times.items()}
    spread = {
        name: [round(frames / pick(cost.wall for cost in costs), 2) for pick in (max, min)]
        for name, costs in times.items()
    }
    return {
        "video": video.name,
        "size": f"{first.shape[1]}x{first.shape[0]}",
        "frames": frames,
        "rounds": rounds,
        "cores": os.cpu_count(),
        "deface_fps": round(frames / walls["deface"], 2),
        "veil_fps": round(frames / walls["veil"], 2),
        "fps_range": spread,
        "ratio": round(walls["deface"] / walls["veil"], 2),
        "cpu_ratio": round(cpus["deface"] / cpus["veil"], 2),
        "deface_area_hidden_too": round(both / max(1, area), 4),
        "area_veil_over_deface": round(veil / max(1, area), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("videos", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for video in arguments.videos:
        rows.append(compare(video, arguments.rounds))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
