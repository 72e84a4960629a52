"""A run: the folder in which a training leaves what it is, what it measured, and where it can go on.

::

    run.json                       recipe, kind, seed, versions, when it was begun, whether it is finished
    log.jsonl                      one record a line
    checkpoints/000120.safetensors the tensors of a game, and
    checkpoints/000120.json        its other values; the last two are kept, and the best
    checkpoints/index.json         which they are

A file is written beside its place and named when it is whole, the index last, so that a run may be killed at any moment
and goes on from its last checkpoint. Lines of the log that are later than that are dropped then: what a resumed run
leaves is what an uninterrupted one would have left. Nothing that is loaded can run code.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from veil.core import VeilError, __version__, io_errors
from veil.media.draft import Draft
from veil.training.fit import Phase, PhaseSequence, StepResult, rank

KEPT = 2  # checkpoints, besides the best
Which = Literal["last", "best"]


def recipe_in(folder: str | Path) -> tuple[str, dict[str, Any]]:
    """Of which kind the run in a folder is, and its recipe as plain values."""
    try:
        about = json.loads((Path(folder) / "run.json").read_text())
        return about["kind"], about["recipe"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VeilError(f"{folder} holds no run: there is no run.json that Veil has written.") from error


def weights_in(folder: str | Path) -> Path:
    """The file of what the run in a folder has learned."""
    path = Path(folder) / "weights.safetensors"
    if not path.is_file():
        raise VeilError(
            f"{folder} has no weights.safetensors yet: its training is not finished; go on with `veil train --resume`."
        )
    return path


class Run:
    """The folder of one training. Where there are several processes, the one of rank 0 writes."""

    def __init__(self, folder: Path, about: dict[str, Any], tensorboard: bool) -> None:
        self.folder, self.about = folder, about
        self._log: BinaryIO | None = None
        self._lock: BinaryIO | None = None
        self._from: int | None = None  # the step it was resumed at
        self._board: Any = None
        self._wants_board = tensorboard
        if tensorboard:
            _summary_writer()

    @classmethod
    def create(
        cls,
        folder: str | Path,
        recipe: Mapping[str, Any],
        kind: str,
        seed: int = 0,
        *,
        tensorboard: bool = False,
    ) -> Self:
        """Begin a run in a folder that is empty or not there yet."""
        about = {
            "kind": kind,
            "recipe": _plain(recipe),
            "seed": seed,
            "veil": __version__,
            "torch": str(torch.__version__),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "finished": False,
        }
        run = cls(Path(folder), about, tensorboard)
        if rank() > 0:
            return run
        with io_errors(run.folder, "written"):
            if (run.folder / "run.json").exists():
                raise VeilError(
                    f"{run.folder} holds a run already; resume it, or choose another folder for a new one"
                )
            run.folder.mkdir(parents=True, exist_ok=True)
            _clear_drafts(run.folder)  # of one that was killed before it had begun
            if any(run.folder.iterdir()):
                raise VeilError(f"{run.folder} is not empty; choose another folder for a new run")
        _write_json(run.folder / "run.json", about)
        return run

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        recipe: Mapping[str, Any] | None = None,
        kind: str | None = None,
        seed: int | None = None,
        tensorboard: bool = False,
    ) -> Self:
        """A run that was begun before; refused when it is not of this recipe, kind or seed, where they are given."""
        folder = Path(folder)
        path = folder / "run.json"
        if not path.is_file():
            raise VeilError(
                f"{folder} holds no run: there is no run.json; begin a new run, or name another folder"
            )
        about = _read_json(path, "it was not written by Veil; name another folder")
        if not about.keys() >= {"kind", "recipe", "seed", "veil", "torch", "created", "finished"}:
            raise VeilError(f"{path} was not written by Veil; name another folder")
        given = {"kind": kind, "seed": seed, "recipe": None if recipe is None else _plain(recipe)}
        for key, now in given.items():
            if now is not None and now != about[key]:
                where, was, is_ = _difference(about[key], now, key)
                raise VeilError(
                    f"{folder} was begun with {where} = {was}, not {is_}; "
                    "go on with what it was begun with, or begin a new run in another folder"
                )
        return cls(folder, about, tensorboard)

    @property
    def kind(self) -> str:
        """What was trained, such as the name of a method."""
        return self.about["kind"]

    @property
    def recipe(self) -> dict[str, Any]:
        """How it was trained."""
        return self.about["recipe"]

    @property
    def seed(self) -> int:
        """What all chance of the run comes from."""
        return self.about["seed"]

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.about["finished"]

    def log(self, measured: StepResult | Mapping[str, Any], step: int | None = None) -> None:
        """Write one record; log a step before it is saved, so that the checkpoint never knows more than the log."""
        if rank() > 0:
            return
        record = _record(measured, step)
        file = self._writing()
        with io_errors(self.folder / "log.jsonl", "written"):
            file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            file.flush()
        if self._board is not None:
            for name, value in _numbers(record):
                self._board.add_scalar(name, value, record["step"])

    def records(self) -> Iterator[dict[str, Any]]:
        """The records of the log, without a last one that is half written."""
        path = self.folder / "log.jsonl"
        if path.is_file():
            with path.open("rb") as file:
                yield from (record for _, record in _lines(file))

    def save(self, game: Phase[Any] | PhaseSequence[Any], best: bool = False) -> None:
        """Save a game as the last checkpoint, and as the best one where it is."""
        if rank() > 0:
            return
        os.fsync(self._writing().fileno())
        tensors, values = game.state()
        folder = self.folder / "checkpoints"
        with io_errors(folder, "written"):
            folder.mkdir(exist_ok=True)
        place = folder / f"{game.step:06d}.safetensors"
        _write(place, lambda path: save_file(tensors, path))
        about = {
            "kind": self.kind,
            "recipe": _digest(self.recipe),
            "sha256": _checksum(place),
            "values": values,
        }
        _write_json(place.with_suffix(".json"), about)
        index = self._index()
        index["kept"] = sorted({*index["kept"], game.step})[-KEPT:]
        if best:
            index["best"] = game.step
        _write_json(folder / "index.json", index)
        _clear_drafts(folder)
        wanted = {f"{step:06d}" for step in (*index["kept"], index["best"]) if step is not None}
        for path in folder.glob("[0-9]*.*"):
            if path.stem not in wanted:
                path.unlink()

    def load(self, game: Phase[Any] | PhaseSequence[Any], which: Which = "last") -> int:
        """Bring a game to a checkpoint, and give its step: 0, and the game as it is, where none was saved yet.

        After the last one the run goes on from there: what the log has beyond it is dropped with the next record.
        """
        step = 0
        if self._index()["kept"] or which == "best":
            path, tensors, about = self._checkpoint(which)
            try:
                game.restore(tensors, about["values"])
            except VeilError as error:
                raise VeilError(f"{path} does not fit: {error}") from error
            step = game.step
        if which == "last":
            self._from = step
            if self._log is not None:
                self._settle(self._log)
        return step

    @property
    def last(self) -> int | None:
        """The step of the last checkpoint."""
        return max(self._index()["kept"], default=None)

    def publish(self, tensors: Mapping[str, Tensor], told: Mapping[str, Any]) -> None:
        """Write what was learned to where `weights_in` finds it, and what else the file says, as JSON."""
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        about = {key: json.dumps(value) for key, value in told.items()}
        _write(self.folder / "weights.safetensors", lambda path: save_file(whole, path, about))

    def weights(self, player: str, which: Which = "last", averaged: bool = True) -> dict[str, Tensor]:
        """The weights and buffers of one player, as `load_state_dict` takes them: ``run.weights("hide.0")``.

        The number is the player's place in its move. Averages are taken where the game kept them, unless told not to.
        """
        path, tensors, _ = self._checkpoint(which)
        found: dict[str, Tensor] = {}
        for part in ("weights", "ema") if averaged else ("weights",):
            start = f"{part}/{player}/"
            found |= {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
        if not found:
            players = sorted({name.split("/")[1] for name in tensors if name.startswith("weights/")})
            raise VeilError(f"{path} has no player '{player}'; it has {', '.join(players)}")
        return found

    def finish(self) -> None:
        """Say that the run has come to its end."""
        self.about["finished"] = True
        if rank() == 0:
            _clear_drafts(self.folder)  # of one that was killed at its end
            _write_json(self.folder / "run.json", self.about)
        self.close()

    def close(self) -> None:
        """Let go of the log, so that another process may go on with the run."""
        for file in (self._board, self._log, self._lock):
            if file is not None:
                file.close()
        self._board = self._log = self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plot(self) -> Path:
        """Draw every number of the log over the steps; gives the picture's place."""
        series: dict[str, list[tuple[int, float]]] = {}
        for record in self.records():
            for name, value in _numbers(record):
                series.setdefault(name, []).append((record["step"], value))
        place = self.folder / "log.svg"
        _write(place, lambda path: path.write_text(_svg(series), encoding="utf-8"))
        return place

    def _writing(self) -> BinaryIO:
        """The log, ready for the next record and held against other processes."""
        if self._log is None:
            with io_errors(self.folder / "log.jsonl", "written"):
                self._lock = _locked(self.folder / ".lock")
                file = (self.folder / "log.jsonl").open("ab")
            self._settle(file)
            self._log = file
            if self._wants_board:
                purge = None if self._from is None else self._from + 1
                self._board = _summary_writer()(str(self.folder / "tensorboard"), purge_step=purge)
        return self._log

    def _settle(self, log: BinaryIO) -> None:
        """Make log and index those of the step from which the run goes on."""
        place, end = self.folder / "log.jsonl", 0
        with io_errors(place, "written"), place.open("rb") as file:
            for size, record in _lines(file):
                if self._from is not None and record["step"] > self._from:
                    break
                end += size
            log.truncate(end)
        index = self._index()
        if self._from is not None and max(index["kept"], default=0) > self._from:
            index["kept"] = [step for step in index["kept"] if step <= self._from]
            if index["best"] is not None and index["best"] > self._from:
                index["best"] = None
            _write_json(self.folder / "checkpoints" / "index.json", index)

    def _index(self) -> dict[str, Any]:
        path = self.folder / "checkpoints" / "index.json"
        if not path.exists():
            return {"kept": [], "best": None}
        index = _read_json(path, "begin the run anew in another folder")
        if not isinstance(index.get("kept"), list) or "best" not in index:
            raise VeilError(f"{path} is no index of checkpoints; begin the run anew in another folder")
        return index

    def _checkpoint(self, which: Which) -> tuple[Path, dict[str, Tensor], dict[str, Any]]:
        """The last checkpoint whose files were not deleted, or the best one."""
        index = self._index()
        steps = [*reversed(index["kept"])] if which == "last" else [index["best"]]
        places = [
            self.folder / "checkpoints" / f"{step:06d}.safetensors" for step in steps if step is not None
        ]
        if not places:
            raise VeilError(f"{self.folder} has no {which} checkpoint yet; train it first")
        there = [path for path in places if path.exists() or path.with_suffix(".json").exists()]
        if not there:
            raise VeilError(f"{places[0]} is missing; put it back, or begin the run anew in another folder")
        path = there[0]
        earlier = [int(other.stem) for other in there[1:]]
        remedy = (
            f"delete {path.stem}.* there to go on from step {earlier[0]}"
            if earlier
            else "put it back from a copy, or begin the run anew in another folder"
        )
        about = _read_json(path.with_suffix(".json"), remedy)
        try:
            if about.get("sha256") != _checksum(path):
                raise VeilError(f"{path} is damaged: its checksum is not the one it was saved with; {remedy}")
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            why = getattr(error, "strerror", None) or error
            raise VeilError(f"{path} cannot be read ({why}); {remedy}") from error
        if (about.get("kind"), about.get("recipe")) != (self.kind, _digest(self.recipe)):
            raise VeilError(f"{path} is of another run: its kind or recipe is not that of run.json; {remedy}")
        return path, tensors, about


