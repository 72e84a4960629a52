"""TeD-SPAD (Fioresi et al. 2023, arXiv 2308.11072): SPAct with temporal distinctiveness, for anomaly detection.

T has a second head h (2 layers, unit length). With x a clip, x⁺ the same frames in another augmentation, x⁻ another clip of the
same video, f = h(T(A(·)))::

    L_D = max(0, |f(x) − f(x⁺)| − |f(x) − f(x⁻)| + μ)
    A  ←  descend w · (L_T + α · L_D) − ω · min(L_B, c + m)
    T, B, h  ←  descend L_T + α · L_D + L_B

The paper's text is not at hand; this follows a description of it and of the released code. There, frames were scrambled with
colour planes before A; here they are not.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.core import VeilError
from veil.methods.sections import AdversarialSchedule, UtilityConfig
from veil.methods.spact import (
    SelfSupervisedBudgetConfig,
    SPActModules,
    SPActRecipe,
    UNetConfig,
    adversarial_training,
)
from veil.training.data import TrainingBatch, TrainingData
from veil.training.data_config import DataConfig
from veil.training.losses import triplet
from veil.training.recipe import STRICT, Seed, Training
from veil.training.steps import Terms


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WeightedUtilityConfig:
    """`[utility]`: as of SPAct, with a weight."""

    network: str = "i3d_r50"
    weights: str | None = None  # a file of published weights
    weight: Annotated[float, Field(ge=0)] = 0.7  # w


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DistinctivenessConfig:
    """`[distinctiveness]`: the term that is added to SPAct's."""

    margin: Annotated[float, Field(gt=0)] = 1.0  # μ
    weight: Annotated[float, Field(ge=0)] = 0.1  # α


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TeDSPADRecipe:
    """How SPAct with temporal distinctiveness is trained."""

    data: DataConfig = Field(
        default_factory=lambda: DataConfig(size=224, batch=8, image_pairs=12, augment="tedspad")
    )
    anonymizer: UNetConfig = Field(default_factory=lambda: UNetConfig(net="unet++"))
    utility: WeightedUtilityConfig = Field(default_factory=WeightedUtilityConfig)
    budget: SelfSupervisedBudgetConfig = Field(default_factory=SelfSupervisedBudgetConfig)
    distinctiveness: DistinctivenessConfig = Field(default_factory=DistinctivenessConfig)
    schedule: AdversarialSchedule = Field(
        default_factory=lambda: AdversarialSchedule(lr_anonymizer=4e-6, lr_others=1e-5)
    )
    seed: Seed = 0

    def __post_init__(self) -> None:
        self.spact()
        if self.data.batch < 2:
            raise VeilError(
                f"the head of TeD-SPAD normalises over at least two clips: raise data.batch, which is {self.data.batch}.",
                code="too-few-clips",
            )

    def spact(self) -> SPActRecipe:
        """The same without the distinctiveness."""
        return SPActRecipe(
            data=self.data,
            anonymizer=self.anonymizer,
            utility=UtilityConfig(network=self.utility.network, weights=self.utility.weights),
            budget=self.budget,
            schedule=self.schedule,
            seed=self.seed,
        )

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.spact().steps

    def network(self) -> nn.Module:
        """A fresh anonymizer."""
        return self.spact().network()

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        data = TrainingData(self.data, device, self.seed)
        modules = SPActModules(self.spact(), data)
        utility = UtilityWithEmbedding(modules.utility).to(device)
        modules.utility = utility
        weight, distinctiveness = self.utility.weight, self.distinctiveness

        def distinctiveness_loss(batch: TrainingBatch, anonymized: Tensor) -> Tensor:
            with torch.set_grad_enabled(anonymized.requires_grad):
                positive = modules.anonymizer(batch.other_view())
                negative = modules.anonymizer(batch.other_clip())
            anchor, near, far = (utility.embedding(clip) for clip in (anonymized, positive, negative))
            return triplet(anchor, near, far, distinctiveness.margin)

        def anonymizer_loss(batch: TrainingBatch) -> Terms:
            anonymized = modules.anonymized(batch)
            terms = modules.anonymizer_loss(batch, anonymized)
            distinct = distinctiveness_loss(batch, anonymized)
            return {
                "utility": weight * terms["utility"],
                "distinctiveness": weight * distinctiveness.weight * distinct,
                "budget": terms["budget"],
            }

        def utility_terms(batch: TrainingBatch, anonymized: Tensor) -> Terms:
            return {
                **modules.utility_terms(batch, anonymized),
                "distinctiveness": distinctiveness.weight * distinctiveness_loss(batch, anonymized),
            }

        return adversarial_training(modules, data, devices, anonymizer_loss, utility_terms)


class UtilityWithEmbedding(nn.Module):
    """The utility network with a second head, under which moments of one video lie apart."""

    def __init__(self, utility: nn.Module, inner: int = 512) -> None:
        super().__init__()
        dim: int = utility.dim  # type: ignore[assignment]
        self.utility = utility
        self.head = nn.Sequential(
            nn.Linear(dim, inner), nn.BatchNorm1d(inner), nn.ReLU(inplace=True), nn.Linear(inner, 128)
        )

    def forward(self, clip: Tensor) -> Tensor:
        """The logits of the utility network, ``(B, K)``."""
        return self.utility(clip)

    def embedding(self, clip: Tensor) -> Tensor:
        """``(B, 128)``."""
        return self.head(self.utility.features(clip))  # type: ignore[operator]
