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
CHUNK = 24  # frames that are anonymized at once


@dataclass(frozen=True)
class Prototypes(Anonymizer):
    """Learned: shows the mean video of the action (its prototype) instead, in large grey cells (docs/prototypes.md)."""

    skip: Annotated[
        int,
        Field(
            ge=1, le=60, description="frames from one that the network takes to the next: a tenth of a second"
        ),
    ] = 3

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer`."""
        return anonymized(windows, _model()[0], self.shape, CHUNK)

    def ahead(self) -> int:
        """See `Anonymizer`."""
        return self.shape.ahead(CHUNK)

    @property
    def shape(self) -> ClipContext:
        """The frames that the network takes at once."""
        metadata = _model()[1]
        past, block, future = (metadata[name] * self.skip for name in ("past", "block", "future"))
        return ClipContext(metadata["side"], 1, past, block, future, square=True)


@cache
def _model() -> tuple[ClipFunction, dict[str, int]]:
    """The function that anonymizes clips, and the metadata of the model's file."""
    model = session(BUILTIN_PROTOTYPES)
    metadata = {key: json.loads(value) for key, value in model.get_modelmeta().custom_metadata_map.items()}
    cell = metadata["cell"]

    def anonymize(clips: Frames) -> Frames:
        count, length, height, width, _ = clips.shape
        half = cell // 2
        grey = clips.mean(-1, dtype=np.float32) / 255
        light = grey.reshape(count, length, height // half, half, width // half, half).mean((3, 5))
        (cells,) = model.run(None, {"images": light})
        grey = np.rint(np.asarray(cells) * 255).astype(np.uint8).repeat(cell, 2).repeat(cell, 3)
        return np.repeat(grey[..., None], 3, -1)

    return anonymize, metadata
