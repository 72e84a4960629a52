"""Selective obfuscation: what is private is looked for, and only that is replaced, by noise that moves as it does.

After "Selective, Interpretable and Motion Consistent Privacy Attribute Obfuscation for Action Recognition" (Ilic, Zhao,
Pock and Wildes, CVPR 2024). The saliency of a frame is Eq. 1 and 2 (`veil.people.templates`), its noise Eq. 3 and 4
(`veil.methods.noise`); they meet in Eq. 5::

    out = x + s (n - x)

Paper: s is the cosine itself, about 0.3 to 0.7 on a face, which still shows through. Here, `hard`: s is 0 or 1.

*What is looked for.* Each name in `hide` has a map. Hair, face, skin, clothes, body and person are told by the part network
that comes with Veil (`veil.people.parts`); any other name is a template, compared by a dense descriptor. So that one threshold
serves them all, a map is bent such that 0.5 is where it starts to count. Faces and people that a detector finds
(`also`) are hidden as well.

*When.* Every `every`-th frame is looked at (a key frame), as are both sides of a cut, the last one, and one of which more
than a tenth came into sight. With m the map of a key frame, M the flow's way from frame to frame and d the memory::

    forth(t)  = max(m(t), d M forth(t-1))  at key frames,    M forth(t-1)     between them
    back(t)   = m(t)                       at key frames,    M⁻¹ back(t+1)    between them
    s(t)      = max(forth(t), back(t)),    at key frames max(forth(t), d M⁻¹ back(t+1), min(M forth(t-1), M⁻¹ back(t+1)))

so that what appears between two key frames is hidden from the first of them on, and what the network misses once, while
it is there before and after, is hidden still, however faint it was; where a scene begins or ends, one of the two does.
A frame leaves when the next key frame has been looked at.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, get_args

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from veil.core import Anonymizer, FrameExplanation, Frames, Image, Region, Target, Veiled, VeilError
from veil.methods.filters import CHECKED
from veil.methods.noise import CarriedNoise, Carry, Levels, Mode, blend
from veil.nn.flow import By, Flow, Motion, enlarge, estimator, warp
from veil.people import descriptors as dense
from veil.people import parts as part_network
from veil.people import templates
from veil.people.boxes import mask, to_pixels
from veil.people.detectors import Kind
from veil.people.regions import DEFAULTS, find_regions
from veil.people.tracks import TrackingOptions

Array = npt.NDArray[np.float32]
Found = tuple[Region, ...]
OnFrame = Callable[[FrameExplanation], None]

GRID = 256  # the longer side of the grid on which maps are held
DETECTING = 8  # a detector looks at one frame in so many: the part network finds most of what it finds
SURPRISE = 0.1  # of a frame: where so much was not to be seen before, it is looked at
DETECTED = 320  # pixels of the longer side at which it does
AHEAD = 4  # frames whose noise is made while others are looked at
TARGETING = 24  # frames in which the best match of a template is looked for


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
        Field(description="what a detector finds is hidden, too"),
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
    every: Annotated[int, Field(ge=1, le=32, description="look at one frame in so many")] = 6
    memory: Annotated[
        float,
        Field(ge=0, lt=1, description="how much of a map is left at the next look, if nothing is seen there"),
    ] = 0.7
    tiles: Annotated[
        int,
        Field(ge=1, le=4, description="also look at so many by so many parts of a frame, for small people"),
    ] = 2
    parts: Annotated[
        bool, Field(description="let the part network tell hair, face, skin, clothes, body and person")
    ] = True
    descriptor: Annotated[str, Field(description="what compares templates with the video")] = dense.DEFAULT
    aggregate: Annotated[templates.Aggregate, Field(description="how several maps become one")] = "max"
    target: Annotated[
        bool, Field(description="replace each template by its best match in the first second")
    ] = False
    gamma: Annotated[float, Field(gt=0, le=10, description="soft: the saliency to this power")] = 1.0
    opacity: Annotated[
        float, Field(ge=0, le=1, description="soft: at least so much noise, from the threshold on")
    ] = 0.0
    flow: Annotated[
        By, Field(description="how motion is measured: by DIS, or by RAFT, which needs weights and a GPU")
    ] = "fast"
    seed: Annotated[
        int | None,
        Field(ge=0, description="makes an experiment repeatable, and the noise known [nobody knows it]"),
    ] = None

    def __post_init__(self) -> None:
        _ = self._looking  # an unknown name is told now, not in the middle of a video

    @property
    def names(self) -> list[str]:
        """What is hidden, each name once."""
        return list(dict.fromkeys(filter(None, (name.strip() for name in self.hide.split("+")))))

    @cached_property
    def _looking(self) -> _Looking:
        return _Looking(self)

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer.stream`."""
        return self._run(windows, None)

    def ahead(self) -> int:
        """See `Anonymizer`."""
        kinds = sum(kind in self.also for kind in get_args(Kind))
        return kinds * TrackingOptions.max_gap + max(AHEAD + self.every, TARGETING - 1 if self.target else 0)

    def targets(self) -> tuple[Target, ...]:
        """The names in `hide`, each expected, and the kinds in `also`; a person includes the face."""
        also = () if "person" in self.names else self.also.split("+")
        others = (name for name in also if name not in ("none", *self.names))
        return (*(Target(name, expected=True) for name in self.names), *map(Target, others))

    def explain(self, windows: Iterable[Frames], on_frame: OnFrame) -> Iterator[Veiled]:
        """See `Anonymizer.explain`."""
        return self._run(windows, on_frame)

    def _run(self, windows: Iterable[Frames], on_frame: OnFrame | None) -> Iterator[Veiled]:
        images = (image for frames in windows for image in frames)
        kinds = [kind for kind in get_args(Kind) if kind in self.also]
        return _Obfuscation(self, self._looking, on_frame).run(_with_regions(images, kinds))


