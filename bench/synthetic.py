"""How fast the synthetic videos are rendered: frames per second at 112 × 112.

python bench/synthetic.py [--device cuda] [--seconds 5]
"""

from __future__ import annotations

import argparse
import time

import torch

from veil.data.synthetic import LENGTHS, VideoGenerator


def rate(device: str, seconds: float) -> None:
    world = VideoGenerator(device=device)
    batch = 16 if device == "cpu" else 1024
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for kind in ("clips", "stills", "gait-alike"):
        videos = batch * LENGTHS["clips"] // LENGTHS[kind]
        world.render(range(videos), kind)
        wait()
        begin, frames, turn = time.perf_counter(), 0, 0
        while time.perf_counter() - begin < seconds:
            turn += 1
            frames += world.render(range(turn * videos, (turn + 1) * videos), kind)[0].shape[:2].numel()
            wait()
        spent = time.perf_counter() - begin
        threads = f", {torch.get_num_threads()} threads" if device == "cpu" else ""
        print(
            f"{kind:12s} {frames / spent:10.0f} frames/s at 112² on {device}{threads} ({frames} frames)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each rate is measured")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    rate(given.device, given.seconds)


if __name__ == "__main__":
    main()
