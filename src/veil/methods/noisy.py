"""Noisy Features (Zhang et al., ICDM 2019) as SPAct adapted it to video (Dave et al. 2022, arXiv 2203.15205, supplement).

Neither the paper's text nor SPAct's code for it was at hand: this follows a description only. The original hides
private things in the signals of wearable sensors; SPAct made its TransNet a U-Net and its LossNet an R3D-18.
T is the U-Net, f a frozen utility network, g one of the privacy task, e uniform noise of the clip's shape:

    D_T = 1/BD Σ_b |f(T(x_b)) − f(x_b)|²                  features of the utility network stay
    D_P = 1/BD' Σ_b |g(T(x_b)) − mean over e of g(e)|²    features of the privacy network become those of noise

Both are minimised. No label is needed but those that f and g were trained with, and g stays as it is: nothing here
counters an attacker who trains a new network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.methods.sections import UtilityConfig
from veil.nn.unet import UNet, per_frame
from veil.training.data import TrainingBatch, TrainingData
from veil.training.data_config import DataConfig
from veil.training.losses import classification_loss
from veil.training.networks import check_names, clip_network, frame_network
from veil.training.phase import Phase
from veil.training.precision import mixed_precision
from veil.training.recipe import STRICT, LearningRate, Seed, Training
from veil.training.sequence import PhaseSequence
from veil.training.steps import Step, Terms
from veil.training.validation import validate

Loss = Callable[[TrainingBatch], Terms]
MakePhase = Callable[[], Phase[TrainingBatch]]


class NoisyFeatures(nn.Module):
    """Clips ``(B, 3, T, H, W)`` in [0, 1], every frame anonymized by one U-Net; same shape and range, any size."""

    past: int = 0
    block: int = 1

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.net = UNet(width, depth)

    def forward(self, clip: Tensor) -> Tensor:
        """The clip, anonymized."""
        return per_frame(self.net, clip).to(clip.dtype)


def task_distance(original: Tensor, changed: Tensor) -> Tensor:
    """D_T of features f(x) and f(T(x)), ``(B, …)`` each: mean squared difference, with a gradient for the second only."""
    if original.shape != changed.shape:
        raise ValueError(
            f"features of the same clips have one shape, got {tuple(original.shape)} and {tuple(changed.shape)}"
        )
    return (changed.float() - original.detach().float()).square().mean()


def noise_distance(changed: Tensor, noise: Tensor) -> Tensor:
    """D_P of features g(T(x)) ``(B, …)`` and g(e) ``(M, …)`` of any number of noises; a gradient for the first only."""
    if changed.shape[1:] != noise.shape[1:] or not len(noise):
        raise ValueError(
            f"features of clips and of noise are alike, got {tuple(changed.shape)} and {tuple(noise.shape)}"
        )
    # To the mean, not each to its own noise: the gradient is the same in the mean, and less noisy.
    return (changed.float() - noise.detach().float().mean(0)).square().mean()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NoisyAnonymizerConfig:
    """`[anonymizer]` of Noisy Features."""

    width: Annotated[int, Field(ge=4, le=128)] = 64  # channels of the U-Net's first level


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NoisyBudgetConfig:
    """`[budget]` of Noisy Features."""

    network: str = "resnet50"  # of frames
    weight: Annotated[float, Field(ge=0)] = 1.0  # of D_P


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NoisySchedule:
    """`[schedule]` of Noisy Features; the networks f and g are frozen after the warm-up."""

    reconstruction_steps: Annotated[int, Field(ge=0)] = 300
    warmup_steps: Annotated[int, Field(ge=1)] = 600  # of f and g, on raw video
    adversarial_steps: Annotated[int, Field(ge=2)] = 600
    lr_reconstruction: LearningRate = 1e-3
    lr_warmup: LearningRate = 1e-3
    lr_anonymizer: LearningRate = 1e-4


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NoisyRecipe:
    """f and g learn from raw video; then T learns to keep f's features and to turn g's into those of noise.

    ``T ← descend D_T + weight · D_P``
    """

    data: DataConfig = Field(default_factory=DataConfig)
    anonymizer: NoisyAnonymizerConfig = Field(default_factory=NoisyAnonymizerConfig)
    utility: UtilityConfig = Field(default_factory=lambda: UtilityConfig(network="r3d_18"))
    budget: NoisyBudgetConfig = Field(default_factory=NoisyBudgetConfig)
    schedule: NoisySchedule = Field(default_factory=NoisySchedule)
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_names(clips=(self.utility.network,), frames=(self.budget.network,))

    @property
    def steps(self) -> int:
        """Batches in all."""
        schedule = self.schedule
        return schedule.reconstruction_steps + schedule.warmup_steps + schedule.adversarial_steps

    def network(self) -> nn.Module:
        """A fresh anonymizer."""
        return NoisyFeatures(self.anonymizer.width)

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        torch.manual_seed(self.seed)
        data, schedule = TrainingData(self.data, device, self.seed), self.schedule
        anonymizer = self.network().to(device)
        utility = clip_network(self.utility.network, data.n_outputs, self.data, self.utility.weights).to(
            device
        )
        budget = frame_network(self.budget.network, data.n_private, self.data).to(device)
        setup = mixed_precision(device, devices, self.seed)

        def reconstruction_loss(batch: TrainingBatch) -> Terms:
            return {"clips": (anonymizer(batch.clip) - batch.clip).abs().mean()}

        def utility_and_budget_loss(batch: TrainingBatch) -> Terms:
            assert batch.private is not None
            return {
                "utility": +classification_loss(utility(batch.clip), batch.action),
                "budget": +classification_loss(budget(batch.first), batch.private),
            }

        def anonymizer_loss(batch: TrainingBatch) -> Terms:
            with torch.no_grad():
                original = utility.features(batch.clip)
                noise = budget.features(torch.rand_like(batch.first))
            people = anonymizer(batch.first[:, :, None])[:, :, 0]
            return {
                "utility": +task_distance(original, utility.features(anonymizer(batch.clip))),
                "noise": +self.budget.weight * noise_distance(budget.features(people), noise),
            }

        def phase(name: str, modules: tuple[nn.Module, ...], loss: Loss, lr: float) -> MakePhase:
            return lambda: Phase([Step(name, modules, loss, lr)], setup)

        phases = [
            (
                schedule.reconstruction_steps,
                phase("reconstruct", (anonymizer,), reconstruction_loss, schedule.lr_reconstruction),
            ),
            (
                schedule.warmup_steps,
                phase("warmup", (utility, budget), utility_and_budget_loss, schedule.lr_warmup),
            ),
            (
                schedule.adversarial_steps,
                phase("anonymize", (anonymizer,), anonymizer_loss, schedule.lr_anonymizer),
            ),
        ]
        modules = {"anonymizer": anonymizer, "utility": utility, "budget": budget}
        return Training(
            PhaseSequence(modules, phases),
            data,
            lambda: validate(data, anonymizer, utility),
            anonymizer.state_dict,
        )
