"""Body embeddings for re-identification: OSNet (Zhou et al. 2019, arXiv 1905.00953).

They depend on clothes, build and posture, so they recognize people within a day rather than over years. Embeddings
have length 1: with c the cosine of two of them, their distance (Euclid) is ``sqrt(2 - 2 c)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from veil.core import Box, Image, VeilError
from veil.nn import weights
from veil.nn.onnx import session
from veil.people.detectors import detector
from veil.people.faces import PersonEmbedding

OSNET = "osnet_x0_25"  # its name in veil.nn.weights
_SIZE = 128, 256  # width and height
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # of ImageNet, red green blue
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


class BodyEmbedder:
    """People found by a person detector, as vectors of length 1 ``(512,)``.

    `path`     an OSNet in ONNX form; None: the one of `veil.nn.weights`
    `person`   the person detector, as in `veil.people.detectors.detector`
    """

    # A cosine of 0.68. Pedestrians of OpenCV's vtest.avi, 50 seconds: nearer are 91 of 146 pairs of one person
    # three seconds and more apart, and 3 of 90 pairs of two people in one frame.
    threshold = 0.8

    def __init__(self, path: str | Path | None = None, person: str | None = None, sure: float = 0.4) -> None:
        if path is not None and not Path(path).is_file():
            raise VeilError(
                f"the weights file {path} does not exist: give the path of an OSNet in ONNX form.",
                code="weights-missing",
            )
        self._session = session(Path(path) if path is not None else weights.find(OSNET))
        self._input = self._session.get_inputs()[0].name
        shape, answer = self._session.get_inputs()[0].shape, self._session.get_outputs()[0].shape
        if list(shape[1:]) != [3, *reversed(_SIZE)] or len(answer) != 2:
            raise VeilError(
                f"{path or OSNET} is not an OSNet as published: it maps {shape} to {answer}.",
                code="weights-of-another-network",
            )
        self._detect, self._sure = detector("person", person), sure

    def __call__(self, image: Image) -> list[PersonEmbedding]:
        """The people in `image` ``(H, W, 3)``."""
        found = [person for person in self._detect(image) if person.score >= self._sure]
        seen = self.at(image, [person.box for person in found])
        return [one._replace(score=person.score) for one, person in zip(seen, found, strict=True)]

    def at(self, image: Image, boxes: Sequence[Box]) -> list[PersonEmbedding]:
        """The embeddings of what lies at the given places, be it a person or not."""
        seen = []
        for box in boxes:  # one by one: some published files take no batch
            part = cv2.resize(_cut(image, box), _SIZE, interpolation=cv2.INTER_LINEAR)
            blob = ((part.astype(np.float32) / 255 - _MEAN) / _DEVIATION).transpose(2, 0, 1)[None]
            vector = np.asarray(self._session.run(None, {self._input: blob})[0], np.float32)[0]
            seen.append(PersonEmbedding(box, vector / max(float(np.linalg.norm(vector)), 1e-9)))
        return seen


def _cut(image: Image, box: Box) -> Image:
    """The part of an image inside a box; at least one pixel of it."""
    height, width = image.shape[:2]
    x0, y0 = (int(np.clip(round(v), 0, n - 1)) for v, n in ((box[0], width), (box[1], height)))
    x1, y1 = int(np.clip(round(box[2]), x0 + 1, width)), int(np.clip(round(box[3]), y0 + 1, height))
    return image[y0:y1, x0:x1]