def _record(measured: StepResult | Mapping[str, Any], step: int | None) -> dict[str, Any]:
    if isinstance(measured, StepResult):
        # Together, so that the GPU is waited for once.
        values = torch.stack([*measured.terms.values()]).tolist()
        terms = dict(zip(measured.terms, map(_value, values), strict=True))
        return {"step": measured.step, "step_name": measured.step_name, "lr": measured.lr, "terms": terms}
    if step is None:
        raise ValueError("a record that no turn measured needs its step")
    return {"step": step, **{name: _value(value) for name, value in measured.items()}}


def _value(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None  # JSON has no word for these


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a record by the name of their curve."""
    turn = isinstance(record.get("terms"), Mapping)
    values = {**record["terms"], "lr": record["lr"]} if turn else record
    for name, value in values.items():
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
            yield (f"{record['step_name']}/{name}" if turn else name), value


def _lines(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a log with their sizes in bytes, up to the first that is not whole."""
    for line in file:
        try:
            record = json.loads(line)
            if not line.endswith(b"\n") or not isinstance(record["step"], int):
                return
        except (ValueError, KeyError, TypeError):
            return
        yield len(line), record


def _plain(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe as it is once it has been through JSON."""
    return json.loads(json.dumps(dict(recipe), default=str))


def _digest(recipe: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _difference(was: Any, now: Any, key: str) -> tuple[str, Any, Any]:
    """The first place where two values differ, by its dotted key."""
    if isinstance(was, dict) and isinstance(now, dict):
        for name in (*was, *now):
            if was.get(name) != now.get(name):
                return _difference(was.get(name), now.get(name), f"{key}.{name}")
    return key, was, now


def _write(place: Path, write: Callable[[Path], object]) -> None:
    """A file that is whole or not there, and replaces the one before."""
    with (
        Draft(place, overwrite=True) as draft,
        io_errors(place, "written", errors=(OSError, SafetensorError)),
    ):
        write(draft.path)  # safetensors raises its own error for a full disk


def _write_json(place: Path, values: Mapping[str, Any]) -> None:
    _write(place, lambda path: path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8"))


def _read_json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        with io_errors(path, advice=remedy):
            values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise VeilError(f"{path} is no JSON ({error}); {remedy}") from error
    if not isinstance(values, dict):
        raise VeilError(f"{path} is not what it should be; {remedy}")
    return values


def _locked(place: Path) -> BinaryIO:
    """A file that one process holds until it closes it or dies; the workers it forks do not hold it."""
    file = place.open("ab")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.close()
        raise VeilError(
            f"{place.parent} is being written by another process; wait for it, or end it first"
        ) from None
    except OSError:  # a file system without locks
        pass
    return file


def _clear_drafts(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for path in folder.glob(".veil-*"):
        path.unlink(missing_ok=True)


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise VeilError("logging for TensorBoard needs it: pip install 'veil-video[train]'") from None
    return SummaryWriter


def _svg(series: Mapping[str, list[tuple[int, float]]]) -> str:
    """Small pictures of all curves, two in a row."""
    width, height, rows = 380, 170, -(-max(1, len(series)) // 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width}" height="{rows * height}" '
        'font-family="sans-serif" font-size="11" fill="#555"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for number, (name, points) in enumerate(series.items()):
        left, top = number % 2 * width, number // 2 * height
        parts.append(f'<g transform="translate({left} {top})">{_curve(name, points, width, height)}</g>')
    if not series:
        parts.append('<text x="60" y="20">nothing is logged yet</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _curve(name: str, points: list[tuple[int, float]], width: int, height: int) -> str:
    size = -(-len(points) // 200)  # points to one of the curve, which is their mean
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    curve = [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]
    x0, x1 = curve[0][0], curve[-1][0]
    y0, y1 = min(y for _, y in curve), max(y for _, y in curve)
    left, right, top, bottom = 60, width - 20, 30, height - 25
    placed = [
        (
            left + (right - left) * ((x - x0) / (x1 - x0) if x1 > x0 else 0.5),
            bottom - (bottom - top) * ((y - y0) / (y1 - y0) if y1 > y0 else 0.5),
        )
        for x, y in curve
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    x, y = placed[-1]
    return (
        f'<text x="{left}" y="18" font-size="13" fill="#000">{escape(name)}</text>'
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#ccc"/>'
        f'<text x="{left - 6}" y="{top + 4}" text-anchor="end">{y1:.4g}</text>'
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">{y0:.4g}</text>'
        f'<text x="{left}" y="{bottom + 15}">{points[0][0]}</text>'
        f'<text x="{right}" y="{bottom + 15}" text-anchor="end">{points[-1][0]}</text>'
        f'<polyline points="{line}" fill="none" stroke="#2563a8" stroke-width="1.5"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="#2563a8"/>'
    )
