"""Features of videos: one vector a clip from a frozen encoder, and what is known of each video.

A video of T frames gives clips of L frames, one every S frames: at 0, S, 2S, … as long as a whole clip fits. What is left
at the end is no clip; a video shorter than a clip is one clip, with its last frame repeated. Clips are the middle squares
of frames. A *static clip* is one frame, L times: it shows who is there and not what they do. Their frames are spread evenly
over the video.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from veil.core import Frames, VeilError
from veil.data.frames import read_frames, square
from veil.data.sample import Dataset, Sample, Split
from veil.media.inputs import is_image, is_video
from veil.media.sources import open_source

STILLS = 10  # static clips of a video
# Frames of a video that static clips are chosen from; in a longer video they are off their places by up to 1/256 of it.
_HELD = 512
_FPS = 25.0  # of frames that tell no time
_MADE = 32  # samples whose frames are made together
UNKNOWN = -1  # the class of a video of which a dataset does not say it


class Encoder(Protocol):
    """What features need of `veil.features.encoders.Encoder`."""

    name: str
    dim: int
    length: int  # frames in a clip
    size: int  # pixels of a side
    fingerprint: str  # of the weights

    def pooled(self, clip: Tensor, /) -> Tensor:
        """A clip ``(B, 3, T, H, W)`` as one vector each, ``(B, D)``."""
        ...


class Features(NamedTuple):
    """What is kept of one video."""

    sample: Sample
    clips: Tensor  # (N, D) float32
    starts: Tensor  # (N,) float32: the second at which each clip begins
    seconds: float  # how long the video is
    length: float  # seconds that a clip covers
    stills: Tensor  # (S, D) float32


class Failed(NamedTuple):
    """A video that could not be read, and why."""

    sample: Sample
    why: VeilError


@dataclass(frozen=True)
class Bank:
    """Features of many videos, in memory."""

    encoder: str  # its name
    fingerprint: str  # of its weights
    samples: tuple[Sample, ...]  # V videos, with their labels
    clips: Tensor  # (V, N, D) float32, zeros after a video's last clip
    counts: Tensor  # (V,) int64: clips of each video
    starts: Tensor  # (V, N) float32: the second at which each clip begins, zeros after the last
    seconds: Tensor  # (V,) float32: how long each video is
    length: float  # seconds that a clip covers, of the first video
    stills: Tensor  # (V, S, D): static clips; S = 0 where none were made
    actions: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        videos, most, dim = self.clips.shape
        wanted = {
            "counts": (videos,),
            "starts": (videos, most),
            "seconds": (videos,),
            "stills": (videos, self.stills.shape[1] if self.stills.ndim == 3 else 0, dim),
        }
        for name, shape in wanted.items():
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(
                    f"{name} of {videos} videos is {shape}, got {tuple(getattr(self, name).shape)}"
                )
        if len(self.samples) != videos:
            raise ValueError(f"features of {videos} videos, and {len(self.samples)} samples")

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def dim(self) -> int:
        """How many numbers a feature has."""
        return self.clips.shape[2]

    @property
    def mask(self) -> Tensor:
        """Which clips there are, ``(V, N)`` bool."""
        return torch.arange(self.clips.shape[1], device=self.counts.device) < self.counts[:, None]

    def split(self, name: Split) -> Bank:
        """The videos of one split."""
        return self.take([place for place, sample in enumerate(self.samples) if sample.split == name])

    def take(self, index: Sequence[int] | Tensor) -> Bank:
        """Some of the videos: by their places, or by a mask ``(V,)`` bool."""
        places = torch.as_tensor(index)
        places = places.nonzero()[:, 0] if places.dtype == torch.bool else places.long()
        places = places.to(self.clips.device)
        return replace(
            self,
            samples=tuple(self.samples[place] for place in places.tolist()),
            clips=self.clips[places],
            counts=self.counts[places],
            starts=self.starts[places],
            seconds=self.seconds[places],
            stills=self.stills[places],
        )

    def to(self, device: torch.device | str) -> Bank:
        """The same on a device."""
        names = ("clips", "counts", "starts", "seconds", "stills")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def changed(self, clips: Tensor, stills: Tensor, fingerprint: str | None = None) -> Bank:
        """Other features of the same videos, such as an adapter leaves; what lies after the last clip is zero."""
        kept = self.mask[..., None].to(clips.device)
        return replace(
            self,
            clips=torch.where(kept, clips, torch.zeros((), dtype=clips.dtype, device=clips.device)),
            stills=stills,
            fingerprint=self.fingerprint if fingerprint is None else fingerprint,
        )

    def truth(self, target: str) -> Tensor:
        """What is known of each video.

        ``action`` and ``identity`` are classes ``(V,)`` int64, -1 where unknown. ``attributes`` are ``(V, A)`` float32, NaN
        where unknown. Any other name is that of a group, such as "gender": its values in alphabetical order are the classes.
        """
        if target == "attributes":
            blank = (math.nan,) * len(self.attributes)
            rows = [sample.attributes or blank for sample in self.samples]
            found = torch.tensor(rows, dtype=torch.float32).reshape(len(rows), len(self.attributes))
            known = bool(self.attributes) and any(sample.attributes for sample in self.samples)
        else:
            if target in ("action", "identity"):
                classes = [getattr(sample, target) for sample in self.samples]
            else:
                values = [sample.groups.get(target) for sample in self.samples]
                order = {value: place for place, value in enumerate(sorted({v for v in values if v}))}
                classes = [order.get(value) if value else None for value in values]
            found = torch.tensor([UNKNOWN if label is None else label for label in classes], dtype=torch.long)
            known = any(label is not None for label in classes)
        if not known and self.samples:
            groups = sorted({name for sample in self.samples for name in sample.groups})
            there = ", ".join(["action, identity, attributes", *groups])
            raise VeilError(
                f"these {len(self.samples):,} videos have no {target}; choose another of {there}, or other features"
            )
        return found.to(self.clips.device)


def collected(
    features: Iterable[Features],
    encoder: str,
    fingerprint: str,
    dim: int,
    *,
    actions: Sequence[str] = (),
    attributes: Sequence[str] = (),
    identities: Sequence[str] = (),
) -> Bank:
    """Videos as a bank; all must have the same number of static clips."""
    videos = list(features)
    counts = torch.tensor([len(video.clips) for video in videos], dtype=torch.long)
    most, stills = max([0, *counts.tolist()]), {len(video.stills) for video in videos} or {0}
    if len(stills) != 1:
        raise VeilError(
            f"some videos have {min(stills)} static clips and some {max(stills)}; extract all with the same number"
        )
    clips = torch.zeros(len(videos), most, dim)
    starts = torch.zeros(len(videos), most)
    static = torch.zeros(len(videos), stills.pop(), dim)
    for place, video in enumerate(videos):
        clips[place, : len(video.clips)] = video.clips
        starts[place, : len(video.clips)] = video.starts
        static[place] = video.stills
    return Bank(
        encoder=encoder,
        fingerprint=fingerprint,
        samples=tuple(video.sample for video in videos),
        clips=clips,
        counts=counts,
        starts=starts,
        seconds=torch.tensor([video.seconds for video in videos], dtype=torch.float32),
        length=videos[0].length if videos else 0.0,
        stills=static,
        actions=tuple(actions),
        attributes=tuple(attributes),
        identities=tuple(identities),
    )


def joined(banks: Sequence[Bank]) -> Bank:
    """Banks as one. Actions, attributes and people of the same name are the same; other encoders are refused."""
    if not banks:
        raise VeilError("there are no features to join; give at least one bank")
    first = banks[0]
    for bank in banks[1:]:
        if (bank.encoder, bank.fingerprint, bank.dim) != (first.encoder, first.fingerprint, first.dim):
            raise VeilError(
                f"features of {_named(first)} and of {_named(bank)} do not mix; extract all with one encoder"
            )
        if bank.stills.shape[1] != first.stills.shape[1]:
            raise VeilError(
                f"one bank has {first.stills.shape[1]} static clips a video and another {bank.stills.shape[1]}; "
                "extract all of them with the same number"
            )
    actions, attributes, identities = (
        tuple(dict.fromkeys(name for bank in banks for name in getattr(bank, words)))
        for words in ("actions", "attributes", "identities")
    )
    most = max(bank.clips.shape[1] for bank in banks)
    samples = [
        relabelled(sample, bank, actions, attributes, identities) for bank in banks for sample in bank.samples
    ]

    def grown(tensor: Tensor) -> Tensor:
        wide = tensor.new_zeros(len(tensor), most, *tensor.shape[2:])
        wide[:, : tensor.shape[1]] = tensor
        return wide

    return Bank(
        encoder=first.encoder,
        fingerprint=first.fingerprint,
        samples=tuple(samples),
        clips=torch.cat([grown(bank.clips) for bank in banks]),
        counts=torch.cat([bank.counts for bank in banks]),
        starts=torch.cat([grown(bank.starts) for bank in banks]),
        seconds=torch.cat([bank.seconds for bank in banks]),
        length=next((bank.length for bank in banks if len(bank)), 0.0),
        stills=torch.cat([bank.stills for bank in banks]),
        actions=actions,
        attributes=attributes,
        identities=identities,
    )


class Vocabulary(Protocol):
    """What labels are numbers of; a `Dataset` and a `Bank` have one."""

    @property
    def actions(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def attributes(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def identities(self) -> tuple[str, ...]: ...  # noqa: D102


@dataclass(frozen=True)
class Words:
    """A vocabulary, and nothing else."""

    actions: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()


def relabelled(
    sample: Sample,
    old: Vocabulary,
    actions: Sequence[str],
    attributes: Sequence[str],
    identities: Sequence[str],
) -> Sample:
    """A sample with its labels numbered in another vocabulary, which must have their names."""
    if (old.actions, old.attributes, old.identities) == (actions, attributes, identities):
        return sample
    values = dict(zip(old.attributes, sample.attributes, strict=False))
    return replace(
        sample,
        action=None if sample.action is None else actions.index(old.actions[sample.action]),
        identity=None if sample.identity is None else identities.index(old.identities[sample.identity]),
        attributes=tuple(values.get(name, math.nan) for name in attributes) if values else (),
        segments=tuple(
            part._replace(label=actions.index(old.actions[part.label])) for part in sample.segments
        ),
    )


def _named(bank: Bank) -> str:
    return f"{bank.encoder} ({bank.fingerprint[:12]}, {bank.dim} numbers)"


def extract(
    dataset: Dataset,
    encoder: Encoder,
    *,
    stride: int | None = None,
    stills: int = STILLS,
    batch: int = 32,
    device: torch.device | str = "cpu",
    fps: float | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Bank:
    """The features of every sample of a dataset; one that cannot be read is an error.

    ``stride`` is frames from one clip to the next [as long as a clip]; ``batch`` is clips that are encoded at once; ``fps``
    is for frames that tell no time. The encoder must be on ``device``.
    """
    found: list[Features] = []
    for result in each(
        dataset, dataset.samples, encoder, stride=stride, stills=stills, batch=batch, device=device, fps=fps
    ):
        if isinstance(result, Failed):
            raise result.why
        found.append(result)
        if progress is not None:
            progress(len(found), len(dataset.samples))
    return collected(
        found,
        encoder.name,
        encoder.fingerprint,
        encoder.dim,
        actions=dataset.actions,
        attributes=dataset.attributes,
        identities=dataset.identities,
    )


def each(
    dataset: Dataset,
    samples: Iterable[Sample],
    encoder: Encoder,
    *,
    stride: int | None = None,
    stills: int = STILLS,
    batch: int = 32,
    device: torch.device | str = "cpu",
    fps: float | None = None,
) -> Iterator[Features | Failed]:
    """The features of samples in order, as `extract` makes them; memory does not grow with a video's length."""
    step = encoder.length if stride is None else stride
    if step < 1 or stills < 0 or batch < 1:
        raise VeilError(
            f"stride {step}, static clips {stills}, batch {batch}: the first and last must be at least 1"
        )
    waiting: list[_Video] = []
    clips: list[tuple[_Video, Frames]] = []

    def encode(count: int) -> None:
        taken, clips[:] = clips[:count], clips[count:]
        if not taken:
            return
        pixels = torch.from_numpy(np.stack([frames for _, frames in taken])).to(device)
        with torch.no_grad():
            vectors = encoder.pooled(pixels.permute(0, 4, 1, 2, 3).float().div_(255)).float().cpu()
        if vectors.shape != (len(taken), encoder.dim):
            raise ValueError(
                f"{encoder.name} gives (B, {encoder.dim}) features, got {tuple(vectors.shape)} for {len(taken)} clips"
            )
        for (video, _), vector in zip(taken, vectors, strict=True):
            video.vectors.append(vector)

    def whole(*, last: bool = False) -> Iterator[Features | Failed]:
        while waiting and (last or waiting[0].done):
            yield waiting.pop(0).result(encoder)

    for video, frames in _cut(dataset, samples, encoder, step, stills, fps):
        if not waiting or waiting[-1] is not video:
            waiting.append(video)
        if frames is not None:
            clips.append((video, frames))
        while len(clips) >= batch:
            encode(batch)
        yield from whole()
    encode(len(clips))
    yield from whole(last=True)


