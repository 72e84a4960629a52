"""Labelled images that the part network learns from.

Labels are 0 background, 1 to 7 the parts of `veil.people.parts.PARTS`, `ANY` a person whose parts are not known, `IGNORE`
not known at all.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from veil.core import VeilError

ANY, IGNORE = 8, 255
PEOPLE = (1, 2, 3, 4, 5, 6, 7, ANY)  # labels that are of a person
CANVAS = 256  # pixels of the longer side of the stored images


class LabelledImages(NamedTuple):
    """Labelled images, each in the upper left corner of a square."""

    images: Tensor  # (N, 3, CANVAS, CANVAS) uint8
    labels: Tensor  # (N, CANVAS, CANVAS) uint8, IGNORE outside the image
    sizes: Tensor  # (N, 2) heights and widths
    sources: list[str]

    def to(self, device: torch.device | str) -> LabelledImages:
        """The same on a device."""
        return LabelledImages(
            self.images.to(device), self.labels.to(device), self.sizes.to(device), self.sources
        )


def read_labelled_images(
    folder: Path, splits: Sequence[str] = ("train", "val", "test"), every: int = 1
) -> dict[str, LabelledImages]:
    """The images and labels of ``parts.zip`` by split, of each split every n-th, with n = `every`."""
    for name in ("manifest.csv", "parts.zip"):
        if not (folder / name).is_file():
            raise VeilError(
                f"{folder / name} is missing: give the folder that holds manifest.csv and parts.zip.",
                code="input-missing",
            )
    with (folder / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Opening the archive anew for every image would cost minutes.
    with zipfile.ZipFile(io.BytesIO((folder / "parts.zip").read_bytes())) as archive:
        found = {}
        for split in splits:
            mine = [row for row in rows if row["split"] == split][::every]
            if not mine:
                raise VeilError(
                    f"{folder / 'manifest.csv'} has no image of the split '{split}': give a manifest that has one.",
                    code="split-empty",
                )
            found[split] = _read(archive, mine)
    return found


def _read(archive: zipfile.ZipFile, rows: list[dict[str, str]]) -> LabelledImages:
    images = np.zeros((len(rows), 3, CANVAS, CANVAS), np.uint8)
    labels = np.full((len(rows), CANVAS, CANVAS), IGNORE, np.uint8)
    sizes = np.zeros((len(rows), 2), np.int64)

    def read_one(index: int) -> None:
        file = rows[index]["file"]
        with Image.open(io.BytesIO(archive.read(f"images/{file}.jpg"))) as opened:
            image = np.asarray(opened.convert("RGB"))
        with Image.open(io.BytesIO(archive.read(f"labels/{file}.png"))) as opened:
            label = np.asarray(opened)  # indices of the palette
        height, width = label.shape
        if image.shape != (height, width, 3) or max(height, width) > CANVAS:
            raise VeilError(
                f"'{file}' is {image.shape} and its label {label.shape}; both must be of one size, at most {CANVAS} long.",
                code="label-size",
            )
        images[index, :, :height, :width] = image.transpose(2, 0, 1)
        labels[index, :height, :width] = label
        sizes[index] = height, width

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read_one, range(len(rows))))
    sources = [row["source"] for row in rows]
    return LabelledImages(
        torch.from_numpy(images), torch.from_numpy(labels), torch.from_numpy(sizes), sources
    )
