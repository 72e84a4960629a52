"""Train a small anonymizer on synthetic people, load it from its run, and use it.

    python examples/train_anonymizer.py

The recipe is recipes/prototypes-synthetic.toml, with so few videos and steps that it takes seconds and learns little.
"""

import tempfile
from pathlib import Path

import veil
from veil.apps.demo import sample
from veil.apps.train import train
from veil.core import to_clip

RECIPE = Path(__file__).parents[1] / "recipes" / "prototypes-synthetic.toml"
LESS = ("schedule.steps=8", "data.batch=4", "data.options.count=40")


def show(step: int, steps: int | None, message: str | None = None) -> None:
    """Print the progress; the message holds the losses."""
    print(f"step {step} of {steps}: {message}")


with tempfile.TemporaryDirectory() as folder:
    run = Path(folder, "run")
    weights = train(RECIPE, run, sets=LESS, device="cpu", progress=show)  # `veil train RECIPE -o RUN --set …`
    anonymizer = veil.make(str(run))  # `veil anonymize VIDEO -o SAFE --with RUN`
    clip = to_clip(sample(length=32, size=(96, 72)))[None]  # (1, 3, T, H, W) in [0, 1]
    safe = anonymizer(clip)
    print(f"{weights.name}: a clip {tuple(clip.shape)} became {tuple(safe.shape)}")
    print(f"it has {len(safe.unique())} levels of grey; the original has {len(clip.unique())} levels")
