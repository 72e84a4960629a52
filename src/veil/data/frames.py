"""The frames of samples: decoded in parallel and cached on disk, with a warning about undecodable files.

`read_frames` reads one sample of any kind: a video, a still, a folder of frames, an image in a zip file, or a published
depth file. `FrameReader` reads many.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import warnings
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from veil.core import Frames, VeilError, io_errors
from veil.data.sample import Dataset, Sample
from veil.media.draft import Draft
from veil.media.inputs import is_image
from veil.media.sources import open_source

_LAYOUT = 1  # of the cache; another number invalidates all entries
_BATCH = 32  # samples that are generated together
_NAMED = 10  # undecodable files in a warning; all are in `FrameReader.skipped`


class SkippedWarning(UserWarning):
    """Some samples could not be read."""


class SampleFrames(NamedTuple):
    """A sample and its frames."""

    sample: Sample
    frames: Frames  # (T, H, W, 3)


def read_frames(sample: Sample) -> Frames:
    """All frames of a sample ``(T, H, W, 3)``."""
    _, frames = next(_cut(_path(sample), [sample.span], None, 1))
    return frames


class FrameReader:
    """Reads the frames of a dataset's samples, optionally smaller and fewer, and caches them on disk.

    An undecodable file is skipped, and added to ``skipped`` with the reason; `each` ends with a warning about them. It is
    an error if no sample can be read.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        size: int | None = None,
        every: int = 1,
        cache: Path | None = None,
        workers: int | None = None,
    ) -> None:
        """``size``: the maximum of the shorter side; ``every``: only every n-th frame is kept."""
        self._dataset, self._size, self._every, self._cache = dataset, size, every, cache
        self._workers = workers or min(8, os.cpu_count() or 1)
        self.skipped: dict[str, str] = {}  # the reason by the id of the sample

    def __call__(self, sample: Sample) -> Frames:
        """The frames of one sample; an undecodable file is an error."""
        (result,) = self._read([sample])
        if isinstance(result, VeilError):
            raise result
        return result

    def each(self, samples: Iterable[Sample]) -> Iterator[SampleFrames]:
        """The readable samples in order; consecutive samples of one file are read together."""
        known, tried, read = len(self.skipped), 0, 0
        pool = ThreadPoolExecutor(self._workers, "veil-read")
        waiting: deque[tuple[list[Sample], Future[list[Frames | VeilError]]]] = deque()
        jobs = self._jobs(samples)
        try:
            while True:
                for job in islice(jobs, 2 * self._workers - len(waiting)):
                    waiting.append((job, pool.submit(self._read, job)))
                if not waiting:
                    break
                job, future = waiting.popleft()
                for sample, result in zip(job, future.result(), strict=True):
                    tried += 1
                    if isinstance(result, VeilError):
                        self.skipped[sample.id] = str(result)
                    else:
                        read += 1
                        yield SampleFrames(sample, result)
        finally:
            pool.shutdown(cancel_futures=True)
            self._warn(list(self.skipped.values())[known:], tried)
        if tried and not read:
            raise VeilError(
                f"none of {tried:,} samples of {self._dataset.name} could be read: {self._first()}",
                code="no-readable-samples",
            )

    def _jobs(self, samples: Iterable[Sample]) -> Iterator[list[Sample]]:
        """Samples that are read together: those of one file, or a batch."""
        if self._dataset.batch is None:
            yield from (list(job) for _, job in groupby(samples, lambda sample: sample.path or sample.id))
            return
        rest = iter(samples)
        while job := list(islice(rest, _BATCH)):
            yield job

    def _first(self) -> str:
        return next(iter(self.skipped.values()))

    def _warn(self, reasons: list[str], tried: int) -> None:
        if reasons:
            more = f" (and {len(reasons) - _NAMED:,} more)" if len(reasons) > _NAMED else ""
            message = (
                f"{len(reasons):,} of {tried:,} samples were skipped: {'; '.join(reasons[:_NAMED])}{more}"
            )
            warnings.warn(message, SkippedWarning, stacklevel=3)

    def _read(self, samples: Sequence[Sample]) -> list[Frames | VeilError]:
        """The frames of samples of one file, or the error of each."""
        entries = [self._entry(sample) for sample in samples]
        results: list[Frames | VeilError | None] = [_stored(entry) for entry in entries]
        wanted = [index for index, result in enumerate(results) if result is None]
        made = self._make([samples[index] for index in wanted])
        for index in wanted:
            try:
                frames = next(made)
            except VeilError as error:
                results[index] = error
                made = self._make([samples[later] for later in wanted if later > index])
                continue
            results[index] = _store(entries[index], frames)
        return [result for result in results if result is not None]

    def _make(self, samples: Sequence[Sample]) -> Iterator[Frames]:
        """The frames of samples of one file, in their order."""
        if self._dataset.frames is read_frames and samples:
            cut = _cut(_path(samples[0]), [sample.span for sample in samples], self._size, self._every)
            early: dict[int, Frames] = {}
            for index in range(len(samples)):
                while index not in early:
                    place, frames = next(cut)
                    early[place] = frames
                yield early.pop(index)
        else:
            made = map(self._dataset.frames, samples)
            for frames in self._dataset.batch(samples) if self._dataset.batch and samples else made:
                yield np.stack([_smaller(image, self._size) for image in frames[:: self._every]])

    def _entry(self, sample: Sample) -> Path | None:
        """The cache file of a sample; it depends on the state of the sample's file."""
        if self._cache is None or sample.path is None:
            return None
        state = _state(sample.path)
        if state is None:
            return None
        key = repr((_LAYOUT, str(sample.path.absolute()), state, sample.span, self._size, self._every))
        name = hashlib.sha256(key.encode()).hexdigest()
        return self._cache / name[:2] / f"{name[2:]}.npy"


