"""What the features of an encoder contain: the table of docs/encoder.md.

    python -m experiments.encoder [--weights FILE] [-o FILE]     the encoder in the package, or another

Measured is on world 0, whose people the encoder has never seen: linear probes on its frozen features, against those of
the same network untrained, against the pixels themselves, and against chance.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from veil.data import synthetic
from veil.data.synthetic import LENGTHS, Kind, VideoGenerator
from veil.features.encoder_training import NOTHING
from veil.features.encoders import SHIPPED, load_compact
from veil.features.encoders.convolutional import Compact
from veil.features.encoders.frozen import LENGTH, FrozenEncoder, center_square
from veil.metrics import class_mean_average_precision, frame_auc, rank1

COUNTS: dict[Kind, int] = {
    "clips": 1920, "stills": 2000, "gait": 1600, "gait-alike": 1600, "untrimmed": 80, "surveillance": 80
}  # fmt: skip
Sees = Callable[[Tensor], Tensor]  # clips (B, 3, 16, H, W) in [0, 1] to features (B, D)


class ClipFeatures(NamedTuple):
    """Features of all clips of some videos, and what is true of each."""

    features: Tensor  # (V, N, D)
    labels: Tensor  # (V, N, 16) what happens in each frame
    samples: list[Any]  # V of synthetic.read's
    attributes: Tensor  # (V, A)

    def part(self, name: str) -> np.ndarray:
        return np.array([sample.split == name for sample in self.samples])


def tables(sees: dict[str, Sees], kind: Kind, count: int, device: str, size: int) -> dict[str, ClipFeatures]:
    """What each encoder makes of the first `count` videos of a kind of world 0."""
    dataset = synthetic.read(kind=kind, count=count, size=size)
    generator = VideoGenerator(0, size, device=device)
    found: dict[str, list[Tensor]] = {name: [] for name in sees}
    labels, attributes = [], []
    step = max(1, 2048 // LENGTHS[kind])
    for begin in range(0, count, step):
        frames, truth = generator.render(range(begin, min(count, begin + step)), kind)
        actions = truth.labels.where(truth.labels >= 0, torch.tensor(NOTHING, device=frames.device))
        if frames.shape[1] < LENGTH:  # a still is a clip that stands still
            frames = frames[:, :1].expand(-1, LENGTH, -1, -1, -1)
            actions = actions[:, :1].expand(-1, LENGTH)
        many = frames.shape[1] // LENGTH
        clips = frames[:, : many * LENGTH].unflatten(1, (many, LENGTH)).flatten(0, 1)
        labels.append(actions[:, : many * LENGTH].unflatten(1, (many, LENGTH)).cpu())
        attributes.append(truth.attributes.cpu())
        for part in clips.split(128):
            clip = part.permute(0, 4, 1, 2, 3).float() / 255
            for name, see in sees.items():
                found[name].append(see(clip).float().cpu())
    shape = (count, -1)
    return {
        name: ClipFeatures(
            torch.cat(parts).unflatten(0, shape),
            torch.cat(labels),
            list(dataset.samples),
            torch.cat(attributes),
        )
        for name, parts in found.items()
    }


def probed(x: Tensor, right: Tensor, part: dict[str, np.ndarray], device: str) -> tuple[Tensor, Tensor]:
    """A linear probe: fitted on train, its decay chosen on val; its logits on test, and the labels there."""
    mean, std = x[part["train"]].mean(0), x[part["train"]].std(0) + 1e-4
    x, right = ((x - mean) / std).clamp(-8, 8).to(device), right.to(device)
    several = right.ndim == 2
    outputs = right.shape[1] if several else int(right.max()) + 1
    loss = F.binary_cross_entropy_with_logits if several else F.cross_entropy
    rows = {name: torch.from_numpy(mine).to(device) for name, mine in part.items()}
    best, answer = -np.inf, torch.zeros(0)
    for decay in (1e-4, 1e-3, 1e-2, 1e-1):
        weight = torch.zeros(x.shape[1], outputs, device=device, requires_grad=True)
        bias = torch.zeros(outputs, device=device, requires_grad=True)
        solver = torch.optim.LBFGS(
            [weight, bias], max_iter=60, history_size=10, line_search_fn="strong_wolfe"
        )

        def closure(
            solver: Any = solver, weight: Tensor = weight, bias: Tensor = bias, decay: float = decay
        ) -> Tensor:
            solver.zero_grad()
            value = (
                loss(x[rows["train"]] @ weight + bias, right[rows["train"]])
                + decay * weight.square().sum() / 2
            )
            value.backward()
            return value

        solver.step(closure)
        with torch.no_grad():
            logits = x @ weight + bias
            value = -float(loss(logits[rows["val"]], right[rows["val"]]))
        if value > best:
            best, answer = value, logits[rows["test"]].detach().cpu()
    return answer, right[rows["test"]].cpu()


def parts(table: ClipFeatures) -> dict[str, np.ndarray]:
    return {name: table.part(name) for name in ("train", "val", "test")}


def top1(table: ClipFeatures, right: Tensor, device: str) -> dict[str, float]:
    answer, truth = probed(table.features.mean(1), right, parts(table), device)
    chance = float(truth.bincount().max() / len(truth))
    return {
        "value": round(float((answer.argmax(1) == truth).float().mean()), 4),
        "chance": round(chance, 4),
        "n": len(truth),
    }


def cmap(table: ClipFeatures, device: str) -> dict[str, float]:
    answer, truth = probed(table.features.mean(1), table.attributes, parts(table), device)
    score = class_mean_average_precision(answer.double().numpy(), truth.numpy())
    return {"value": round(score.value, 4), "chance": round(score.chance or 0, 4), "n": score.n}


def walks(table: ClipFeatures) -> dict[str, float]:
    """Whose walk it is: the nearest of the gallery that is seen from another side."""
    x = F.normalize(table.features.mean(1) - table.features.mean((0, 1)), dim=1).double().numpy()
    role = np.array([sample.groups["role"] for sample in table.samples])
    view = np.array([sample.groups["view"] for sample in table.samples])
    identity = np.array([sample.identity for sample in table.samples])
    probe, shelf = role == "probe", role == "gallery"
    score = rank1(x[probe], identity[probe], x[shelf], identity[shelf], views=(view[probe], view[shelf]))
    return {"value": round(score.value, 4), "chance": round(score.chance or 0, 4), "n": score.n}


def each_clip(table: ClipFeatures) -> tuple[Tensor, dict[str, np.ndarray]]:
    many = table.features.shape[1]
    return table.features.flatten(0, 1), {name: mine.repeat(many) for name, mine in parts(table).items()}


def anomalies(table: ClipFeatures, device: str) -> dict[str, float]:
    """Whether a fall, a fight or a run is seen in a clip; trained with a label for each clip."""
    x, part = each_clip(table)
    right = (table.labels > 0).float().mean(2).flatten() >= 0.25
    answer, truth = probed(x, right.float()[:, None], part, device)
    score = frame_auc(answer[:, 0].double().numpy(), truth[:, 0].numpy() > 0.5)
    return {"value": round(score.value, 4), "chance": 0.5, "n": score.n}


def moments(table: ClipFeatures, device: str) -> dict[str, float]:
    """What goes on, or nothing, in each clip of untrimmed videos."""
    x, part = each_clip(table)
    right = table.labels.flatten(0, 1).mode(1).values
    answer, truth = probed(x, right, part, device)
    chance = float(truth.bincount().max() / len(truth))
    return {
        "value": round(float((answer.argmax(1) == truth).float().mean()), 4),
        "chance": round(chance, 4),
        "n": len(truth),
    }


def measured(
    sees: dict[str, Sees], device: str, counts: dict[Kind, int], size: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each question, and how well it is answered from the features of each encoder."""
    known = tables(sees, "clips", counts["clips"], device, size)

    def of(name: str) -> Tensor:
        samples = known[name].samples
        return torch.tensor([sample.groups["gender"] == "female" for sample in samples]).long()

    yield (
        "action top-1",
        {n: top1(t, torch.tensor([s.action for s in t.samples]), device) for n, t in known.items()},
    )
    yield (
        "identity top-1",
        {n: top1(t, torch.tensor([s.identity for s in t.samples]), device) for n, t in known.items()},
    )
    yield "gender top-1", {n: top1(t, of(n), device) for n, t in known.items()}
    yield "attributes cMAP", {n: cmap(t, device) for n, t in known.items()}
    known = tables(sees, "stills", counts["stills"], device, size)
    yield "attributes of stills cMAP", {n: cmap(t, device) for n, t in known.items()}
    gaits: tuple[tuple[Kind, str], ...] = (
        ("gait", "gait rank-1"),
        ("gait-alike", "gait rank-1, all look alike"),
    )
    for kind, name in gaits:
        yield name, {n: walks(t) for n, t in tables(sees, kind, counts[kind], device, size).items()}
    known = tables(sees, "untrimmed", counts["untrimmed"], device, size)
    yield "moments top-1", {n: moments(t, device) for n, t in known.items()}
    known = tables(sees, "surveillance", counts["surveillance"], device, size)
    yield "anomalies AUC", {n: anomalies(t, device) for n, t in known.items()}


