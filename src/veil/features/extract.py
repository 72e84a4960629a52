"""Clips of videos, and their features by a frozen encoder.

A video of T frames gives clips of L frames, one every S frames: at 0, S, 2S, … as long as a whole clip fits. What is left
at the end is dropped; a video shorter than a clip is one clip, with its last frame repeated. Clips are the middle squares
of frames. The frames of static clips are spread evenly over the video.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from veil.core import Frames, Progress, VeilError, VideoEncoder
from veil.data.frames import read_frames, square
from veil.data.sample import Dataset, Sample
from veil.features.bank import Bank, FailedVideo, VideoFeatures, collected
from veil.media.inputs import is_image, is_video
from veil.media.sources import open_source

STILLS = 10  # static clips of a video
# Frames of a video that static clips are chosen from; in a longer video they are off their positions by up to 1/256 of it.
_MAX_FRAMES = 512
_FPS = 25.0  # of frames without a timestamp
_BATCH = 32  # samples whose frames are made together


def extract(
    dataset: Dataset,
    encoder: VideoEncoder,
    *,
    stride: int | None = None,
    stills: int = STILLS,
    batch: int = 32,
    device: torch.device | str = "cpu",
    fps: float | None = None,
    progress: Progress | None = None,
) -> Bank:
    """The features of every sample of a dataset; one that cannot be read is an error.

    ``stride`` is frames from one clip to the next [as long as a clip]; ``batch`` is clips that are encoded at once; ``fps``
    is for frames without timestamps. The encoder must be on ``device``.
    """
    found: list[VideoFeatures] = []
    for result in encode_samples(
        dataset, dataset.samples, encoder, stride=stride, stills=stills, batch=batch, device=device, fps=fps
    ):
        if isinstance(result, FailedVideo):
            raise result.error
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


def encode_samples(
    dataset: Dataset,
    samples: Iterable[Sample],
    encoder: VideoEncoder,
    *,
    stride: int | None = None,
    stills: int = STILLS,
    batch: int = 32,
    device: torch.device | str = "cpu",
    fps: float | None = None,
) -> Iterator[VideoFeatures | FailedVideo]:
    """The features of samples in order, as `extract` makes them; memory does not grow with a video's length."""
    step = encoder.length if stride is None else stride
    if step < 1 or stills < 0 or batch < 1:
        raise VeilError(
            f"stride {step}, static clips {stills}, batch {batch}: the first and last must be at least 1.",
            code="extract-options",
        )
    waiting: list[_VideoInProgress] = []
    clips: list[tuple[_VideoInProgress, Frames]] = []

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

    def whole(*, last: bool = False) -> Iterator[VideoFeatures | FailedVideo]:
        while waiting and (last or waiting[0].done):
            yield waiting.pop(0).result(encoder)

    for video, frames in _cut_videos(dataset, samples, encoder, step, stills, fps):
        if not waiting or waiting[-1] is not video:
            waiting.append(video)
        if frames is not None:
            clips.append((video, frames))
        while len(clips) >= batch:
            encode(batch)
        yield from whole()
    encode(len(clips))
    yield from whole(last=True)


class _VideoInProgress:
    """A video whose clips are cut and encoded in order, until its features are complete."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.starts: list[float] = []
        self.stills = 0
        self.seconds = self.length = 0.0
        self.vectors: list[Tensor] = []
        self.ended = False  # nothing more is cut from it
        self.error: VeilError | None = None

    @property
    def done(self) -> bool:
        return self.ended and (self.error is not None or len(self.vectors) == len(self.starts) + self.stills)

    def result(self, encoder: VideoEncoder) -> VideoFeatures | FailedVideo:
        if self.error is None and not all(bool(vector.isfinite().all()) for vector in self.vectors):
            self.error = VeilError(
                f"{encoder.name} makes features of {self.sample.id} that are not finite: check its weights, or "
                "leave that video out.",
                code="features-not-finite",
            )
        if self.error is not None:
            return FailedVideo(self.sample, self.error)
        vectors = torch.stack(self.vectors)
        return VideoFeatures(
            self.sample,
            vectors[: len(self.starts)],
            torch.tensor(self.starts, dtype=torch.float32),
            self.seconds,
            self.length,
            vectors[len(self.starts) :],
        )


def _cut_videos(
    dataset: Dataset,
    samples: Iterable[Sample],
    encoder: VideoEncoder,
    step: int,
    stills: int,
    fps: float | None,
) -> Iterator[tuple[_VideoInProgress, Frames | None]]:
    """Every clip ``(L, S, S, 3)`` of every sample, first those that move; None at a video's end."""
    for sample, timed in _timed_frames(dataset, samples, fps):
        video = _VideoInProgress(sample)
        try:
            for frames in _cut_clips(timed, video, encoder, step, stills):
                yield video, frames
        except VeilError as error:
            video.error = error
        video.ended = True
        yield video, None


