"""From a detector's glances to regions in every frame, so that nothing flashes up in between.

*Looking.* A detector is shown only what changed since it last looked there, and no more of it than a budget allows:
each frame adds ``1 / every`` of a frame to the budget. So a fixed camera is looked at in nearly every frame, a moving
one in every `every`-th; cuts, the first frame and every `refresh`-th are looked at whole.

*Linking.* Detections are linked into tracks: a track is carried from frame to frame by optical flow and matched with
the detections near it. Between two detections its box is *bridged*; before the first and after the last it is
*extended* by a few frames. A body that is lost in the middle of the picture has not left it: until it is found again, but not longer
than `lost`, its box is carried on and grows, since where it is becomes less sure. A track counts once one of its detections scores at least `confirm`; its weaker
detections (at least `keep`) then count as well.

A frame is given out when `bridge` further frames were seen: a gap of up to that length is closed before the frame
leaves, and memory does not grow with the length of the video.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from veil.core import Box, Region
from veil.nn.flow import Flow, Grey, dense_flow, small_grey

Image = npt.NDArray[np.uint8]  # (H, W, 3)
Signed = npt.NDArray[np.int16]  # (h, w): a small grey picture that can be subtracted
Cells = npt.NDArray[np.bool_]  # one entry for each square of CELL pixels
CELL = 32
AROUND = 32  # pixels of context around what changed
EDGE = 0.02  # of the width: so near to the left or the right of the picture, somebody may have left it
GROWS = 0.01  # of its size, on each side, in every frame: the box of somebody lost
Rectangle = tuple[int, int, int, int]  # x, y, width, height in pixels


class Detection(NamedTuple):
    """Where a detector saw something, and how sure it is (0 to 1)."""

    box: Box
    score: float


class Detector(Protocol):
    """Finds faces, people or other things in one image."""

    local: (
        bool  # whether part of an image may be shown alone: what is found there does not depend on the rest
    )

    def __call__(self, image: Image) -> list[Detection]:
        """Boxes in pixels of `image` ``(H, W, 3)`` RGB, each with a score from 0 to 1."""
        ...


@dataclass(frozen=True)
class Look:
    """How often to look, how sure to be, how long to remember (in frames)."""

    confirm: float = 0.2
    keep: float = 0.12
    every: int = 3
    bridge: int = 16
    extend: int = 5
    lost: int = 0
    refresh: int = 32


@dataclass
class _Frame:
    image: Image
    grey: Grey
    cut: bool = False  # a new scene begins here
    looked: bool = False
    flow: Flow | None = None  # from the frame before to this one; computed when first asked for


@dataclass
class _Track:
    id: int
    kind: str
    box: Box  # where it is now, by detection or by flow
    last: int  # the newest frame in which it was found
    best: float = 0.0
    score: float = 0.0  # of the newest detection
    over: bool = False  # ended by a cut
    path: dict[int, Region] = field(default_factory=dict)  # frames not yet given out

    def put(self, at: int, box: Box, how: Literal["found", "bridged", "extended"]) -> None:
        self.path[at] = Region(self.kind, box, self.score, how, self.id)


def follow(
    images: Iterable[Image], detect: Detector, kind: str, look: Look = Look()
) -> Iterator[tuple[Image, tuple[Region, ...]]]:
    """Each image once and in order, with the regions of the given kind that must be hidden in it."""
    return _Follower(detect, kind, look).run(images)


class _Follower:
    """The state of `follow` for one video."""

    def __init__(self, detect: Detector, kind: str, look: Look):
        self.kind, self.look = kind, look
        self.eye = _Eye(detect, look)
        self.frames: dict[int, _Frame] = {}  # those not yet given out, and the one before them
        self.tracks: list[_Track] = []
        self.newest = -1
        self.looked = -1  # the newest frame that was looked at
        self.made = 0

    def run(self, images: Iterable[Image]) -> Iterator[tuple[Image, tuple[Region, ...]]]:
        out = 0
        for image in images:
            self._take(image)
            if self.newest - out >= self.look.bridge:
                yield self._give(out)
                out += 1
        if self.newest >= 0:
            self._look(self.newest, force=True)
        while out <= self.newest:
            yield self._give(out)
            out += 1

    def _take(self, image: Image) -> None:
        now, frame = self.newest + 1, _Frame(image, small_grey(image))
        before = self.frames.get(now - 1)
        if before is not None and is_cut(before.grey, frame.grey):
            self._look(now - 1, force=True)  # the last of the old scene
            frame.cut = True
            for track in self.tracks:
                track.over = True
        self.newest = now
        self.frames[now] = frame
        for track in self._alive():
            track.box = self._moved(track.box, now)
            since = now - track.last
            if since <= self._kept(track):
                track.put(now, grown(track.box, GROWS * max(0, since - self.look.extend)), "extended")
        self._look(now, force=frame.cut)

    def _alive(self) -> list[_Track]:
        """Tracks that a detection in the newest frame may continue."""
        newest, bridge = self.newest, self.look.bridge
        return [t for t in self.tracks if not t.over and newest - t.last <= max(bridge, self._kept(t))]

    def _kept(self, track: _Track) -> int:
        """For how many frames a track goes on that is not found any more."""
        width = self.frames[self.newest].image.shape[1]
        inside = track.box[0] > EDGE * width and track.box[2] < (1 - EDGE) * width
        sure = inside and track.best >= self.look.confirm
        return max(self.look.extend, self.look.lost if sure else 0)

    def _look(self, at: int, *, force: bool) -> None:
        """Look at the newest frame, if the budget allows it or `force` says so, and link what is seen."""
        frame = self.frames[at]
        seen = None if frame.looked else self.eye.look(at, frame, force)
        if seen is None:
            return
        frame.looked = True
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
        self.looked = at

    def _begin(self, at: int, detection: Detection) -> None:
        """A new track; it may have been there since the last look, and is extended back beyond that."""
        track = _Track(self.made, self.kind, detection.box, at, detection.score, detection.score)
        self.made += 1
        self.tracks.append(track)
        track.put(at, detection.box, "found")
        for t, box in self._back(at, detection.box, self.looked + 1 - self.look.extend):
            track.put(t, box, "extended")

    def _continue(self, track: _Track, at: int, detection: Detection) -> None:
        """A track goes on; the frames since it was last found lie between the way there and the way back."""
        track.best, track.score = max(track.best, detection.score), detection.score
        for t, box in self._back(at, detection.box, track.last + 1):
            there = track.path[t].box if t in track.path else box
            near = closeness([there], [box])[0, 0] > 0.5
            between = mix(there, box, (t - track.last) / (at - track.last)) if near else hull(there, box)
            track.put(t, between, "bridged")
        track.last, track.box = at, detection.box
        track.put(at, detection.box, "found")

    def _back(self, at: int, box: Box, until: int) -> Iterator[tuple[int, Box]]:
        """The frames before `at` down to `until` that are still at hand and of the same scene, `box` carried along."""
        for t in range(at - 1, until - 1, -1):
            if t not in self.frames or self.frames[t + 1].cut:
                return
            box = self._moved(box, t + 1, back=True)
            yield t, box

    def _moved(self, box: Box, to: int, *, back: bool = False) -> Box:
        """`box` carried by the flow from frame ``to - 1`` to frame `to`, or the way back."""
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
            region for track, region in hidden if track.best >= self.look.confirm
        )


class _Eye:
    """What a detector sees in the newest frame, looking again only where the picture changed."""

    def __init__(self, detect: Detector, look: Look):
        self.detect, self.every, self.refresh, self.keep = detect, look.every, look.refresh, look.keep
        self.seen: list[Detection] = []
        self.known: Signed | None = None  # the small grey picture, as it was where last looked at
        self.whole = 0  # the frame that was last looked at whole
        self.budget = 1.0

    def look(self, at: int, frame: _Frame, force: bool) -> list[Detection] | None:
        """All detections in the frame, or None where a look would cost more than is left of the budget."""
        self.budget = min(1.0, self.budget + 1 / self.every)
        height, width = frame.image.shape[:2]
        grey = cv2.blur(frame.grey, (3, 3)).astype(np.int16)
        everything = np.ones((-(-height // CELL), -(-width // CELL)), bool)
        if self.known is None or force or at - self.whole >= self.refresh:
            area = everything
        else:
            area = self._changed(grey, self.known, everything.shape)
            if area.any() and not self.detect.local:
                area = everything
        parts = self._parts(area, width, height)
        cost = sum(w * h for _, (_, _, w, h) in parts) / (width * height)
        if cost > 0.7:  # one look at everything then is cheaper than several at parts
            area, parts, cost = everything, self._parts(everything, width, height), 1.0
        if cost > self.budget + 1e-9 and not force:
            return None
        self.budget = max(0.0, self.budget - cost)
        if cost == 1.0:
            self.whole = at
        fresh = [d for part, rectangle in parts for d in self._look_at(frame.image, part, rectangle)]
        self.seen = [d for d in self.seen if not _inside(d.box, area)] + fresh
        self.known = grey if self.known is None else np.where(_as_pixels(area, grey.shape), grey, self.known)
        return self.seen

    def _look_at(self, image: Image, part: Cells, rectangle: Rectangle) -> Iterator[Detection]:
        """What the detector sees in a rectangle of the image, as far as it lies in the part that was meant."""
        x, y, w, h = rectangle
        for (x0, y0, x1, y1), score in self.detect(image[y : y + h, x : x + w]):
            box = (x0 + x, y0 + y, x1 + x, y1 + y)
            if score >= self.keep and _inside(box, part):
                yield Detection(box, score)

    def _changed(self, grey: Signed, known: Signed, shape: tuple[int, int]) -> Cells:
        """The cells whose picture changed, with their neighbours and with the whole of what was seen there."""
        different = (np.abs(grey - known) > 10).astype(np.float32)
        share = cv2.resize(different, shape[::-1], interpolation=cv2.INTER_AREA)
        area = _grown((share > 0.03).astype(np.uint8))
        for detection in self.seen:
            x0, y0, x1, y1 = detection.box
            w, h = (x1 - x0) / 2, (y1 - y0) / 2
            rows = slice(max(0, int((y0 - h) // CELL)), int((y1 + h) // CELL) + 1)
            cols = slice(max(0, int((x0 - w) // CELL)), int((x1 + w) // CELL) + 1)
            if area[rows, cols].any():
                area[rows, cols] = 1
        return area.astype(bool)

    def _parts(self, area: Cells, width: int, height: int) -> list[tuple[Cells, Rectangle]]:
        """The separate parts of the area, each with the rectangle that holds it and a cell around it."""
        count, labels = cv2.connectedComponents(area.astype(np.uint8))
        parts = []
        for label in range(1, count):
            part = labels == label
            rows, cols = np.flatnonzero(part.any(1)), np.flatnonzero(part.any(0))
            x, w = _span(int(cols[0]) * CELL, int(cols[-1] + 1) * CELL, width)
            y, h = _span(int(rows[0]) * CELL, int(rows[-1] + 1) * CELL, height)
            parts.append((part, (x, y, w, h)))
        return parts


def _span(begin: int, end: int, whole: int) -> tuple[int, int]:
    """Where to cut an axis of length `whole` so as to show begin..end with context: start and length.

    Lengths are multiples of 32, which is what networks take without a change of scale.
    """
    length = -(-(end - begin + 2 * AROUND) // 32) * 32
    if length >= whole:
        return 0, whole
    return min(max(0, (begin + end - length) // 2), whole - length), length


def _grown(cells: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return cv2.dilate(cells, np.ones((3, 3), np.uint8)).astype(np.uint8)


def _inside(box: Box, area: Cells) -> bool:
    row, col = int((box[1] + box[3]) / 2 // CELL), int((box[0] + box[2]) / 2 // CELL)
    return bool(area[min(row, area.shape[0] - 1), min(col, area.shape[1] - 1)])


def _as_pixels(area: Cells, shape: tuple[int, ...]) -> Cells:
    return cv2.resize(area.astype(np.uint8), shape[::-1], interpolation=cv2.INTER_NEAREST).astype(bool)


def closeness(some: Sequence[Box], others: Sequence[Box]) -> npt.NDArray[np.float64]:
    """How well each of some boxes fits each of others as one moving thing ``(n, m)``.

    1 when equal, 0 or less when they are apart or of quite another size.
    """
    a, b = np.array(some, float).reshape(-1, 1, 4), np.array(others, float).reshape(1, -1, 4)
    a_size, b_size = np.maximum(a[..., 2:] - a[..., :2], 1e-3), np.maximum(b[..., 2:] - b[..., :2], 1e-3)
    ratio = a_size.prod(-1) / b_size.prod(-1)
    distance = np.hypot(*np.moveaxis(a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:], -1, 0)) / 2
    near = 1 - distance / ((a_size.sum(-1) + b_size.sum(-1)) / 4)
    return np.where((ratio > 1 / 9) & (ratio < 9), near, 0.0)


def grown(box: Box, share: float) -> Box:
    """The box with `share` of its width and height added on each side."""
    x0, y0, x1, y1 = box
    dx, dy = share * (x1 - x0), share * (y1 - y0)
    return x0 - dx, y0 - dy, x1 + dx, y1 + dy


def mix(a: Box, b: Box, share: float) -> Box:
    """The box `share` of the way from `a` to `b`."""
    x0, y0, x1, y1 = (p + share * (q - p) for p, q in zip(a, b, strict=True))
    return x0, y0, x1, y1


def hull(a: Box, b: Box) -> Box:
    """The least box that holds both: where two ways lead apart, what is looked for may be on either."""
    return min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])


def is_cut(before: Grey, after: Grey) -> bool:
    """Whether a new scene begins: most of the picture changed by more than motion would change it."""
    change = cv2.absdiff(before, after)
    return float(change.mean()) > 30 and float((change > 20).mean()) > 0.5