class _Video:
    """A video on its way: its clips are cut, encoded in order, and then there are features of it."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.starts: list[float] = []
        self.stills = 0
        self.seconds = self.length = 0.0
        self.vectors: list[Tensor] = []
        self.ended = False  # nothing more is cut from it
        self.why: VeilError | None = None

    @property
    def done(self) -> bool:
        return self.ended and (self.why is not None or len(self.vectors) == len(self.starts) + self.stills)

    def result(self, encoder: Encoder) -> Features | Failed:
        if self.why is None and not all(bool(vector.isfinite().all()) for vector in self.vectors):
            self.why = VeilError(
                f"{encoder.name} makes features of {self.sample.id} that are no numbers (NaN); check its weights, or "
                "leave that video out"
            )
        if self.why is not None:
            return Failed(self.sample, self.why)
        vectors = torch.stack(self.vectors)
        return Features(
            self.sample,
            vectors[: len(self.starts)],
            torch.tensor(self.starts, dtype=torch.float32),
            self.seconds,
            self.length,
            vectors[len(self.starts) :],
        )


def _cut(
    dataset: Dataset,
    samples: Iterable[Sample],
    encoder: Encoder,
    step: int,
    stills: int,
    fps: float | None,
) -> Iterator[tuple[_Video, Frames | None]]:
    """Every clip ``(L, S, S, 3)`` of every sample, first those that move; None at a video's end."""
    for sample, pictures in _pictures(dataset, samples, fps):
        video = _Video(sample)
        try:
            for frames in _clips(pictures, video, encoder, step, stills):
                yield video, frames
        except VeilError as error:
            video.why = error
        video.ended = True
        yield video, None


