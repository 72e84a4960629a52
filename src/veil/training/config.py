"""Recipes: a TOML file is read into a validated frozen dataclass.

The dataclass alone defines a recipe: its types are the validation, the options (``--set key=value``) and the web form. The
top-level key ``method`` selects the dataclass. A table need not be complete: its values override the default of its field.
TOML has no null, so the text ``"none"`` means None where a value is optional.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from veil.core import VeilError, io_errors, validation_message

T = TypeVar("T")
Origin = Callable[[str], str]
METHOD = "method"
PRESET = "preset"  # the key that selects an entry of the dataclass's PRESETS, which the values of the file override


def read(path: str | Path, kind: type[T], sets: Sequence[str] = ()) -> T:
    """The recipe in a TOML file, with the changes ``KEY.SUB=VALUE`` of `sets`."""
    path = Path(path)
    data = _load(path)
    given: set[str] = set()
    for text in sets:
        given.add(_assign(data, text))

    def origin(key: str) -> str:
        if any(f"{key}.".startswith(f"{one}.") for one in given):
            return "--set"
        inside = any(not key or one.startswith(f"{key}.") for one in given)
        return f"{path} with --set" if inside else str(path)

    preset = data.pop(PRESET, None)
    if preset is not None:
        presets: dict[str, dict[str, Any]] = getattr(kind, "PRESETS", {})
        if preset not in presets:
            has = f"its presets are {', '.join(presets)}" if presets else "it has no presets"
            raise VeilError(
                f"{path}: there is no preset {preset!r}{nearest(str(preset), presets)}; {has}.",
                code="preset-unknown",
            )
        data = _merged(presets[preset], data)
    if METHOD not in {field.name for field in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        if METHOD in given:
            raise VeilError(
                f"--set {METHOD}={data[METHOD]} cannot be used: choose the {METHOD} by another recipe file.",
                code="method-not-settable",
            )
        data.pop(METHOD, None)
    return checked(data, kind, origin)


def checked(data: Mapping[str, Any], kind: type[T], origin: Origin = lambda key: "the recipe") -> T:
    """A recipe from plain values; `origin` returns the source of a dotted key, for messages."""
    plain = _known(kind, data, "", origin)
    try:
        # By JSON, whose strict mode accepts a list for a tuple and a string for a path, but no string for a number.
        return TypeAdapter(kind).validate_json(json.dumps(plain, default=str), strict=True)
    except ValidationError as error:
        missing = error.errors()[0]["type"] == "missing"
        code = "recipe-key-missing" if missing else "recipe-value-invalid"
        raise VeilError(_message(error, plain, origin), code=code) from error
    except VeilError as error:  # of the dataclass's own __post_init__
        raise VeilError(f"{origin('')}: {error}", code=error.code) from error


def kind_of(path: str | Path) -> str:
    """The method of a recipe."""
    method = _load(Path(path)).get(METHOD)
    if not isinstance(method, str):
        raise VeilError(f'{path} has no method: begin it with {METHOD} = "...".', code="method-missing")
    return method


def schema(kind: type) -> dict[str, Any]:
    """The JSON schema of a recipe, for a web form."""
    return TypeAdapter(kind).json_schema()


def as_dict(recipe: Any) -> dict[str, Any]:
    """The recipe as values that JSON can hold."""
    return TypeAdapter(type(recipe)).dump_python(recipe, mode="json")


def to_toml(recipe: Any, method: str | None = None) -> str:
    """The recipe as TOML, from which `read` makes the same recipe."""
    head = {METHOD: method} if method is not None else {}
    return "\n".join(_lines({**head, **as_dict(recipe)}, ())).strip() + "\n"


def nearest(word: str, known: Iterable[str]) -> str:
    """ " (did you mean …?)" where one of the known words is close to the given one."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _load(path: Path) -> dict[str, Any]:
    try:
        with io_errors(path):
            return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise VeilError(f"{path} is not valid TOML: {error}.", code="toml-invalid") from error


