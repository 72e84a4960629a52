"""What a training is made of: steps (which modules update on which loss) and the setup they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

from torch import Tensor, nn

from veil.core import VeilError
from veil.training.schedule import LRSchedule

BatchT = TypeVar("BatchT")
Terms = dict[str, Tensor]  # signed, weighted terms of a loss; their sum is minimized, each one is logged


class NotFinite(VeilError):
    """A loss term or a weight is NaN or infinite."""


@dataclass(frozen=True)
class Step(Generic[BatchT]):
    """One kind of update: these modules are trained on this loss; all others are frozen."""

    name: str
    modules: tuple[nn.Module, ...]
    loss: Callable[[BatchT], Terms]
    lr: float
    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    weight_decay: float = 0.0
    schedule: LRSchedule = field(default_factory=LRSchedule)
    repeats: int = 1  # consecutive updates per cycle; each takes one batch, unless gradients are accumulated
    # Frozen, but in train mode: normalized by the statistics of the batch, running statistics left unchanged.
    batch_stats: tuple[nn.Module, ...] = ()
    momentum: float = 0.9  # of sgd
    lr_scale: tuple[float, ...] = ()  # a factor on the learning rate for each module; empty: 1 for all

    def __post_init__(self) -> None:
        if self.lr_scale and len(self.lr_scale) != len(self.modules):
            raise ValueError(
                f"step '{self.name}' has {len(self.modules)} modules and {len(self.lr_scale)} values of lr_scale"
            )
        if self.repeats < 1:
            raise VeilError(
                f"step '{self.name}' has repeats={self.repeats}: use 1 or more.", code="step-repeats"
            )


@dataclass(frozen=True)
class Setup:
    """What all steps of a phase share."""

    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"  # autocast on the modules' device
    accumulate: int = 1  # batches per update, all of the same step
    clip: float | None = None  # maximum norm of the gradient, over all modules of the step
    ema: float | None = None  # decay of the exponential moving average of all weights
    channels_last: bool = False  # 4-d weights channels_last, 5-d weights channels_last_3d
    compile: bool = False  # torch.compile the modules' forward
    devices: int = 1  # processes; see `veil.training.distributed.launch`

    def __post_init__(self) -> None:
        if self.accumulate < 1 or self.devices < 1:
            raise VeilError(
                f"accumulate={self.accumulate} and devices={self.devices} cannot be used: both are at least 1.",
                code="setup-below-one",
            )


class StepResult(NamedTuple):
    """The loss of one batch."""

    step: int  # number of the batch, from 1
    step_name: str  # name of the `Step`
    terms: dict[str, Tensor]  # detached, on the device: reading one waits for the GPU, so read rarely
    lr: float
