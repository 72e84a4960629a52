"""Who is it? Faces or bodies in videos, compared with stills of known people by a published embedding.

The attacker knows nothing of the anonymizer, but has a *gallery* (stills with names), an *embedder*, and frames.
A *probe* is one face or body in one frame. It is *recognised* where the right person of the gallery is the
nearest and nearer than the embedder's threshold, and *mistaken* where a wrong one is. *Rank-1* asks for the
nearest only: it is the closed question "which of these?".

`compare_folders` judges the output of any tool by the raw videos it was made of. Raw video says who is where;
then the anonymized frame is attacked at whatever the detector still finds in it *and* at the place where raw
video showed somebody, for that a detector fails does not make a face unrecognisable.

An attacker also tries each place a little *softened*: the edges of large pixels confuse an embedding, though
anybody who screws up their eyes sees the face. The nearest of the attempts is believed, since nobody knows which
of them is right.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from veil.core import Box, Frames, VeilError
from veil.media.inputs import is_image, is_video
from veil.media.sources import open_source
from veil.media.video import VideoSource
from veil.metrics import Bootstrap, Resampling, Score
from veil.people.boxes import closeness
from veil.people.faces import Embedder, FaceEmbedder, Seen

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Progress = Callable[[int, int | None], None]  # frames done, frames in all (None: unknown)

EVERY = 5  # of how many frames one is attacked
# Widths of a Gaussian, of the side of a face. On 210 faces of some 45 pixels in blocks of 4 they take rank-1 from
# 0.52 to 0.94 and those recognised from 49 to 116; behind black they find nobody.
SOFTENED = (0.02, 0.06)
# Levels of 255 in luma, root mean square over 8 x 8 pixels: a frame that nowhere differs by more was left as it
# was. Untouched videos encoded anew stay below 15.6 up to a crf of 23 (there their PSNR is down to 35 dB, so that
# PSNR cannot tell); a blur of 5 pixels on a face makes 17 and more, blocks of 4 pixels 25 and more (four real
# videos, and the demo's).
_UNTOUCHED = 16.0
_CHANGED = 16  # levels by which a pixel must differ in some colour to count as changed
_STILL_SIDE = 1600  # stills are shrunk to this: a face in them is still large
_CLEAR = 0.2  # how sure a detector must be of somebody in a still
_APART = 2.0  # how many times larger the person of a still must be (in area) than anybody else in it
_SAME_PLACE = 0.5  # closeness from which what is found in the anonymized frame is what raw shows there
_TIE = 1e-9


@dataclass(frozen=True, eq=False)
class Gallery:
    """Known people: who an attacker looks for."""

    names: tuple[str, ...]
    embeddings: Floats  # (N, D)
    whose: Ints  # (N,) indices into names
    notes: tuple[str, ...] = ()

    def distances(self, seen: Sequence[Seen]) -> Floats:
        """From each of those seen to each person, ``(P, len(names))``: to the nearest of that person's stills."""
        if not seen:
            return np.zeros((0, len(self.names)))
        probes = np.stack([one.embedding for one in seen]).astype(np.float64)
        if probes.shape[1] != self.embeddings.shape[1]:
            sizes = f"{self.embeddings.shape[1]} and {probes.shape[1]}"
            raise ValueError(f"gallery and probes come from different embedders: of {sizes} dimensions")
        each = np.linalg.norm(probes[:, None] - self.embeddings, axis=2)  # (P, N)
        return np.stack([each[:, self.whose == k].min(axis=1) for k in range(len(self.names))], axis=1)


@dataclass(frozen=True)
class Identified:
    """How often people of a gallery were recognised in a set of videos."""

    videos: int
    frames: int  # looked at
    frames_with_detection: int
    probes: int
    recognised: int  # probes: the right person is the nearest, and within the threshold
    mistaken: int  # probes: a wrong one is
    frames_recognised: int  # with at least one recognised probe
    videos_recognised: int  # with at least one recognised frame
    rank1: Score | None  # None: nobody said who it is
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return _plain(dataclasses.asdict(self))


@dataclass(frozen=True)
class Pair:
    """A raw video and what a tool made of it, frame by frame."""

    name: str
    frames: int
    width: int
    height: int
    unchanged: (
        int  # frames left as they were, a leak by itself; an encoder that loses much hides some of them
    )
    changed: float  # the mean share of pixels that differ visibly