def _clips(
    pictures: Iterable[_Picture], video: _Video, encoder: Encoder, step: int, stills: int
) -> Iterator[Frames]:
    """The clips of one video, and what is told of them as they go."""
    recent: list[_Picture] = []  # what the next clip may need
    held = _Sparse(max(_HELD, 16 * stills))
    first = end = 0.0
    place = -1
    for place, picture in enumerate(pictures):
        picture = picture._replace(frame=square(picture.frame[None], encoder.size)[0])
        first = picture.start if place == 0 else first
        end = picture.end
        if stills:
            held.add(picture.frame)
        recent.append(picture)
        begin = len(video.starts) * step  # of the next clip
        recent = recent[max(0, begin - (place - len(recent) + 1)) :]
        if place + 1 == begin + encoder.length:
            video.starts.append(recent[0].start - first)
            video.length = video.length or recent[-1].end - recent[0].start
            yield np.stack([picture.frame for picture in recent[: encoder.length]])
    if place < 0:
        raise VeilError(f"{video.sample.path or video.sample.id} has no frames; leave it out")
    video.seconds = end - first
    if not video.starts:
        last = recent[-1]
        padded = recent + [last] * (encoder.length - len(recent))
        video.starts.append(0.0)
        video.length = (last.end - first) / len(recent) * encoder.length
        yield np.stack([picture.frame for picture in padded])
    for frame in held.spread(stills):
        video.stills += 1
        yield np.repeat(frame[None], encoder.length, axis=0)


