"""How long the built-in encoder takes for a clip on this machine.

python bench/encoder.py [--device cuda]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from veil.features.encoders import SHIPPED, load_compact
from veil.features.encoders.frozen import LENGTH


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _named(device: str) -> str:
    return (
        torch.cuda.get_device_name()
        if device.startswith("cuda")
        else f"CPU, {torch.get_num_threads()} threads"
    )


def speed(device: str) -> None:
    encoder = load_compact(SHIPPED, "veil").to(device)
    for count in (1, 32):
        clip = torch.rand(count, 3, LENGTH, 56, 56, device=device)
        times = []
        for _ in range(8):
            begun = time.perf_counter()
            with torch.inference_mode():
                encoder.pooled(clip)
            _wait(device)
            times.append((time.perf_counter() - begun) / count * 1000)
        print(
            f"{count} clips at once: {np.median(times):.2f} ms a clip (least {min(times):.2f}), {_named(device)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    speed(parser.parse_args().device)


if __name__ == "__main__":
    main()