@dataclass(frozen=True)
class Comparison:
    """What a tool's output still tells about people, beside what the raw videos told."""

    names: tuple[str, ...]  # of the gallery
    threshold: float
    every: int
    pairs: tuple[Pair, ...]
    raw: Identified  # its probes are all faces found; recognised are those that have a name
    anonymized: Identified  # its probes are those that were recognised in raw video
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


class _Look(NamedTuple):
    """One frame as the attacker sees it."""

    video: int
    detected: bool
    distances: Floats  # (P, names), one row a probe
    truth: Ints | None  # (P,) who it is
    recognised: bool


def read_gallery(folder: str | Path, embed: Embedder) -> Gallery:
    """The people in a folder of stills: ``NAME.jpg``, ``NAME_2.jpg``, ``NAME3.jpg`` and all in ``NAME/`` are one.

    A still shows one person, or one who is much larger than the others. Where it is not clear who is meant, the
    still is left out, and a note says so.
    """
    folder = Path(folder)
    names: dict[str, int] = {}
    vectors, whose, notes = [], [], []
    for path in _files(folder, images_only=True):
        inside = path.relative_to(folder)
        name = inside.parts[0] if len(inside.parts) > 1 else _person(path)
        seen = [one for one in embed(_still(path)) if one.score >= _CLEAR]
        if not seen:
            raise VeilError(f"nobody can be found in the still {path}: use another one, or take it away.")
        best = max(one.score for one in seen)
        seen = sorted((one for one in seen if one.score >= best / 2), key=_area, reverse=True)
        if len(seen) > 1 and _area(seen[0]) < _APART * _area(seen[1]):
            notes.append(f"the still {inside} is left out: it shows {len(seen)} people, none much larger")
            continue
        vectors.append(seen[0].embedding)
        whose.append(names.setdefault(name, len(names)))
    if not vectors:
        raise VeilError(f"no still in {folder} shows one person alone: use a still for each person.")
    gallery = Gallery(tuple(names), np.stack(vectors).astype(np.float64), np.array(whose, np.intp))
    return dataclasses.replace(gallery, notes=(*notes, *_doubts(gallery, embed.threshold)))


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
) -> Identified:
    """Look for the people of a gallery in every `every`-th frame of some videos.

    videos    files, or frames ``(T, H, W, 3)``
    truth     who is seen in each video, by the name of its file without its ending (frames: ``"0"``, ``"1"``, …
              by their place among `videos`); None: whoever is within the threshold counts as recognised
    softened  by how much to soften whoever is found for a further look; ``()`` does for raw video
    progress  called with the number of frames done and the number in all
    """
    _check_every(every)
    labels = [str(i) if isinstance(v, np.ndarray) else Path(v).stem for i, v in enumerate(videos)]
    who = None if truth is None else [_index(truth, label, gallery) for label in labels]
    tick = _Ticker([_length(video) for video in videos], progress)
    looks = []
    for index, video in enumerate(videos):
        for at, frame in enumerate(_each(video)):
            if at % every == 0:
                seen = embed(frame)
                boxes = [one.box for one in seen]
                distances = gallery.distances(seen)
                distances = np.minimum(distances, _soft_distances(frame, boxes, gallery, embed, softened))
                right = None if who is None else np.full(len(seen), who[index])
                good, _ = _judged(distances, right, embed.threshold)
                looks.append(_Look(index, bool(seen), distances, right, bool(good.any())))
            tick()
    return _summary(looks, len(videos), gallery, embed.threshold, who is not None, bootstrap)


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
    """Judge what a tool made of the videos and stills in a folder, ``RAW/a/x.mp4`` by ``ANONYMIZED/a/x.*``.

    raw, anonymized   two folders of the same names, or two files
    gallery           a folder as `read_gallery` takes it, or a gallery
    embed             what tells people apart; None: `FaceEmbedder()`

    First every pair is compared pixel by pixel, so that a pair that does not fit ends it at once. Then people are
    looked for in every `every`-th frame. Who it is, is what raw video tells within the threshold: what raw video
    does not tell is no leak of the anonymized one.
    """
    _check_every(every)
    files = paired(Path(raw), Path(anonymized))
    embed = embed or FaceEmbedder()
    known = gallery if isinstance(gallery, Gallery) else read_gallery(gallery, embed)
    tick = _Ticker([_length(path) for _, path, _ in files] * 2, progress)
    pairs = tuple(_compare(*pair, tick) for pair in files)
    tick.total = 2 * tick.done  # now it is known, whatever the containers say
    before: list[_Look] = []
    after: list[_Look] = []
    for index, (_, ours, theirs) in enumerate(files):
        for at, (frame, veiled) in enumerate(_side_by_side(ours, theirs)):
            if at % every == 0:
                was, looked = _attack(index, frame, veiled, known, embed, softened)
                before.append(was)
                after.append(looked)
            tick()
    count, threshold = len(files), embed.threshold
    found = _summary(before, count, known, threshold, False, bootstrap)
    left = _summary(after, count, known, threshold, True, bootstrap)
    notes = known.notes
    if not found.recognised:
        notes += ("nobody of the gallery is recognised in the raw videos: this says nothing about the tool",)
    return Comparison(known.names, threshold, every, pairs, found, left, notes)


