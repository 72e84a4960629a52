"""Colour and orientation of frames: between what files store and RGB as displayed."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from av.video.frame import VideoFrame

from veil.core import Frames

# The weights of red and blue in luma, by the number of the matrix in ITU-T H.273; 2 is "unspecified".
LUMA = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
LUMA |= dict.fromkeys((2, 5, 6), (0.299, 0.114))


def on_black(rgba: Frames) -> Frames:
    """RGBA ``(H, W, 4)`` over black, as RGB ``(H, W, 3)``."""
    alpha = rgba[..., 3:].astype(np.uint16)
    return ((rgba[..., :3] * alpha + 127) // 255).astype(np.uint8)


def orientation(frame: VideoFrame) -> tuple[bool, bool, bool]:
    """How to lay a frame out as displayed: swap its axes, then mirror it, then turn it upside down."""
    quarters = round(frame.rotation / 90) % 4  # counterclockwise
    a, b, c, d = [(1, 0, 0, 1), (0, -1, 1, 0), (-1, 0, 0, -1), (0, 1, -1, 0)][quarters]
    with suppress(KeyError, ValueError):  # the matrix also has mirrors: x' = ax + cy, y' = bx + dy
        matrix = frame.side_data["DISPLAYMATRIX"]  # pyright: ignore
        a, b, _, c, d = np.frombuffer(memoryview(matrix), np.int32)[:5].tolist()
    across = abs(b) > abs(a)
    return across, (c if across else a) < 0, (b if across else d) < 0


def rgb_to_yuv(matrix: int) -> np.ndarray:
    """RGB to Y, Cb and Cr of 8 bits and limited range: ``(3, 4)``, of which the last column is added."""
    red, blue = LUMA[matrix]
    luma = np.array([red, 1 - red - blue, blue])
    cb = (np.array([0, 0, 1]) - luma) / (2 - 2 * blue)
    cr = (np.array([1, 0, 0]) - luma) / (2 - 2 * red)
    scaled = np.stack([luma * 219, cb * 224, cr * 224]) / 255
    return np.column_stack([scaled, [16, 128, 128]]).astype(np.float32)