def _assign(data: dict[str, Any], text: str) -> str:
    """Set the value of ``KEY.SUB=VALUE``; returns the dotted key."""
    key, equals, written = text.partition("=")
    key = key.strip()
    parts = key.split(".")
    if not equals or not all(parts):
        raise VeilError(
            f"--set {text} is not an assignment: write it as KEY=VALUE or KEY.SUB=VALUE.", code="set-invalid"
        )
    table = data
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise VeilError(
                f"--set {text} cannot be used, since '{part}' is not a table: set '{part}' itself.",
                code="set-invalid",
            )
    table[parts[-1]] = _value(written.strip())
    return key


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested tables, of which the second overrides the first."""
    both = {
        key: _merged(below[key], value)
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
        else value
        for key, value in above.items()
    }
    return {**below, **both}


def _value(written: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {written}")
    except tomllib.TOMLDecodeError:
        return written
    return parsed["value"] if len(parsed) == 1 else written


def _known(hint: Any, value: Any, key: str, origin: Origin, default: Any = None) -> Any:
    """The value with "none" as None and tables merged with their defaults; refuses keys that the dataclass of the hint has not."""
    choices = _choices(hint)
    if value == "none" and type(None) in choices:
        return None
    inner = next((choice for choice in choices if dataclasses.is_dataclass(choice)), None)
    if inner is not None and isinstance(value, Mapping):
        hints = get_type_hints(inner, include_extras=True)
        fields = {field.name: field for field in dataclasses.fields(inner) if field.init}
        names = list(fields)
        for name in value:
            if name not in names:
                dotted = _dotted(key, name)
                has = f"; it has {', '.join(names)}" if len(names) <= 12 else ""
                raise VeilError(
                    f"{origin(dotted)}: there is no '{dotted}'{nearest(name, names)}{has}.",
                    code="recipe-key-unknown",
                )
        whole = type(default) is inner
        below = as_dict(default) if whole else {}
        for name, part in value.items():
            own = getattr(default, name) if whole else _default(fields[name])
            below[name] = _known(hints[name], part, _dotted(key, name), origin, own)
        return below
    for choice in choices:
        arguments = [argument for argument in get_args(choice) if argument is not Ellipsis]
        kind = get_origin(choice)
        if kind in (list, tuple, Sequence) and isinstance(value, list) and arguments:
            each = arguments if len(arguments) == len(value) else [arguments[0]] * len(value)
            return [
                _known(h, part, _dotted(key, i), origin)
                for i, (h, part) in enumerate(zip(each, value, strict=True))
            ]
        if kind in (dict, Mapping) and isinstance(value, dict) and len(arguments) == 2:
            return {
                name: _known(arguments[1], part, _dotted(key, name), origin) for name, part in value.items()
            }
    return value


def _default(field: dataclasses.Field[Any]) -> Any:
    if isinstance(field.default, FieldInfo):
        return field.default.get_default(call_default_factory=True)
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _choices(hint: Any) -> list[Any]:
    """The types that a hint allows, without their annotations."""
    if get_origin(hint) is Annotated:
        return _choices(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return [choice for argument in get_args(hint) for choice in _choices(argument)]
    return [hint]


def _dotted(key: str, name: Any) -> str:
    return f"{key}.{name}" if key else str(name)


def _message(error: ValidationError, plain: Any, origin: Origin) -> str:
    first = error.errors()[0]
    parts: list[str] = []
    for part in first["loc"]:  # without pydantic's names of the members of a union
        try:
            plain = plain[part]
        except (LookupError, TypeError):
            if first["type"] != "missing":
                break
        parts.append(str(part))
    key = ".".join(parts)
    if first["type"] == "missing":
        return f"{origin(key.rpartition('.')[0])}: '{key}' is missing, and it has no default."
    message = validation_message(first).replace("should be an object", "should be a table")
    where = f"{key} = {_written(first['input'])} " if key else ""
    if key and first["type"] == "value_error":  # from the __post_init__ of a table
        where = f"in {key}, "
    return f"{origin(key)}: {where}{message}."


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """A table in TOML: its values before its tables."""
    tables = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    lines = [f"{_name(name)} = {_written(value)}" for name, value in table.items() if name not in tables]
    for name, value in tables.items():
        inside = (*path, _name(name))
        lines += ["", f"[{'.'.join(inside)}]", *_lines(value, inside)]
    return lines


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _written(name)


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_name(name)} = {_written(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = "none" if value is None else str(value)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
