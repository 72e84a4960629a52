"""The log of a run: one JSON record per line, TensorBoard on request, and a plot of all curves."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from veil.core import io_errors, missing_extra
from veil.training.run_files import lock, write_file
from veil.training.steps import StepResult

MAX_POINTS = 200  # of a curve in the plot; each is a mean of neighbouring values


class TrainingLog:
    """The file ``log.jsonl`` of a run folder, and the events for TensorBoard beside it."""

    def __init__(self, folder: Path, tensorboard: bool) -> None:
        self.path = folder / "log.jsonl"
        self._tensorboard = tensorboard
        self._file: BinaryIO | None = None
        self._lock: BinaryIO | None = None
        self._writer: Any = None
        if tensorboard:
            _summary_writer()

    @property
    def is_open(self) -> bool:
        """Whether this process is writing it."""
        return self._file is not None

    def open(self, last_step: int | None = None) -> None:
        """Lock the log against other processes and drop what is later than a step, or only an incomplete line."""
        with io_errors(self.path, "written"):
            self._lock = lock(self.path.parent / ".lock")
            self._file = self.path.open("ab")
        self.truncate(last_step)
        if self._tensorboard:
            purge = None if last_step is None else last_step + 1
            self._writer = _summary_writer()(str(self.path.parent / "tensorboard"), purge_step=purge)

    def truncate(self, last_step: int | None) -> None:
        """Drop the records after a step, and an incomplete line in any case."""
        assert self._file is not None, "the log is not open"
        end = 0
        with io_errors(self.path, "written"), self.path.open("rb") as file:
            for size, record in _lines(file):
                if last_step is not None and record["step"] > last_step:
                    break
                end += size
            self._file.truncate(end)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record."""
        assert self._file is not None, "the log is not open"
        with io_errors(self.path, "written"):
            self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            self._file.flush()
        if self._writer is not None:
            for name, value in curves(record):
                self._writer.add_scalar(name, value, record["step"])

    def sync(self) -> None:
        """Return when what was written is on the disk."""
        assert self._file is not None, "the log is not open"
        os.fsync(self._file.fileno())

    def records(self) -> Iterator[dict[str, Any]]:
        """The records, without an incomplete last one."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                yield from (record for _, record in _lines(file))

    def close(self) -> None:
        """Close and unlock the log."""
        for file in (self._writer, self._file, self._lock):
            if file is not None:
                file.close()
        self._writer = self._file = self._lock = None

    def plot(self, path: Path) -> None:
        """Plot every curve of the log over the steps, as SVG."""
        points: dict[str, list[tuple[int, float]]] = {}
        for record in self.records():
            for name, value in curves(record):
                points.setdefault(name, []).append((record["step"], value))
        write_file(path, lambda draft: _plot(points, draft))


def to_record(result: StepResult | Mapping[str, Any], step: int | None) -> dict[str, Any]:
    """The record of a step's result, or of other values at a step."""
    if isinstance(result, StepResult):
        # Stacked, so that the GPU is waited for once.
        values = torch.stack([*result.terms.values()]).tolist()
        terms = dict(zip(result.terms, map(_json_value, values), strict=True))
        return {"step": result.step, "step_name": result.step_name, "lr": result.lr, "terms": terms}
    if step is None:
        raise ValueError("a record that is not the result of a step needs the argument 'step'")
    return {"step": step, **{name: _json_value(value) for name, value in result.items()}}


def curves(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a record by the name of their curve."""
    of_step = isinstance(record.get("terms"), Mapping)
    values = {**record["terms"], "lr": record["lr"]} if of_step else record
    for name, value in values.items():
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
            yield (f"{record['step_name']}/{name}" if of_step else name), value


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None  # JSON has neither NaN nor infinity


def _lines(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a log with their sizes in bytes, up to the first incomplete one."""
    for line in file:
        try:
            record = json.loads(line)
            if not line.endswith(b"\n") or not isinstance(record["step"], int):
                return
        except (ValueError, KeyError, TypeError):
            return
        yield len(line), record


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise missing_extra("--tensorboard needs TensorBoard", "train") from None
    return SummaryWriter


def _plot(points: Mapping[str, list[tuple[int, float]]], path: Path) -> None:
    """One small plot per curve, two in a row."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = -(-max(1, len(points)) // 2)
    figure = Figure(figsize=(8, 1.9 * rows), layout="constrained")
    for number, (name, curve) in enumerate(points.items(), start=1):
        axes = figure.add_subplot(rows, 2, number)
        axes.plot(*zip(*_thinned(curve), strict=True), marker="." if len(curve) == 1 else None)
        axes.set_title(name, parse_math=False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "veil"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def _thinned(curve: list[tuple[int, float]]) -> list[tuple[float, float]]:
    size = -(-len(curve) // MAX_POINTS)
    groups = [curve[start : start + size] for start in range(0, len(curve), size)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups
    ]