def _cut_clips(
    timed: Iterable[_TimedFrame], video: _VideoInProgress, encoder: VideoEncoder, step: int, stills: int
) -> Iterator[Frames]:
    """The clips of one video; their times are added to `video` on the way."""
    recent: list[_TimedFrame] = []  # what the next clip may need
    sparse = _SparseFrames(max(_MAX_FRAMES, 16 * stills))
    first = end = 0.0
    place = -1
    for place, one in enumerate(timed):
        one = one._replace(frame=square(one.frame[None], encoder.size)[0])
        first = one.start if place == 0 else first
        end = one.end
        if stills:
            sparse.add(one.frame)
        recent.append(one)
        begin = len(video.starts) * step  # of the next clip
        recent = recent[max(0, begin - (place - len(recent) + 1)) :]
        if place + 1 == begin + encoder.length:
            video.starts.append(recent[0].start - first)
            video.length = video.length or recent[-1].end - recent[0].start
            yield np.stack([one.frame for one in recent[: encoder.length]])
    if place < 0:
        raise VeilError(
            f"{video.sample.path or video.sample.id} has no frames: leave it out.", code="video-empty"
        )
    video.seconds = end - first
    if not video.starts:
        last = recent[-1]
        padded = recent + [last] * (encoder.length - len(recent))
        video.starts.append(0.0)
        video.length = (last.end - first) / len(recent) * encoder.length
        yield np.stack([one.frame for one in padded])
    for frame in sparse.spread(stills):
        video.stills += 1
        yield np.repeat(frame[None], encoder.length, axis=0)


class _SparseFrames:
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
        """This many of them, evenly from the first to the last."""
        for place in np.linspace(0, self._count - 1, count):
            yield self._kept[min(round(place / self._step), len(self._kept) - 1)]


class _TimedFrame(NamedTuple):
    frame: Frames  # (H, W, 3)
    start: float  # seconds
    end: float


def _timed_frames(
    dataset: Dataset, samples: Iterable[Sample], fps: float | None
) -> Iterator[tuple[Sample, Iterator[_TimedFrame]]]:
    """Each sample and its frames, which may fail while they are read."""
    if dataset.frames is read_frames:
        for sample in samples:
            yield sample, _decoded(sample, fps)
        return
    from veil.data.synthetic import FPS  # synthetic videos have a frame rate

    rate = fps or FPS
    if dataset.batch is None:
        for sample in samples:
            yield sample, _rendered(dataset, sample, rate)
        return
    rest = iter(samples)
    while group := list(islice(rest, _BATCH)):
        for sample, frames in zip(group, dataset.batch(group), strict=True):
            yield sample, _timed(frames, rate)


def _rendered(dataset: Dataset, sample: Sample, rate: float) -> Iterator[_TimedFrame]:
    yield from _timed(dataset.frames(sample), rate)


def _decoded(sample: Sample, fps: float | None) -> Iterator[_TimedFrame]:
    """The frames of a sample on disk; those of a video with its timestamps."""
    path = sample.path
    if path is None or path.is_dir() or not (is_video(path) or is_image(path)) or not path.is_file():
        yield from _timed(read_frames(sample), fps or _FPS)
        return
    source = open_source(path)
    try:
        tick = float(source.info.time_base)
        pairs = (pair for window in source.windows() for pair in zip(*window, strict=True))
        for frame, time in islice(pairs, *(sample.span or (0, None))):
            yield _TimedFrame(frame, time.pts * tick, (time.pts + time.duration) * tick)
    finally:
        source.close()


def _timed(frames: Iterable[Frames], rate: float) -> Iterator[_TimedFrame]:
    for place, frame in enumerate(frames):
        yield _TimedFrame(frame, place / rate, (place + 1) / rate)
