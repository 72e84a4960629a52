"""The recipe files, their headers, and a stand-in for `fit` that notes which tensors a step changes."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from veil.training.phase import Phase
from veil.training.sequence import PhaseSequence
from veil.training.steps import StepResult

FOLDER = Path(__file__).parents[1] / "recipes"
FILES = sorted(FOLDER.rglob("*.toml"))
PAPER = FOLDER / "paper"


def short(path: Path) -> str:
    """The name of a recipe, for test ids."""
    return path.stem


def command(path: Path) -> str:
    """The training command in the header of a recipe."""
    return next(line for line in path.read_text().splitlines() if line.startswith("#   veil train"))


class WatchedFit:
    """Trains as `fit` does, and notes after each step which tensors have changed."""

    def __init__(self) -> None:
        self.steps: list[tuple[StepResult, set[str]]] = []

    def __call__(
        self, phases: Phase[Any] | PhaseSequence[Any], batches: Iterable[Any]
    ) -> Iterator[StepResult]:
        tensors = phases.named_tensors()  # live, by module and name
        for batch in batches:
            before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            result = phases.train_step(batch)
            changed = {name for name, tensor in tensors.items() if not torch.equal(tensor, before[name])}
            self.steps.append((result, changed))
            yield result
