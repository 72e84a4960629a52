"""Train the encoder that comes with Veil, and export it.

    python -m tools.encoder -o OUT [--seconds 120]     on a GPU; OUT/encoder.safetensors and OUT/encoder.json

Renders the videos of recipes/encoder.toml on the device, measures how long a step takes, takes as many steps as fit into the
seconds, and measures the result as `experiments.encoder` does. `--tiny` does all of it small, to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import torch

from experiments.encoder import measure
from veil.apps.train import train as train_run
from veil.features.encoder_training import EncoderRecipe, export
from veil.features.encoders import load_compact
from veil.training import config

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "encoder.toml"
TINY = (
    "data.identities=16", "data.clips=32", "data.untrimmed=2", "data.surveillance=4", "data.gait=16",
    "data.gait_alike=16", "data.stills=16", "data.held_out=16", "data.batch=16", "data.max_frames=48",
)  # fmt: skip


def step_seconds(recipe: EncoderRecipe, device: str, steps: int) -> float:
    """How long a step takes, once it runs evenly."""
    training, begun = recipe.training(torch.device(device), 1), 0.0
    for number in range(steps):
        if number == steps // 3:
            _wait(device)
            begun = time.perf_counter()
        training.phases.train_step(training.batch(number))
    _wait(device)
    return (time.perf_counter() - begun) / (steps - steps // 3)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def train(given: argparse.Namespace) -> None:
    device = given.device
    given.out.mkdir(parents=True, exist_ok=True)
    sets = (*given.set, *(TINY if given.tiny else ()))
    torch.backends.cudnn.benchmark = True  # every batch has the same shape
    begun = time.perf_counter()
    recipe = config.read(RECIPE, EncoderRecipe, sets)
    videos = recipe.data.pools(torch.device(device)), recipe.data.pools(torch.device(device), held_out=True)
    _wait(device)
    frames = sum(pool.frames.shape[0] * pool.frames.shape[1] for pools in videos for pool in pools.values())
    painting = time.perf_counter() - begun
    print(f"{frames:,} frames painted in {painting:.1f} s, {frames / painting:,.0f} a second", flush=True)
    each = step_seconds(recipe, device, 6 if given.tiny else 45)
    left = given.seconds - (time.perf_counter() - begun)
    # Checks and checkpoints take their part.
    steps = 4 if given.tiny else max(200, int(0.92 * left / each) // 50 * 50)
    print(f"{each * 1000:.1f} ms a step: {steps} steps", flush=True)
    started = time.perf_counter()

    def progress(step: int, total: int | None, message: str | None = None) -> None:
        print(f"{step}/{total} {time.perf_counter() - started:.0f} s  {message}", flush=True)

    output = given.out / "encoder.safetensors"
    with tempfile.TemporaryDirectory() as folder:  # checkpoints are of no use afterwards
        run = Path(folder) / "run"
        weights = train_run(
            RECIPE,
            run,
            sets=(*sets, f"schedule.steps={steps}"),
            device=device,
            progress=progress,
            every=max(2, steps // 10),
        )
        seconds = time.perf_counter() - started
        export(weights, output, steps=steps)
        shutil.copy(run / "log.jsonl", given.out / "log.jsonl")
    training = {"steps": steps, "seconds": round(seconds), "device": _named(device)}
    record = {
        **training, "painting": round(painting, 1), "frames": frames, "step_ms": round(each * 1000, 1),
        "bytes": output.stat().st_size, "recipe": config.as_dict(config.read(RECIPE, EncoderRecipe, (*sets, f"schedule.steps={steps}"))),
    }  # fmt: skip
    place = given.out / "encoder.json"
    place.write_text(json.dumps(record, indent=1))  # written first, in case the rest fails
    record |= measure(
        load_compact(output, "veil"),
        device,
        0.02 if given.tiny else given.scale,
        56 if given.tiny else given.size,
    )
    place.write_text(json.dumps(record, indent=1))
    print(f"{output}: {output.stat().st_size / 1e6:.2f} MB, {time.perf_counter() - begun:.0f} s in all")


def _named(device: str) -> str:
    return (
        torch.cuda.get_device_name()
        if device.startswith("cuda")
        else f"CPU, {torch.get_num_threads()} threads"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the videos that are measured on")
    parser.add_argument("--size", type=int, default=112, help="pixels at which those are rendered")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
