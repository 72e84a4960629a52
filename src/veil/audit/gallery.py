"""The gallery of a re-identification attack: stills of known people, and their embeddings."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from veil.audit.video_pairs import frames_of
from veil.core import Frames, VeilError
from veil.media.inputs import find_files
from veil.people.faces import Embedder, PersonEmbedding

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

_STILL_SIDE = 1600  # stills are shrunk to this: a face in them is still large
_CLEAR = 0.2  # the least score of a detection in a still
_APART = 2.0  # how many times larger (in area) the person of a still must be than any other in it


@dataclass(frozen=True, eq=False)
class Gallery:
    """Known people: those an attacker searches for."""

    names: tuple[str, ...]
    embeddings: Floats  # (N, D)
    owners: Ints  # (N,) indices into names
    notes: tuple[str, ...] = ()

    def distances(self, seen: Sequence[PersonEmbedding]) -> Floats:
        """From each of those seen to each person, ``(P, len(names))``: to the nearest of that person's stills."""
        if not seen:
            return np.zeros((0, len(self.names)))
        probes = np.stack([one.embedding for one in seen]).astype(np.float64)
        if probes.shape[1] != self.embeddings.shape[1]:
            sizes = f"{self.embeddings.shape[1]} and {probes.shape[1]}"
            raise ValueError(f"gallery and probes come from different embedders: of {sizes} dimensions")
        each = np.linalg.norm(probes[:, None] - self.embeddings, axis=2)  # (P, N)
        return np.stack([each[:, self.owners == k].min(axis=1) for k in range(len(self.names))], axis=1)


def read_gallery(folder: str | Path, embed: Embedder) -> Gallery:
    """The people in a folder of stills: ``NAME.jpg``, ``NAME_2.jpg``, ``NAME3.jpg`` and all in ``NAME/`` are one.

    A still shows one person, or one who is much larger than the others. An ambiguous still is left out, with a note.
    """
    folder = Path(folder)
    names: dict[str, int] = {}
    vectors, owners, notes = [], [], []
    for path in find_files(folder, ("image",)):
        inside = path.relative_to(folder)
        name = inside.parts[0] if len(inside.parts) > 1 else _person(path)
        seen = [one for one in embed(_still(path)) if one.score >= _CLEAR]
        if not seen:
            raise VeilError(
                f"nobody is detected in the still {path}: use another one, or remove it.",
                code="gallery-nobody",
            )
        best = max(one.score for one in seen)
        seen = sorted((one for one in seen if one.score >= best / 2), key=_area, reverse=True)
        if len(seen) > 1 and _area(seen[0]) < _APART * _area(seen[1]):
            notes.append(f"the still {inside} is left out: it shows {len(seen)} people, none much larger")
            continue
        vectors.append(seen[0].embedding)
        owners.append(names.setdefault(name, len(names)))
    if not vectors:
        raise VeilError(
            f"no still in {folder} shows one person alone: use a still for each person.", code="gallery-empty"
        )
    gallery = Gallery(tuple(names), np.stack(vectors).astype(np.float64), np.array(owners, np.intp))
    return dataclasses.replace(gallery, notes=(*notes, *_ambiguities(gallery, embed.threshold)))


def _person(still: Path) -> str:
    """The name before a number at the end: obama, obama2, obama_3 and obama (4) are one person."""
    return re.sub(r"[\s_.(-]*\d+\)?$", "", still.stem) or still.stem


def _still(path: Path) -> Frames:
    image = next(frames_of(path))
    scale = _STILL_SIDE / max(image.shape[:2])
    if scale < 1:
        image = np.asarray(
            cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8
        )
    return image


def _area(seen: PersonEmbedding) -> float:
    x0, y0, x1, y1 = seen.box
    return (x1 - x0) * (y1 - y0)


def _ambiguities(gallery: Gallery, threshold: float) -> list[str]:
    """Notes on a gallery: one name for several people, or several names for one."""
    each = np.linalg.norm(gallery.embeddings[:, None] - gallery.embeddings, axis=2)
    np.fill_diagonal(each, np.inf)
    notes = []
    for k, name in enumerate(gallery.names):
        own = each[np.ix_(gallery.owners == k, gallery.owners == k)]
        if len(own) > 1 and own.min(axis=1).max() >= threshold:
            notes.append(f"the stills of {name} look like several people: use a folder for each person")
        for other in range(k):
            if each[np.ix_(gallery.owners == k, gallery.owners == other)].min() < threshold:
                notes.append(f"{gallery.names[other]} and {name} look alike: one may be taken for the other")
    return notes
