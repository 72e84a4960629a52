"""Optical flow between consecutive frames, and what is occluded in one of them.

Flow is a field ``(h, w, 2)`` of displacements in pixels, x before y, given at the pixels it starts from::

    forward    F(p)   p is a pixel of the frame before;  p + F(p) is its place in this frame
    backward   B(p)   p is a pixel of this frame;        p + B(p) is its place in the frame before

so that ``warp(before, B)``, which samples `before` at ``p + B(p)``, looks like this frame. A pixel of this frame that was
occluded in the frame before, or outside of it, is found by forward-backward consistency::

    occluded(p)    |B(p) + F(p + B(p))|² > 0.01 (|B(p)|² + |F(p + B(p))|²) + 0.5

`MotionEstimator` estimates the motion of a video frame by frame. The flow is computed on a small image: by DIS (Kroeger
et al., 2016) on the CPU, or by RAFT (`veil.nn.raft`), which needs torch and weights and is fast on a GPU only.
"""

from __future__ import annotations

import threading
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from veil.nn import weights

Image = npt.NDArray[np.uint8]  # (H, W, 3)
Images = npt.NDArray[np.uint8]  # (N, H, W, 3)
Grey = npt.NDArray[np.uint8]  # (h, w)
Flow = npt.NDArray[np.float32]  # (h, w, 2): x and y displacement in pixels of the (small) image
Flows = npt.NDArray[np.float32]  # (N, h, w, 2)
Mask = npt.NDArray[np.bool_]  # (h, w)
Speed = Literal["fast", "medium", "fine"]
FlowName = Literal["fast", "medium", "fine", "raft-small", "raft-large"]


class _DisBySize(threading.local):
    """DIS for each image size and thread: its buffers must be shared neither by threads nor by sizes.

    Threads would write into each other's memory; and after a larger image the flow of a smaller one differs.
    """

    def __init__(self) -> None:
        self.of_size = lru_cache(8)(
            lambda shape: cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        )


_dis = _DisBySize()


def small_grey(frame: Image, longest: int = 384) -> Grey:
    """A frame ``(H, W, 3)`` as a grey image whose longer side is at most `longest`, which is enough for motion."""
    return cv2.cvtColor(shrink(frame, longest), cv2.COLOR_RGB2GRAY).astype(np.uint8, copy=False)


def shrink(frame: Image, longest: int) -> Image:
    """A frame ``(H, W, 3)`` whose longer side is at most `longest`."""
    height, width = frame.shape[:2]
    scale = min(1.0, longest / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)


def dense_flow(before: Grey, after: Grey) -> Flow:
    """Displacement of every pixel of `before` to its position in `after` (DIS, very fast preset)."""
    return _run_dis(_dis.of_size(before.shape), before, after)


def _run_dis(dis: cv2.DISOpticalFlow, before: Grey, after: Grey) -> Flow:
    if min(before.shape) < 16:  # DIS works on 8 x 8 patches over a pyramid
        return np.zeros((*before.shape, 2), np.float32)
    return dis.calc(before, after, None)  # type: ignore[arg-type]


class FlowEstimator(Protocol):
    """Estimates the flow between two images."""

    def prepare(self, image: Image) -> Image | Grey:
        """The small image of a frame ``(H, W, 3)`` that `estimate` takes."""
        ...

    def estimate(self, before: Any, after: Any) -> tuple[Flow, Flow]:
        """Forward and backward flow between two images from `prepare`, in their pixels."""
        ...


class _DisSetting(NamedTuple):
    preset: int
    finest: int  # the finest level of the pyramid that is matched: 1 is half the size of the small image
    stride: int  # of the patches that are matched
    smoothings: int
    longest: int  # the longer side of the small image


# At 640 x 480 about 3, 14 and 80 ms a frame for both ways. Where things move, the median end-point error against RAFT
# (small) is 1.5, 1.2 and 1.2 px, on five pairs of frames of real videos.
SETTINGS: dict[Speed, _DisSetting] = {
    "fast": _DisSetting(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST, 1, 6, 0, 256),
    "medium": _DisSetting(cv2.DISOPTICAL_FLOW_PRESET_FAST, 1, 4, 5, 320),
    "fine": _DisSetting(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM, 1, 3, 5, 640),
}


class Dis:
    """Dense inverse search, on the CPU. It has buffers, so use one for each video."""

    def __init__(self, speed: Speed = "fast"):
        preset, finest, stride, smoothings, self.longest = SETTINGS[speed]
        self._dis = cv2.DISOpticalFlow.create(preset)
        self._dis.setFinestScale(finest)
        self._dis.setPatchStride(stride)
        self._dis.setVariationalRefinementIterations(smoothings)

    def prepare(self, image: Image) -> Grey:
        """See `FlowEstimator.prepare`."""
        return small_grey(image, self.longest)

    def estimate(self, before: Grey, after: Grey) -> tuple[Flow, Flow]:
        """See `FlowEstimator.estimate`."""
        return _run_dis(self._dis, before, after), _run_dis(self._dis, after, before)


