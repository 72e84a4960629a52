"""The cost of a SPLAVU adapter at the paper's sizes: training, and anonymizing a million features.

python bench/splavu.py [--device cuda]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from veil.data import Sample
from veil.features.bank import Bank
from veil.features.splavu import SPLAVU, trained_on
from veil.training import config
from veil.training.fit import fit


def cost(given: argparse.Namespace) -> None:
    """The paper's sizes: 3,570 videos of 768 numbers, batches of 512, 100 epochs; and a million features."""
    videos, dim, batch = 3570, 768, 512
    dice = torch.Generator().manual_seed(0)
    bank = Bank(
        encoder="made",
        fingerprint="0",
        samples=tuple(Sample(str(i), "train", action=i % 51) for i in range(videos)),
        clips=torch.randn(videos, 1, dim, generator=dice),
        counts=torch.ones(videos, dtype=torch.long),
        starts=torch.zeros(videos, 1),
        seconds=torch.ones(videos),
        length=1.0,
        stills=torch.randn(videos, 10, dim, generator=dice),
        actions=tuple(map(str, range(51))),
    )
    steps = 100 * -(-videos // batch)
    device = torch.device(given.device)
    for preset in ("paper", "match"):
        plain = {
            **SPLAVU.PRESETS[preset],
            "action": {"data": "synthetic"},
            "drawing": 0,
            "warming": 0,
            "playing": steps,
        }
        recipe = config.checked({**plain, "pairs": given.pairs}, SPLAVU)
        training = trained_on(recipe, {"action": bank}, device)
        turns = steps if device.type == "cuda" else given.turns
        times, moves = [], []
        begun = time.perf_counter()
        for measured in fit(training.phases, map(training.batch, range(turns))):
            times.append(time.perf_counter() - begun)
            moves.append(measured.step_name)
            begun = time.perf_counter()
        if device.type == "cuda":
            torch.cuda.synchronize()
        hide = [t for t, move in zip(times[2:], moves[2:], strict=True) if move == "hide"]
        total = sum(times) if len(times) == steps else float(np.median(hide)) * steps
        print(
            f"{preset}: {1000 * np.median(hide):.1f} ms a step of the adapter; {steps} steps in {total:.0f} s on {device}"
        )
    adapter = recipe.adapter(dim).to(device).eval().requires_grad_(False)
    adapter.fill({name: value.detach() for name, value in training.weights().items()})
    x = torch.randn(8192, 1, dim, generator=dice).to(device)
    adapter(x)
    begun = time.perf_counter()
    rounds = 122 if device.type == "cuda" else 2
    with torch.no_grad():
        for _ in range(rounds):
            adapter(x)
    if device.type == "cuda":
        torch.cuda.synchronize()
    rate = rounds * len(x) / (time.perf_counter() - begun)
    print(f"anonymizing: {rate:,.0f} features a second; a million in {1e6 / rate:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=12, help="steps that are timed on a processor")
    parser.add_argument("--pairs", type=int, help="videos of a batch that lend static clips; all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    cost(parser.parse_args())


if __name__ == "__main__":
    main()
