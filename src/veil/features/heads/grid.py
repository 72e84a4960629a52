"""Time on the grid of clips, where clip number i is at i; from seconds to the grid and back, and parts of videos.

Span: start, end and label of an action on the grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from veil.core import VeilError
from veil.data.sample import Segment

Span = tuple[float, float, int]  # start, end and label of an action, on the grid
Floats = npt.NDArray[np.float64]
FAR = 1e4  # positions of the grid: beyond any video


def _clock(starts: npt.ArrayLike, length: float) -> tuple[Floats, Floats]:
    """The middles of the clips in seconds and their places on the grid, with one more far away at both ends."""
    middles = np.asarray(starts, dtype=np.float64) + length / 2
    if middles.ndim != 1 or not len(middles) or (np.diff(middles) <= 0).any():
        raise VeilError(
            "the clips of a video must begin one after the other: extract its features again.",
            code="clips-out-of-order",
        )
    first, last = np.diff(middles)[[0, -1]] if len(middles) > 1 else (length, length)
    grid = np.arange(len(middles), dtype=np.float64)
    times = np.concatenate([[middles[0] - FAR * first], middles, [middles[-1] + FAR * last]])
    return times, np.concatenate([[-FAR], grid, [grid[-1] + FAR]])


def to_grid(times: npt.ArrayLike, starts: npt.ArrayLike, length: float) -> Floats:
    """Seconds as places on the grid of a video whose clips begin at `starts` `(T,)` and last `length` seconds.

    Place i is the middle of clip i, and places lie evenly between two clips and beyond the ends.
    """
    seconds, grid = _clock(starts, length)
    return np.interp(np.asarray(times, dtype=np.float64), seconds, grid)


def to_seconds(places: npt.ArrayLike, starts: npt.ArrayLike, length: float) -> Floats:
    """Places on the grid as seconds: the inverse of `to_grid`."""
    seconds, grid = _clock(starts, length)
    return np.interp(np.asarray(places, dtype=np.float64), grid, seconds)


def on_grid(segments: Sequence[Segment], starts: npt.ArrayLike, length: float) -> tuple[Span, ...]:
    """A video's actions, in seconds, as actions on the grid; arguments as in `to_grid`."""
    if not segments:
        return ()
    ends = to_grid([[s.start, s.end] for s in segments], starts, length).tolist()
    return tuple((start, end, s.label) for (start, end), s in zip(ends, segments, strict=True))


def cropped(
    count: int,
    spans: Sequence[Span],
    rng: np.random.Generator,
    *,
    most: int = 2304,
    share: tuple[float, float] = (0.9, 1.0),
    kept: float = 0.5,
    tries: int = 200,
) -> tuple[slice, tuple[Span, ...]]:
    """A part of a video to train on: which of its `count` clips, and the actions in it, on the part's own grid.

    A video longer than `most` clips is cut to that; another to a share of itself. An action stays, cut, if at least `kept`
    of it is in the part. Parts are sampled until one has an action, at most `tries` times.
    """
    length = most if count > most else min(count, max(1, round(count * rng.uniform(*share))))
    part, inside = slice(0, count), tuple(spans)
    for _ in range(tries):
        first = int(rng.integers(count - length + 1))
        part, inside = slice(first, first + length), ()
        for start, end, label in spans:
            begin, stop = max(start, first), min(end, first + length)
            if stop - begin > 0 and stop - begin >= kept * (end - start):
                inside += ((begin - first, stop - first, label),)
        if inside or not spans:
            break
    return part, inside
