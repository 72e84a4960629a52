"""Optical flow on the CPU: how far each small piece of a picture moved to the next one."""

from __future__ import annotations

from functools import cache

import cv2
import numpy as np
import numpy.typing as npt

Grey = npt.NDArray[np.uint8]  # (h, w)
Flow = npt.NDArray[np.float32]  # (h, w, 2): x and y displacement in pixels of the (small) picture


@cache
def _dis() -> cv2.DISOpticalFlow:
    return cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)


def small_grey(frame: npt.NDArray[np.uint8], longest: int = 384) -> Grey:
    """A frame ``(H, W, 3)`` as a grey picture whose longer side is at most `longest`: enough to see motion."""
    height, width = frame.shape[:2]
    scale = min(1.0, longest / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.cvtColor(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2GRAY).astype(
        np.uint8, copy=False
    )


def dense_flow(before: Grey, after: Grey) -> Flow:
    """Displacement of every pixel of `before` that takes it to its place in `after` (DIS, very fast preset)."""
    if min(before.shape) < 16:  # DIS works on 8 x 8 patches over a pyramid
        return np.zeros((*before.shape, 2), np.float32)
    return _dis().calc(before, after, None)  # type: ignore[arg-type]
