"""Types of arguments that several verbs share, and how their text is read."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from veil.core import VeilError
from veil.methods import DEFAULT

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Output = Annotated[str, Parameter(name=["--output", "-o"])]
With = Annotated[str | None, Parameter(name="--with")]
Repeated = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]  # --key A --key B
Several = Annotated[  # --key A B
    tuple[str, ...], Parameter(consume_multiple=True, negative="", show_default=False)
]
Ray = Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True, negative="")]
Region = Literal["face", "person", "frame"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AnonymizerOptions:
    """What is hidden, and how: options of every verb that writes videos.

    Parameters
    ----------
    method
        NAME, NAME:preset or NAME:key=value,… as `veil list methods` shows them [selective].
    with_
        The folder of a run of `veil train`, or a file of `veil export`: a trained anonymizer instead of a method.
    region
        What the method changes, for methods that change a face, a person or the frame.
    hide
        Names of what is hidden, such as hair,hand,face, for methods that look for what they hide.
    also
        What such a method hides besides: face, person or none.
    audio
        Voices identify people, so the sound is dropped unless it is kept.
    """

    method: str | None = None
    with_: With = None
    region: Region | None = None
    hide: str | None = None
    also: str | None = None
    audio: Literal["drop", "keep"] = "drop"


def chosen_method(method: str | None, with_: str | None, region: str | None) -> str:
    """The method that --method, --with or neither of them names."""
    if method and with_:
        raise VeilError(
            f"--method {method} and --with {with_} conflict: give one of them.", code="method-conflict"
        )
    method = trained(with_) if with_ else method or DEFAULT
    if region and method.partition(":")[0] == "selective":
        raise VeilError(
            f"--region {region} is for filters: name what to hide with --hide, or choose a filter, such as "
            "--method blacken.",
            code="region-not-supported",
        )
    return method


def trained(path: str) -> str:
    """The folder of a run, or the file of an exported model, as a method."""
    if not path.lower().endswith(".onnx") and not (Path(path) / "run.json").is_file():
        raise VeilError(
            f"--with {path} is neither the folder of a run nor an .onnx file: make one with "
            "`veil train RECIPE -o RUN` or `veil export`.",
            code="not-a-run",
        )
    return str(Path(path).absolute())


def joined_names(text: str | None) -> str | None:
    """Names separated by commas in the form that methods take, separated by plus signs."""
    if text is None:
        return None
    names = [name.strip() for name in text.replace("+", ",").split(",")]
    if not all(names):
        raise VeilError(
            f"--hide '{text}' has an empty name: separate names by single commas, such as hair,hand.",
            code="name-empty",
        )
    return "+".join(names)


def ray_address(ray: tuple[str, ...] | None) -> str | None:
    """The cluster that --ray names, with an address or without; None: --ray was not given."""
    if ray and len(ray) > 1:
        raise VeilError(
            f"--ray takes one address, and {ray[1]} is a second one: put the inputs before --ray.",
            code="ray-address",
        )
    return None if ray is None else (*ray, "auto")[0]


def key_value(text: str) -> tuple[str, str]:
    """KEY=VALUE as two texts."""
    key, equals, value = text.partition("=")
    if not equals:
        raise VeilError(f"option '{text}' is not of the form KEY=VALUE: add the value.", code="not-key-value")
    return key, value


def data_options(texts: tuple[str, ...]) -> dict[str, str | int]:
    """KEY=VALUE as a reader of data takes it: the value as a number or a boolean where it is one."""
    booleans = {"true": True, "false": False}
    return {
        key: int(value) if re.fullmatch("-?[0-9]{1,19}", value) else booleans.get(value, value)
        for key, value in map(key_value, texts)
    }


def pixel(text: str) -> tuple[float, float]:
    """X,Y as two numbers."""
    try:
        x, y = map(float, text.split(","))
    except ValueError:
        raise VeilError(
            f"the click '{text}' is not of the form X,Y: give two numbers, such as 120,85.",
            code="not-a-pixel",
        ) from None
    return x, y


def command_line() -> str:
    """The command that was given, as one would write it again."""
    return shlex.join(["veil", *sys.argv[1:]])