class _Looking:
    """What is looked for, and how: the names in `hide`, each as a part or a template."""

    def __init__(self, given: Selective):
        self.names, self.mode, self.aggregate, self.tiles = (
            given.names,
            given.mode,
            given.aggregate,
            given.tiles,
        )
        served = part_network.GROUPS if given.parts else {}
        self.parts = [name for name in self.names if name in served]
        rest = [name for name in self.names if name not in served]
        self.templates: list[templates.Template] = []
        if not self.names:
            raise VeilError(
                f"'{given.hide}' names nothing to hide: name a part or a template, such as person."
            )
        if given.descriptor not in dense.DESCRIPTORS:
            dense.descriptor(given.descriptor)  # says what is wrong
        self.members = {name: [name] if name in served else templates.expanded([name]) for name in self.names}
        if rest:
            self.descriptor = dense.descriptor(given.descriptor)
            self.templates = templates.load(rest, self.descriptor)
            self.alike = dense.DESCRIPTORS[given.descriptor].alike

    def targeted(self, images: Iterable[Image]) -> _Looking:
        """The same, with templates as they look in these frames."""
        if not self.templates:
            return self
        other = object.__new__(_Looking)
        other.__dict__ |= self.__dict__
        seen = [self.descriptor(image).reshape(-1, self.descriptor.dim) for image in images]
        other.templates = templates.targeted(self.templates, np.concatenate(seen))
        return other

    def __call__(self, image: Image, grid: tuple[int, int]) -> dict[str, Array]:
        """A map ``grid`` for each thing that is looked for, from 0 to 1."""
        found: dict[str, Array] = {}
        if _of_one_colour(image):  # which the networks were never shown, and see people in
            named = [*self.parts, *(template.name for template in self.templates)]
            return {name: np.zeros(grid, np.float32) for name in named}
        if self.parts:
            network = part_network.parts()
            raw = _part_maps(network, image, self.parts, grid, self.tiles)
            found |= {name: self._bent(raw[name], network.thresholds[name]) for name in self.parts}
        if self.templates:
            vectors = self.descriptor(image)
            for template in self.templates:
                likeness = templates.saliency(vectors, [template])
                wide = dense.spread(likeness, self.descriptor, *grid)
                found[template.name] = self._bent(wide, self.alike)
        return found

    def found(self, maps: dict[str, Array], part: tuple[slice, slice], threshold: float) -> list[str]:
        """Which of the names are to be seen in a part of the maps."""
        return [
            name
            for name in self.names
            if any(maps[one][part].max() >= threshold for one in self.members[name])
        ]

    def combined(self, maps: dict[str, Array]) -> Array:
        """One map ``(h, w)`` of several."""
        stack = np.stack(list(maps.values()))
        if self.aggregate == "mean":
            return stack.mean(0)
        return stack.max(0) if self.aggregate == "max" else 1 - (1 - stack).prod(0)

    def _bent(self, values: Array, middle: float) -> Array:
        """On the scale on which 0.5 hides; soft mixing takes the values as they are."""
        return values if self.mode == "soft" else _bent(values, middle)


