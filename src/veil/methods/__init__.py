"""The anonymizers by name, and how a name with parameters becomes one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from veil.core import Anonymizer, VeilError, extras_required, validation_message
from veil.methods import exported
from veil.methods.builtin import Prototypes
from veil.methods.filters import Blacken, Blur, Downsample, Mask, Noise, Pixelate
from veil.methods.selective import Selective
from veil.training.config import nearest

ANONYMIZERS: dict[str, type[Anonymizer]] = {
    "selective": Selective,
    "prototypes": Prototypes,
    "blacken": Blacken,
    "mask": Mask,
    "blur": Blur,
    "pixelate": Pixelate,
    "downsample": Downsample,
    "noise": Noise,
}
DEFAULT = "selective"


class Parameter(NamedTuple):
    """One parameter of a method, from its type annotation."""

    name: str
    type: str
    default: Any
    meaning: str


def make(spec: str = DEFAULT, **more: Any) -> Anonymizer:
    """The anonymizer that ``NAME``, ``NAME:preset`` or ``NAME:key=value,…`` names; `more` overrides its parameters.

    The run folder of `veil train` and the file of `veil export` are specs as well.

    >>> make("blur:weak").params()["kernel"]
    13
    >>> make("pixelate:block=8", region="frame").params()["region"]
    'frame'
    """
    name, _, rest = spec.partition(":")
    if name and name not in ANONYMIZERS and Path(spec).is_dir():
        if named := [key for key, value in more.items() if value is not None]:
            raise VeilError(
                f"the run {spec} has no parameters, but {named[0]} is given: remove it.", code="no-parameters"
            )
        return load(spec)
    if name not in ANONYMIZERS and spec.lower().endswith(".onnx"):
        if named := [key for key, value in more.items() if value is not None]:
            raise VeilError(
                f"the model {spec} has no parameters, but {named[0]} is given: remove it.",
                code="no-parameters",
            )
        return exported.load(spec)
    if name not in ANONYMIZERS:
        raise VeilError(
            f"there is no method '{name}'{nearest(name, ANONYMIZERS)}; `veil list` shows them all.",
            code="method-unknown",
        )
    kind = ANONYMIZERS[name]
    known = [parameter.name for parameter in parameters(kind)]
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            presets: dict[str, dict[str, Any]] = getattr(kind, "PRESETS", {})
            if key not in presets:
                choice = f"its presets are {', '.join(presets)}" if presets else "it has no presets"
                raise VeilError(
                    f"method '{name}' has no preset '{key}' ({choice}): write key=value to set a parameter.",
                    code="preset-unknown",
                )
            given |= presets[key]
        elif key in known:
            given[key] = value
        else:
            raise VeilError(
                f"method '{name}' has no parameter '{key}'{nearest(key, known)}; it has {', '.join(known)}.",
                code="parameter-unknown",
            )
    for key, value in more.items():
        if value is None:
            continue
        if key not in known:
            raise VeilError(
                f"method '{name}' has no parameter '{key}': choose another method, or one of its parameters "
                f"({', '.join(known)}).",
                code="parameter-unknown",
            )
        given[key] = value
    try:
        return kind(**given)
    except ValidationError as error:
        first = error.errors()[0]
        message = validation_message(first)
        where = f"{first['loc'][0]}={first['input']} " if first["loc"] else ""
        raise VeilError(f"method '{name}': {where}{message}.", code="parameter-invalid") from error


def load(run: str | Path) -> Anonymizer:
    """The anonymizer in the run folder of `veil train`."""
    with extras_required():  # torch, which filters do without
        from veil.methods.learned import load as loaded

    return loaded(run)


def parameters(kind: type[Anonymizer]) -> list[Parameter]:
    """The parameters of a method, its own before those it shares."""
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    own = [name for name in fields if name in kind.__annotations__]
    found = []
    for name in [*own, *(name for name in fields if name not in own)]:
        hint, *notes = get_args(hints[name])
        meaning = next((note.description for note in notes if isinstance(note, FieldInfo)), "")
        found.append(Parameter(name, _plain(hint), fields[name].default, meaning or ""))
    return found


_PLAIN: dict[type, str] = {bool: "True | False", int: "whole number", float: "number", str: "text"}


def _plain(hint: Any) -> str:
    if isinstance(hint, type):
        return _PLAIN.get(hint, hint.__name__)
    words = [
        _plain(arg) if not isinstance(arg, str) else arg for arg in get_args(hint) if arg is not type(None)
    ]
    return " | ".join(words) if get_origin(hint) else str(hint)
