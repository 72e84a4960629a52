"""What an anonymizer is, of frames or of features, and the two forms in which video is held.

*frames*   ``(T, H, W, 3)`` uint8 numpy array, RGB: what is decoded, hidden and encoded.
*clip*     ``(B, 3, T, H, W)`` float torch tensor in [0, 1]: what networks see.

Frames cross the whole video path, so that anonymizing with filters or ONNX models never has to load torch;
`to_clip` and `to_frames` are the only places where one becomes the other.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

__version__ = "0.1.0"

Frames = npt.NDArray[np.uint8]
Image = npt.NDArray[np.uint8]  # one frame (H, W, 3), RGB
Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels; x1 and y1 are exclusive


class VeilError(Exception):
    """A user's mistake or a bad input: one sentence: what is wrong, with which value, and what to do.

    `code` is a short stable name of the error, such as ``"input-missing"``: programs and tests match it, never the sentence.
    """

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


EXTRAS = {  # packages that the base installation does without, by the extra that brings them
    "learn": ("jinja2", "matplotlib", "onnx", "scipy", "sklearn", "timm", "torch", "torchvision"),
}


def install_command(extra: str) -> str:
    """The command that installs an extra. Veil is installed from its source folder, so that is where it is run."""
    return f"`pip install '.[{extra}]'` in Veil's source folder"


def missing_extra(what: str, extra: str) -> VeilError:
    """The error where `what` needs packages of an extra that is not installed."""
    return VeilError(f"{what}, which is not installed: run {install_command(extra)}.", code="extra-missing")


@contextmanager
def extras_required() -> Iterator[None]:
    """Turn the absence of a package of `EXTRAS` into a `VeilError` that gives the command to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        for extra, packages in EXTRAS.items():
            if package in packages:
                raise missing_extra(f"this needs the package '{package}'", extra) from error
        raise


class Progress(Protocol):
    """Receives how much of a task is done; `total` is None where it is unknown, `message` names the current part."""

    def __call__(self, done: int, total: int | None, message: str | None = None, /) -> None:
        """Take note of the progress so far."""
        ...


# What cannot be done to a file, its error code, and the usual advice.
_IO: dict[str, tuple[str, str]] = {
    "read": ("unreadable", "check that it is there and that you may read it"),
    "written": ("unwritable", "free some space, or choose another folder"),
}


@contextmanager
def io_errors(
    path: object,
    action: str = "read",
    *,
    advice: str | None = None,
    code: str | None = None,
    errors: tuple[type[Exception], ...] = (OSError,),
) -> Iterator[None]:
    """Turn an `OSError` into a `VeilError`: "PATH could not be ACTION (reason): advice."

    `action` is a past participle, such as ``"read"`` or ``"written"``, which have a usual code (``"unreadable"``,
    ``"unwritable"``) and advice. `errors` are the exceptions to turn, where a library raises others as well.
    """
    try:
        yield
    except VeilError:
        raise
    except errors as error:
        usual = _IO.get(action, (f"not-{action}", "check the name and your rights"))
        reason = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), type(error).__name__)
        message = f"{path} could not be {action} ({reason}): {usual[1] if advice is None else advice}."
        raise VeilError(message, code=usual[0] if code is None else code) from error


# What a value should be, by pydantic's type of error; the constraint's value is put in for {}.
_EXPECTED = {
    "int_parsing": "should be a whole number",
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "bool_parsing": "should be true or false",
    "bool_type": "should be true or false",
    "greater_than_equal": "should be {} or more",
    "greater_than": "should be more than {}",
    "less_than_equal": "should be {} or less",
    "less_than": "should be less than {}",
}