def _path(sample: Sample) -> Path:
    if sample.path is None:
        raise VeilError(
            f"{sample.id} has no file of frames: read it through its dataset.", code="sample-without-file"
        )
    return sample.path


def _cut(
    path: Path, spans: Sequence[tuple[int, int] | None], size: int | None, every: int
) -> Iterator[tuple[int, Frames]]:
    """The frames of several spans of one file, each with its index in ``spans``, as soon as it is complete."""
    limits = [span or (0, None) for span in spans]
    first = min(start for start, _ in limits)
    ends = [end for _, end in limits if end is not None]
    last = max(ends) if len(ends) == len(limits) else None
    open_spans: dict[int, list[Frames]] = {place: [] for place in range(len(limits))}
    for count, image in enumerate(_images(path, first, last), first + 1):
        index, small = count - 1, None
        for place in list(open_spans):
            start, end = limits[place]
            if index >= start and (index - start) % every == 0 and (end is None or index < end):
                small = _smaller(image, size) if small is None else small
                open_spans[place].append(small)
            if end is not None and count >= end:
                yield place, _stack(path, open_spans.pop(place))
    for place, images in open_spans.items():
        if not images:
            raise VeilError(
                f"{path} ends before frame {limits[place][0]}, where a sample begins: download it again.",
                code="video-too-short",
            )
        yield place, _stack(path, images)


def _stack(path: Path, images: list[Frames]) -> Frames:
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        raise VeilError(
            f"{path} has images of {len(shapes)} sizes: bring them to one.", code="image-sizes-differ"
        )
    return np.stack(images)


def _smaller(image: Frames, size: int | None) -> Frames:
    """An image ``(H, W, 3)`` with its shorter side at most ``size``; a copy, so that the window is freed."""
    height, width = image.shape[:2]
    if size is None or min(height, width) <= size:
        return image.copy()
    scale = size / min(height, width)
    target = max(size, round(width * scale)), max(size, round(height * scale))
    return np.asarray(cv2.resize(image, target, interpolation=cv2.INTER_AREA), np.uint8)


def square(frames: Frames, size: int) -> Frames:
    """The central square of frames ``(T, H, W, 3)``, at ``size``² pixels."""
    height, width = frames.shape[1:3]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    middle = frames[:, top : top + side, left : left + side]
    if side == size:
        return np.ascontiguousarray(middle)
    how = cv2.INTER_AREA if side > size else cv2.INTER_LINEAR
    return np.stack([cv2.resize(image, (size, size), interpolation=how) for image in middle])


