"""A run: the folder of one training, with its recipe, its log and the checkpoints it can continue from.

::

    run.json                       recipe, kind, seed, versions, date, whether it is finished
    log.jsonl                      one record per line
    checkpoints/000120.safetensors the tensors of a checkpoint, and
    checkpoints/000120.json        its other values; the last two are kept, and the best
    checkpoints/index.json         which they are
    weights.safetensors            the result, once it is finished

A run may be killed at any moment and continues from its last checkpoint. Records of the log that are later than that
are dropped then: a resumed run ends with the same files as an uninterrupted one. Loading never runs code.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from veil.core import VeilError, __version__, io_errors
from veil.training.checkpoints import Checkpoints, Which
from veil.training.distributed import rank
from veil.training.log import TrainingLog, to_record
from veil.training.phase import Phase
from veil.training.run_files import read_json, remove_drafts, write_json, write_tensors
from veil.training.sequence import PhaseSequence
from veil.training.steps import StepResult


def recipe_in(folder: str | Path) -> tuple[str, dict[str, Any]]:
    """The kind of the run in a folder, and its recipe as plain values."""
    try:
        metadata = json.loads((Path(folder) / "run.json").read_text())
        return metadata["kind"], metadata["recipe"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VeilError(
            f"{folder} is not a run, since it has no run.json of Veil: name another folder.", code="no-run"
        ) from error


def weights_in(folder: str | Path) -> Path:
    """The file with the trained weights of the run in a folder."""
    path = Path(folder) / "weights.safetensors"
    if not path.is_file():
        raise VeilError(
            f"{folder} has no weights.safetensors yet, since its training is not finished: "
            "continue it with `veil train --resume`.",
            code="run-unfinished",
        )
    return path


class Run:
    """The folder of one training. With several processes, the one of rank 0 writes."""

    def __init__(self, folder: Path, metadata: dict[str, Any], tensorboard: bool) -> None:
        self.folder, self.metadata = folder, metadata
        self._log = TrainingLog(folder, tensorboard)
        self._checkpoints = Checkpoints(folder / "checkpoints", self.kind, self.recipe)
        self._resumed_at: int | None = None  # step

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
        """Start a run in a folder that is empty or does not exist yet."""
        metadata = {
            "kind": kind,
            "recipe": _as_json(recipe),
            "seed": seed,
            "veil": __version__,
            "torch": str(torch.__version__),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "finished": False,
        }
        run = cls(Path(folder), metadata, tensorboard)
        if rank() > 0:
            return run
        with io_errors(run.folder, "written"):
            if (run.folder / "run.json").exists():
                raise VeilError(
                    f"{run.folder} holds a run already: pass --resume to continue it, or choose another folder.",
                    code="run-exists",
                )
            run.folder.mkdir(parents=True, exist_ok=True)
            remove_drafts(run.folder)  # of a run that was killed before it had started
            if any(run.folder.iterdir()):
                raise VeilError(f"{run.folder} is not empty: choose another folder.", code="folder-not-empty")
        write_json(run.folder / "run.json", metadata)
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
        """An existing run; refused where it has not this recipe, kind or seed, as far as they are given."""
        folder = Path(folder)
        path = folder / "run.json"
        if not path.is_file():
            raise VeilError(
                f"{folder} is not a run, since it has no run.json: start a new run, or name another folder.",
                code="no-run",
            )
        metadata = read_json(path, "it was not written by Veil, name another folder")
        if not metadata.keys() >= {"kind", "recipe", "seed", "veil", "torch", "created", "finished"}:
            raise VeilError(f"{path} was not written by Veil: name another folder.", code="run-foreign")
        given = {"kind": kind, "seed": seed, "recipe": None if recipe is None else _as_json(recipe)}
        for key, now in given.items():
            if now is not None and now != metadata[key]:
                where, ours, theirs = _difference(metadata[key], now, key)
                raise VeilError(
                    f"{folder} was started with {where} = {ours}, not {theirs}: "
                    "resume it unchanged, or start a new run in another folder.",
                    code="run-differs",
                )
        return cls(folder, metadata, tensorboard)

    @property
    def kind(self) -> str:
        """What was trained, such as the name of a method."""
        return self.metadata["kind"]

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe as plain values."""
        return self.metadata["recipe"]

    @property
    def seed(self) -> int:
        """The seed of all randomness in the run."""
        return self.metadata["seed"]

    @property
    def finished(self) -> bool:
        """Whether the training is finished."""
        return self.metadata["finished"]

    def log(self, result: StepResult | Mapping[str, Any], step: int | None = None) -> None:
        """Write one record; log a step before it is saved, so that no checkpoint is ahead of the log."""
        if rank() == 0:
            record = to_record(result, step)
            self._open_log()
            self._log.append(record)

    def records(self) -> Iterator[dict[str, Any]]:
        """The records of the log, without an incomplete last one."""
        return self._log.records()

    def save(self, phase: Phase[Any] | PhaseSequence[Any], best: bool = False) -> None:
        """Save a phase as the last checkpoint, and as the best one where it is."""
        if rank() == 0:
            self._open_log()
            self._log.sync()
            self._checkpoints.save(phase, best)

    def load(self, phase: Phase[Any] | PhaseSequence[Any], which: Which = "last") -> int:
        """Bring a phase to a checkpoint and return its step: 0, and the phase unchanged, where none was saved yet.

        After the last one the run continues from there: later records of the log are dropped with the next record.
        """
        step = 0
        if self.last is not None or which == "best":
            self._checkpoints.restore(phase, which)
            step = phase.step
        if which == "last":
            self._resumed_at = step
            if self._log.is_open:
                self._log.truncate(step)
                self._checkpoints.forget_after(step)
        return step

    @property
    def last(self) -> int | None:
        """The step of the last checkpoint."""
        return self._checkpoints.last

    def publish(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Write the trained weights to the file that `weights_in` finds, with metadata as JSON."""
        values = {key: json.dumps(value) for key, value in metadata.items()}
        write_tensors(self.folder / "weights.safetensors", tensors, values)

    def weights(self, module: str, which: Which = "last", averaged: bool = True) -> dict[str, Tensor]:
        """The weights and buffers of one module, for `load_state_dict`: ``run.weights("hide.0")``.

        The number is the index of the module in its step. Weights are the averaged ones where the phase has them,
        unless `averaged` is False.
        """
        path, tensors, _ = self._checkpoints.read(which)
        state: dict[str, Tensor] = {}
        for part in ("weights", "ema") if averaged else ("weights",):
            start = f"{part}/{module}/"
            state |= {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
        if not state:
            modules = sorted({name.split("/")[1] for name in tensors if name.startswith("weights/")})
            raise VeilError(
                f"{path} has no module '{module}': use one of {', '.join(modules)}.", code="no-such-module"
            )
        return state

    def finish(self) -> None:
        """Mark the run as finished."""
        self.metadata["finished"] = True
        if rank() == 0:
            remove_drafts(self.folder)  # of a process that was killed at its end
            write_json(self.folder / "run.json", self.metadata)
        self.close()

    def remove_if_empty(self) -> None:
        """Delete the folder of a run that has no record in its log and no checkpoint."""
        if rank() == 0 and self.last is None and next(self.records(), None) is None:
            self.close()
            shutil.rmtree(self.folder)

    def close(self) -> None:
        """Close the log, so that another process may continue the run."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plot(self) -> Path:
        """Plot every number of the log over the steps; returns the file."""
        path = self.folder / "log.svg"
        self._log.plot(path)
        return path

    def _open_log(self) -> None:
        if not self._log.is_open:
            self._log.open(self._resumed_at)
            if self._resumed_at is not None:
                self._checkpoints.forget_after(self._resumed_at)


def _as_json(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe as it is after a round trip through JSON."""
    return json.loads(json.dumps(dict(recipe), default=str))


def _difference(ours: Any, theirs: Any, key: str) -> tuple[str, Any, Any]:
    """The first entry in which two values differ, by its dotted key."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in (*ours, *theirs):
            if ours.get(name) != theirs.get(name):
                return _difference(ours.get(name), theirs.get(name), f"{key}.{name}")
    return key, ours, theirs
