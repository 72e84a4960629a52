"""Learned anonymizers that come with Veil: networks in ONNX, run without torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from veil.core import Anonymizer, Frames, Veiled
from veil.methods.streaming import ClipContext, ClipFunction, anonymized
from veil.nn.onnx import session

BUILTIN_PROTOTYPES = Path(__file__).with_name("prototypes.onnx")
MOST = 24  # frames that are redrawn at once


@dataclass(frozen=True)
class Prototypes(Anonymizer):
    """Learned: draws what everybody would have shown doing the same, in large grey cells (docs/prototypes.md)."""

    skip: Annotated[
        int,
        Field(ge=1, le=60, description="frames from one that is looked at to the next: a tenth of a second"),
    ] = 3

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer`."""
        return anonymized(windows, _everyone()[0], self.shape, MOST)

    def ahead(self) -> int:
        """See `Anonymizer`."""
        return self.shape.ahead(MOST)

    @property
    def shape(self) -> ClipContext:
        """What the network sees at once."""
        told = _everyone()[1]
        past, block, future = (told[name] * self.skip for name in ("past", "block", "future"))
        return ClipContext(told["side"], 1, past, block, future, square=True)


@cache
def _everyone() -> tuple[ClipFunction, dict[str, int]]:
    """What redraws clips, and what the model's file tells of itself."""
    model = session(BUILTIN_PROTOTYPES)
    told = {key: json.loads(value) for key, value in model.get_modelmeta().custom_metadata_map.items()}
    cell = told["cell"]

    def redraw(clips: Frames) -> Frames:
        count, length, height, width, _ = clips.shape
        half = cell // 2
        grey = clips.mean(-1, dtype=np.float32) / 255
        light = grey.reshape(count, length, height // half, half, width // half, half).mean((3, 5))
        (cells,) = model.run(None, {"images": light})
        grey = np.rint(np.asarray(cells) * 255).astype(np.uint8).repeat(cell, 2).repeat(cell, 3)
        return np.repeat(grey[..., None], 3, -1)

    return redraw, told
