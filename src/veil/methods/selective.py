"""Selective obfuscation: what is private is looked for, and only that is replaced, by noise that moves as it does.

After "Selective, Interpretable and Motion Consistent Privacy Attribute Obfuscation for Action Recognition" (Ilic, Zhao,
Pock and Wildes, CVPR 2024). The saliency of a frame is Eq. 1 and 2 (`veil.people.templates`), its noise Eq. 3 and 4
(`veil.methods.noise`); they meet in Eq. 5::

    out = x + s (n - x)

Paper: s is the cosine itself, about 0.3 to 0.7 on a face, which still shows through. Here, `hard`: s is 0 or 1.

*What is looked for.* Each name in `hide` has a map (`veil.people.saliency`). Faces and people that a detector finds (`also`)
are hidden as well.

*When.* Every `every`-th frame is a key frame, as are both sides of a cut, the last frame, and one of which more than a tenth
came into sight; maps are made of key frames only. With m the map of a key frame, M the flow's way from frame to frame and d the memory::

    forth(t)  = max(m(t), d M forth(t-1))  at key frames,    M forth(t-1)     between them
    back(t)   = m(t)                       at key frames,    M⁻¹ back(t+1)    between them
    s(t)      = max(forth(t), back(t)),    at key frames max(forth(t), d M⁻¹ back(t+1), min(M forth(t-1), M⁻¹ back(t+1)))

so that what appears between two key frames is hidden from the first of them on, and what the network misses once, while
it is there before and after, is hidden still, however faint it was; where a scene begins or ends, one of the two does.
A frame leaves when the maps of the next key frame have been made.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, get_args

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from veil.core import Anonymizer, FrameExplanation, Frames, Image, Region, Target, Veiled
from veil.methods.filters import CHECKED
from veil.methods.noise import CarriedNoise, Carry, Levels, Mode, blend
from veil.nn.flow import Flow, FlowName, Motion, enlarge, flow_estimator, warp
from veil.people import descriptors as dense
from veil.people import templates
from veil.people.boxes import mask, to_pixels
from veil.people.detectors import Kind
from veil.people.regions import DEFAULTS, find_all_regions
from veil.people.saliency import SaliencyMaps, rescale
from veil.people.tracks import TrackingOptions

Array = npt.NDArray[np.float32]
Regions = tuple[Region, ...]
OnFrame = Callable[[FrameExplanation], None]

GRID = 256  # the longer side of the grid on which maps are held
DETECTOR_EVERY = 8  # frames to one run of a detector: the part network finds most of what it finds
DETECTOR_SIDE = 320  # pixels of the longer side at which it runs
NEW_SHARE = 0.1  # of a frame: where more was not visible before, it is a key frame
NOISE_AHEAD = 4  # frames whose noise is made while the maps of others are made
TARGETING = 24  # frames in which the best match of a template is searched


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class Selective(Anonymizer):
    """Hides what you name, by noise that moves with it, and keeps the rest."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "hide": "cheek+eyes+forehead+hair",
            "also": "none",
            "parts": False,
            "descriptor": "dino-s8",
            "flow": "raft-large",
            "mode": "soft",
            "carry": "eq4",
            "levels": "video",
            "aggregate": "mean",
            "every": 1,
            "memory": 0.0,
            "grow": 0.0,
            "fill": 0.0,
        }
    }

    hide: Annotated[
        str,
        BeforeValidator(lambda value: value.replace(",", "+") if isinstance(value, str) else value),
        Field(description="what to hide: names of parts or templates, joined by +"),
    ] = "person"
    also: Annotated[
        Literal["none", "face", "person", "face+person"],
        Field(description="what a detector finds is hidden as well"),
    ] = "face"
    mode: Annotated[
        Mode, Field(description="hard: nothing is left inside; soft: mixed by saliency, as in the paper")
    ] = "hard"
    carry: Annotated[Carry, Field(description="how the noise moves")] = "recursive"
    levels: Annotated[
        Literal["hidden", "video", "full"],
        Field(description="range of the noise: that of what is hidden, of the whole video, or all there is"),
    ] = "hidden"
    contrast: Annotated[
        float, Field(gt=0, le=4, description="half the range, in standard deviations (1 in the paper)")
    ] = 1.0
    threshold: Annotated[
        float,
        Field(gt=0, lt=1, description="from where on a map hides; 0.5 is as measured, lower hides more"),
    ] = 0.5
    grow: Annotated[
        float, Field(ge=0, le=0.2, description="grow what is hidden by this share of the longer side")
    ] = 0.008
    fill: Annotated[
        float,
        Field(
            ge=0,
            le=0.2,
            description="fill holes and gaps in what is hidden up to this share of the longer side",
        ),
    ] = 0.04
    every: Annotated[int, Field(ge=1, le=32, description="make maps of every n-th frame")] = 6
    memory: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="how much of a map is left at the next key frame, if nothing is found there",
        ),
    ] = 0.7
    tiles: Annotated[
        int,
        Field(
            ge=1, le=4, description="also run the part network on N by N tiles of a frame, for small people"
        ),
    ] = 2
    parts: Annotated[
        bool,
        Field(description="let the part network find hair, face, skin, clothes, body and person"),
    ] = True
    descriptor: Annotated[str, Field(description="what compares templates with the video")] = dense.DEFAULT
    aggregate: Annotated[templates.Aggregate, Field(description="how several maps become one")] = "max"
    target: Annotated[
        bool, Field(description="replace each template by its best match in the first second")
    ] = False
    gamma: Annotated[float, Field(gt=0, le=10, description="soft: the saliency to this power")] = 1.0
    opacity: Annotated[
        float, Field(ge=0, le=1, description="soft: at least this much noise, from the threshold on")
    ] = 0.0
    flow: Annotated[
        FlowName, Field(description="optical flow: DIS, or RAFT, which needs weights and a GPU")
    ] = "fast"
    seed: Annotated[
        int | None,
        Field(ge=0, description="makes an experiment repeatable, and the noise predictable [unpredictable]"),
    ] = None

    def __post_init__(self) -> None:
        _ = self._saliency  # an unknown name is refused now, not in the middle of a video

    @property
    def names(self) -> list[str]:
        """What is hidden, each name once."""
        return list(dict.fromkeys(filter(None, (name.strip() for name in self.hide.split("+")))))

    @cached_property
    def _saliency(self) -> SaliencyMaps:
        return SaliencyMaps(
            self.names,
            parts=self.parts,
            descriptor=self.descriptor,
            aggregate=self.aggregate,
            tiles=self.tiles,
            rescale=self.mode != "soft",  # which mixes by the values as they are
        )

    @property
    def _kinds(self) -> list[Kind]:
        """What detectors look for."""
        return [kind for kind in get_args(Kind) if kind in self.also]

    def targets(self) -> tuple[Target, ...]:
        """The names in `hide`, each expected, and the kinds in `also`; a person includes the face."""
        also = () if "person" in self.names else self._kinds
        others = (name for name in also if name not in self.names)
        return (*(Target(name, expected=True) for name in self.names), *map(Target, others))

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer.stream`."""
        return self._run(windows, None)

    def ahead(self) -> int:
        """See `Anonymizer`."""
        return len(self._kinds) * TrackingOptions.max_gap + max(
            NOISE_AHEAD + self.every, TARGETING - 1 if self.target else 0
        )

    def explain(self, windows: Iterable[Frames], on_frame: OnFrame) -> Iterator[Veiled]:
        """See `Anonymizer.explain`."""
        return self._run(windows, on_frame)

    def _run(self, windows: Iterable[Frames], on_frame: OnFrame | None) -> Iterator[Veiled]:
        images = (image for frames in windows for image in frames)
        found = find_all_regions(images, self._kinds, every=DETECTOR_EVERY, longest=DETECTOR_SIDE)
        return _Obfuscation(self, self._saliency, on_frame).run(found)


@dataclasses.dataclass
class _HeldFrame:
    """A frame that waits for the next key frame."""

    image: Image
    noise: Image
    regions: Regions  # by detectors
    motion: Motion | None  # from the frame before; None where a video or a scene begins
    forth: Array  # (h, w), the map warped to it from frames before
    came: Array | None = (
        None  # (h, w), what was warped to a key frame, without its own map; None: a scene begins
    )
    own: Array | None = None  # (h, w), its map, if it is a key frame
    maps: dict[str, Array] | None = None  # what that was made of


class _Obfuscation:
    """The state of one video."""

    def __init__(self, given: Selective, saliency: SaliencyMaps, on_frame: OnFrame | None):
        self.given, self.saliency, self.on_frame = given, saliency, on_frame
        self.noise = CarriedNoise(given.carry, "full", given.seed, flow_estimator(given.flow))
        self.levels = None if given.levels == "full" else Levels(given.contrast)
        self.waiting: list[_HeldFrame] = []  # of one scene, from the last key frame on

    def run(self, found: Iterator[tuple[Image, Regions]]) -> Iterator[Veiled]:
        """Each frame, once and in order."""
        if self.given.target:
            first = list(itertools.islice(found, TARGETING))
            self.saliency = self.saliency.targeted(image for image, _ in first)
            found = itertools.chain(first, found)
        for image, regions, noise, motion in self._with_noise(found):
            if motion is None or motion.cut:
                yield from self._end()
                size = image.shape[:2]
                frame = _HeldFrame(image, noise, regions, None, np.zeros(_grid(*size), np.float32))
            else:
                frame = _HeldFrame(
                    image, noise, regions, motion, _warped(self.waiting[-1].forth, motion.backward, image)
                )
            self.waiting.append(frame)
            due = len(self.waiting) > self.given.every
            if frame.motion is None or due or frame.motion.occluded.mean() > NEW_SHARE:
                self._make_maps(frame)
                yield from self._release()
        yield from self._end()

    def _with_noise(
        self, found: Iterator[tuple[Image, Regions]]
    ) -> Iterator[tuple[Image, Regions, Image, Motion | None]]:
        """Each frame with its noise and its motion, which another thread computes a few frames ahead."""

        def step(image: Image) -> tuple[Image, Motion | None]:
            return self.noise.step(image), self.noise.motion

        ahead: deque[tuple[Image, Regions, Future[tuple[Image, Motion | None]]]] = deque()
        pool = ThreadPoolExecutor(1, "veil-noise")
        try:
            for image, regions in found:
                ahead.append((image, regions, pool.submit(step, image)))
                if len(ahead) > NOISE_AHEAD:
                    image, regions, result = ahead.popleft()
                    yield image, regions, *result.result()
            while ahead:
                image, regions, result = ahead.popleft()
                yield image, regions, *result.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _make_maps(self, frame: _HeldFrame) -> None:
        frame.maps = self.saliency(frame.image, frame.forth.shape)
        frame.own = self.saliency.combined(frame.maps)
        frame.came = None if frame.motion is None else frame.forth
        frame.forth = np.maximum(frame.own, self.given.memory * frame.forth)

    def _release(self) -> Iterator[Veiled]:
        """All that waits but the last, a key frame, whose map is warped back over the others."""
        *before, last = self.waiting
        back, done, after = last.own, [], last
        for frame in reversed(before):
            assert back is not None and after.motion is not None
            back = _warped(back, after.motion.forward, frame.image)
            done.append((frame, self._merged(frame, back)))
            after = frame
        self.waiting = [last]
        for frame, saliency in reversed(done):
            yield self._anonymized(frame, saliency)

    def _end(self) -> Iterator[Veiled]:
        """All that waits: nothing of this scene follows."""
        if not self.waiting:
            return
        last = self.waiting[-1]
        if last.own is None:
            self._make_maps(last)
        yield from self._release()
        self.waiting = []
        yield self._anonymized(last, self._merged(last, None))

    def _merged(self, frame: _HeldFrame, back: Array | None) -> Array:
        """The map of a frame: what was warped forth to it, and back from the next key frame unless its scene ends here."""
        memory, came = self.given.memory, frame.came
        if back is not None and frame.own is None:
            return np.maximum(frame.forth, back)
        found = frame.forth if back is None else np.maximum(frame.forth, memory * back)
        sides = [side for side in (came, back) if side is not None]
        if not memory or not sides:
            return found
        return np.maximum(found, np.minimum.reduce(sides))

    def _anonymized(self, frame: _HeldFrame, saliency: Array) -> Veiled:
        given, image = self.given, frame.image
        height, width = image.shape[:2]
        saliency = _closed_and_grown(saliency, given.fill, given.grow)
        wide = cv2.resize(saliency, (width, height), interpolation=cv2.INTER_LINEAR).astype(
            np.float32, copy=False
        )
        for region in frame.regions:
            cut = to_pixels(region.box, image.shape)
            x0, y0, x1, y1 = cut
            wide[y0:y1, x0:x1][mask(region.box, DEFAULTS[region.kind].outline, cut)] = 1
        hidden, noise = wide >= given.threshold, frame.noise
        if self.levels is not None:
            where = hidden if given.levels == "hidden" else None
            noise = self.levels.step(image, frame.motion is None, where)(noise)
        if given.mode == "soft":
            wide = wide**given.gamma
            np.maximum(wide, given.opacity, out=wide, where=hidden)
        out = blend(image, noise, wide, given.mode, threshold=given.threshold)
        if self.on_frame:
            small = cv2.resize(wide, saliency.shape[::-1], interpolation=cv2.INTER_AREA).astype(
                np.float32, copy=False
            )
            self.on_frame(FrameExplanation(out, rescale(small, given.threshold), frame.maps))
        regions = (*self._regions(saliency, frame), *frame.regions)
        return Veiled(out[None], [regions], [float(hidden.mean())])

    def _regions(self, saliency: Array, frame: _HeldFrame) -> Iterator[Region]:
        """What is connected in the map, as boxes in pixels of the frame, with the names that are present there in a key frame."""
        threshold, shape = self.given.threshold, frame.image.shape
        count, _, stats, _ = cv2.connectedComponentsWithStats((saliency >= threshold).astype(np.uint8))
        down, across = shape[0] / saliency.shape[0], shape[1] / saliency.shape[1]
        for x, y, w, h, _ in stats[1:count].tolist():
            part = slice(y, y + h), slice(x, x + w)
            names = self.saliency.present(frame.maps, part, threshold) if frame.maps else []
            box = x * across, y * down, (x + w) * across, (y + h) * down
            how = "detected" if names else "interpolated"
            kind = "+".join(names) or self.given.hide
            yield Region(kind, box, float(saliency[part].max()), how, -1, tuple(names))


def _closed_and_grown(saliency: Array, fill: float, grow: float) -> Array:
    """The map with gaps up to `fill` closed and edges moved outwards by `grow`, as shares of its longer side."""
    h, w = saliency.shape
    if reach := round(fill * max(h, w) / 4):  # at half the size, where a large disc is cheap
        half = cv2.resize(saliency, (-(-w // 2), -(-h // 2)), interpolation=cv2.INTER_AREA)
        closed = cv2.morphologyEx(half, cv2.MORPH_CLOSE, _disc(reach))
        closed = cv2.resize(closed, (w, h), interpolation=cv2.INTER_LINEAR)
        saliency = np.maximum(saliency, closed).astype(np.float32, copy=False)
    if reach := round(grow * max(h, w)):
        saliency = cv2.dilate(saliency, _disc(reach)).astype(np.float32, copy=False)
    return saliency


def _disc(radius: int) -> npt.NDArray[np.uint8]:
    side = 2 * radius + 1
    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side)).astype(np.uint8, copy=False)


def _grid(height: int, width: int) -> tuple[int, int]:
    """Height and width of the grid for frames of this size."""
    scale = min(1.0, GRID / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _warped(values: Array, flow: Flow, image: Image) -> Array:
    """A map warped by a flow, which is in pixels of the image."""
    h, w = values.shape
    if flow.shape[:2] != values.shape:
        flow = enlarge(flow, (h, w))
    return warp(values, flow * np.array([w / image.shape[1], h / image.shape[0]], np.float32), nearest=False)
