"""What a recipe is: how something is trained, and what the training loop needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from veil.training.phase import Phase
from veil.training.sequence import PhaseSequence
from veil.training.steps import StepResult

# Of every recipe: an unknown key is an error, and so is a number that is infinite or not a number.
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # of all randomness
LearningRate = Annotated[float, Field(gt=0)]


def _never(_: StepResult) -> bool:
    return False


@dataclass(frozen=True)
class Training:
    """What the training loop needs: the data are read, the networks are made."""

    phases: Phase[Any] | PhaseSequence[Any]
    batch: Callable[[int], Any]  # by number, from 0
    check: Callable[
        [], dict[str, float]
    ]  # on validation data; "val" selects the checkpoint, else the last is kept
    weights: Callable[[], dict[str, Tensor]]  # of the network that is trained
    stop: Callable[[StepResult], bool] = _never  # whether to end before the last step
    metadata: Mapping[str, Any] = field(default_factory=dict)  # stored with the weights, as JSON


class Recipe(Protocol):
    """How something is trained; a frozen dataclass in the file of its method."""

    @property
    def steps(self) -> int:
        """Batches in all."""
        ...

    @property
    def seed(self) -> int:
        """Of all randomness."""
        ...

    def training(self, device: torch.device, devices: int) -> Training:
        """Read the data and make the networks."""
        ...
