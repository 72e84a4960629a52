"""Contact sheets: the preview of a video, and pictures in rows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from veil.core import Frames, Region, VeilError, io_errors
from veil.media.draft import Draft
from veil.media.inputs import is_image

_COLORS = {
    "detected": (64, 220, 96),
    "interpolated": (255, 190, 40),
    "extrapolated": (255, 96, 80),
    "held": (255, 64, 160),
}
_MAX_KEPT = 24  # pictures kept while the length is unknown; half of them at least are shown


class Preview:
    """A sheet of frames of the anonymized video, evenly spaced, with the hidden regions outlined."""

    def __init__(self, path: Path, *, overwrite: bool):
        self._draft = Draft(path, overwrite=overwrite)
        self._kept: list[tuple[int, float, Frames, tuple[Region, ...]]] = []
        self._step = 1

    def add(
        self, at: int, seconds: Sequence[float], frames: Frames, regions: list[tuple[Region, ...]] | None
    ) -> None:
        """Keep some of the frames; the first of them has number `at`."""
        for i, second in enumerate(seconds):
            if (at + i) % self._step:
                continue
            height, width = frames.shape[1:3]
            scale = min(320 / width, 320 / height)
            size = max(1, round(width * scale)), max(1, round(height * scale))
            small = cv2.resize(frames[i], size, interpolation=cv2.INTER_AREA).astype(np.uint8)
            found = regions[i] if regions is not None else ()
            scaled = (r._replace(box=tuple(v * scale for v in r.box)) for r in found)
            self._kept.append((at + i, second, small, tuple(scaled)))
            if len(self._kept) > _MAX_KEPT:
                self._step *= 2
                self._kept = [kept for kept in self._kept if kept[0] % self._step == 0]

    def finish(self) -> None:
        """Draw the sheet; the file gets its name when the context is left without an error."""
        shown = self._kept[:: 1 + len(self._kept) // 13]
        buffer = io.BytesIO()
        kind = "PNG" if self._draft.path.suffix == ".png" else "JPEG"
        draw_sheet([_outlined(small, found, f"{second:.2f} s") for _, second, small, found in shown]).save(
            buffer, kind
        )
        with io_errors(self._draft.place, "written"):
            self._draft.path.write_bytes(buffer.getvalue())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        try:
            if failure is None:
                self._draft.publish()
        finally:
            self._draft.discard()


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture, whole or not at all, in the format of its suffix; one that exists is replaced."""
    if not is_image(path):
        raise VeilError(
            f"{path} is not the name of a picture: name a .jpg or .png file.", code="output-suffix"
        )
    with Draft(path, overwrite=True) as draft:
        picture.save(draft.path, quality=90)


def draw_sheet(pictures: Sequence[Image.Image], columns: int = 4, gap: int = 8) -> Image.Image:
    """Pictures in rows, on white."""
    columns = min(columns, len(pictures)) or 1
    width, height = (max((p.size[axis] for p in pictures), default=1) for axis in (0, 1))
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (gap + columns * (width + gap), gap + rows * (height + gap)), "white")
    for i, picture in enumerate(pictures):
        sheet.paste(picture, (gap + i % columns * (width + gap), gap + i // columns * (height + gap)))
    return sheet


def _outlined(small: Frames, regions: Sequence[Region], caption: str) -> Image.Image:
    picture = Image.fromarray(small)
    draw = ImageDraw.Draw(picture)
    for region in regions:
        draw.rectangle(region.box, outline=_COLORS[region.how])
    draw.text(
        (5, 3), caption, fill="white", font=ImageFont.load_default(12), stroke_width=2, stroke_fill="black"
    )
    return picture
