"""Action prototypes: a video is replaced by the mean video of all people who perform the same action. Veil's own method.

No adversary, and no private labels: only several people who were filmed performing each action. With x a video of one person
performing action a, φ ∈ [0, 1] its phase, r(x)(φ) its frame at that phase as grey means over large cells, and V_a the training
videos of that action::

    m_a(φ) = mean over x' ∈ V_a of r(x')(φ)                            the prototype of a at phase φ
    d_b(ψ) = mean over the frames k of |G(x)_k − m_b(ψ + kΔ)|²         G sees 16 frames of x, not a and not φ
    G  ←  descend |G(x)(φ) − m_a(φ)|² + w · CE(softmax_b of log Σ_ψ exp(−d_b(ψ) / τ), a)
    A(x) = m_b(ψ + kΔ) of the nearest b, by the least d_b(ψ) over ψ; ψ is sampled, p(ψ) ∝ exp(−d_b(ψ) / σ)

(w: `class_weight`, τ: `class_temperature`, σ: `phase_temperature`; σ = 0 takes the nearest ψ, from which more of the identity
can be inferred.) The output is never computed from the person's pixels: it is one of some hundreds of prototype frames; each block
of frames has one b and one ψ. All that can identify a person is which action is performed when, and the phase is noisy. ψ is sampled
with a number that is computed from every grey level of the block: the same video always gives the same output, so that repeated
queries average nothing away; without the video, the number is unpredictable. (G's own output, which is close to m_a(φ) but not
equal, would not do: networks that attack it find little, but kernel ridge regression finds faint traces of nearly every person;
`quantize = false` is that.)

G sees means over cells half as large, and their change since the frame before, of people who are moved, scaled and weakened or
strengthened at random. It takes every `skip`-th frame, `skip` times, so that it has seen every frame; d is the mean over those.

Limitation: an action that is not in the training data is shown as the nearest one that is. Δ is the mean pace of training videos.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from veil.core import VeilError
from veil.methods.prototypes.means import ActionMeans, PrototypeBatch
from veil.methods.prototypes.network import PrototypeNet
from veil.methods.prototypes.perturbation import perturb
from veil.training.data import TrainingData
from veil.training.data_config import DataConfig
from veil.training.losses import single_label
from veil.training.phase import Phase
from veil.training.precision import mixed_precision
from veil.training.recipe import STRICT, LearningRate, Seed, Training
from veil.training.schedule import LRSchedule
from veil.training.steps import Step, Terms


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrototypesAnonymizerConfig:
    """`[anonymizer]` of action prototypes."""

    cell: Annotated[int, Field(ge=2, le=64)] = 8  # pixels
    width: Annotated[int, Field(ge=8, le=128)] = 32  # channels of the network's first level
    quantize: bool = True  # false, for comparison: the output is G's own
    phase_temperature: Annotated[float, Field(ge=0)] = 0.01  # σ


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrototypesUtilityConfig:
    """`[utility]` of action prototypes: the classification term."""

    class_weight: Annotated[float, Field(ge=0)] = 0.02  # w
    class_temperature: Annotated[float, Field(gt=0)] = 0.01  # τ


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrototypesSchedule:
    """`[schedule]` of action prototypes."""

    steps: Annotated[int, Field(ge=2)] = 2500
    lr: LearningRate = 2e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.05


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrototypesRecipe:
    """Regression to the prototypes, and classification by the distance to them."""

    data: DataConfig = Field(default_factory=lambda: DataConfig(length=16, skip=3, batch=64, augment="none"))
    anonymizer: PrototypesAnonymizerConfig = Field(default_factory=PrototypesAnonymizerConfig)
    utility: PrototypesUtilityConfig = Field(default_factory=PrototypesUtilityConfig)
    schedule: PrototypesSchedule = Field(default_factory=PrototypesSchedule)
    seed: Seed = 0

    def __post_init__(self) -> None:
        size, cell = self.data.size, self.anonymizer.cell
        if cell % 2 or size % cell:
            raise VeilError(
                f"frames of {size} pixels do not fit into cells of {cell}: "
                "set anonymizer.cell to an even divisor of data.size.",
                code="cells-do-not-fit",
            )

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.schedule.steps

    def network(self) -> PrototypeNet:
        """A fresh anonymizer."""
        of = self.anonymizer
        return PrototypeNet(of.cell, of.width, of.quantize, of.phase_temperature, self.data.skip)

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        torch.manual_seed(self.seed)
        means = ActionMeans(TrainingData(self.data, device, self.seed), self.anonymizer.cell)
        net, utility, schedule = self.network().to(device), self.utility, self.schedule
        net.prototypes = means.prototypes
        for name in ("mean", "deviation", "change", "pace"):
            getattr(net, name).copy_(getattr(means, name))

        def loss(batch: PrototypeBatch) -> Terms:
            reconstruction = net.reconstruct(perturb(net.inputs(batch.half_cells)))
            logits = torch.logsumexp(
                -net.distances(reconstruction) / utility.class_temperature, 2
            )  # (B, actions)
            return {
                "distance": +(reconstruction - batch.target).square().mean(),
                "class": +utility.class_weight * single_label(logits, batch.action),
            }

        decay = LRSchedule(
            warmup=min(50, schedule.steps // 4), shape="cosine", updates=schedule.steps, floor=0.01
        )
        step = Step("anonymize", (net,), loss, schedule.lr, "adamw", schedule.weight_decay, decay)
        return Training(
            Phase([step], mixed_precision(device, devices, self.seed)),
            means,
            lambda: {"val": means.accuracy(net)},
            net.state_dict,
        )
