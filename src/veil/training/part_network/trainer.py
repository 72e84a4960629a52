"""Trains the part network."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import torch

from veil.core import VeilError
from veil.nn.tensor_files import read_tensors, write_tensors
from veil.people.part_network import PartNet
from veil.training.fit import fit
from veil.training.part_network.augmentation import PartAugmentation
from veil.training.part_network.counts import count_pixels
from veil.training.part_network.dataset import read_labelled_images
from veil.training.part_network.losses import part_terms
from veil.training.part_network.recipe import PartRecipe
from veil.training.phase import Phase
from veil.training.schedule import LRSchedule
from veil.training.steps import Setup, Step, Terms


def train_parts(
    folder: Path,
    out: Path,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    recipe: PartRecipe = PartRecipe(),
    net: PartNet | None = None,
    start: Path | None = None,
    device: str = "cuda",
    every: int = 1,
) -> Iterator[dict[str, Any]]:
    """Train, and yield measurements from time to time; ``parts.safetensors`` and ``parts.json`` are left in `out`.

    Give its length in steps, or in seconds: then the speed is measured first. `start` is a file of the encoder's
    weights or of a whole network; of the data, every n-th image is used (n = `every`).
    """
    begin = time.monotonic()
    if (steps is None) == (seconds is None):
        raise VeilError(
            "how long to train is not clear: give either steps or seconds.", code="training-length"
        )
    out.mkdir(parents=True, exist_ok=True)
    data = {name: labelled.to(device) for name, labelled in read_labelled_images(folder, every=every).items()}
    torch.manual_seed(recipe.seed)
    net = net or PartNet()
    if start is not None:
        missing, strange = net.load_state_dict(read_tensors(start)[0], strict=False)
        if strange or any(name.startswith(("stem.", "blocks.")) for name in missing):
            raise VeilError(
                f"{start} does not hold the weights of this encoder: {[*strange, *missing][:3]}.",
                code="weights-of-another-network",
            )
    net = net.to(device)
    augmentation = PartAugmentation(data["train"], recipe)
    bf16 = device.startswith("cuda") and torch.cuda.is_bf16_supported()
    setup = Setup(seed=recipe.seed, precision="bf16" if bf16 else "fp32", clip=5.0)
    yield {
        "images": {name: len(labelled.sources) for name, labelled in data.items()},
        "read_s": time.monotonic() - begin,
    }
    speed = 0.0
    if device.startswith("cuda"):
        torch.backends.cudnn.benchmark = True
        speeds = {
            layout: _speed(net, augmentation, replace(setup, channels_last=layout))
            for layout in (False, True)
        }
        setup = replace(setup, channels_last=speeds[True] > speeds[False])
        speed = max(speeds.values())
        yield {"steps_per_s": {"contiguous": speeds[False], "channels_last": speeds[True]}}
    elif seconds is not None:
        speed = _speed(net, augmentation, setup, repeats=3)
    if steps is None:
        left = seconds - (time.monotonic() - begin)  # type: ignore[operator]
        steps = max(10, int(left * 0.93 * speed))  # the rest is for the validation split
    phase = _phase(net, augmentation, setup, steps)
    evaluate_every, log_every = max(1, steps // 10), max(1, steps // 50)
    history = []
    for measured in fit(phase, islice(repeat(None), steps)):
        if measured.step % evaluate_every == 0 or measured.step == steps:
            latest = copy.deepcopy(net).eval()
            latest.load_state_dict(phase.averaged(net))
            counted = count_pixels(latest, data["val"])["all"]
            thresholds = counted.thresholds()
            record = {
                "step": measured.step,
                "seconds": time.monotonic() - begin,
                "val": counted.summary(thresholds),
            }
            history.append(record)
            metadata = {"net": net.params, "thresholds": thresholds, "val": record["val"]}
            metadata |= {"steps": steps, "recipe": asdict(recipe)}
            if measured.step == steps:
                counts = count_pixels(latest, data["test"])
                metadata["test"] = record["test"] = {
                    name: c.summary(thresholds) for name, c in counts.items()
                }
            write_tensors(latest.state_dict(), out / "parts.safetensors", metadata)
            (out / "parts.json").write_text(json.dumps({**metadata, "history": history}, indent=1))
            yield record
        elif measured.step % log_every == 0:
            terms = {name: round(value.item(), 4) for name, value in measured.terms.items()}
            yield {
                "step": measured.step,
                "of": steps,
                "seconds": time.monotonic() - begin,
                "lr": measured.lr,
                **terms,
            }


def _phase(net: PartNet, augmentation: PartAugmentation, setup: Setup, steps: int) -> Phase[None]:
    recipe = augmentation.recipe

    def loss(_: None) -> Terms:
        # Sampled here, where the generator is set by the number of the step: a step is the same in every process.
        with torch.no_grad(), torch.autocast(augmentation.any.device.type, enabled=False):
            batch = augmentation(recipe.batch)
            images = batch.images
            if setup.channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
        return part_terms(net(images), batch.labels, recipe)

    warmup = min(recipe.warmup, steps // 5)
    setup = replace(
        setup, ema=min(recipe.ema, 1 - 10 / (steps + 10))
    )  # an average of less than the whole training
    schedule = LRSchedule(warmup=warmup, shape="cosine", updates=steps, floor=0.002)
    step = Step("parts", (net,), loss, recipe.lr, weight_decay=recipe.weight_decay, schedule=schedule)
    return Phase([step], setup)


def _speed(net: PartNet, augmentation: PartAugmentation, setup: Setup, repeats: int = 40) -> float:
    """Steps a second, of a copy of the network."""
    wait = torch.cuda.synchronize if augmentation.any.is_cuda else lambda: None
    phase = _phase(copy.deepcopy(net), augmentation, setup, 10_000)
    for _ in range(max(1, repeats // 3)):
        phase.train_step(None)
    wait()
    begin = time.perf_counter()
    for _ in range(repeats):
        phase.train_step(None)
    wait()
    return repeats / (time.perf_counter() - begin)
