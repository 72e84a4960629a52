"""Where the faces and the bodies are: detectors, each a function from an image to boxes with scores."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from veil.core import Box, Image, VeilError
from veil.nn import weights
from veil.nn.onnx import session

Kind = Literal["face", "person"]
Array = npt.NDArray[np.float32]
SMALL_FACE, SMALL_FACE_RAISE = (48, 96), (5 / 3, 1.0)  # heights in pixels, and by how much the heat is raised


class Detection(NamedTuple):
    """Where a detector found something, and its score (0 to 1)."""

    box: Box
    score: float


class Detector(Protocol):
    """Finds faces, people or other things in one image."""

    local: bool  # whether it may run on part of an image: what it finds there does not depend on the rest

    def __call__(self, image: Image) -> list[Detection]:
        """Boxes in pixels of `image` ``(H, W, 3)`` RGB, each with a score from 0 to 1."""
        ...


class CenterFace:
    """Faces, by the heat map of their centres (Xu et al. 2020, arXiv 1911.03599), at the image's own resolution.

    The network answers at a quarter of the resolution: heat (1 channel), log of height and width in units of 4 px
    (2), offset of the centre (2) and five landmarks (10, not used). Small faces get lower heat than large ones
    that are as plain to see, so theirs is raised: one threshold then serves all sizes.
    """

    local = True

    def __init__(self, path: Path, floor: float = 0.05):
        self.session = session(path)
        self.floor = floor
        self.input = self.session.get_inputs()[0].name
        self.outputs = [output.name for output in self.session.get_outputs()[:3]]

    def __call__(self, image: Image) -> list[Detection]:
        """Faces in `image`; small ones down to about 8 px."""
        height, width = image.shape[:2]
        size = max(32, -(-width // 32) * 32), max(32, -(-height // 32) * 32)
        blob = cv2.dnn.blobFromImage(image, size=size)  # (1, 3, H', W'), stretched to whole multiples of 32
        answers: list[Array] = self.session.run(self.outputs, {self.input: blob})  # type: ignore[assignment]
        heat, log_size, offset = (answer[0] for answer in answers)
        row, col = np.nonzero(heat[0] > self.floor)
        h, w = 4 * np.exp(log_size[:, row, col])
        y, x = 4 * (np.stack([row, col]) + offset[:, row, col] + 0.5)
        boxes = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1)
        boxes *= np.array([width / size[0], height / size[1]] * 2, np.float32)
        raised = np.interp(boxes[:, 3] - boxes[:, 1], SMALL_FACE, SMALL_FACE_RAISE)
        scores = np.minimum(heat[0, row, col] * raised, 1).astype(np.float32)
        return strongest(boxes, scores, overlap=0.3, within=(width, height))


class YOLOX:
    """People, by a YOLOX network exported to ONNX (Ge et al. 2021, arXiv 2107.08430), any of the published sizes.

    The image is shrunk into the corner of a grey square. Three grids of stride 8, 16 and 32 each answer
    (centre, log of size, objectness, 80 classes of COCO) in units of their stride; people are class 0.
    """

    local = False

    def __init__(self, path: Path, floor: float = 0.05):
        self.session = session(path)
        self.floor = floor
        self.input = self.session.get_inputs()[0].name
        shape = self.session.get_inputs()[0].shape
        answer = self.session.get_outputs()[0].shape
        if (
            len(shape) != 4
            or not all(isinstance(n, int) for n in shape[2:])
            or len(answer) != 3
            or answer[2] != 85
        ):
            raise VeilError(
                f"{path} is not a YOLOX model as published: it maps {shape} to {answer}.",
                code="weights-of-another-network",
            )
        self.height, self.width = int(shape[2]), int(shape[3])
        grids = []
        for stride in (8, 16, 32):
            y, x = np.mgrid[: self.height // stride, : self.width // stride]
            grids.append(np.stack([x.ravel(), y.ravel(), np.full(x.size, stride)], axis=1))
        self.grid = np.concatenate(grids).astype(np.float32)  # (cells, x y stride)

    def __call__(self, image: Image) -> list[Detection]:
        """People in `image`."""
        height, width = image.shape[:2]
        scale = min(self.height / height, self.width / width)
        size = max(1, round(width * scale)), max(1, round(height * scale))
        square = np.full((self.height, self.width, 3), 114, np.uint8)
        square[: size[1], : size[0]] = cv2.resize(
            image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        )
        blob = cv2.dnn.blobFromImage(
            square, swapRB=True
        )  # the published networks were trained on BGR, 0 to 255
        answer = np.asarray(self.session.run(None, {self.input: blob})[0])[0]  # (cells, 85)
        score = answer[:, 4] * answer[:, 5]
        sure = score > self.floor
        answer, grid = answer[sure], self.grid[sure]
        centre, half = (answer[:, :2] + grid[:, :2]) * grid[:, 2:], np.exp(answer[:, 2:4]) * grid[:, 2:] * 0.5
        boxes = (np.concatenate([centre - half, centre + half], axis=1) / scale).astype(np.float32)
        return strongest(boxes, score[sure], overlap=0.6, within=(width, height))


class TorchvisionPeople:
    """People, by one of torchvision's detectors trained on COCO; people are class 1."""

    local = False

    def __init__(self, name: str, path: Path, floor: float = 0.05):
        import torch
        from torchvision.models import detection

        build: Any = getattr(detection, TORCHVISION[name])
        self.network = build(weights=None, weights_backbone=None).eval()
        self.network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self.floor = floor

    def __call__(self, image: Image) -> list[Detection]:
        """People in `image`."""
        import torch

        with torch.inference_mode():
            answer = self.network(
                [torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).float() / 255]
            )[0]
        people = (answer["labels"] == 1) & (answer["scores"] > self.floor)
        boxes, scores = answer["boxes"][people].numpy(), answer["scores"][people].numpy()
        return [_detection(box, score) for box, score in zip(boxes, scores, strict=True)]


