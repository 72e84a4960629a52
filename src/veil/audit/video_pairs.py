"""Pairs of raw and anonymized videos in two folders, and how much of each frame was changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from veil.core import Frames, VeilError
from veil.media.inputs import find_files, is_image
from veil.media.sources import open_source
from veil.media.video import VideoSource

# Levels of 255 in luma, root mean square over 8 x 8 pixels: a frame that nowhere differs by more was left unchanged.
# Untouched videos encoded anew stay below 15.6 up to a crf of 23 (there their PSNR is down to 35 dB, so that
# PSNR cannot separate them); a blur of 5 pixels on a face makes 17 and more, blocks of 4 pixels 25 and more (four real
# videos, and the demo's).
_UNTOUCHED = 16.0
_CHANGED = 16  # levels by which a pixel must differ in some colour to count as changed


@dataclass(frozen=True)
class VideoPair:
    """How much a raw video and its anonymized form differ."""

    name: str
    frames: int
    width: int
    height: int
    unchanged: int  # frames left unchanged, a leak by itself; strong compression hides some of them
    changed: float  # the mean share of pixels that differ visibly


def compare_pixels(name: str, raw: Path, anonymized: Path, tick: Callable[[], None]) -> VideoPair:
    """Compare a raw and an anonymized video pixel by pixel; `tick` is called for every frame."""
    frames = unchanged = 0
    changed, size = 0.0, (0, 0)
    for one, other in frame_pairs(raw, anonymized):
        size = one.shape[1], one.shape[0]
        red, green, blue = cv2.split(cv2.absdiff(one, other))
        luma = cv2.cvtColor(one, cv2.COLOR_RGB2GRAY).astype(np.float32)
        luma -= cv2.cvtColor(other, cv2.COLOR_RGB2GRAY)
        blocks = max(1, size[0] // 8), max(1, size[1] // 8)
        worst = float(cv2.resize(luma * luma, blocks, interpolation=cv2.INTER_AREA).max()) ** 0.5
        frames += 1
        unchanged += worst < _UNTOUCHED
        changed += float((cv2.max(cv2.max(red, green), blue) > _CHANGED).mean())
        tick()
    return VideoPair(name, frames, *size, unchanged, changed / frames)


def frame_pairs(raw: Path, anonymized: Path) -> Iterator[tuple[Frames, Frames]]:
    """The frames of two videos that must fit: as many, of one size."""
    with closing(open_source(raw)) as one, closing(open_source(anonymized)) as other:
        width, height = one.info.width, one.info.height
        got = other.info.width, other.info.height
        even = (
            width + width % 2,
            height + height % 2,
        )  # a column or a row was repeated, as most encoders need it
        if got not in ((width, height), even):
            sizes = f"{width} × {height} and {got[0]} × {got[1]}"
            raise VeilError(
                f"{raw} and {anonymized} are not a pair (they measure {sizes} pixels): check the folders.",
                code="pair-sizes-differ",
            )
        ours, theirs = _frames_of_source(one), _frames_of_source(other)
        count = 0
        for frame in ours:
            veiled = next(theirs, None)
            if veiled is None:
                raise _uneven(raw, anonymized, count + 1 + sum(1 for _ in ours), count)
            count += 1
            yield frame, veiled[:height, :width]
        if rest := sum(1 for _ in theirs):
            raise _uneven(raw, anonymized, count, count + rest)


def _uneven(raw: Path, anonymized: Path, ours: int, theirs: int) -> VeilError:
    return VeilError(
        f"{raw} and {anonymized} are not a pair (they have {ours} and {theirs} frames): check the folders.",
        code="pair-lengths-differ",
    )


def find_pairs(raw: Path, anonymized: Path) -> list[tuple[str, Path, Path]]:
    """Each raw file with its anonymized form, by their place below the folders and their name up to its ending."""
    if raw.is_file() and anonymized.is_file():
        return [(raw.stem, raw, anonymized)]
    ours = find_files(raw)
    kinds = {is_image(path) for path in ours}  # other kinds, such as a preview, have no raw form
    by_stem: dict[tuple[str, bool], list[Path]] = defaultdict(list)
    for path in find_files(anonymized):
        if is_image(path) in kinds:
            by_stem[str(path.relative_to(anonymized).with_suffix("")), is_image(path)].append(path)
    pairs, lonely, taken = [], [], dict[Path, Path]()
    for path in ours:
        inside = path.relative_to(raw)
        stem = str(inside.with_suffix(""))
        whole = by_stem.get((str(inside), is_image(path)))  # a.avi and a.mov became a.avi.mp4 and a.mov.mp4
        found = whole or by_stem.get((stem, is_image(path)), [])
        if not found:
            lonely.append(str(path))
            continue
        twice = found[1:2] or [p for p in [taken.get(found[0])] if p]
        if twice:
            raise VeilError(
                f"{path}, {found[0]} and {twice[0]} share a name: rename one, so that pairs are clear.",
                code="pair-ambiguous",
            )
        taken[found[0]] = path
        pairs.append((str(inside) if whole else stem, path, found[0]))
    lonely += [str(path) for paths in by_stem.values() for path in paths if path not in taken]
    if lonely:
        more = f" and {len(lonely) - 3} more" if len(lonely) > 3 else ""
        verb = "has" if len(lonely) == 1 else "have"
        raise VeilError(
            f"{', '.join(lonely[:3])}{more} {verb} no file of the same name in the other folder: check {raw} and {anonymized}.",
            code="pair-missing",
        )
    return pairs


def length_of(video: str | Path | Frames) -> int | None:
    """The number of frames; None where the container has none."""
    if isinstance(video, np.ndarray):
        return len(video)
    with closing(open_source(video)) as source:
        return source.info.frames


def frames_of(video: str | Path | Frames) -> Iterator[Frames]:
    """The frames of a video, one by one."""
    if isinstance(video, np.ndarray):
        yield from video
        return
    with closing(open_source(video)) as source:
        yield from _frames_of_source(source)


def _frames_of_source(source: VideoSource) -> Iterator[Frames]:
    for window in source.windows():
        yield from window.frames
