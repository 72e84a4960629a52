"""Which pixels are hair, face, skin or clothes: a small network that comes with the package, on the CPU.

`Parts` maps an image to the probability of each part of a person at every pixel, without torch. Its file ``parts.onnx``
is trained by `veil.training.part_network` and exported by `veil.people.part_network`; see ``tools/parts.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from veil.core import Image, VeilError
from veil.nn.onnx import session

Array = npt.NDArray[np.float32]

PARTS = ("background", "hair", "face", "skin", "upper", "lower", "shoes", "other")  # the network's outputs
GROUPS: dict[str, tuple[int, ...]] = {
    "hair": (1,),
    "face": (2,),
    "skin": (3,),
    "clothes": (4, 5, 6),
    "body": (3, 4, 5, 6, 7),  # all but the head
    "person": (1, 2, 3, 4, 5, 6, 7),
}
SIZE = 224  # pixels of the longer side at which the network runs
STRIDE = 4  # input pixels to one of the output
SHIPPED = Path(__file__).with_name("parts.onnx")


class Parts:
    """The parts of people in an image, each pixel's as probabilities that sum to 1."""

    def __init__(self, path: Path = SHIPPED) -> None:
        if not path.is_file():
            raise VeilError(
                f"the part network {path} is missing, though it is part of Veil: install Veil again, or make the file "
                "with `python -m tools.parts export WEIGHTS DATA -o FILE`.",
                code="installation-incomplete",
            )
        self.session = session(path)
        self.input = self.session.get_inputs()[0].name
        metadata = self.session.get_modelmeta().custom_metadata_map
        if "parts" not in metadata or tuple(json.loads(metadata["parts"])) != PARTS:
            raise VeilError(
                f"{path} is not a part network of Veil: its outputs are not {', '.join(PARTS)}.",
                code="weights-of-another-network",
            )
        self.thresholds: dict[str, float] = dict.fromkeys(GROUPS, 0.5)
        self.thresholds |= json.loads(metadata.get("thresholds", "{}"))
        """For each group, the probability from which on a pixel belongs to it; chosen on held-out images."""

    def __call__(self, image: Image) -> Array:
        """Probabilities ``(8, h, w)``, in the order of `PARTS`, on a grid about `SIZE` / `STRIDE` long."""
        logits: Array = np.asarray(self.session.run(None, {self.input: network_input(image)})[0], np.float32)[
            0
        ]
        likely: Array = np.exp(logits - logits.max(0))
        likely /= likely.sum(0)
        return likely

    def maps(self, image: Image, names: Iterable[str]) -> Array:
        """How likely each pixel ``(H, W)`` of the image is one of the named groups; `GROUPS` has the names."""
        height, width = image.shape[:2]
        saliency = grouped(self(image), names).clip(0, 1)
        return cv2.resize(saliency, (width, height), interpolation=cv2.INTER_LINEAR).astype(
            np.float32, copy=False
        )


@cache
def parts() -> Parts:
    """The network that comes with the package; loaded once a process."""
    return Parts()


def network_input(image: Image) -> Array:
    """An image as the network takes it, ``(1, 3, h, w)`` from 0 to 1."""
    height, width = fitted(*image.shape[:2])
    # Twice as fine, then averaged: as in training, and a tenth of the cost of averaging every pixel.
    fine = cv2.resize(image, (2 * width, 2 * height), interpolation=cv2.INTER_LINEAR)
    small = cv2.resize(fine, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.dnn.blobFromImage(small, 1 / 255), np.float32)


def grouped(probabilities: Array, names: Iterable[str]) -> Array:
    """Of probabilities ``(8, h, w)``, those ``(h, w)`` of being in any of the named groups."""
    chosen: set[int] = set()
    for name in names:
        if name not in GROUPS:
            raise VeilError(
                f"there is no group of parts '{name}': choose from {', '.join(GROUPS)}.", code="group-unknown"
            )
        chosen |= {*GROUPS[name]}
    return probabilities[sorted(chosen)].sum(0)


def fitted(height: int, width: int, size: int = SIZE) -> tuple[int, int]:
    """Height and width at which the network takes an image, in whole strides.

    The longer side becomes `size`; an image closer to a square is no larger than one of 4:3, so that none is slow.
    """
    scale = min(size / max(height, width), size * math.sqrt(0.75 / (height * width)))
    return _strides(height * scale), _strides(width * scale)


def _strides(side: float) -> int:
    return max(1, round(side / STRIDE)) * STRIDE
