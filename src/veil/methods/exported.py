"""What `veil export` wrote, read back: one ONNX file that holds a network and how video goes through it; torch is not needed.

Of an anonymizer, ``frames`` ``(N, T, h, w, 3)`` in bytes go in and ``drawn`` of the same shape come out, so that whoever runs it
scales nothing. Of an adapter, ``features`` ``(B, N, D)`` become ``changed`` ones; where clips of a video see each other, ``mask``
``(B, N)`` says which of them are there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from veil.core import Anonymizer, Frames, Veiled, VeilError, io_errors
from veil.methods.streaming import ClipContext, ClipFunction, anonymized
from veil.nn.onnx import session

if TYPE_CHECKING:
    import onnxruntime

MOST = 1  # frames that are redrawn at once, or a block of them: more would be late, and no faster
Features = npt.NDArray[np.float32]  # (B, N, D)
Mask = npt.NDArray[np.bool_]  # (B, N)
_Length = Annotated[int, Field(ge=0, le=1024)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True))
class Seen:
    """What the file of an anonymizer says of how video goes through it: see `ClipContext`."""

    side: Annotated[int, Field(ge=8, le=4096)]
    skip: Annotated[int, Field(ge=1, le=60)]
    past: _Length
    block: Annotated[int, Field(ge=1, le=1024)]
    future: _Length
    square: bool

    def shape(self) -> ClipContext:
        """The same, as video is redrawn by it."""
        return ClipContext(self.side, self.skip, self.past, self.block, self.future, self.square)


@dataclass(frozen=True)
class Exported(Anonymizer):
    """A learned anonymizer in a file of `veil export`."""

    model: str  # the file

    @cached_property
    def _opened(self) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
        return opened(self.model, "frames")

    @cached_property
    def shape(self) -> ClipContext:
        """What the network sees at once."""
        try:
            given: dict[str, Any] = {name: self.told.get(name) for name in ClipContext._fields}
            return Seen(**given).shape()
        except ValidationError as error:
            raise VeilError(
                f"{self.model} says of itself what cannot be ({error.errors()[0]['loc'][0]}): export it again."
            ) from error

    @property
    def told(self) -> dict[str, Any]:
        """All that the file says of itself."""
        return self._opened[1]

    @property
    def name(self) -> str:
        """See `Anonymizer`: what it was trained by."""
        return str(self.told.get("method", "exported"))

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer`."""
        return anonymized(windows, self._redraw, self.shape, MOST)

    def ahead(self) -> int:
        """See `Anonymizer`."""
        return self.shape.ahead(MOST)

    @cached_property
    def _redraw(self) -> ClipFunction:
        model, _ = self._opened

        def redraw(clips: Frames) -> Frames:
            try:
                (drawn,) = model.run(None, {"frames": clips})
            except Exception as error:  # onnxruntime's own classes derive from Exception alone
                why = str(error).splitlines()[0]
                raise VeilError(
                    f"{self.model} fails on clips of {clips.shape[2]}×{clips.shape[3]} ({why}): export it again."
                ) from error
            drawn = np.asarray(drawn)
            if drawn.shape != clips.shape or drawn.dtype != np.uint8:
                raise VeilError(
                    f"{self.model} made {drawn.dtype} {drawn.shape} of frames {clips.shape}: export it again."
                )
            return drawn

        return redraw


def load(path: str | Path) -> Exported:
    """The anonymizer in a file; what is none is refused now, not in the middle of a video."""
    anonymizer = Exported(str(path))
    _ = anonymizer.shape
    return anonymizer


def load_adapter(path: str | Path) -> Callable[..., Features]:
    """The adapter in a file: features ``(B, N, D)``, and a mask where it needs one, to anonymized features."""
    model, told = opened(path, "features")
    names = [given.name for given in model.get_inputs()]

    def changed(features: Features, mask: Mask | None = None) -> Features:
        if features.ndim != 3 or features.shape[2] != told["dim"]:
            raise VeilError(
                f"{path} takes features (B, N, {told['dim']}) of {told['encoder']}, got {features.shape}: "
                "they are those of another encoder."
            )
        given: dict[str, Any] = {"features": features.astype(np.float32, copy=False)}
        if "mask" in names:
            given["mask"] = np.ones(features.shape[:2], np.bool_) if mask is None else mask
        return np.asarray(model.run(None, given)[0])

    return changed


def opened(
    path: str | Path, kind: Literal["frames", "features"]
) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
    """A file of `veil export` that changes frames, or features: its model, and what it says of itself."""
    path = Path(path)
    if not path.is_file():
        raise VeilError(f"{path} is not there: `veil export METHOD -o {path.name}` writes such a file.")
    with io_errors(path, advice="check its permissions"):
        held = path.read_bytes()
    try:
        model = session(held)  # not by its name: a file that leans on others is not whole
    except VeilError as error:
        raise VeilError(f"{path} is no ONNX model that can be read; export it again.") from error
    try:
        told = {key: json.loads(text) for key, text in model.get_modelmeta().custom_metadata_map.items()}
    except ValueError:
        told = {}
    if "veil" not in told or told.get("kind") not in ("frames", "features"):
        raise VeilError(
            f"{path} is a model that Veil did not write: name a file of `veil export`, or the folder of a run."
        )
    if told["kind"] != kind:
        what, instead = (
            ("an adapter, which changes features and no frames", "name the model of an anonymizer")
            if kind == "frames"
            else ("an anonymizer of frames, which changes no features", "name the model of an adapter's run")
        )
        raise VeilError(f"{path} is {what}: {instead}.")
    names = [given.name for given in model.get_inputs()]
    if names[:1] != [kind] or len(model.get_outputs()) != 1:
        raise VeilError(f"{path} takes {', '.join(names)} and not {kind}: export it again.")
    return model, told
