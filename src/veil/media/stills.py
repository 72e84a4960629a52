"""Pictures in and out: a still is a video of one frame."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image, ImageOps

from veil.core import Frames, VeilError
from veil.media.color import on_black
from veil.media.draft import Draft
from veil.media.libav import writing
from veil.media.video import FrameTime, FrameWindow, VideoInfo, check_frames


class StillSource:
    """A picture: a video of one frame that lasts a second."""

    def __init__(self, path: Path) -> None:
        self.live, self.undecodable = False, 0
        try:
            with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
                pages = getattr(image, "n_frames", 1)
                # Phones add other images to a JPEG: depth, brightness, a preview. Pillow calls that MPO.
                if pages > 1 and image.format != "MPO":
                    raise VeilError(
                        f"{path} holds {pages} pictures: save them one by one, or as a video.",
                        code="several-pictures",
                    )
                self._pixels = to_rgb(image)
        except VeilError:
            raise
        except Exception as error:  # Pillow's readers raise all kinds on strange files
            raise VeilError(
                f"{path} is not a readable picture: check that it opens in a viewer.", code="not-a-picture"
            ) from error
        height, width = self._pixels.shape[:2]
        self.info = VideoInfo(width, height, Fraction(1), 1, Fraction(1))

    def windows(self) -> Iterator[FrameWindow]:
        """One window of one frame."""
        yield FrameWindow(self._pixels[None], [FrameTime(0, 1)])

    def stop(self) -> None:
        """Nothing to stop."""

    def close(self) -> None:
        """Nothing to close: the file was read at once."""


class StillSink:
    """A picture file, without metadata."""

    def __init__(self, path: Path, info: VideoInfo, *, overwrite: bool) -> None:
        self._path, self._info = path, info
        self.size = info.width, info.height
        self._frames: list[Frames] = []
        self._draft = Draft(path, overwrite=overwrite)

    def write(self, frames: Frames, times: Sequence[FrameTime]) -> None:
        """Take the one frame."""
        check_frames(self._info, frames, times)
        self._frames += list(frames)
        if len(self._frames) > 1:
            raise VeilError(
                f"{self._path} holds one picture, and a video has more: name an .mp4 file.",
                code="several-frames",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        try:
            if failure[1] is None:
                if not self._frames:
                    raise VeilError(
                        f"{self._path} would hold no frame: nothing was written.", code="no-frame"
                    )
                with writing(self._draft):
                    image = Image.fromarray(np.ascontiguousarray(self._frames[0]))
                    if ".tif" in self._path.suffix.lower():
                        image.save(self._draft.path, compression="tiff_deflate")
                    else:
                        image.save(self._draft.path, quality=95)
                    self._draft.publish()
        finally:
            self._draft.discard()


def to_rgb(image: Image.Image) -> Frames:
    """A picture as it is meant to be seen, RGB ``(H, W, 3)``."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # grey of 16 bits, in several guises
        grey = np.clip(np.asarray(image, np.float32) / 257, 0, 255).round().astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.has_transparency_data:
        return on_black(np.asarray(image.convert("RGBA")))
    return np.array(image.convert("RGB"))
