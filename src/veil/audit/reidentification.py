"""Re-identification: faces or bodies in videos, compared with stills of known people by a published embedding.

The attacker has a *gallery* (stills with names), an *embedder* and frames, but no access to the anonymizer.
A *probe* is one face or body in one frame. It is *recognized* where the right person of the gallery is the nearest and
nearer than the embedder's threshold, and *mistaken* where a wrong one is. *Rank-1* is the closed-set question: is the
right person the nearest?

`compare_folders` evaluates the output of any tool by the raw videos it was made from. Raw video gives the identities
and their places; then the anonymized frame is attacked at every detection in it *and* at the places of the raw
detections, because a face can be recognizable where a detector fails.

Each place is also attacked slightly blurred: the edges of large pixels confuse an embedding, though people recognize
the face when they squint. The nearest of the attempts counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from veil.audit.gallery import Floats, Gallery, Ints, read_gallery
from veil.audit.video_pairs import VideoPair, compare_pixels, find_pairs, frame_pairs, frames_of, length_of
from veil.core import Box, Frames, Progress, VeilError
from veil.metrics import Bootstrap, Resampling, Score
from veil.people.boxes import closeness
from veil.people.faces import Embedder, FaceEmbedder

EVERY = 5  # one in this many frames is attacked
# Widths of a Gaussian, of the side of a face. On 210 faces of some 45 pixels in blocks of 4 they take rank-1 from
# 0.52 to 0.94 and those recognized from 49 to 116; behind black they recognize nobody.
SOFTENED = (0.02, 0.06)
_SAME_PLACE = 0.5  # closeness from which a detection in the anonymized frame belongs to a raw one
_TIE = 1e-9


@dataclass(frozen=True)
class IdentificationCounts:
    """How often people of a gallery were recognized in a set of videos."""

    videos: int
    frames: int  # attacked
    frames_with_detection: int
    probes: int
    recognized: int  # probes: the right person is the nearest, and within the threshold
    mistaken: int  # probes: a wrong one is
    frames_recognized: int  # with at least one recognized probe
    videos_recognized: int  # with at least one recognized frame
    rank1: Score | None  # None: identities are not given
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return _plain(dataclasses.asdict(self))


@dataclass(frozen=True)
class Comparison:
    """The people recognized in a tool's output, and those recognized in the raw videos."""

    names: tuple[str, ...]  # of the gallery
    threshold: float
    every: int
    pairs: tuple[VideoPair, ...]
    raw: IdentificationCounts  # its probes are all faces found; recognized are those that have a name
    anonymized: IdentificationCounts  # its probes are those that were recognized in raw video
    notes: tuple[str, ...] = ()

    @property
    def frames(self) -> int:
        """Of all videos."""
        return sum(pair.frames for pair in self.pairs)

    @property
    def unchanged(self) -> int:
        """Frames in which nothing was hidden: a leak by itself where anybody is to be seen."""
        return sum(pair.unchanged for pair in self.pairs)

    @property
    def changed(self) -> float:
        """The mean share of changed pixels over all frames."""
        return sum(pair.changed * pair.frames for pair in self.pairs) / self.frames

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        sums = {"frames": self.frames, "unchanged": self.unchanged, "changed": self.changed}
        return _plain(sums | dataclasses.asdict(self))


class _FrameProbes(NamedTuple):
    """The probes of one frame."""

    video: int
    detected: bool
    distances: Floats  # (P, names), one row a probe
    truth: Ints | None  # (P,) identities
    recognized: bool


def identify(
    videos: Sequence[str | Path | Frames],
    gallery: Gallery,
    embed: Embedder,
    *,
    every: int = EVERY,
    truth: Mapping[str, str] | None = None,
    softened: Sequence[float] = SOFTENED,
    bootstrap: Resampling = Bootstrap(),
    progress: Progress | None = None,
) -> IdentificationCounts:
    """Look for the people of a gallery in every `every`-th frame of some videos.

    videos    files, or frames ``(T, H, W, 3)``
    truth     the identity in each video, by the name of its file without its ending (frames: ``"0"``, ``"1"``, …
              by their place among `videos`); None: whoever is within the threshold counts as recognized
    softened  by how much to soften whoever is found for a further look; ``()`` does for raw video
    progress  called with the number of frames done and the number in all
    """
    _check_every(every)
    labels = [str(i) if isinstance(v, np.ndarray) else Path(v).stem for i, v in enumerate(videos)]
    identities = None if truth is None else [_index(truth, label, gallery) for label in labels]
    tick = _Ticker([length_of(video) for video in videos], progress)
    frames_seen = []
    for index, video in enumerate(videos):
        for at, frame in enumerate(frames_of(video)):
            if at % every == 0:
                seen = embed(frame)
                boxes = [one.box for one in seen]
                distances = gallery.distances(seen)
                distances = np.minimum(distances, _soft_distances(frame, boxes, gallery, embed, softened))
                right = None if identities is None else np.full(len(seen), identities[index])
                good, _ = _matched(distances, right, embed.threshold)
                frames_seen.append(_FrameProbes(index, bool(seen), distances, right, bool(good.any())))
            tick()
    return _summary(frames_seen, len(videos), gallery, embed.threshold, identities is not None, bootstrap)