def _part_maps(
    network: part_network.Parts, image: Image, names: list[str], grid: tuple[int, int], tiles: int
) -> dict[str, Array]:
    """Maps of parts over the grid: of the whole image and, closer, of pieces of it that overlap; the larger value counts."""
    height, width = image.shape[:2]
    (h, w), out = grid, {name: np.zeros(grid, np.float32) for name in names}
    views = [(0, 0, w, h)]
    if tiles > 1 and max(height, width) > part_network.SIZE:
        across, down = (_pieces(side, tiles) for side in (w, h))
        views += [(x0, y0, x1, y1) for y0, y1 in down for x0, x1 in across]
    for x0, y0, x1, y1 in views:
        left, right = x0 * width // w, -(-x1 * width // w)
        top, bottom = y0 * height // h, -(-y1 * height // h)
        likely = network(image[top:bottom, left:right])
        for name in names:
            seen = cv2.resize(
                part_network.grouped(likely, [name]), (x1 - x0, y1 - y0), interpolation=cv2.INTER_LINEAR
            )
            place = out[name][y0:y1, x0:x1]
            np.maximum(place, seen, out=place)
    return out


def _pieces(side: int, count: int) -> list[tuple[int, int]]:
    """Where to cut an axis into so many pieces that overlap by a fifth of themselves."""
    length = max(1, round(side / (0.8 * count + 0.2)))
    return [
        (begin, begin + length) for begin in (round(i * (side - length) / (count - 1)) for i in range(count))
    ]


@dataclasses.dataclass
class _Frame:
    """A frame that waits for the next look."""

    image: Image
    noise: Image
    regions: Found  # by detectors
    motion: Motion | None  # from the frame before; None where a video or a scene begins
    forth: Array  # (h, w)
    came: Array | None = None  # (h, w), what was carried to it; None: a scene begins
    own: Array | None = None  # (h, w), its map, where it was looked at
    maps: dict[str, Array] | None = None  # what that was made of


