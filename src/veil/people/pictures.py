"""Pictures as pixels: those that Veil comes with, and any other image file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps

from veil.core import Image, VeilError

PICTURES = ("astronaut", "camera", "people")
"""Pictures that every installation has: photographs of an astronaut (NASA, public domain) and of a man with a camera
(by Lav Varshney, CC0), and figures of Veil's synthetic dataset."""


def built_in(name: str) -> Image:
    """The pixels ``(H, W, 3)`` of one of `PICTURES`."""
    path = Path(__file__).with_name(f"{name}.png")
    if not path.is_file():
        raise VeilError(
            f"the picture {path} is missing, though it is part of Veil: install Veil again.",
            code="installation-incomplete",
        )
    return read(path)


def read(image: Path | str | Image) -> Image:
    """The pixels ``(H, W, 3)`` of a picture, upright as it is shown."""
    if isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            raise VeilError(
                f"a picture is (H, W, 3) uint8, got {image.shape} {image.dtype}.", code="picture-shape"
            )
        return image
    if not Path(image).is_file():
        raise VeilError(f"there is no picture {image}: give the name of a file.", code="picture-missing")
    try:
        with PIL.Image.open(image) as file:
            upright = PIL.ImageOps.exif_transpose(file)
            if upright.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
                upright = PIL.Image.fromarray((np.asarray(upright) // 257).astype(np.uint8))
            return np.array(upright.convert("RGB"))
    except Exception as error:  # every format has classes of its own
        raise VeilError(
            f"{image} could not be read as a picture: give a JPEG, PNG or the like.",
            code="picture-unreadable",
        ) from error


def checksum(pixels: Image) -> str:
    """SHA-256 of a picture's size and pixels."""
    head = f"{pixels.shape[1]}x{pixels.shape[0]} ".encode()
    return hashlib.sha256(head + pixels.tobytes()).hexdigest()