def pixels(clip: Tensor) -> Tensor:
    """A clip itself, at 4 frames of 14²."""
    return F.adaptive_avg_pool3d(center_square(clip, 56), (4, 14, 14)).flatten(1)


def look(encoder: FrozenEncoder) -> Sees:
    def see(clip: Tensor) -> Tensor:
        with torch.inference_mode():
            return encoder.pooled(clip).clone()

    return see


def measure(encoder: FrozenEncoder, device: str, scale: float, size: int) -> dict[str, Any]:
    torch.manual_seed(0)
    fresh = FrozenEncoder("untrained", Compact(), size=encoder.size, length=encoder.length).to(device)
    sees: dict[str, Sees] = {"encoder": look(encoder.to(device)), "untrained": look(fresh), "pixels": pixels}
    # Whole blocks of actions and of walks, so that every split and every identity is there.
    least = {"clips": 240, "gait": 320, "gait-alike": 320}
    counts: dict[Kind, int] = {
        kind: max(least.get(kind, 20), int(count * scale) // least.get(kind, 20) * least.get(kind, 20))
        for kind, count in COUNTS.items()
    }
    found: dict[str, Any] = {}
    for name, numbers in measured(sees, device, counts, size):
        found[name] = numbers
        values = "  ".join(f"{source} {one['value']:.3f}" for source, one in numbers.items())
        one = next(iter(numbers.values()))
        print(f"{name:28s} {values}  chance {one['chance']:.3f}  n {one['n']}", flush=True)
    return {"fingerprint": encoder.fingerprint, "world": 0, "size": size, "videos": counts, "found": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the videos that are measured on")
    parser.add_argument("--size", type=int, default=112, help="pixels at which those are rendered")
    parser.add_argument("-o", "--out", type=Path, help="a JSON file")
    given = parser.parse_args()
    found = measure(load_compact(given.weights, "veil"), given.device, given.scale, given.size)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