def _images(path: Path, first: int, last: int | None) -> Iterator[Frames]:
    """The images ``(H, W, 3)`` of a file or folder, from ``first`` up to ``last``."""
    archive = next((parent for parent in path.parents if parent.suffix == ".zip" and parent.is_file()), None)
    if archive is not None:
        yield from [_from_zip(archive, path.relative_to(archive).as_posix())][first:last]
    elif path.is_dir():
        for file in frame_files(path)[first:last]:
            yield from _through(file, 0, 1)
    elif path.suffix == ".mat":
        yield from read_depth(path)[first:last]
    elif path.suffix in (".npy", ".npz", ".h5"):
        raise VeilError(
            f"{path} holds features, not frames: give the folder of the videos.", code="features-not-frames"
        )
    else:
        yield from _through(path, first, last)


def _through(path: Path, first: int, last: int | None) -> Iterator[Frames]:
    source = open_source(path)
    try:
        frames = (frame for window in source.windows() for frame in window.frames)
        yield from islice(frames, first, last)
    finally:
        source.close()


def frame_files(path: Path) -> list[Path]:
    """The images in a folder, by the numbers in their names; where some begin with rgb, only those."""
    files = [file for file in path.iterdir() if is_image(file) and not file.name.startswith(".")]
    files = [file for file in files if file.name.startswith("rgb")] or files
    if not files:
        raise VeilError(f"{path} has no images: download it again.", code="no-images")
    return sorted(
        files, key=lambda file: [int(part) if part.isdigit() else part for part in _parts(file.name)]
    )


def _parts(name: str) -> list[str]:
    return re.split(r"(\d+)", name)


def read_depth(path: Path) -> Frames:
    """A depth file of UTD-MHAD, ``d_depth`` of ``(H, W, T)``, as grey frames.

    Near is bright, unknown is black. The range is that of the clip, between its 1st and 99th percentile.
    """
    import scipy.io  # takes half a second, and is rarely needed

    try:
        depth = np.asarray(scipy.io.loadmat(path, variable_names=["d_depth"])["d_depth"], np.float32)
    # A damaged file can fail anywhere inside scipy.
    except Exception as error:
        raise VeilError(
            f"{path} is not a readable depth file: download it again.", code="depth-unreadable"
        ) from error
    known = depth > 0
    if depth.ndim != 3 or not known.any():
        raise VeilError(
            f"{path} has depth of shape {depth.shape} instead of (H, W, T): download it again.",
            code="depth-unreadable",
        )
    near, far = np.percentile(depth[known], (1, 99))
    bright = 255 - 215 * np.clip((depth - near) / max(far - near, 1), 0, 1)  # 40 is far, so that 0 is unknown
    grey = np.where(known, bright, 0).astype(np.uint8).transpose(2, 0, 1)  # (T, H, W)
    return np.repeat(grey[..., None], 3, axis=3)


def _from_zip(archive: Path, member: str) -> Frames:
    try:
        data = _zip(archive, archive.stat().st_mtime_ns).read(member)
        with Image.open(io.BytesIO(data)) as image:
            return np.array(image.convert("RGB"))
    except (KeyError, OSError, ValueError, SyntaxError, zipfile.BadZipFile) as error:
        raise VeilError(
            f"{archive / member} is not a readable image: download the zip file again.",
            code="image-unreadable",
        ) from error


@lru_cache(maxsize=4)
def _zip(archive: Path, _changed: int) -> zipfile.ZipFile:
    """Opened once, since its table of contents is long; may be read from many threads."""
    return zipfile.ZipFile(archive)


def _state(path: Path) -> tuple[int, ...] | None:
    """Size and modification time of a file or a folder of frames; None where it does not exist."""
    try:
        if path.is_dir():
            stats = [file.stat() for file in frame_files(path)]
            return len(stats), sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)
        real = next((parent for parent in path.parents if parent.suffix == ".zip" and parent.is_file()), path)
        return real.stat().st_size, real.stat().st_mtime_ns
    except (OSError, VeilError):
        return None


def _stored(entry: Path | None) -> Frames | None:
    if entry is None or not entry.exists():
        return None
    try:
        return np.load(entry, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):  # left by a power failure
        return None


def _store(entry: Path | None, frames: Frames) -> Frames:
    """Write frames to disk, completely or not at all, and map them from there, to free the memory."""
    if entry is None:
        return frames
    with io_errors(entry.parent, "written", advice="free some space"):
        entry.parent.mkdir(parents=True, exist_ok=True)
    # Without fsync, since there may be many small entries, and a damaged one is made again.
    with Draft(entry, overwrite=True, sync=False) as draft:
        np.save(draft.path, frames, allow_pickle=False)
    stored = _stored(entry)
    return frames if stored is None else stored
