"""Previews of a running job: some frames before and after, and heat maps of what is hidden in them."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from veil.core import Anonymizer, FrameExplanation, Frames, Target, Veiled, VeilError

SIDE = 720  # pixels of the longer side of a preview
INTERVAL = 0.35  # seconds between two previews
Show = Callable[
    [int, dict[str, Frames]], None
]  # the number of a frame, and its pictures: before, after, heat


class PreviewedAnonymizer(Anonymizer):
    """Another anonymizer, of which some frames are shown before and after; refuses videos of over `max_frames` frames."""

    def __init__(self, inner: Anonymizer, show: Show, max_frames: int | None = None) -> None:
        self.inner, self.show, self.max_frames = inner, show, max_frames

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer.stream`."""
        return self._previewed(windows, lambda frames, _: self.inner.stream(frames))

    def explain(
        self, windows: Iterable[Frames], on_frame: Callable[[FrameExplanation], None]
    ) -> Iterator[Veiled]:
        """See `Anonymizer.explain`."""

        def run(frames: Iterable[Frames], keep_heat: Callable[[FrameExplanation], None]) -> Iterator[Veiled]:
            def both(explained: FrameExplanation) -> None:
                keep_heat(explained)
                on_frame(explained)

            return self.inner.explain(frames, both)

        return self._previewed(windows, run)

    @property
    def name(self) -> str:
        """The inner anonymizer's."""
        return self.inner.name

    def targets(self) -> tuple[Target, ...]:
        """The inner anonymizer's."""
        return self.inner.targets()

    def params(self) -> dict[str, Any]:
        """The inner anonymizer's."""
        return self.inner.params()

    def _previewed(
        self,
        windows: Iterable[Frames],
        run: Callable[[Iterable[Frames], Callable[[FrameExplanation], None]], Iterator[Veiled]],
    ) -> Iterator[Veiled]:
        kept: deque[tuple[int, Frames]] = deque()
        heats: dict[int, Frames] = {}
        read = explained_frames = written = 0
        last = -math.inf

        def reading() -> Iterator[Frames]:
            nonlocal read, last
            for frames in windows:
                if self.max_frames is not None and read + len(frames) > self.max_frames:
                    raise VeilError(
                        "this video is longer than the limit: cut it, and try again.", code="video-too-long"
                    )
                if len(frames) and time.monotonic() - last > INTERVAL:
                    last = time.monotonic()
                    kept.append((read, shrink(frames[0])))
                read += len(frames)
                yield frames

        def keep_heat(explained: FrameExplanation) -> None:
            nonlocal explained_frames
            if any(at == explained_frames for at, _ in kept):
                heats[explained_frames] = heat_map(shrink(explained.frame), explained.hidden)
            explained_frames += 1

        for veiled in run(reading(), keep_heat):
            while kept and kept[0][0] < written + len(veiled.frames):
                at, before = kept.popleft()
                pictures = {"before": before, "after": shrink(veiled.frames[at - written])}
                self.show(at, pictures | ({"heat": heats.pop(at)} if at in heats else {}))
            written += len(veiled.frames)
            yield veiled


def previewed(inner: Anonymizer, show: Show, max_frames: int | None = None) -> Anonymizer:
    """The anonymizer with previews; a report names it by its type, which therefore keeps its name."""
    return type(type(inner).__name__, (PreviewedAnonymizer,), {})(inner, show, max_frames)


def shrink(frame: Frames) -> Frames:
    """A frame ``(H, W, 3)`` no larger than a preview."""
    height, width = frame.shape[:2]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA).astype(np.uint8)


def heat_map(frame: Frames, hidden: npt.NDArray[np.float32]) -> Frames:
    """An anonymized frame ``(H, W, 3)`` in grey under the colours of a map ``(h, w)`` of what was hidden in it."""
    height, width = frame.shape[:2]
    wide = cv2.resize(np.clip(np.nan_to_num(hidden, nan=1.0), 0, 1), (width, height))
    colours = cv2.applyColorMap(np.round(wide * 255).astype(np.uint8), cv2.COLORMAP_INFERNO)[..., ::-1]
    return (0.7 * colours + 0.3 * frame.mean(-1, keepdims=True)).astype(np.uint8)