TORCHVISION = {
    "fasterrcnn_mobilenet": "fasterrcnn_mobilenet_v3_large_320_fpn",
    "fasterrcnn_resnet50": "fasterrcnn_resnet50_fpn_v2",
}
DEFAULT: dict[Kind, str] = {"face": "centerface", "person": "yolox_nano"}


@cache
def detector(kind: Kind, name: str | None = None) -> Detector:
    """The detector of that name (or the default one for faces or people); loaded once a process.

    `name` is one of `veil.nn.weights.WEIGHTS`, or the path of a YOLOX model in ONNX form (people only).
    """
    name = name or DEFAULT[kind]
    if name.endswith(".onnx"):
        if kind != "person":
            raise VeilError(
                f"'{name}' cannot serve region '{kind}': a detector file finds people (region=person).",
                code="detector-kind",
            )
        if not Path(name).is_file():
            raise VeilError(
                f"the detector file '{name}' does not exist: give the path of a YOLOX model in ONNX form.",
                code="detector-missing",
            )
        return YOLOX(Path(name))
    purpose = {"face": "detects faces", "person": "detects people"}[kind]
    fitting = [known for known, entry in weights.WEIGHTS.items() if entry.purpose == purpose]
    if name not in fitting:
        raise VeilError(
            f"there is no detector '{name}' for region '{kind}': choose one of {', '.join(fitting)}.",
            code="detector-unknown",
        )
    path = weights.find(name)
    if name in TORCHVISION:
        return TorchvisionPeople(name, path)
    return CenterFace(path) if kind == "face" else YOLOX(path)


def strongest(boxes: Array, scores: Array, overlap: float, within: tuple[int, int]) -> list[Detection]:
    """Greedy non-maximum suppression: of boxes that overlap by more than `overlap` (IoU) the strongest stays.

    `boxes` is ``(n, 4)``, `scores` is ``(n,)``; what remains is cut to the image of size `within` (width, height).
    """
    if not len(boxes):
        return []
    boxes = boxes.copy()
    boxes[:, 0::2] = boxes[:, 0::2].clip(0, within[0])
    boxes[:, 1::2] = boxes[:, 1::2].clip(0, within[1])
    corner_and_size = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
    kept = cv2.dnn.NMSBoxes(corner_and_size.tolist(), scores.tolist(), 0.0, overlap)
    return [_detection(boxes[i], scores[i]) for i in np.asarray(kept).ravel()]


def _detection(box: Array, score: Any) -> Detection:
    x0, y0, x1, y1 = map(float, box)
    whole: Box = (x0, y0, x1, y1)
    return Detection(whole, float(score))
