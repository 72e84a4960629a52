"""What is installed on this machine for Veil, and what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from veil.core import VeilError, install_command
from veil.nn import weights
from veil.people import descriptors

ESSENTIAL = (
    "av",
    "numpy",
    "onnxruntime",
    "pillow",
    "pydantic",
)
OPTIONAL = {  # the extra that brings a package, and what it is for
    "torch": ("learn", "training, audit, features"),
    "torchvision": ("learn", "training, audit, features"),
    "onnx": ("learn", "export"),
    "lightning-fabric": ("train", "training in several processes"),
    "tensorboard": ("train", "logs for TensorBoard"),
    "dlib-bin": ("faces", "recognizing faces in an audit"),
    "pylance": ("features", "features of videos on disk"),
    "ray": ("ray", "many videos on a cluster"),
    "starlette": ("ui", "the web app"),
    "uvicorn": ("ui", "the web app"),
}
ENCODERS = {"libx264": "H.264, the default", "libx265": "--codec h265", "ffv1": "--codec ffv1"}


class Diagnosis(NamedTuple):
    """The state of one package, device, encoder or file."""

    name: str
    state: Literal["good", "optional", "bad"]  # optional: absent, and only some features need it
    message: str


def examine() -> Iterator[Diagnosis]:
    """Check everything, one item after the other."""
    yield Diagnosis("python", "good", platform.python_version())
    for package in ESSENTIAL:
        try:
            yield Diagnosis(package, "good", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Diagnosis(package, "bad", f"not installed: run `pip install {package}`")
    yield from _opencv()
    for package, (extra, use) in OPTIONAL.items():
        try:
            yield Diagnosis(package, "good", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Diagnosis(package, "optional", f"not installed ({use}): run {install_command(extra)}")
    yield from _devices()
    yield from _encoders()
    yield from _weights()


def _opencv() -> Iterator[Diagnosis]:
    try:
        import cv2
    except ImportError as error:  # opencv-python needs libGL, which a server may lack
        yield Diagnosis(
            "opencv", "bad", f"{error}: run `pip install --force-reinstall opencv-python-headless`"
        )
        return
    yield Diagnosis("opencv", "good", cv2.__version__)
    from veil.apps.live.window import GUI_REMEDY, has_gui

    if has_gui():
        yield Diagnosis("windows", "good", "`veil live --to window`")
    else:
        yield Diagnosis(
            "windows", "optional", f"not in this OpenCV (`veil live --to window`): run `{GUI_REMEDY}`"
        )


def _devices() -> Iterator[Diagnosis]:
    yield Diagnosis("processor", "good", f"{os.cpu_count()} cores")
    try:
        import torch
    except ModuleNotFoundError:
        pass  # listed above
    else:
        if torch.cuda.is_available():
            yield Diagnosis("gpu", "good", torch.cuda.get_device_name())
        else:
            yield Diagnosis("gpu", "optional", "none that torch can use; everything here runs without one")
    cameras = sorted(str(path) for path in Path("/dev").glob("video[0-9]*"))
    yield Diagnosis("cameras", "good" if cameras else "optional", ", ".join(cameras) or "none")


def _encoders() -> Iterator[Diagnosis]:
    import av

    for name, use in ENCODERS.items():
        there = name in av.codecs_available
        state = "good" if there else "bad" if name == "libx264" else "optional"
        yield Diagnosis(
            f"encoder {name}", state, use if there else f"missing ({use}): run `pip install --upgrade av`"
        )


def _weights() -> Iterator[Diagnosis]:
    for name, entry in weights.WEIGHTS.items():
        label = f"weights {name}"
        try:
            path = weights.find(name)
            yield Diagnosis(label, "good", f"{entry.purpose}; {entry.licence}; {path}")
        except VeilError as error:
            if weights.look_up(name):
                yield Diagnosis(label, "bad", str(error))
            else:
                state = "bad" if entry.shipped else "optional"
                yield Diagnosis(
                    label, state, f"{entry.purpose}; {entry.licence}; not here: {weights.remedy(name)}"
                )
    for name, kind in descriptors.DESCRIPTORS.items():
        if kind.network:
            use = f"describes places; {kind.licence}"
            try:
                yield Diagnosis(f"weights {name}", "good", f"{use}; {descriptors.keys_file(name)}")
            except VeilError as error:
                yield Diagnosis(f"weights {name}", "optional", f"{use}; {error}")
