"""Checkpoints of a run: the last two and the best one, each with a checksum.

The index is written last, so that a training that is killed while saving continues from the checkpoint before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from veil.core import VeilError, io_errors
from veil.training.phase import Phase
from veil.training.run_files import read_json, remove_drafts, sha256, write_json, write_tensors
from veil.training.sequence import PhaseSequence

KEPT = 2  # checkpoints, besides the best
START_ANEW = "start a new run in another folder"
Which = Literal["last", "best"]


class Checkpoints:
    """The folder of a run's checkpoints."""

    def __init__(self, folder: Path, kind: str, recipe: Mapping[str, Any]) -> None:
        self.folder, self._kind = folder, kind
        self._recipe_digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()

    @property
    def last(self) -> int | None:
        """The step of the last checkpoint; None where there is none."""
        return max(self._index()["kept"], default=None)

    def save(self, phase: Phase[Any] | PhaseSequence[Any], best: bool) -> None:
        """Save a phase as the last checkpoint, and as the best one where it is; remove those that are not kept."""
        tensors, values = phase.state()
        with io_errors(self.folder, "written"):
            self.folder.mkdir(exist_ok=True)
        path = self._path(phase.step)
        write_tensors(path, tensors)
        metadata = {
            "kind": self._kind,
            "recipe": self._recipe_digest,
            "sha256": sha256(path),
            "values": values,
        }
        write_json(path.with_suffix(".json"), metadata)
        index = self._index()
        index["kept"] = sorted({*index["kept"], phase.step})[-KEPT:]
        if best:
            index["best"] = phase.step
        write_json(self.folder / "index.json", index)
        remove_drafts(self.folder)
        kept = {f"{step:06d}" for step in (*index["kept"], index["best"]) if step is not None}
        for other in self.folder.glob("[0-9]*.*"):
            if other.stem not in kept:
                other.unlink()

    def restore(self, phase: Phase[Any] | PhaseSequence[Any], which: Which) -> None:
        """Bring a phase to a checkpoint."""
        path, tensors, values = self.read(which)
        try:
            phase.restore(tensors, values)
        except VeilError as error:
            raise VeilError(f"{path} cannot be restored: {error}", code=error.code) from error

    def forget_after(self, step: int) -> None:
        """Remove the checkpoints after a step from the index."""
        index = self._index()
        if max(index["kept"], default=0) <= step:
            return
        index["kept"] = [kept for kept in index["kept"] if kept <= step]
        if index["best"] is not None and index["best"] > step:
            index["best"] = None
        write_json(self.folder / "index.json", index)

    def read(self, which: Which) -> tuple[Path, dict[str, Tensor], dict[str, Any]]:
        """The last checkpoint whose files were not deleted, or the best one: its file, tensors and other values."""
        index = self._index()
        steps = [*reversed(index["kept"])] if which == "last" else [index["best"]]
        paths = [self._path(step) for step in steps if step is not None]
        if not paths:
            raise VeilError(
                f"{self.folder.parent} has no {which} checkpoint: train it first.", code="no-checkpoint"
            )
        existing = [path for path in paths if path.exists() or path.with_suffix(".json").exists()]
        if not existing:
            raise VeilError(
                f"{paths[0]} is missing: put it back, or {START_ANEW}.", code="checkpoint-missing"
            )
        path = existing[0]
        earlier = [int(other.stem) for other in existing[1:]]
        advice = (
            f"delete {path.stem}.* there to continue from step {earlier[0]}"
            if earlier
            else f"put it back from a copy, or {START_ANEW}"
        )
        metadata = read_json(path.with_suffix(".json"), advice)
        with io_errors(path, "read", advice=advice, errors=(OSError, SafetensorError)):
            if metadata.get("sha256") != sha256(path):
                raise VeilError(
                    f"{path} is damaged, since its checksum differs: {advice}.", code="checkpoint-damaged"
                )
            tensors = load_file(path)
        if (metadata.get("kind"), metadata.get("recipe")) != (self._kind, self._recipe_digest):
            raise VeilError(
                f"{path} belongs to another run, since its kind or recipe differs: {advice}.",
                code="checkpoint-foreign",
            )
        return path, tensors, metadata["values"]

    def _path(self, step: int) -> Path:
        return self.folder / f"{step:06d}.safetensors"

    def _index(self) -> dict[str, Any]:
        path = self.folder / "index.json"
        if not path.exists():
            return {"kept": [], "best": None}
        index = read_json(path, START_ANEW)
        if not isinstance(index.get("kept"), list) or "best" not in index:
            raise VeilError(f"{path} is not an index of checkpoints: {START_ANEW}.", code="index-invalid")
        return index
