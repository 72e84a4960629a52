"""How long the part network takes for a frame on this CPU.

python bench/parts.py [FILE.onnx] [--rounds 40]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from veil.people.parts import SHIPPED, Parts, fitted

FRAMES = ((480, 640), (720, 1280), (1080, 1920), (640, 640))


def speed(weights: Path, rounds: int) -> None:
    parts = Parts(weights)
    for height, width in FRAMES:
        image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
        times: dict[str, list[float]] = {"network": [], "with the map at full size": []}
        for _ in range(rounds):
            for what, spent in times.items():
                start = time.perf_counter()
                _ = parts(image) if what == "network" else parts.maps(image, ["person"])
                spent.append(1000 * (time.perf_counter() - start))
        looked = "×".join(map(str, reversed(fitted(height, width))))
        timings = ", ".join(f"{what} {np.median(t):.1f} ms (least {min(t):.1f})" for what, t in times.items())
        print(f"{width}×{height} seen at {looked}: {timings}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", type=Path, nargs="?", default=SHIPPED)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    speed(given.weights, given.rounds)


if __name__ == "__main__":
    main()
