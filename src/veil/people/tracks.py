"""From detections in some frames to regions in every frame, so that nobody is visible in between.

Detections are linked into tracks: a track is moved from frame to frame by optical flow and matched with the detections near
it. Between two detections its box is *interpolated*; before the first and after the last it is *extrapolated* by a few
frames. Where the track of a body is lost in the middle of the picture, the body has not left it: until it is detected again,
but not longer than `hold`, its box is *held* and grows, since where it is becomes less certain. A track counts once one of
its detections scores at least `confirm`; its weaker detections (at least `keep`) then count as well.

A frame is given out when `max_gap` further frames were seen: a gap of up to that length is closed before the frame leaves,
and memory does not grow with the length of the video.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import cv2
import numpy as np

from veil.core import Box, Image, Region, RegionSource
from veil.nn.flow import Flow, Grey, dense_flow, small_grey
from veil.people.boxes import closeness, grow, interpolate, union
from veil.people.detectors import Detection, Detector
from veil.people.incremental import IncrementalDetector

EDGE = 0.02  # of the width: so near to the left or the right of the picture, somebody may have left it
GROWTH = 0.01  # of its size, on each side, in every frame: the box of a lost track


@dataclass(frozen=True)
class TrackingOptions:
    """How often to detect, how high the scores must be, and for how many frames a track goes on without a detection."""

    confirm: float = 0.2  # the score that one detection of a track must reach
    keep: float = 0.12  # the score that every detection must reach
    every: int = 3  # frames to one run of the detector, where everything moves
    max_gap: int = 16  # frames between two detections of a track, at most
    extrapolate: int = 5  # frames before the first and after the last detection
    hold: int = 0  # frames for which a track is held that is lost in the middle of the picture
    refresh: int = 32  # frames after which the detector runs on a whole frame at the latest


@dataclass
class _TrackedFrame:
    image: Image
    grey: Grey
    cut: bool = False  # a new scene begins here
    detected: bool = False  # whether the detector has run
    flow: Flow | None = None  # from the frame before to this one; computed when first needed


@dataclass
class _Track:
    id: int
    kind: str
    box: Box  # where it is now, by detection or by flow
    last: int  # the newest frame in which it was detected
    best: float = 0.0
    score: float = 0.0  # of the newest detection
    over: bool = False  # ended by a cut
    path: dict[int, Region] = field(default_factory=dict)  # frames not yet given out

    def put(self, at: int, box: Box, how: RegionSource) -> None:
        self.path[at] = Region(self.kind, box, self.score, how, self.id)


def track(
    images: Iterable[Image], detect: Detector, kind: str, options: TrackingOptions = TrackingOptions()
) -> Iterator[tuple[Image, tuple[Region, ...]]]:
    """Each image once and in order, with the regions of the given kind that must be hidden in it."""
    return _Tracker(detect, kind, options).run(images)


class _Tracker:
    """The state of `track` for one video."""

    def __init__(self, detect: Detector, kind: str, options: TrackingOptions):
        self.kind, self.options = kind, options
        self.detector = IncrementalDetector(detect, options.every, options.refresh, options.keep)
        self.frames: dict[int, _TrackedFrame] = {}  # those not yet given out, and the one before them
        self.tracks: list[_Track] = []
        self.newest = -1
        self.last_detected = -1  # the newest frame on which the detector ran
        self.count = 0

    def run(self, images: Iterable[Image]) -> Iterator[tuple[Image, tuple[Region, ...]]]:
        out = 0
        for image in images:
            self._take(image)
            if self.newest - out >= self.options.max_gap:
                yield self._give(out)
                out += 1
        if self.newest >= 0:
            self._detect(self.newest, force=True)
        while out <= self.newest:
            yield self._give(out)
            out += 1

    def _take(self, image: Image) -> None:
        now, frame = self.newest + 1, _TrackedFrame(image, small_grey(image))
        before = self.frames.get(now - 1)
        if before is not None and is_cut(before.grey, frame.grey):
            self._detect(now - 1, force=True)  # the last of the old scene
            frame.cut = True
            for track in self.tracks:
                track.over = True
        self.newest = now
        self.frames[now] = frame
        for track in self._alive():
            track.box = self._moved(track.box, now)
            since = now - track.last
            if since <= self._continued(track):
                over = max(0, since - self.options.extrapolate)
                track.put(now, grow(track.box, GROWTH * over), "held" if over else "extrapolated")
        self._detect(now, force=frame.cut)

    def _alive(self) -> list[_Track]:
        """Tracks that a detection in the newest frame may continue."""
        newest, max_gap = self.newest, self.options.max_gap
        return [t for t in self.tracks if not t.over and newest - t.last <= max(max_gap, self._continued(t))]

    def _continued(self, track: _Track) -> int:
        """For how many frames a track goes on without a detection."""
        width = self.frames[self.newest].image.shape[1]
        inside = track.box[0] > EDGE * width and track.box[2] < (1 - EDGE) * width
        sure = inside and track.best >= self.options.confirm
        return max(self.options.extrapolate, self.options.hold if sure else 0)

    def _detect(self, at: int, *, force: bool) -> None:
        """Run the detector on the newest frame, if the budget allows it or with `force`, and link the detections."""
        frame = self.frames[at]
        if frame.detected:
            return
        seen = self.detector(at, frame.image, frame.grey, force)
        if seen is None:
            return
        frame.detected = True
        alive = self._alive()
        near = closeness([track.box for track in alive], [d.box for d in seen])
        fits = [(near[i, j], i, j) for i, j in np.argwhere(near > 0).tolist()]
        begun, linked = set(range(len(seen))), set()
        for _, i, j in sorted(fits, reverse=True):
            if i not in linked and j in begun:
                linked.add(i)
                begun.remove(j)
                self._continue(alive[i], at, seen[j])
        for j in sorted(begun):
            self._begin(at, seen[j])
        self.last_detected = at

    def _begin(self, at: int, detection: Detection) -> None:
        """A new track; it may have been there since the detector last ran, and is extrapolated back beyond that."""
        track = _Track(self.count, self.kind, detection.box, at, detection.score, detection.score)
        self.count += 1
        self.tracks.append(track)
        track.put(at, detection.box, "detected")
        for t, box in self._backwards(at, detection.box, self.last_detected + 1 - self.options.extrapolate):
            track.put(t, box, "extrapolated")

    def _continue(self, track: _Track, at: int, detection: Detection) -> None:
        """A track goes on; in the frames since its last detection it is between the way there and the way back."""
        track.best, track.score = max(track.best, detection.score), detection.score
        for t, box in self._backwards(at, detection.box, track.last + 1):
            there = track.path[t].box if t in track.path else box
            near = closeness([there], [box])[0, 0] > 0.5
            between = (
                interpolate(there, box, (t - track.last) / (at - track.last)) if near else union(there, box)
            )
            track.put(t, between, "interpolated")
        track.last, track.box = at, detection.box
        track.put(at, detection.box, "detected")

    def _backwards(self, at: int, box: Box, until: int) -> Iterator[tuple[int, Box]]:
        """The frames before `at` down to `until` that are still at hand and of the same scene, with `box` moved along."""
        for t in range(at - 1, until - 1, -1):
            if t not in self.frames or self.frames[t + 1].cut:
                return
            box = self._moved(box, t + 1, back=True)
            yield t, box

    def _moved(self, box: Box, to: int, *, back: bool = False) -> Box:
        """`box` moved by the flow from frame ``to - 1`` to frame `to`, or the way back."""
        frame, before = self.frames[to], self.frames.get(to - 1)
        if frame.cut or before is None:
            return box
        if frame.flow is None:
            frame.flow = dense_flow(before.grey, frame.grey)
        (height, width), (h, w) = frame.image.shape[:2], frame.grey.shape
        x0, y0, x1, y1 = box
        left, right = (min(max(int(v * w / width), 0), w - 1) for v in (x0, x1))
        top, bottom = (min(max(int(v * h / height), 0), h - 1) for v in (y0, y1))
        step = 1 + min(right - left, bottom - top) // 8  # a sample is enough
        inside = np.sort(frame.flow[top : bottom + 1 : step, left : right + 1 : step].reshape(-1, 2), axis=0)
        way, (dx, dy) = -1 if back else 1, inside[len(inside) // 2].tolist()  # the median
        dx, dy = way * dx * width / w, way * dy * height / h
        return x0 + dx, y0 + dy, x1 + dx, y1 + dy

    def _give(self, at: int) -> tuple[Image, tuple[Region, ...]]:
        hidden = [(track, track.path.pop(at)) for track in self.tracks if at in track.path]
        self.frames.pop(at - 1, None)
        alive = {track.id for track in self._alive()}
        self.tracks = [track for track in self.tracks if track.path or track.id in alive]
        return self.frames[at].image, tuple(
            region for track, region in hidden if track.best >= self.options.confirm
        )


def is_cut(before: Grey, after: Grey) -> bool:
    """Whether a new scene begins: most of the picture changed by more than motion would change it."""
    change = cv2.absdiff(before, after)
    return float(change.mean()) > 30 and float((change > 20).mean()) > 0.5
