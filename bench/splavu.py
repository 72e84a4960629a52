"""The cost of the network adapters (splavu, matching) at the paper's sizes: training, and anonymizing a million features.

python bench/splavu.py [--device cuda]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from veil.data import Sample
from veil.features import matching, splavu
from veil.features.bank import Bank
from veil.training import config
from veil.training.fit import fit


def cost(given: argparse.Namespace) -> None:
    """The paper's sizes: 3,570 videos of 768 numbers, batches of 512, 100 epochs; and a million features."""
    videos, dim, batch = 3570, 768, 512
    rng = torch.Generator().manual_seed(0)
    bank = Bank(
        encoder="made",
        fingerprint="0",
        samples=tuple(Sample(str(i), "train", action=i % 51) for i in range(videos)),
        clips=torch.randn(videos, 1, dim, generator=rng),
        counts=torch.ones(videos, dtype=torch.long),
        starts=torch.zeros(videos, 1),
        seconds=torch.ones(videos),
        length=1.0,
        stills=torch.randn(videos, 10, dim, generator=rng),
        actions=tuple(map(str, range(51))),
    )
    steps = 100 * -(-videos // batch)
    device = torch.device(given.device)
    methods = {
        "splavu": (splavu.SPLAVURecipe, splavu.train_on, {"reconstruction_steps": 0}),
        "matching": (matching.MatchingRecipe, matching.train_on, {}),
    }
    adapter = None
    for name, (kind, train_on, more) in methods.items():
        recipe = config.checked(
            {
                "data": {"name": "synthetic", "static_batch": given.static_batch},
                "schedule": {"warmup_steps": 0, "adversarial_steps": steps, **more},
            },
            kind,
        )
        training = train_on(recipe, {"action": bank}, device)
        timed = steps if device.type == "cuda" else given.steps
        times, names = [], []
        begun = time.perf_counter()
        for measured in fit(training.phases, map(training.batch, range(timed))):
            times.append(time.perf_counter() - begun)
            names.append(measured.step_name)
            begun = time.perf_counter()
        if device.type == "cuda":
            torch.cuda.synchronize()
        of_adapter = [t for t, step in zip(times[2:], names[2:], strict=True) if step == "anonymize"]
        total = sum(times) if len(times) == steps else float(np.median(of_adapter)) * steps
        print(
            f"{name}: {1000 * np.median(of_adapter):.1f} ms a step of the adapter; {steps} steps in {total:.0f} s on {device}"
        )
        adapter = recipe.adapter(dim).to(device).eval().requires_grad_(False)
        adapter.load_weights({name: value.detach() for name, value in training.weights().items()})
    assert adapter is not None
    x = torch.randn(8192, 1, dim, generator=rng).to(device)
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
    parser.add_argument("--steps", type=int, default=12, help="steps that are timed on a CPU")
    parser.add_argument(
        "--static-batch", type=int, help="videos of a batch whose static clips are used [all]"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    cost(parser.parse_args())


if __name__ == "__main__":
    main()
