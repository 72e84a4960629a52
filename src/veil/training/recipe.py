"""What a recipe is: how something is trained, and what the loop needs once it is made ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from veil.training.fit import Phase, PhaseSequence, StepResult

# Of every recipe: a key that it does not have is a mistake, and so is a number that is none.
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # of everything that is left to chance


def _never(_: StepResult) -> bool:
    return False


@dataclass(frozen=True)
class Training:
    """A recipe made ready: all that the loop needs."""

    game: Phase[Any] | PhaseSequence[Any]
    batch: Callable[[int], Any]  # by its number, from 0
    check: Callable[
        [], dict[str, float]
    ]  # on validation data; "val" chooses a checkpoint, without it the last is kept
    weights: Callable[[], dict[str, Tensor]]  # of the network that the run is made for
    stop: Callable[[StepResult], bool] = _never  # whether the goal is reached before the last step
    told: Mapping[str, Any] = field(default_factory=dict)  # what else the file of weights says, as JSON


class Recipe(Protocol):
    """How something is trained; a frozen dataclass in the file of its method."""

    @property
    def steps(self) -> int:
        """Batches in all."""
        ...

    @property
    def seed(self) -> int:
        """Of everything that is left to chance."""
        ...

    def training(self, device: torch.device, devices: int) -> Training:
        """Read the data, build the networks."""
        ...
