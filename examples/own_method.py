"""A method of one's own: what moves is shown in black on white, and nothing else is left.

Without arguments it runs `veil list`; with arguments it is `veil` with the method added:
    python examples/own_method.py anonymize VIDEO -o SAFE.mp4 --method traces:16
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

import cv2
import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from veil import ANONYMIZERS, Anonymizer, Frames, Veiled
from veil.cli import main


@dataclass(frozen=True, kw_only=True)
class Traces(Anonymizer):
    """Black where the picture changed, in large cells; white elsewhere."""

    PRESETS: ClassVar = {"16": {"cell": 16}}
    cell: Annotated[int, Field(ge=1, description="side of a cell in pixels")] = 8
    level: Annotated[float, Field(ge=0, description="smallest change that counts, in grey levels")] = 6.0

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:  # noqa: D102
        last = None  # what crosses frames lives here and not in self: one object serves many videos at once
        for frame in (frame for frames in windows for frame in frames):
            small = [max(1, side // self.cell) for side in frame.shape[1::-1]]
            now = cv2.resize(frame, small, interpolation=cv2.INTER_AREA).mean(-1)
            white, last = np.abs(now - (now if last is None else last)) <= self.level, now
            image = cv2.resize(np.uint8(255) * white, frame.shape[1::-1], interpolation=cv2.INTER_NEAREST)
            yield Veiled(np.repeat(image[None, ..., None], 3, axis=-1), None)  # None: the whole frame changed


ANONYMIZERS["traces"] = Traces
if __name__ == "__main__":
    main(sys.argv[1:] or ["list", "methods"])