class _Obfuscation:
    """The state of one video."""

    def __init__(self, given: Selective, looking: _Looking, on_frame: OnFrame | None):
        self.given, self.looking, self.on_frame = given, looking, on_frame
        self.noise = CarriedNoise(given.carry, "full", given.seed, estimator(given.flow))
        self.levels = None if given.levels == "full" else Levels(given.contrast)
        self.waiting: list[_Frame] = []  # of one scene, from the last key frame on

    def run(self, seen: Iterator[tuple[Image, Found]]) -> Iterator[Veiled]:
        """Each frame, once and in order."""
        if self.given.target:
            first = list(itertools.islice(seen, TARGETING))
            self.looking = self.looking.targeted(image for image, _ in first)
            seen = itertools.chain(first, seen)
        for image, regions, noise, motion in self._moving(seen):
            if motion is None or motion.cut:
                yield from self._end()
                size = image.shape[:2]
                frame = _Frame(image, noise, regions, None, np.zeros(_grid(*size), np.float32))
            else:
                frame = _Frame(
                    image, noise, regions, motion, _carried(self.waiting[-1].forth, motion.back, image)
                )
            self.waiting.append(frame)
            due = len(self.waiting) > self.given.every
            if frame.motion is None or due or frame.motion.lost.mean() > SURPRISE:
                self._look(frame)
                yield from self._give()
        yield from self._end()

    def _moving(
        self, seen: Iterator[tuple[Image, Found]]
    ) -> Iterator[tuple[Image, Found, Image, Motion | None]]:
        """Each frame with its noise and its motion, which another thread finds a few frames ahead."""

        def step(image: Image) -> tuple[Image, Motion | None]:
            return self.noise.step(image), self.noise.motion

        ahead: deque[tuple[Image, Found, Future[tuple[Image, Motion | None]]]] = deque()
        pool = ThreadPoolExecutor(1, "veil-noise")
        try:
            for image, regions in seen:
                ahead.append((image, regions, pool.submit(step, image)))
                if len(ahead) > AHEAD:
                    image, regions, found = ahead.popleft()
                    yield image, regions, *found.result()
            while ahead:
                image, regions, found = ahead.popleft()
                yield image, regions, *found.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _look(self, frame: _Frame) -> None:
        frame.maps = self.looking(frame.image, frame.forth.shape)
        frame.own = self.looking.combined(frame.maps)
        frame.came = None if frame.motion is None else frame.forth
        frame.forth = np.maximum(frame.own, self.given.memory * frame.forth)

    def _give(self) -> Iterator[Veiled]:
        """All that waits but the last, which was looked at: its map is carried back over the others."""
        *before, last = self.waiting
        back, done, after = last.own, [], last
        for frame in reversed(before):
            assert back is not None and after.motion is not None
            back = _carried(back, after.motion.forward, frame.image)
            done.append((frame, self._both(frame, back)))
            after = frame
        self.waiting = [last]
        for frame, saliency in reversed(done):
            yield self._hidden(frame, saliency)

    def _end(self) -> Iterator[Veiled]:
        """All that waits: nothing of this scene follows."""
        if not self.waiting:
            return
        last = self.waiting[-1]
        if last.own is None:
            self._look(last)
        yield from self._give()
        self.waiting = []
        yield self._hidden(last, self._both(last, None))

    def _both(self, frame: _Frame, back: Array | None) -> Array:
        """The map of a frame, of what was carried forth to it, and back from the next look unless its scene ends here."""
        memory, came = self.given.memory, frame.came
        if back is not None and frame.own is None:
            return np.maximum(frame.forth, back)
        found = frame.forth if back is None else np.maximum(frame.forth, memory * back)
        sides = [side for side in (came, back) if side is not None]
        if not memory or not sides:
            return found
        return np.maximum(found, np.minimum.reduce(sides))

    def _hidden(self, frame: _Frame, saliency: Array) -> Veiled:
        given, image = self.given, frame.image
        height, width = image.shape[:2]
        saliency = _spread_out(saliency, given.fill, given.grow)
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
            self.on_frame(FrameExplanation(out, _bent(small, given.threshold), frame.maps))
        regions = (*self._regions(saliency, frame), *frame.regions)
        return Veiled(out[None], [regions], [float(hidden.mean())])

    def _regions(self, saliency: Array, frame: _Frame) -> Iterator[Region]:
        """What is connected in the map, as boxes in pixels of the frame; where it was looked at, by what is there."""
        threshold, shape = self.given.threshold, frame.image.shape
        count, _, stats, _ = cv2.connectedComponentsWithStats((saliency >= threshold).astype(np.uint8))
        down, across = shape[0] / saliency.shape[0], shape[1] / saliency.shape[1]
        for x, y, w, h, _ in stats[1:count].tolist():
            part = slice(y, y + h), slice(x, x + w)
            found = tuple(self.looking.found(frame.maps, part, threshold)) if frame.maps else ()
            box = x * across, y * down, (x + w) * across, (y + h) * down
            how = "detected" if found else "interpolated"
            kind = "+".join(found) or self.given.hide
            yield Region(kind, box, float(saliency[part].max()), how, -1, found)


def _spread_out(saliency: Array, fill: float, grow: float) -> Array:
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


def _carried(values: Array, flow: Flow, image: Image) -> Array:
    """A map taken along by a flow, which is in pixels of the image."""
    h, w = values.shape
    if flow.shape[:2] != values.shape:
        flow = enlarge(flow, (h, w))
    return warp(values, flow * np.array([w / image.shape[1], h / image.shape[0]], np.float32), nearest=False)


def _of_one_colour(image: Image) -> bool:
    """Whether there is nothing to see: a difference of one level, in one pixel, is something."""
    return bool((image[0] == image[0, 0]).all() and (image == image[0, 0]).all())


def _bent(values: Array, middle: float) -> Array:
    """So that `middle` becomes 0.5, and 0 and 1 stay: two straight lines."""
    either = np.minimum if middle <= 0.5 else np.maximum
    return either(values * np.float32(0.5 / middle), (values - 1) * np.float32(0.5 / (1 - middle)) + 1)


def _with_regions(images: Iterator[Image], kinds: Sequence[Kind]) -> Iterator[tuple[Image, Found]]:
    """Each image with what detectors of all these kinds find in it."""
    stream: Iterator[tuple[Image, Found]] = ((image, ()) for image in images)
    for kind in kinds:
        stream = _and(stream, kind)
    return stream


def _and(stream: Iterator[tuple[Image, Found]], kind: Kind) -> Iterator[tuple[Image, Found]]:
    before: deque[Found] = deque()

    def images() -> Iterator[Image]:
        for image, found in stream:
            before.append(found)
            yield image

    for image, found in find_regions(images(), kind, every=DETECTING, longest=DETECTED):
        yield image, before.popleft() + found
