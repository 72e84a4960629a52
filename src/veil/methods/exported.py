"""Models of `veil export`: one ONNX file that holds a network and how a video goes through it; torch is not needed.

An anonymizer maps ``frames`` ``(N, T, h, w, 3)`` uint8 to ``anonymized`` ones of the same shape, so that no caller has to scale
anything. An adapter maps ``features`` ``(B, N, D)`` to ``anonymized`` ones; where the clips of a video see each other, ``mask``
``(B, N)`` marks which of them exist.
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

MAX_FRAMES = 1  # anonymized at once, or a block of them: more would add delay, and no speed
Features = npt.NDArray[np.float32]  # (B, N, D)
Mask = npt.NDArray[np.bool_]  # (B, N)
_Length = Annotated[int, Field(ge=0, le=1024)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True))
class ContextMetadata:
    """How a video goes through the network, as the metadata of a file states it: see `ClipContext`."""

    side: Annotated[int, Field(ge=8, le=4096)]
    skip: Annotated[int, Field(ge=1, le=60)]
    past: _Length
    block: Annotated[int, Field(ge=1, le=1024)]
    future: _Length
    square: bool

    def context(self) -> ClipContext:
        """The same as a `ClipContext`."""
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
        """The clip that the network sees at once."""
        try:
            given: dict[str, Any] = {name: self.metadata.get(name) for name in ClipContext._fields}
            return ContextMetadata(**given).context()
        except ValidationError as error:
            raise VeilError(
                f"the metadata of {self.model} are not valid ({error.errors()[0]['loc'][0]}): export it again.",
                code="model-metadata",
            ) from error

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the file."""
        return self._opened[1]

    @property
    def name(self) -> str:
        """See `Anonymizer`: the method by which it was trained."""
        return str(self.metadata.get("method", "exported"))

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer`."""
        return anonymized(windows, self._anonymize, self.shape, MAX_FRAMES)

    def ahead(self) -> int:
        """See `Anonymizer`."""
        return self.shape.ahead(MAX_FRAMES)

    @cached_property
    def _anonymize(self) -> ClipFunction:
        model, _ = self._opened

        def anonymize(clips: Frames) -> Frames:
            try:
                (output,) = model.run(None, {"frames": clips})
            except Exception as error:  # onnxruntime's own classes derive from Exception alone
                why = str(error).splitlines()[0]
                raise VeilError(
                    f"{self.model} fails on clips of {clips.shape[2]}×{clips.shape[3]} ({why}): export it again.",
                    code="model-fails",
                ) from error
            output = np.asarray(output)
            if output.shape != clips.shape or output.dtype != np.uint8:
                raise VeilError(
                    f"{self.model} returned {output.dtype} {output.shape} for frames {clips.shape}: export it again.",
                    code="model-fails",
                )
            return output

        return anonymize


def load(path: str | Path) -> Exported:
    """The anonymizer in a file; any other file is refused now, not in the middle of a video."""
    anonymizer = Exported(str(path))
    _ = anonymizer.shape
    return anonymizer


def load_adapter(path: str | Path) -> Callable[..., Features]:
    """The adapter in a file: features ``(B, N, D)``, and a mask where it needs one, to anonymized features."""
    model, metadata = opened(path, "features")
    names = [given.name for given in model.get_inputs()]

    def anonymize(features: Features, mask: Mask | None = None) -> Features:
        if features.ndim != 3 or features.shape[2] != metadata["dim"]:
            raise VeilError(
                f"{path} takes features (B, N, {metadata['dim']}) of {metadata['encoder']}, got {features.shape}: "
                "extract them with that encoder.",
                code="features-differ",
            )
        given: dict[str, Any] = {"features": features.astype(np.float32, copy=False)}
        if "mask" in names:
            given["mask"] = np.ones(features.shape[:2], np.bool_) if mask is None else mask
        return np.asarray(model.run(None, given)[0])

    return anonymize


def opened(
    path: str | Path, kind: Literal["frames", "features"]
) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
    """The model and the metadata of a file of `veil export`, for frames or for features."""
    path = Path(path)
    if not path.is_file():
        raise VeilError(
            f"{path} does not exist: write it with `veil export METHOD -o {path.name}`.", code="model-missing"
        )
    with io_errors(path, advice="check its permissions"):
        content = path.read_bytes()
    try:
        model = session(content)  # not by its name, so that it cannot refer to other files
    except VeilError as error:
        raise VeilError(
            f"{path} is not a readable ONNX model: export it again.", code="model-unreadable"
        ) from error
    try:
        metadata = {key: json.loads(text) for key, text in model.get_modelmeta().custom_metadata_map.items()}
    except ValueError:
        metadata = {}
    if "veil" not in metadata or metadata.get("kind") not in ("frames", "features"):
        raise VeilError(
            f"{path} is not a model of Veil: name a file of `veil export`, or the folder of a run.",
            code="model-foreign",
        )
    if metadata["kind"] != kind:
        found, advice = (
            ("an adapter of features", "name the model of an anonymizer")
            if kind == "frames"
            else ("an anonymizer of frames", "name the model of an adapter")
        )
        raise VeilError(f"{path} is {found}: {advice}.", code="model-kind")
    names = [given.name for given in model.get_inputs()]
    if names[:1] != [kind] or len(model.get_outputs()) != 1:
        raise VeilError(
            f"{path} takes {', '.join(names)} and not {kind}: export it again.", code="model-inputs"
        )
    return model, metadata