class _Sparse:
    """Some of the frames of a video of any length: all of them while they are few, then every second, and so on."""

    def __init__(self, most: int) -> None:
        self._most, self._step, self._count = most, 1, 0
        self._kept: list[Frames] = []

    def add(self, frame: Frames) -> None:
        if self._count % self._step == 0:
            if len(self._kept) == self._most:
                self._kept, self._step = self._kept[::2], 2 * self._step
            if self._count % self._step == 0:
                self._kept.append(frame)
        self._count += 1

    def spread(self, count: int) -> Iterator[Frames]:
        """So many of them, from the first to the last, evenly."""
        for place in np.linspace(0, self._count - 1, count):
            yield self._kept[min(round(place / self._step), len(self._kept) - 1)]


class _Picture(NamedTuple):
    frame: Frames  # (H, W, 3)
    start: float  # seconds
    end: float


def _pictures(
    dataset: Dataset, samples: Iterable[Sample], fps: float | None
) -> Iterator[tuple[Sample, Iterator[_Picture]]]:
    """Each sample and its pictures, which may fail while they are read."""
    if dataset.frames is read_frames:
        for sample in samples:
            yield sample, _read(sample, fps)
        return
    from veil.data.synthetic import FPS  # the world that is made up has a clock

    rate = fps or FPS
    if dataset.batch is None:
        for sample in samples:
            yield sample, _made(dataset, sample, rate)
        return
    rest = iter(samples)
    while group := list(islice(rest, _MADE)):
        for sample, frames in zip(group, dataset.batch(group), strict=True):
            yield sample, _timed(frames, rate)


def _made(dataset: Dataset, sample: Sample, rate: float) -> Iterator[_Picture]:
    yield from _timed(dataset.frames(sample), rate)


def _read(sample: Sample, fps: float | None) -> Iterator[_Picture]:
    """The pictures of a sample that lies on disk; of a video with the times that it states."""
    path = sample.path
    if path is None or path.is_dir() or not (is_video(path) or is_image(path)) or not path.is_file():
        yield from _timed(read_frames(sample), fps or _FPS)
        return
    source = open_source(path)
    try:
        tick = float(source.info.time_base)
        timed = (pair for window in source.windows() for pair in zip(*window, strict=True))
        for frame, time in islice(timed, *(sample.span or (0, None))):
            yield _Picture(frame, time.pts * tick, (time.pts + time.duration) * tick)
    finally:
        source.close()


def _timed(frames: Iterable[Frames], rate: float) -> Iterator[_Picture]:
    for place, frame in enumerate(frames):
        yield _Picture(frame, place / rate, (place + 1) / rate)