def compare_folders(
    raw: str | Path,
    anonymized: str | Path,
    gallery: str | Path | Gallery,
    embed: Embedder | None = None,
    *,
    every: int = EVERY,
    softened: Sequence[float] = SOFTENED,
    bootstrap: Resampling = Bootstrap(),
    progress: Progress | None = None,
) -> Comparison:
    """Measure how well a tool hides people in the videos and stills of a folder, ``RAW/a/x.mp4`` by ``ANONYMIZED/a/x.*``.

    raw, anonymized   two folders of the same names, or two files
    gallery           a folder as `read_gallery` takes it, or a gallery
    embed             the embedding of faces; None: `FaceEmbedder()`

    First every pair is compared pixel by pixel, so that a pair that does not fit ends it at once. Then people are
    looked for in every `every`-th frame. The true identity is the one recognized in raw video, within the threshold: a
    person who is not recognized there cannot leak from the anonymized video.
    """
    _check_every(every)
    files = find_pairs(Path(raw), Path(anonymized))
    embed = embed or FaceEmbedder()
    known = gallery if isinstance(gallery, Gallery) else read_gallery(gallery, embed)
    tick = _Ticker([length_of(path) for _, path, _ in files] * 2, progress)
    pairs = tuple(compare_pixels(*pair, tick) for pair in files)
    tick.total = 2 * tick.done  # now it is known, whatever the containers state
    before: list[_FrameProbes] = []
    after: list[_FrameProbes] = []
    for index, (_, ours, theirs) in enumerate(files):
        for at, (frame, veiled) in enumerate(frame_pairs(ours, theirs)):
            if at % every == 0:
                was, looked = _attack(index, frame, veiled, known, embed, softened)
                before.append(was)
                after.append(looked)
            tick()
    count, threshold = len(files), embed.threshold
    found = _summary(before, count, known, threshold, False, bootstrap)
    left = _summary(after, count, known, threshold, True, bootstrap)
    notes = known.notes
    if not found.recognized:
        notes += (
            "nobody of the gallery is recognized in the raw videos: this proves nothing about the tool",
        )
    return Comparison(known.names, threshold, every, pairs, found, left, notes)


def _attack(
    video: int,
    raw: Frames,
    veiled: Frames,
    gallery: Gallery,
    embed: Embedder,
    softened: Sequence[float],
) -> tuple[_FrameProbes, _FrameProbes]:
    """A raw frame and its anonymized form as the attacker sees them."""
    seen = embed(raw)
    distances = gallery.distances(seen)
    named, _ = _matched(distances, None, embed.threshold)
    before = _FrameProbes(video, bool(seen), distances, None, bool(named.any()))
    places = [one.box for one, is_named in zip(seen, named, strict=True) if is_named]
    truth = distances[named].argmin(axis=1)

    found = embed(veiled)
    elsewhere = gallery.distances(found)
    forced = gallery.distances(embed.at(veiled, places))  # (places, names)
    forced = np.minimum(forced, _soft_distances(veiled, places, gallery, embed, softened))
    fits = closeness([one.box for one in found], places)  # (found, places)
    owner = np.full(len(found), -1)
    if fits.size:
        owner = np.where(fits.max(axis=1) >= _SAME_PLACE, fits.argmax(axis=1), -1)
    for place in range(len(places)):
        forced[place] = np.minimum(forced[place], elsewhere[owner == place].min(axis=0, initial=np.inf))
    right, _ = _matched(forced, truth, embed.threshold)
    strays, _ = _matched(elsewhere[owner < 0], None, embed.threshold)
    met = np.isin(elsewhere[owner < 0][strays].argmin(axis=1), truth)
    return before, _FrameProbes(video, bool(found), forced, truth, bool(right.any() or met.any()))


def _soft_distances(
    image: Frames, boxes: Sequence[Box], gallery: Gallery, embed: Embedder, widths: Sequence[float]
) -> Floats:
    """From what lies at each place to each person, ``(places, names)``, in the best of the softened views."""
    nearest = np.full((len(boxes), len(gallery.names)), np.inf)
    height, width = image.shape[:2]
    for place, (x0, y0, x1, y1) in enumerate(boxes):
        side = min(x1 - x0, y1 - y0)
        left, top = (int(np.clip(v - side, 0, n - 1)) for v, n in ((x0, width), (y0, height)))
        part = image[top : max(top + 1, int(y1 + side)), left : max(left + 1, int(x1 + side))]
        for share in widths:
            soft = cv2.GaussianBlur(part, (0, 0), max(share * side, 0.1)).astype(np.uint8, copy=False)
            seen = embed.at(soft, [(x0 - left, y0 - top, x1 - left, y1 - top)])
            nearest[place] = np.minimum(nearest[place], gallery.distances(seen)[0])
    return nearest


