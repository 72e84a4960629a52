"""Fingerprints of what a result depends on: the source of the code, weights, data and suite.

Two results with the same fingerprints were computed by the same code from the same inputs. A source file counts by its
statements: editing a comment, a docstring or the layout does not change the fingerprint.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from veil.core import Anonymizer
from veil.data import Dataset, Sample
from veil.nn import weights
from veil.people import templates

EVALUATION = ("veil.audit.evaluators",)  # the code that every audit runs
RENDERED = 3  # samples without a file whose frames are hashed
_SHIPPED = (".onnx", ".safetensors", ".png", ".npz")


def source_fingerprint(*sources: str | Callable[..., Any]) -> str:
    """The fingerprint of modules, classes or functions: their source and that of every Veil module they import."""
    files = {file for source in sources for file in source_files(_module(source))}
    return _digest(sorted((_place(file), _statements(file, _state(file))) for file in files))


def source_files(module: str) -> set[Path]:
    """The source file of a module, and those of all Veil modules that it imports, directly or not."""
    todo, found = [module], dict[str, Path]()
    while todo:
        name = todo.pop()
        if name in found or (file := _file_of(name)) is None:
            continue
        found[name] = file
        todo += _imports(file, _state(file))
    return set(found.values())


def weights_fingerprint(anonymizer: Anonymizer | None, files: Iterable[str | Path] = ()) -> str:
    """The fingerprint of the weights and templates that an anonymizer may use, and of further `files`.

    Counted are the files that its parameters name, the user's templates that they name, the files in the package
    that its source names, and the published weights that this machine has.
    """
    used: dict[str, str] = {f"file {index}": file_digest(path) for index, path in enumerate(files)}
    if anonymizer is None:
        return _digest(used)
    for key, value in anonymizer.params().items():
        if isinstance(value, str | Path) and Path(value).is_file():
            used[f"parameter {key}"] = file_digest(value)
            beside = Path(value).with_name("run.json")  # a run: its recipe makes the network
            if beside.is_file():
                used[f"run of {key}"] = file_digest(beside)
        if isinstance(value, str):
            used |= {f"template {path.stem}": file_digest(path) for path in _own_templates(value)}
    source = source_files(type(anonymizer).__module__)
    for file in source:
        text = file.read_text(encoding="utf-8")
        for beside in file.parent.iterdir():
            if beside.suffix in _SHIPPED and beside.name in text:
                used[f"shipped {beside.name}"] = file_digest(beside)
    if Path(weights.__file__) in source:
        for name in weights.WEIGHTS:
            if path := weights.look_up(name):
                used[f"published {name}"] = file_digest(path)
    return _digest(used)


def data_fingerprint(
    dataset: Dataset, samples: Sequence[Sample] | None = None, *, modified: bool = False
) -> str:
    """The fingerprint of a dataset: names, labels, the size of each file, and frames where they are rendered.

    With `modified` the time of each file's last change counts too: stricter, but another copy has another fingerprint.
    """
    chosen = dataset.samples if samples is None else samples
    described: list[Any] = [dataset.name, dataset.actions, dataset.attributes, dataset.identities]
    for sample in chosen:
        labels = dataclasses.replace(sample, path=None)
        described.append((repr(labels), sample.path and sample.path.name, _file_state(sample.path, modified)))
    rendered = [sample for sample in chosen if sample.path is None]
    for sample in rendered[:: max(1, len(rendered) // RENDERED)][:RENDERED]:
        described.append(hashlib.sha256(dataset.frames(sample).tobytes()).hexdigest())
    return _digest(described)


def suite_fingerprint(suite: Any, *sources: str | Callable[..., Any]) -> str:
    """The fingerprint of a suite: its settings, the weights its networks begin with, and the code that evaluates.

    `suite` is a dataclass; `sources` are evaluators that it uses beside those of every audit.
    """
    settings = dataclasses.asdict(suite)
    for name in ("about", "untested"):  # text, on which no number depends
        settings.pop(name, None)
    given: Mapping[str, str] = getattr(suite, "weights", {})
    settings["weights"] = {net: file_digest(path) for net, path in given.items()}
    return _digest([settings, source_fingerprint(*EVALUATION, *sources)])


def method_fingerprint(anonymizer: Anonymizer | None) -> str:
    """The fingerprint of an anonymizer: class, parameters, source and weights; None is raw video."""
    if anonymizer is None:
        return "raw"
    kind = type(anonymizer)
    given = {key: value for key, value in anonymizer.params().items() if value is not None}
    return _digest([kind.__qualname__, given, source_fingerprint(kind), weights_fingerprint(anonymizer)])


def file_digest(path: str | Path) -> str:
    """The SHA-256 of a file."""
    return _file_digest(Path(path), _state(Path(path)))


@lru_cache(256)
def _file_digest(path: Path, state: tuple[int, int]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _file_state(path: Path | None, modified: bool) -> tuple[int, ...]:
    while path is not None and not path.exists() and path != path.parent:
        path = path.parent  # an image in a zip file
    if path is None:
        return ()
    size, changed = _state(path)
    return (size, changed) if modified else (0 if path.is_dir() else size,)


def _own_templates(names: str) -> list[Path]:
    """The files of the user's templates among names joined by + or a comma; a group stands for its members."""
    members = (
        member for name in re.split(r"[+,]", names) for member in (name, *templates.GROUPS.get(name, ()))
    )
    places = (
        templates.folder() / f"{name}{templates.SUFFIX}" for name in members if templates.NAME.fullmatch(name)
    )
    return [place for place in dict.fromkeys(places) if place.is_file()]


def _module(source: str | Callable[..., Any]) -> str:
    return source if isinstance(source, str) else source.__module__


def _place(file: Path) -> str:
    """A source file's place in the package; its name alone where it is not in it."""
    root = _root()
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name


def _root() -> Path:
    return Path(__file__).parents[1]


def _file_of(module: str) -> Path | None:
    """The source file of a module; None where it has none."""
    first, *rest = module.split(".")
    if first == "veil":
        place = _root().joinpath(*rest)
        files = (place.with_suffix(".py"), place / "__init__.py")
        return next((file for file in files if file.is_file()), None)
    known = sys.modules.get(module)
    origin = getattr(known, "__file__", None)
    if known is None:
        spec = importlib.util.find_spec(module)
        origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None


@lru_cache(512)
def _imports(file: Path, state: tuple[int, int]) -> tuple[str, ...]:
    """The modules of Veil that a source file imports, also inside functions."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name for name in inner if name.startswith("veil.") and _file_of(name)]
            names += found if len(found) == len(inner) else [*found, node.module]
    return tuple(name for name in names if name.startswith("veil."))


@lru_cache(512)
def _statements(file: Path, state: tuple[int, int]) -> str:
    """The digest of a source file without comments and docstrings."""
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)] or [ast.Pass()]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


def _is_text(statement: Any) -> bool:
    """Whether a statement is a string alone: a docstring."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
