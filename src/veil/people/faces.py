"""Embeddings of faces: dlib's ResNet (King 2017), whose distances distinguish people.

Two faces nearer than 0.6 (Euclid) are taken for one person; that is dlib's own threshold. Nothing here is part
of anonymizing: it is what an attacker does. dlib and its weights come with the extra ``faces``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from veil.core import Box, Image, VeilError, install_command
from veil.people.detectors import detector

Embedding = npt.NDArray[np.float32]  # (D,)
_MODELS = "dlib_face_recognition_resnet_model_v1.dat", "shape_predictor_5_face_landmarks.dat"
_SIDE = (
    160,
    320,
)  # faces are brought to at least and at most this many pixels before their landmarks are sought
_AROUND = 0.6  # of its side: how much is cut out around a face
_HOG_PIXELS = (
    1 << 20
)  # larger images are not enlarged for the HOG detector, which finds 80 px faces, or 40 enlarged
_SURE = 0.3  # the heat from which a face of CenterFace counts; below are collars and lamps


class PersonEmbedding(NamedTuple):
    """Somebody in an image: where, the embedding, and how sure the detector is (1 for a place given)."""

    box: Box
    embedding: Embedding
    score: float = 1.0


class Embedder(Protocol):
    """Finds people in an image and makes comparable vectors of them."""

    threshold: float  # embeddings nearer than this (Euclid) are taken for one person

    def __call__(self, image: Image) -> list[PersonEmbedding]:
        """Whoever is found in `image` ``(H, W, 3)``."""
        ...

    def at(self, image: Image, boxes: Sequence[Box]) -> list[PersonEmbedding]:
        """What is to be seen at the given places, one each, whether or not anybody would be found there."""
        ...


class FaceEmbedder:
    """Faces found by dlib's HOG detector or CenterFace, aligned by five landmarks, as vectors ``(128,)``."""

    threshold = 0.6

    def __init__(self) -> None:
        self._dlib, folder = _dlib_and_models()
        network, landmarks = (str(folder / name) for name in _MODELS)
        self._hog = self._dlib.get_frontal_face_detector()
        self._landmarks = self._dlib.shape_predictor(landmarks)
        self._network = self._dlib.face_recognition_model_v1(network)
        self._centerface = detector("face")

    def __call__(self, image: Image) -> list[PersonEmbedding]:
        """The faces in `image` ``(H, W, 3)``; one that both detectors find counts once."""
        found = self._find(image)
        seen = self.at(image, [box for box, _ in found])
        return [one._replace(score=score) for one, (_, score) in zip(seen, found, strict=True)]

    def at(self, image: Image, boxes: Sequence[Box]) -> list[PersonEmbedding]:
        """The embeddings of what lies at the given places, be it a face or not."""
        if not boxes:
            return []
        chips = [self._chip(image, box) for box in boxes]
        vectors = self._network.compute_face_descriptor(chips)
        return [
            PersonEmbedding(box, np.asarray(vector, np.float32))
            for box, vector in zip(boxes, vectors, strict=True)
        ]

    def _find(self, image: Image) -> list[tuple[Box, float]]:
        """Squares from the brows to the chin, as dlib draws them and its landmarks need them."""
        height, width = image.shape[:2]
        enlarge = int(height * width <= _HOG_PIXELS)
        rectangles, marks, _ = self._hog.run(np.ascontiguousarray(image), enlarge, 0.0)
        found = [
            (
                (float(r.left()), float(r.top()), float(r.right() + 1), float(r.bottom() + 1)),
                min(mark / 2, 1.0),
            )
            for r, mark in zip(rectangles, marks, strict=True)
        ]
        for box, score in self._centerface(image):
            if score < _SURE:
                continue
            square = _square(box)
            same = [i for i, (other, _) in enumerate(found) if _overlap(square, other) > 0.25]
            for i in same:
                found[i] = found[i][0], max(found[i][1], score)
            if not same:
                found.append((square, score))
        return found

    def _chip(self, image: Image, box: Box) -> npt.NDArray[np.uint8]:
        """The face at a place ``(150, 150, 3)``, upright and centred; a small one is enlarged first."""
        x0, y0, x1, y1 = box
        side = max(x1 - x0, y1 - y0, 1.0)
        height, width = image.shape[:2]
        left, top = (int(np.clip(v - _AROUND * side, 0, n - 1)) for v, n in ((x0, width), (y0, height)))
        right = int(np.clip(np.ceil(x1 + _AROUND * side), left + 1, width))
        bottom = int(np.clip(np.ceil(y1 + _AROUND * side), top + 1, height))
        scale = float(np.clip(side, *_SIDE)) / side
        part = cv2.resize(
            image[top:bottom, left:right],
            None,
            fx=scale,
            fy=scale,
            interpolation=cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA,
        )
        corners = [round(scale * v) for v in (x0 - left, y0 - top, x1 - left, y1 - top)]
        shape = self._landmarks(part, self._dlib.rectangle(*corners))
        return self._dlib.get_face_chip(part, shape, size=150, padding=0.25)


def _dlib_and_models() -> tuple[Any, Path]:
    """The module dlib, and the folder of its weights; the package that carries them is not imported."""
    remedy = f"run {install_command('faces')}."
    package = importlib.util.find_spec("face_recognition_models")
    try:
        dlib = importlib.import_module("dlib")
    except ImportError as error:
        raise VeilError(
            f"dlib, which embeds faces, is not installed: {remedy}", code="extra-missing"
        ) from error
    folder = Path(package.origin).parent / "models" if package and package.origin else None
    if folder is None or not all((folder / name).is_file() for name in _MODELS):
        raise VeilError(
            f"dlib's weights (face_recognition_models) are not installed: {remedy}", code="extra-missing"
        )
    return dlib, folder


def _square(box: Box) -> Box:
    """A box of CenterFace, from the hairline to the chin, as dlib would draw it."""
    x0, y0, x1, y1 = box
    height = y1 - y0
    half = 0.425 * height
    x, y = (x0 + x1) / 2, (y0 + y1) / 2 + 0.05 * height
    return x - half, y - half, x + half, y + half


def _overlap(a: Box, b: Box) -> float:
    """Intersection over union."""
    across = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    both = across * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return both / max(sum(areas) - both, 1e-9)