def validation_message(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors (an entry of `ValidationError.errors()`) in plain words, without the value."""
    expected = _EXPECTED.get(error["type"])
    if expected is not None:
        return expected.format(*(f"{limit:g}" for limit in error.get("ctx", {}).values() if "{}" in expected))
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "should be")


# How a region came to be: a detector found it there; it lies between two detections, or beyond the first or the last one; its
# track was lost, and its place is held.
RegionSource = Literal["detected", "interpolated", "extrapolated", "held"]


class Region(NamedTuple):
    """One place in one frame that was hidden, and why."""

    kind: str
    box: Box
    score: float
    how: RegionSource
    track: int  # -1: not followed
    targets: tuple[str, ...] = ()  # names of the anonymizer's targets that were detected here


class Target(NamedTuple):
    """Something that an anonymizer looks for, in order to hide it."""

    name: str
    expected: bool = False  # it was chosen by name: a video in which it is never detected is reported


class Veiled(NamedTuple):
    """A few consecutive frames after anonymization, and what was hidden in each."""

    frames: Frames  # (T, H, W, 3)
    regions: list[tuple[Region, ...]] | None  # one entry a frame; None: the whole of every frame was changed
    shares: list[float] | None = (
        None  # of each frame, what was changed of it (0 to 1); None: its regions' boxes
    )


class FrameExplanation(NamedTuple):
    """Why one frame came out as it did, from methods that choose what they hide."""

    frame: npt.NDArray[np.uint8]  # (H, W, 3), after anonymization
    hidden: npt.NDArray[np.float32]  # (h, w) on a small grid over the frame: what was hidden, from 0.5 on
    maps: (
        Mapping[str, npt.NDArray[np.float32]] | None
    )  # (h, w) of each target; None: the frame was not looked at


class Anonymizer(ABC):
    """Frames in, safer frames out.

    Laws, tested for every registered anonymizer: shape and range are kept; the input is not touched; how a video
    is cut into windows makes no difference; ``type(a)(**a.params())`` does the same as ``a``; what happens to one
    video never depends on another.
    """

    @abstractmethod
    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """Anonymize one video, given as consecutive windows.

        Every frame comes out once and in order, but may come out in other groups and later than it went in.
        State that crosses windows lives in this generator, so that one anonymizer serves many videos at once.
        """

    @property
    def name(self) -> str:
        """What reports call it: the method's name, or that of the recipe it was learned by."""
        return type(self).__name__.lower()

    def ahead(self) -> int | None:
        """How many later frames are seen before a frame comes out, at most, where windows are of one frame.

        None: it is not known. A live picture is late by this many frames.
        """
        return None

    def targets(self) -> tuple[Target, ...]:
        """What it looks for; empty: it changes whole frames."""
        return ()

    def explain(
        self, windows: Iterable[Frames], on_frame: Callable[[FrameExplanation], None]
    ) -> Iterator[Veiled]:
        """The same as `stream`, and `on_frame` is called for every frame, in order, with why it came out as it did."""
        raise VeilError(
            f"the method '{self.name}' has nothing to explain: choose one that chooses what it hides, "
            "such as selective.",
            code="nothing-to-explain",
        )

    def __call__(self, clip: Tensor) -> Tensor:
        """Anonymize each video of a clip ``(B, 3, T, H, W)``; what comes back is exactly what a file would hold."""
        import torch

        videos = [np.concatenate([v.frames for v in self.stream([to_frames(video)])]) for video in clip]
        return torch.stack([to_clip(frames) for frames in videos]).to(clip)

    def params(self) -> dict[str, Any]:
        """The constructor's arguments, from which the same anonymizer can be built again."""
        if dataclasses.is_dataclass(self):
            return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        raise TypeError(f"{type(self).__name__} is not a dataclass and must define params()")


class FeatureAnonymizer(ABC):
    """Features in, safer features out: what an `Anonymizer` is for pixels.

    Laws, tested for every registered one: the shape is kept; the input is not touched; ``type(a)(**a.params())`` with the
    same weights does the same as ``a``; what happens to one video never depends on another.
    """

    @abstractmethod
    def __call__(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Anonymize tokens ``(B, N, D)`` of B videos with N clips; ``mask (B, N)``, bool, marks the clips [all]."""

    @property
    def name(self) -> str:
        """What reports call it: the method's name."""
        return type(self).__name__.lower()

    @abstractmethod
    def params(self) -> dict[str, Any]:
        """The constructor's arguments, from which the same anonymizer can be built again; weights are loaded into it."""


class VideoEncoder(Protocol):
    """A frozen network that turns clips into features."""

    name: str
    dim: int  # numbers in a feature
    length: int  # frames in a clip
    size: int  # height and width of a clip
    fingerprint: str  # of the weights

    def pooled(self, clip: Tensor, /) -> Tensor:
        """One vector for each clip: ``(B, 3, T, H, W)`` in [0, 1] to ``(B, D)``."""
        ...


def to_clip(frames: Frames) -> Tensor:
    """Frames ``(T, H, W, 3)`` as one video of a clip, ``(3, T, H, W)`` float in [0, 1]."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(frames)).permute(3, 0, 1, 2).float().div_(255)


def to_frames(video: Tensor) -> Frames:
    """One video of a clip, ``(3, T, H, W)`` in [0, 1], as frames ``(T, H, W, 3)``, rounded to 8 bits."""
    if video.ndim != 4 or video.shape[0] != 3:
        raise ValueError(f"one video of a clip is (3, T, H, W), got {tuple(video.shape)}")
    return video.detach().mul(255).round_().clamp_(0, 255).byte().permute(1, 2, 3, 0).cpu().numpy()