def _matched(
    distances: Floats, truth: Ints | None, threshold: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which probes are recognized and which are mistaken, ``(P,)`` each."""
    near = distances.min(axis=1, initial=np.inf) < threshold
    right = np.ones(len(distances), bool) if truth is None else distances.argmin(axis=1) == truth
    return near & right, near & ~right


def _summary(
    frames_seen: Sequence[_FrameProbes],
    videos: int,
    gallery: Gallery,
    threshold: float,
    known: bool,
    bootstrap: Resampling,
) -> IdentificationCounts:
    distances = np.concatenate([np.zeros((0, len(gallery.names))), *(look.distances for look in frames_seen)])
    video = np.repeat(
        [look.video for look in frames_seen], [len(look.distances) for look in frames_seen]
    ).astype(np.intp)
    truths = [look.truth for look in frames_seen if look.truth is not None]
    truth = np.concatenate([np.zeros(0, np.intp), *truths]) if known else None
    right, wrong = _matched(distances, truth, threshold)
    return IdentificationCounts(
        videos=videos,
        frames=len(frames_seen),
        frames_with_detection=sum(look.detected for look in frames_seen),
        probes=len(distances),
        recognized=int(right.sum()),
        mistaken=int(wrong.sum()),
        frames_recognized=sum(look.recognized for look in frames_seen),
        videos_recognized=len({look.video for look in frames_seen if look.recognized}),
        rank1=None if truth is None else _rank1(distances, truth, video, gallery.names, bootstrap),
        notes=gallery.notes,
    )


def _rank1(distances: Floats, truth: Ints, video: Ints, names: Sequence[str], bootstrap: Resampling) -> Score:
    """Share of probes to which the right person is the nearest; people equally near count in equal parts.

    Chance is the best constant answer, which is never below one in as many as there are names. Resamples draw videos.
    """
    n, chance = len(truth), 1 / len(names)
    if n == 0:
        return Score("rank-1", math.nan, 0, chance, "lower", notes=("there is no probe",))
    if len(names) == 1:
        why = f"the gallery holds {names[0]} only, the nearest to every probe"
        return Score("rank-1", math.nan, n, chance, "lower", notes=(why,))
    best = distances <= distances.min(axis=1, keepdims=True) + _TIE  # (P, names)
    credit = best[np.arange(n), truth] / best.sum(axis=1)
    notes: tuple[str, ...] = ()
    often = np.bincount(truth, minlength=len(names)) / n
    if often.max() > chance + _TIE:
        chance = float(often.max())
        notes += (f"always answering {names[int(often.argmax())]} reaches {often.max():.3g}",)
    if n > 1 and (same := best.all(axis=0)).any():
        notes += (f"every probe gets the same answer, {names[int(same.argmax())]}",)
    _, index = np.unique(video, return_inverse=True)
    sums, counts = np.bincount(index, credit), np.bincount(index).astype(np.float64)
    interval = None
    if bootstrap is not None:
        interval, how = bootstrap.interval(lambda weights: (sums @ weights) / (counts @ weights), len(sums))
        notes += (how,)
    return Score("rank-1", float(credit.mean()), n, chance, "lower", interval, notes)


def _index(truth: Mapping[str, str], label: str, gallery: Gallery) -> int:
    if label not in truth:
        raise VeilError(f"the identity in the video {label} is not given: name it.", code="identity-missing")
    if truth[label] not in gallery.names:
        known = ", ".join(gallery.names[:5])
        raise VeilError(
            f"{truth[label]}, the identity in the video {label}, is not in the gallery ({known}): add a still.",
            code="identity-unknown",
        )
    return gallery.names.index(truth[label])


def _check_every(every: int) -> None:
    if every < 1:
        raise VeilError(
            f"every={every} is not a step: use 1 for every frame, n for every n-th.", code="every-invalid"
        )


class _Ticker:
    """Counts frames and reports the progress."""

    def __init__(self, lengths: Sequence[int | None], progress: Progress | None) -> None:
        known = [n for n in lengths if n is not None]
        self.total = sum(known) if len(known) == len(lengths) else None
        self.done, self._progress = 0, progress

    def __call__(self) -> None:
        self.done += 1
        if self._progress:
            self._progress(self.done, None if self.total is None else max(self.done, self.total))


def _plain(value: Any) -> Any:
    """JSON has no nan and no tuple."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
