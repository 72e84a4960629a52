"""Frames of all videos of one split, decoded once, small and square: on the device, in memory or on disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Literal

import numpy as np
import torch
from torch import Tensor

from veil.core import Frames, VeilError, io_errors
from veil.data import Dataset
from veil.data.frames import FrameReader, square
from veil.media.folders import cache_folder

MEMORY_LIMIT = 24 << 30  # bytes of frames of one split in memory; more are kept on disk


class FrameCache:
    """The videos of one split, as small square frames; clips are looked up by video and frame number."""

    def __init__(
        self, dataset: Dataset, split: str, size: int, max_frames: int, device: torch.device
    ) -> None:
        samples = [sample for sample in dataset.samples if sample.split == split]
        if not samples:
            raise VeilError(
                f"{dataset.name} has no {split} videos: check it with `veil data check`.",
                code="split-empty",
            )
        self.dataset, self.samples, self.device = dataset, [], device

        def videos() -> Iterator[Frames]:
            for sample, frames in FrameReader(dataset, size=size).each(samples):
                self.samples.append(sample)
                yield square(_middle(frames, max_frames), size)

        self.frames, lengths = _stored(videos(), device)  # (M, S, S, 3) uint8
        self.lengths = torch.tensor(lengths)  # (N,)
        self.first = torch.tensor([0, *lengths[:-1]]).cumsum(0)  # (N,)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def images_only(self) -> bool:
        """Whether every sample is a single image."""
        return bool((self.lengths == 1).all())

    def clips(self, rows: Tensor, times: Tensor) -> Tensor:
        """Frames `times` ``(B, T)`` of videos `rows` ``(B,)`` as ``(B, 3, T, S, S)`` uint8; past the end, the last frame."""
        times = torch.minimum(times.clamp_min(0), self.lengths[rows, None] - 1)
        chosen = self.frames[(self.first[rows, None] + times).to(self.frames.device)]
        return chosen.to(self.device).permute(0, 4, 1, 2, 3)

    def labels(
        self, target: Literal["action", "identity", "attributes"], n_distinct: int = 2
    ) -> Tensor | None:
        """The label of each video: ``(N,)`` int64 or, for attributes, ``(N, A)`` float.

        None where labels are missing, or where there are fewer than `n_distinct` different ones.
        """
        if target == "attributes":
            attributes = [sample.attributes for sample in self.samples]
            if not all(attributes) or not self.dataset.attributes:
                return None
            return torch.tensor(attributes, dtype=torch.float32)
        labels = [getattr(sample, target) for sample in self.samples]
        if any(label is None for label in labels) or len(set(labels)) < n_distinct:
            return None
        return torch.tensor(labels, dtype=torch.int64)


def _middle(frames: Frames, count: int) -> Frames:
    first = max(0, (len(frames) - count) // 2)
    # A copy, so that the memory of the other frames is freed.
    return frames if len(frames) <= count else frames[first : first + count].copy()


def _stored(videos: Iterable[Frames], device: torch.device) -> tuple[Tensor, list[int]]:
    """The frames of all videos one after another, and the number of frames of each.

    On the device where they fit into a quarter of its free memory; else in main memory; else on disk, from which a batch
    reads its frames when it is made. Frames are never held twice.
    """
    parts: list[Frames] = []
    lengths: list[int] = []
    free = min(MEMORY_LIMIT, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
    shape: tuple[int, ...] = ()
    file: IO[bytes] | None = None
    for frames in videos:
        parts.append(frames)
        lengths.append(len(frames))
        shape = frames.shape[1:]
        free -= frames.nbytes
        if free < 0:
            file = _move_to_disk(parts, file)
    shape = sum(lengths), *shape
    if file is not None:
        return torch.from_numpy(np.memmap(file, np.uint8, "c", shape=shape)), lengths
    if device.type == "cuda" and sum(part.nbytes for part in parts) > torch.cuda.mem_get_info(device)[0] // 4:
        device = torch.device("cpu")
    whole, end = torch.empty(shape, dtype=torch.uint8, device=device), sum(lengths)
    while parts:
        part = torch.from_numpy(parts.pop())
        whole[end - len(part) : end] = part
        end -= len(part)
    return whole, lengths


def _move_to_disk(parts: list[Frames], file: IO[bytes] | None) -> IO[bytes]:
    """Append the parts to a file without a name, which disappears with the process, and free their memory."""
    folder = cache_folder("frames")
    advice = (
        "these frames do not fit into memory, so name a folder on a larger disk by XDG_CACHE_HOME, or lower "
        "data.max_frames or data.size"
    )
    with io_errors(folder, "written", advice=advice, code="frame-cache-full"):
        if file is None:
            folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        for part in parts:
            file.write(part.data)
        file.flush()
    parts.clear()
    return file