def _attack(
    video: int,
    raw: Frames,
    veiled: Frames,
    gallery: Gallery,
    embed: Embedder,
    softened: Sequence[float],
) -> tuple[_Look, _Look]:
    """A raw frame and its anonymized form as the attacker sees them."""
    seen = embed(raw)
    distances = gallery.distances(seen)
    named, _ = _judged(distances, None, embed.threshold)
    before = _Look(video, bool(seen), distances, None, bool(named.any()))
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
    right, _ = _judged(forced, truth, embed.threshold)
    strays, _ = _judged(elsewhere[owner < 0], None, embed.threshold)
    met = np.isin(elsewhere[owner < 0][strays].argmin(axis=1), truth)
    return before, _Look(video, bool(found), forced, truth, bool(right.any() or met.any()))


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


def _judged(
    distances: Floats, truth: Ints | None, threshold: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which probes are recognised and which are mistaken, ``(P,)`` each."""
    near = distances.min(axis=1, initial=np.inf) < threshold
    right = np.ones(len(distances), bool) if truth is None else distances.argmin(axis=1) == truth
    return near & right, near & ~right


def _summary(
    looks: Sequence[_Look],
    videos: int,
    gallery: Gallery,
    threshold: float,
    known: bool,
    bootstrap: Resampling,
) -> Identified:
    distances = np.concatenate([np.zeros((0, len(gallery.names))), *(look.distances for look in looks)])
    video = np.repeat([look.video for look in looks], [len(look.distances) for look in looks]).astype(np.intp)
    truths = [look.truth for look in looks if look.truth is not None]
    truth = np.concatenate([np.zeros(0, np.intp), *truths]) if known else None
    right, wrong = _judged(distances, truth, threshold)
    return Identified(
        videos=videos,
        frames=len(looks),
        frames_with_detection=sum(look.detected for look in looks),
        probes=len(distances),
        recognised=int(right.sum()),
        mistaken=int(wrong.sum()),
        frames_recognised=sum(look.recognised for look in looks),
        videos_recognised=len({look.video for look in looks if look.recognised}),
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
        why = f"the gallery holds {names[0]} only, who is the nearest to everybody"
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


def _compare(name: str, raw: Path, anonymized: Path, tick: Callable[[], None]) -> Pair:
    """How much of a video was changed."""
    frames = unchanged = 0
    changed, size = 0.0, (0, 0)
    for one, other in _side_by_side(raw, anonymized):
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
    return Pair(name, frames, *size, unchanged, changed / frames)


def _side_by_side(raw: Path, anonymized: Path) -> Iterator[tuple[Frames, Frames]]:
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
            raise VeilError(f"{raw} and {anonymized} are no pair: they measure {sizes} pixels.")
        ours, theirs = _of(one), _of(other)
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
    return VeilError(f"{raw} and {anonymized} are no pair: they hold {ours} and {theirs} frames.")


def paired(raw: Path, anonymized: Path) -> list[tuple[str, Path, Path]]:
    """Each raw file with its anonymized form, by their place below the folders and their name up to its ending."""
    if raw.is_file() and anonymized.is_file():
        return [(raw.stem, raw, anonymized)]
    ours = _files(raw)
    kinds = {
        is_image(path) for path in ours
    }  # what there is no raw form of, such as a preview, is nobody's pair
    by_stem: dict[tuple[str, bool], list[Path]] = defaultdict(list)
    for path in _files(anonymized):
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
                f"{path}, {found[0]} and {twice[0]} share a name: it is not clear which are a pair."
            )
        taken[found[0]] = path
        pairs.append((str(inside) if whole else stem, path, found[0]))
    lonely += [str(path) for paths in by_stem.values() for path in paths if path not in taken]
    if lonely:
        more = f" and {len(lonely) - 3} more" if len(lonely) > 3 else ""
        said = (
            f"{', '.join(lonely[:3])}{more} have no partner"
            if len(lonely) > 1
            else f"{lonely[0]} has no partner"
        )
        raise VeilError(f"{said} of the same name in the other folder ({raw}, {anonymized}).")
    return pairs


def _files(folder: Path, *, images_only: bool = False) -> list[Path]:
    """The videos and stills below a folder, except hidden ones; at least one."""
    what = "still" if images_only else "video and no still"
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise VeilError(f"{folder} {problem}: name a folder.")
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if (is_image(path) or (is_video(path) and not images_only))
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not found:
        raise VeilError(f"the folder {folder} holds no {what}: name a folder that does.")
    return found


def _person(still: Path) -> str:
    """The name before a number at the end: obama, obama2, obama_3 and obama (4) are one person."""
    return re.sub(r"[\s_.(-]*\d+\)?$", "", still.stem) or still.stem


def _still(path: Path) -> Frames:
    image = next(_each(path))
    scale = _STILL_SIDE / max(image.shape[:2])
    if scale < 1:
        image = np.asarray(
            cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8
        )
    return image


def _area(seen: Seen) -> float:
    x0, y0, x1, y1 = seen.box
    return (x1 - x0) * (y1 - y0)


def _doubts(gallery: Gallery, threshold: float) -> list[str]:
    """What is odd about a gallery: one name for several people, or several names for one."""
    each = np.linalg.norm(gallery.embeddings[:, None] - gallery.embeddings, axis=2)
    np.fill_diagonal(each, np.inf)
    notes = []
    for k, name in enumerate(gallery.names):
        own = each[np.ix_(gallery.whose == k, gallery.whose == k)]
        if len(own) > 1 and own.min(axis=1).max() >= threshold:
            notes.append(f"the stills of {name} look like several people: use a folder for each person")
        for other in range(k):
            if each[np.ix_(gallery.whose == k, gallery.whose == other)].min() < threshold:
                notes.append(f"{gallery.names[other]} and {name} look alike: one may be taken for the other")
    return notes


def _index(truth: Mapping[str, str], label: str, gallery: Gallery) -> int:
    if label not in truth:
        raise VeilError(f"nothing says who is seen in the video {label}: name the person.")
    if truth[label] not in gallery.names:
        known = ", ".join(gallery.names[:5])
        raise VeilError(f"{truth[label]}, who is seen in the video {label}, is not in the gallery ({known}).")
    return gallery.names.index(truth[label])


def _check_every(every: int) -> None:
    if every < 1:
        raise VeilError(f"every={every} makes no sense: look at every frame (1), or every so many.")


def _length(video: str | Path | Frames) -> int | None:
    if isinstance(video, np.ndarray):
        return len(video)
    with closing(open_source(video)) as source:
        return source.info.frames


class _Ticker:
    """Counts frames and tells the progress."""

    def __init__(self, lengths: Sequence[int | None], progress: Progress | None) -> None:
        known = [n for n in lengths if n is not None]
        self.total = sum(known) if len(known) == len(lengths) else None
        self.done, self._progress = 0, progress

    def __call__(self) -> None:
        self.done += 1
        if self._progress:
            self._progress(self.done, None if self.total is None else max(self.done, self.total))


def _each(video: str | Path | Frames) -> Iterator[Frames]:
    """The frames of a video, one by one."""
    if isinstance(video, np.ndarray):
        yield from video
        return
    with closing(open_source(video)) as source:
        yield from _of(source)


def _of(source: VideoSource) -> Iterator[Frames]:
    for window in source.windows():
        yield from window.frames


def _plain(value: Any) -> Any:
    """JSON has no nan and no tuple."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
