"""What the part network finds, counted in pixels, and the thresholds that are chosen by it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from veil.people.part_network import PartNet
from veil.people.parts import GROUPS, PARTS, SIZE
from veil.training.part_network.augmentation import place, upright
from veil.training.part_network.dataset import ANY, IGNORE, PEOPLE, LabelledImages

BINS = 100  # thresholds that are distinguished
# At the threshold of a group, as many of its own pixels are found on the validation split.
RECALLS = {"hair": 0.95, "face": 0.99, "skin": 0.93, "clothes": 0.96, "body": 0.975, "person": 0.98}


class PixelCounts:
    """Pixels counted by label and by what the network predicted."""

    def __init__(self) -> None:
        self.levels = {name: torch.zeros(ANY + 1, BINS, dtype=torch.long) for name in GROUPS}
        self.answers = torch.zeros(ANY + 1, len(PARTS), dtype=torch.long)

    def add(self, probabilities: Tensor, labels: Tensor) -> None:
        """Count probabilities ``(B, 8, H, W)`` and labels ``(B, H, W)`` of some images."""
        rows = torch.where(labels == IGNORE, ANY + 1, labels.long())

        def counted(columns: Tensor, width: int) -> Tensor:
            flat = torch.bincount((rows * width + columns).flatten(), minlength=(ANY + 2) * width)
            return flat.view(ANY + 2, width)[: ANY + 1].cpu()

        for name, group in GROUPS.items():
            level = (probabilities[:, list(group)].sum(1) * BINS).long().clamp(0, BINS - 1)
            self.levels[name] += counted(level, BINS)
        self.answers += counted(probabilities.argmax(1), len(PARTS))

    def hidden(self, group: str, labels: Sequence[int], threshold: float) -> float:
        """The share of the pixels with one of these labels whose map of the group reaches the threshold; NaN if none."""
        rows = self.levels[group][list(labels)].sum(0)
        return float(rows[round(threshold * BINS) :].sum() / rows.sum())

    def overlaps(self) -> dict[str, float]:
        """Intersection over union of every part at the most likely answer; of people without parts only whether anyone."""
        known, found = self.answers[:ANY], {}
        for part, name in enumerate(PARTS):
            predicted = self.answers[:, 0].sum() if part == 0 else known[:, part].sum()
            union = predicted + known[part].sum() - known[part, part]
            found[name] = float(known[part, part] / union.clamp(min=1))
        return found

    def thresholds(self) -> dict[str, float]:
        """For each group the highest threshold at which its recall of `RECALLS` is kept; people with their faces."""
        found = {}
        for name, recall in RECALLS.items():
            needs = [(PEOPLE if name == "person" else GROUPS[name], recall)]
            if name == "person":
                needs.append((GROUPS["face"], RECALLS["face"]))
            kept = [
                level / BINS
                for level in range(1, BINS)
                if all(self.hidden(name, labels, level / BINS) >= least for labels, least in needs)
            ]
            found[name] = max(kept, default=1 / BINS)
        return found

    def summary(self, thresholds: Mapping[str, float]) -> dict[str, Any]:
        """The numbers to report at these thresholds."""

        def share(group: str, labels: Sequence[int]) -> float | None:
            found = self.hidden(group, labels, thresholds[group])
            return None if math.isnan(found) else found

        return {
            "person": share("person", PEOPLE),
            "face": share("person", GROUPS["face"]),
            "background_hidden": share("person", (0,)),
            "groups": {
                name: {
                    "threshold": thresholds[name],
                    "recall": share(name, PEOPLE if name == "person" else group),
                    "background_hidden": share(name, (0,)),
                }
                for name, group in GROUPS.items()
            },
            "iou": self.overlaps(),
        }


@torch.no_grad()
def count_pixels(net: PartNet, labelled: LabelledImages, batch: int = 64) -> dict[str, PixelCounts]:
    """Whole images at the size at which the network looks: counts of each source, and of ``all``."""
    device = labelled.images.device
    found = {source: PixelCounts() for source in (*sorted({*labelled.sources}), "all")}
    for start in range(0, len(labelled.sources), batch):
        chosen = torch.arange(start, min(start + batch, len(labelled.sources)), device=device)
        crops = place(labelled, chosen, upright(len(chosen), device), SIZE)
        coarse = net.coarse(crops.images).float().softmax(1)
        predicted = F.interpolate(coarse, (SIZE, SIZE), mode="bilinear")
        for source in {labelled.sources[index] for index in chosen.tolist()}:
            mine = torch.tensor(
                [labelled.sources[index] == source for index in chosen.tolist()], device=device
            )
            found[source].add(predicted[mine], crops.labels[mine])
        found["all"].add(predicted, crops.labels)
    return found
