"""What this machine has and lacks for Veil."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from veil.core import VeilError
from veil.nn import weights
from veil.people import descriptors as dense

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
    "dlib-bin": ("faces", "recognising faces in an audit"),
}
ENCODERS = {"libx264": "H.264, the default", "libx265": "--codec h265", "ffv1": "--codec ffv1"}


class Check(NamedTuple):
    """One thing that was looked at."""

    what: str
    state: Literal["good", "optional", "bad"]  # optional: absent, and only some things need it
    says: str


def examine() -> Iterator[Check]:
    """Look at everything, one thing after the other."""
    yield Check("python", "good", platform.python_version())
    for package in ESSENTIAL:
        try:
            yield Check(package, "good", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Check(package, "bad", f"not installed: run `pip install {package}`")
    yield _opencv()
    for package, (extra, use) in OPTIONAL.items():
        try:
            yield Check(package, "good", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Check(
                package, "optional", f"not installed ({use}): run `pip install 'veil-video[{extra}]'`"
            )
    yield from _devices()
    yield from _encoders()
    yield from _weights()


def _opencv() -> Check:
    try:
        import cv2
    except ImportError as error:  # opencv-python needs libGL, which a server may lack
        return Check("opencv", "bad", f"{error}: run `pip install --force-reinstall opencv-python-headless`")
    return Check("opencv", "good", cv2.__version__)


def _devices() -> Iterator[Check]:
    yield Check("processor", "good", f"{os.cpu_count()} cores")
    try:
        import torch
    except ModuleNotFoundError:
        pass  # listed above
    else:
        if torch.cuda.is_available():
            yield Check("gpu", "good", torch.cuda.get_device_name())
        else:
            yield Check("gpu", "optional", "none that torch can use; everything here runs without one")
    cameras = sorted(str(path) for path in Path("/dev").glob("video[0-9]*"))
    yield Check("cameras", "good" if cameras else "optional", ", ".join(cameras) or "none")


def _encoders() -> Iterator[Check]:
    import av

    for name, use in ENCODERS.items():
        there = name in av.codecs_available
        state = "good" if there else "bad" if name == "libx264" else "optional"
        yield Check(
            f"encoder {name}", state, use if there else f"missing ({use}): run `pip install --upgrade av`"
        )


def _weights() -> Iterator[Check]:
    for name, entry in weights.WEIGHTS.items():
        what = f"weights {name}"
        try:
            path = weights.find(name)
            yield Check(what, "good", f"{entry.use}; {entry.licence}; {path}")
        except VeilError as error:
            if weights.look_up(name):
                yield Check(what, "bad", str(error))
            else:
                state = "bad" if entry.shipped else "optional"
                yield Check(what, state, f"{entry.use}; {entry.licence}; not here: {weights.remedy(name)}")
    for name, kind in dense.DESCRIPTORS.items():
        if kind.network:
            told = f"describes places; {kind.licence}"
            try:
                yield Check(f"weights {name}", "good", f"{told}; {dense.keys_file(name)}")
            except VeilError as error:
                yield Check(f"weights {name}", "optional", f"{told}; {error}")
