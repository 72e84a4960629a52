"""How the part network is trained: its hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PartRecipe:
    """How the part network is trained."""

    crop: int = 192
    batch: int = 64
    lr: float = 1.5e-3
    weight_decay: float = 0.02
    warmup: int = 300
    ema: float = 0.999
    seed: int = 0
    plain: float = 0.45  # of the pictures: one image as it is
    framed: float = 0.2  # a smaller image laid over another; the rest: a person cut out and laid over another
    overlap: float = 0.5  # weight of L_overlap
    part_weights: tuple[float, ...] = (1, 1.5, 2, 2, 1, 1, 2.5, 3, 1)  # w_y, of labels 0 to ANY
    source_weights: Mapping[str, float] | None = None  # how often an image is sampled; None: SOURCE_WEIGHTS


# Photographs of everyday scenes, and of no one, are what the background is learned from; they are the fewer ones.
SOURCE_WEIGHTS = {"vocneg": 4.0, "coco1p": 1.7, "vocpers": 1.7, "davis": 1.7, "camvid": 1.7, "lip74": 2.0}
