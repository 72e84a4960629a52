"""The videos of a dataset as an attacker gets them, small enough to be held in memory.

Every video is processed as a file is: its 8-bit frames go through `Anonymizer.stream` and, where chosen, through the
encoder and the decoder. Only then a few frames, spread over the whole video, are taken.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from os import cpu_count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from veil.audit.result import Encoding
from veil.core import Anonymizer, Frames, Progress, VeilError
from veil.data import Dataset, Sample
from veil.data.frames import FrameReader, SampleFrames, square
from veil.media.sinks import open_sink
from veil.media.sources import open_source
from veil.media.video import FrameTime, VideoInfo

FPS = 25  # of the file that an H.264 round trip writes; the encoder does not use it
MEMORY = 4 << 30  # bytes of raw video that are held


@dataclass(frozen=True)
class Videos:
    """Videos of one size and length, with their labels."""

    frames: Tensor  # (N, F, S, S, 3) uint8
    samples: tuple[Sample, ...]
    dataset: str
    actions: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.samples)

    def of(self, keep: Callable[[Sample], bool]) -> Videos:
        """The videos whose sample is to be kept."""
        rows = [row for row, sample in enumerate(self.samples) if keep(sample)]
        return replace(self, frames=self.frames[rows], samples=tuple(self.samples[row] for row in rows))

    def split(self, name: str) -> Videos:
        """The videos of one split."""
        return self.of(lambda sample: sample.split == name)

    def to(self, device: torch.device | str) -> Videos:
        """The same, on another device."""
        return replace(self, frames=self.frames.to(device))

    def classes(self, target: str) -> tuple[str, ...]:
        """The names of a target's classes."""
        return {"action": self.actions, "identity": self.identities, "attributes": self.attributes}[target]

    def truth(self, target: str) -> Tensor:
        """The labels: classes ``(N,)`` int64, or for attributes ``(N, A)`` of 0 and 1."""
        if target == "attributes":
            return torch.tensor([sample.attributes for sample in self.samples], dtype=torch.float32)
        return torch.tensor([getattr(sample, target) for sample in self.samples], dtype=torch.int64)

    def targets(self) -> list[str]:
        """The targets that each sample is labelled with and that have more than one class."""
        found = []
        for target in ("action", "identity", "attributes"):
            missing = () if target == "attributes" else (None,)
            labels = [getattr(sample, target) for sample in self.samples]
            if labels and all(label not in (*missing, ()) for label in labels) and len(set(labels)) > 1:
                found.append(target)
        return found


def seen_in_training(train: Videos, test: Videos, target: str) -> bool:
    """Whether most test videos have a class that training videos have: unseen identities cannot be classified."""
    known, tested = set(train.truth(target).tolist()), test.truth(target).tolist()
    return sum(answer in known for answer in tested) > len(tested) / 2


def gather(
    dataset: Dataset,
    anonymizer: Anonymizer | None,
    *,
    size: int,
    frames: int,
    encoding: Encoding = "8-bit",
    samples: Sequence[Sample] | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Videos:
    """The videos of a dataset: brought to ``size``² pixels, anonymized (None: raw), ``frames`` of each video."""
    chosen = dataset.samples if samples is None else samples
    reader = FrameReader(dataset, size=size, cache=cache)
    kept: list[Sample] = []
    store: Frames | None = None

    def make(read: SampleFrames) -> tuple[Sample, Frames]:
        raw = square(read.frames, size)
        out = raw if anonymizer is None else anonymized(anonymizer, raw)
        if encoding == "h264" and len(out) > 1:
            out = round_trip(out)
        return read.sample, out[np.linspace(0, len(out) - 1, frames).round().astype(int)]

    for sample, picked in _in_parallel(make, reader.each(chosen)):
        if store is None:
            store = np.empty((len(chosen), *picked.shape), np.uint8)
        store[len(kept)] = picked
        kept.append(sample)
        if progress:
            progress(len(kept), len(chosen))
    if store is None:
        raise VeilError(
            f"{dataset.name} has no videos to audit: check it with `veil data check`.",
            code="audit-data-empty",
        )
    return Videos(
        torch.from_numpy(store[: len(kept)]),
        tuple(kept),
        dataset.name,
        dataset.actions,
        dataset.attributes,
        dataset.identities,
    )


def held_in_memory(dataset: Dataset, size: int) -> Dataset:
    """The dataset, with its videos (small and square) held in memory once read, up to `MEMORY` bytes."""
    store: dict[str, Frames] = {}
    room = [MEMORY]
    reader = FrameReader(dataset, size=size)

    def keep(sample: Sample, frames: Frames) -> Frames:
        small = square(frames, size)
        if small.nbytes <= room[0]:
            room[0] -= small.nbytes
            store[sample.id] = small
        return small

    def frames(sample: Sample) -> Frames:
        known = store.get(sample.id)
        return keep(sample, reader(sample)) if known is None else known

    def batch(samples: Sequence[Sample]) -> Iterator[Frames]:
        if dataset.batch is None or all(sample.id in store for sample in samples):
            yield from map(frames, samples)
        else:
            yield from (keep(*pair) for pair in zip(samples, dataset.batch(samples), strict=True))

    return replace(dataset, frames=frames, batch=batch if dataset.batch else None)


def anonymized(anonymizer: Anonymizer, frames: Frames) -> Frames:
    """A video ``(T, H, W, 3)`` after an anonymizer; every frame, or an error."""
    out = np.concatenate([part.frames for part in anonymizer.stream([frames])])
    if out.shape != frames.shape:
        raise RuntimeError(f"{type(anonymizer).__name__} made frames {out.shape} of {frames.shape}")
    return out


def round_trip(frames: Frames) -> Frames:
    """A video ``(T, H, W, 3)`` after encoding and decoding: what the written file holds."""
    height, width = frames.shape[1:3]
    tick = Fraction(1, FPS)
    info = VideoInfo(width, height, Fraction(FPS), len(frames), tick)
    with tempfile.TemporaryDirectory(prefix="veil-audit-") as folder:
        path = Path(folder) / "clip.mp4"
        with open_sink(path, info) as sink:
            sink.write(frames, [FrameTime(index, 1) for index in range(len(frames))])
        with closing(open_source(path)) as source:
            back = np.concatenate([window.frames for window in source.windows()])
    return back[:, :height, :width]


def _in_parallel(work: Callable[[SampleFrames], tuple[Sample, Frames]], reads: Iterator[SampleFrames]):
    """`work` done on each of `reads`, in order, by all cores, a few ahead."""
    workers = cpu_count() or 1
    with ThreadPoolExecutor(workers, "veil-audit") as pool:
        waiting: deque[Future[tuple[Sample, Frames]]] = deque()
        try:
            for read in reads:
                waiting.append(pool.submit(work, read))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            yield from (future.result() for future in itertools.chain(waiting))
        finally:
            pool.shutdown(cancel_futures=True)
