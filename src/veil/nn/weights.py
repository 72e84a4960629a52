"""Files of weights: shipped with Veil, in a folder of the user, in this user's cache, or downloaded.

Nothing is downloaded without `veil fetch NAME`, and nothing is loaded with a wrong checksum. All file names and addresses
of weights are in this module.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from veil.core import VeilError, io_errors
from veil.media import folders

FOLDER_VARIABLE = "VEIL_WEIGHTS"


@dataclass(frozen=True)
class WeightsFile:
    """One published file of weights."""

    file: str
    sha256: str  # the whole checksum or its first digits, as published
    size: int  # bytes, about
    licence: str
    purpose: str
    shipped: str | None = None  # the folder in this package, where Veil ships the file
    url: str | None = None


WEIGHTS: dict[str, WeightsFile] = {
    "centerface": WeightsFile(
        "centerface.onnx",
        "8cd61dac796eae4d713d4d2a4ad8ccac062a600b81b640e2795882e20b5e3efc",
        7_304_646,
        "MIT",
        "detects faces",
        shipped="people",
    ),
    "yolox_nano": WeightsFile(
        "yolox_nano.onnx",
        "d39bee73564e338080378b0ad567fbb40e818b55bbfaf971de82a0267ed16b8a",
        3_713_911,
        "Apache-2.0",
        "detects people",
        url="https://github.com/Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0/yolox_nano.onnx",
    ),
    "fasterrcnn_mobilenet": WeightsFile(
        "fasterrcnn_mobilenet_v3_large_320_fpn-907ea3f9.pth",
        "907ea3f9",
        77_500_000,
        "BSD-3-Clause",
        "detects people",
        url="https://download.pytorch.org/models/fasterrcnn_mobilenet_v3_large_320_fpn-907ea3f9.pth",
    ),
    "fasterrcnn_resnet50": WeightsFile(
        "fasterrcnn_resnet50_fpn_v2_coco-dd69338a.pth",
        "dd69338a",
        174_800_000,
        "BSD-3-Clause",
        "detects people",
        url="https://download.pytorch.org/models/fasterrcnn_resnet50_fpn_v2_coco-dd69338a.pth",
    ),
    "raft_large": WeightsFile(
        "raft_large_C_T_SKHT_V2-ff5fadd5.pth",
        "ff5fadd5",
        21_100_000,
        "BSD-3-Clause",
        "estimates optical flow",
        url="https://download.pytorch.org/models/raft_large_C_T_SKHT_V2-ff5fadd5.pth",
    ),
    "raft_small": WeightsFile(
        "raft_small_C_T_V2-01064c6d.pth",
        "01064c6d",
        4_000_000,
        "BSD-3-Clause",
        "estimates optical flow",
        url="https://download.pytorch.org/models/raft_small_C_T_V2-01064c6d.pth",
    ),
    "raft_small_princeton": WeightsFile(  # no hub is known that has this very file
        "raft-small.pth",
        "c7d41b9cc88442bb8aa911dbb33086dac55a226394b142937ff22d5578717332",
        3_984_814,
        "BSD-3-Clause",
        "estimates optical flow",
    ),
    "osnet_x0_25": WeightsFile(  # no hub is known that has this very file
        "osnet_x0_25_msmt17.onnx",
        "dddd73c80b78e24ef982f9c352c1947b42d67433887011e8eb33a00313edef5e",
        891_413,
        "MIT",
        "distinguishes bodies",
    ),
}


def weights_folder() -> Path:
    """The folder of this user's downloaded weights."""
    return folders.cache_folder("weights")


def _places(weights: WeightsFile) -> list[Path]:
    if weights.shipped:
        return [Path(__file__).parents[1] / weights.shipped / weights.file]
    places = []
    if folder := os.environ.get(FOLDER_VARIABLE):
        places.append(Path(folder).expanduser())
    places.append(weights_folder())
    return [place / weights.file for place in places]


def look_up(name: str) -> Path | None:
    """The file of the named weights, where it exists on this machine; it is not checked."""
    return next((path for path in _places(WEIGHTS[name]) if path.is_file()), None)


def find(name: str) -> Path:
    """The checked file of the named weights, or a `VeilError` with advice."""
    path = look_up(name)
    if path is None:
        raise VeilError(
            f"the weights '{name}' are not on this machine: {remedy(name)}.", code="weights-missing"
        )
    _check(path, WEIGHTS[name])
    return path


def remedy(name: str) -> str:
    """How a user gets the named weights."""
    weights = WEIGHTS[name]
    if weights.shipped:
        return f"reinstall Veil, which ships {weights.file}"
    own = f"put {weights.file} into a folder and set {FOLDER_VARIABLE} to that folder"
    return f"run `veil fetch {name}` (about {weights.size / 1e6:.0f} MB), or {own}" if weights.url else own


def fetch(name: str) -> Path:
    """Download the named weights into the cache, and check them."""
    weights = WEIGHTS[name]
    if path := look_up(name):
        _check(path, weights)
        return path
    if weights.url is None:
        raise VeilError(f"the weights '{name}' cannot be downloaded: {remedy(name)}.", code="no-hub")
    folder = weights_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
        advice = (
            f"check the network, or put {weights.file} into a folder and set {FOLDER_VARIABLE} to that folder"
        )
        try:
            with io_errors(f"the weights '{name}' at {weights.url}", "fetched", advice=advice):
                with urllib.request.urlopen(weights.url, timeout=30) as answer:
                    shutil.copyfileobj(answer, part)
                part.close()
                _check(Path(part.name), weights)
                Path(part.name).replace(folder / weights.file)
        finally:
            Path(part.name).unlink(missing_ok=True)
    return folder / weights.file


_checked: set[tuple[Path, int, int]] = set()


def _check(path: Path, weights: WeightsFile) -> None:
    state = path.stat()
    key = path, state.st_size, state.st_mtime_ns
    if key in _checked:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if not found.startswith(weights.sha256):
        raise VeilError(
            f"{path} is not the published {weights.file}, since its SHA-256 begins with {found[:8]} and not "
            f"{weights.sha256[:8]}: delete it and download it again.",
            code="weights-checksum",
        )
    _checked.add(key)
