"""Label files, read as plain data: none of them can run code.

Every error is a `VeilError` that names the file.
"""

from __future__ import annotations

import csv
import json
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from veil.core import VeilError


def read_text(path: Path) -> str:
    """A text file, without byte-order mark and Windows line ends."""
    with _label_errors(path, "text"):
        return path.read_text(encoding="utf-8-sig")


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, stripped, without empty ones."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    text = read_text(path)
    with _label_errors(path, "JSON"):
        return json.loads(text)


def read_table(path: Path, *columns: str, delimiter: str = ",") -> list[dict[str, str]]:
    """The rows of a csv or tsv file by the names in its first line, which must include ``columns``."""
    with _label_errors(path, "a table"):
        rows = csv.DictReader(read_text(path).splitlines(), delimiter=delimiter)
        names = [str(name).strip() for name in rows.fieldnames or ()]
        absent = [column for column in columns if column not in names]
        if absent:
            raise VeilError(
                f"{path} has no column {absent[0]!r}, only {', '.join(names)}: check the file.",
                code="column-missing",
            )
        return [dict(zip(names, (value or "" for value in row.values()), strict=False)) for row in rows]


def read_pickle(path: Path) -> Any:
    """What a pickle holds, if that is plain data and numpy arrays of numbers or text; else it is refused.

    A pickle is a program. This one may name only the few functions by which numpy stores an array, and gets
    stand-ins for them: nothing that the file names is called or imported.
    """
    with _label_errors(path, "a pickle of labels"), path.open("rb") as file:
        return _plain(_Unpickler(file, path).load(), {})


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file, encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str, /) -> Any:
        home = module.replace("numpy._core", "numpy.core").replace("__builtin__", "builtins")
        known = _STAND_INS.get((home, name))
        if known is None:
            raise VeilError(
                f"{self._path} would run {module}.{name}, which no label file needs: do not trust it.",
                code="pickle-unsafe",
            )
        return known

    def persistent_load(self, pid: Any, /) -> Any:
        raise VeilError(f"{self._path} refers to other objects: save it as plain data.", code="pickle-unsafe")


class _Dtype:
    """Stands in for ``numpy.dtype`` while a pickle is read."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = str(code), "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = str(state[1])

    def real(self) -> np.dtype[Any]:
        dtype = np.dtype(self.code)
        if dtype.kind not in "biufUS" or dtype.fields or dtype.subdtype:
            raise ValueError(f"an array of {self.code}")
        return dtype if self.order in "=|" else dtype.newbyteorder(self.order)  # pyright: ignore


class _Array:
    """Stands in for ``numpy.ndarray`` while a pickle is read."""

    def __init__(self, *_: Any) -> None:
        self.value = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, by_column, data = state
        self.value = _array(data, dtype, shape, "F" if by_column else "C")


def _array(data: Any, dtype: Any, shape: Any = (), order: Any = "C") -> np.ndarray:
    raw = data.encode("latin1") if isinstance(data, str) else bytes(data)
    return np.frombuffer(raw, _real(dtype)).reshape(shape, order=order).copy()


def _real(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, _Dtype):
        raise ValueError(f"a dtype that is a {type(dtype).__name__}")
    return dtype.real()


class _Made:
    """A function in the form of a class, whose attributes a pickle cannot set."""

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a state where none belongs")


class _Scalar(_Made):
    def __new__(cls, dtype: Any, data: Any = b"") -> Any:
        return _array(data, dtype)[()]


class _Buffer(_Made):
    def __new__(cls, data: Any, dtype: Any, shape: Any, order: Any) -> Any:
        return _array(data, dtype, shape, order)


class _Bytes(_Made):
    def __new__(cls, text: Any, *_: Any) -> Any:
        return str(text).encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): object(),  # only ever an argument
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _Scalar,
    ("numpy.core.numeric", "_frombuffer"): _Buffer,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("_codecs", "encode"): _Bytes,  # bytes in old protocols
}


def _plain(thing: Any, seen: dict[int, Any]) -> Any:
    """The same data with real arrays for the stand-ins; ``seen`` keeps shared parts shared."""
    if isinstance(thing, str | bytes | bool | int | float | np.ndarray | np.generic | None):
        return thing
    if id(thing) in seen:
        return seen[id(thing)]
    if isinstance(thing, _Array):
        made: Any = thing.value
    elif type(thing) in (dict, OrderedDict):
        made = {_plain(key, seen): _plain(value, seen) for key, value in thing.items()}
    elif type(thing) in (list, tuple, set, frozenset):
        made = type(thing)(_plain(part, seen) for part in thing)
    else:
        raise ValueError(f"a {type(thing).__name__}")
    seen[id(thing)] = made
    return made


@contextmanager
def _label_errors(path: Path, form: str) -> Iterator[None]:
    """Turn any error in a label file into a `VeilError`."""
    try:
        yield
    except VeilError:
        raise
    except FileNotFoundError as error:
        raise VeilError(f"{path} does not exist: check the name.", code="label-file-missing") from error
    except OSError as error:
        raise VeilError(
            f"{path} could not be read ({error.strerror}): check its permissions.", code="unreadable"
        ) from error
    # A damaged pickle can fail in any way.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise VeilError(
            f"{path} is not {form} ({reason}): download it again.", code="label-file-invalid"
        ) from error