@cache
def _raft(name: str) -> FlowEstimator:
    import torch

    from veil.nn.raft import Raft

    names = ("raft_large",) if name == "raft-large" else ("raft_small", "raft_small_princeton")
    available = next((one for one in names if weights.look_up(one)), names[0])
    return Raft(weights.find(available), "cuda" if torch.cuda.is_available() else "cpu")


def flow_estimator(name: FlowName) -> FlowEstimator:
    """The estimator of that name: DIS at one of three speeds, or RAFT, on a GPU where there is one."""
    return _raft(name) if name.startswith("raft") else Dis(name)  # type: ignore[arg-type]


class Motion(NamedTuple):
    """The motion between a frame and the one before it, on a small grid; `enlarge` resizes a flow to the frame."""

    forward: Flow  # (h, w, 2) in pixels of the frame, from the frame before
    backward: Flow  # (h, w, 2) in pixels of the frame, to the frame before
    occluded: Mask  # (h, w): not visible in the frame before
    cut: bool  # a new scene begins with this frame


class MotionEstimator:
    """Estimates the motion of one video, frame by frame."""

    def __init__(self, estimator: FlowEstimator | None = None):
        self._estimator = Dis() if estimator is None else estimator
        self._before: Image | Grey | None = None
        self._size: tuple[int, ...] = ()

    def step(self, image: Image) -> Motion | None:
        """The motion from the frame before to this one; None for the first frame."""
        before, size = self._before, self._size
        self._before, self._size = self._estimator.prepare(image), image.shape[:2]
        if before is None:
            return None
        if size != self._size:
            raise ValueError(f"the frames of a video have one size, got {size} and then {self._size}")
        forward, backward = self._estimator.estimate(before, self._before)
        occluded = inconsistent(backward, forward)
        cut = is_cut(before, self._before, backward, occluded)
        scale = np.array([size[1] / before.shape[1], size[0] / before.shape[0]], np.float32)
        return Motion(forward * scale, backward * scale, occluded, cut)


def inconsistent(flow: Flow, inverse: Flow) -> Mask:
    """Where `flow` followed by the `inverse` flow does not return to its start: occluded in the other image.

    The test is made in pixels of the small image, since the errors of the flow are proportional to them.
    """
    x, y = grid(*flow.shape[:2])
    over, far = np.full(x.shape, -0.5, np.float32), np.zeros(x.shape, np.float32)
    returned = cv2.remap(
        inverse, x + flow[..., 0], y + flow[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    for axis in (0, 1):
        one, other = flow[..., axis], returned[..., axis]
        over += np.square(one + other)
        far += np.float32(0.01) * (one * one + other * other)
    return over > far


def is_cut(before: Image | Grey, after: Image | Grey, backward: Flow, occluded: Mask) -> bool:
    """Whether a new scene begins: half of it was occluded before, or differs from the warped frame before."""
    if occluded.mean() > 0.5:
        return True
    if cv2.absdiff(before, after).mean() < 15:
        return False
    difference = cv2.absdiff(after, warp(before, backward, nearest=False))
    return float(difference.mean()) > 30 and float((difference > 20).mean()) > 0.5


def enlarge(field: Flow, size: tuple[int, int]) -> Flow:
    """A flow of a `Motion`, resized to the frame's size ``(H, W)``; the outer edges of both grids coincide."""
    return cv2.resize(field, size[::-1], interpolation=cv2.INTER_LINEAR).astype(np.float32, copy=False)


@lru_cache(4)
def grid(height: int, width: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The x and the y of every pixel, each ``(H, W)``; read only."""
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    x.flags.writeable = y.flags.writeable = False
    return x, y


def warp(image: npt.NDArray[Any], flow: Flow, *, nearest: bool = True) -> npt.NDArray[Any]:
    """The image whose pixel p is that of `image` ``(h, w[, C])`` at ``p + flow(p)``; outside, the nearest pixel.

    `nearest` takes the value of one pixel, so that values are never mixed; otherwise it is bilinear.
    """
    x, y = grid(*flow.shape[:2])
    x, y = x + flow[..., 0], y + flow[..., 1]
    if not nearest:
        return cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    height, width = image.shape[:2]
    return image[
        np.clip(np.rint(y), 0, height - 1).astype(np.intp), np.clip(np.rint(x), 0, width - 1).astype(np.intp)
    ]
