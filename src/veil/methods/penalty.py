"""Penalty-driven anonymization (2025, arXiv 2504.14301): SPAct with a bound on the distortion of action clips.

A is a UNet++, T an I3D, B as in SPAct. A descends, besides SPAct's terms, the distortion above the bound::

    RMS(x) = sqrt(mean((x − A(x))²))                        of pixels in [0, 1], or of T's features, of unit length
    A  ←  descend L_T − ω · min(L_B, c + m) + λ · max(0, RMS(x) − B)          of action clips only

B is the allowed distortion: B = 0 is the tightest bound. Pixels in [0, 1] are never farther apart than 1, so that B = 1 is no
bound and the same as λ = 0, which is SPAct.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

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
from veil.training.losses import Per, distortion_penalty
from veil.training.recipe import STRICT, Seed, Training
from veil.training.steps import Terms


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PenaltyConfig:
    """`[penalty]`: the term that is added to SPAct's."""

    bound: Annotated[float, Field(ge=0)] = 0.5  # B
    weight: Annotated[float, Field(ge=0)] = 1.0  # λ
    per: Per = "batch"
    space: Literal["pixel", "feature"] = "pixel"
    detached: bool = False  # as released: a number without a gradient, which has no effect


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PenaltyRecipe:
    """How SPAct with a bound on the distortion is trained."""

    data: DataConfig = Field(
        default_factory=lambda: DataConfig(size=224, batch=8, image_pairs=8, augment="penalty")
    )
    anonymizer: UNetConfig = Field(default_factory=lambda: UNetConfig(net="unet++"))
    utility: UtilityConfig = Field(default_factory=lambda: UtilityConfig(network="i3d_r50"))
    budget: SelfSupervisedBudgetConfig = Field(default_factory=SelfSupervisedBudgetConfig)
    penalty: PenaltyConfig = Field(default_factory=PenaltyConfig)
    schedule: AdversarialSchedule = Field(
        default_factory=lambda: AdversarialSchedule(lr_anonymizer=4e-5, lr_others=1e-4)
    )
    seed: Seed = 0

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"data": {"augment": "penalty-paper", "skip": 4}, "budget": {"cap": None}},
        "released": {"penalty": {"detached": True}, "budget": {"cap": None}},
        "ours": {"anonymizer": {"net": "unet", "width": 16}},
    }

    def __post_init__(self) -> None:
        self.spact()

    def spact(self) -> SPActRecipe:
        """The same without the penalty."""
        return SPActRecipe(
            data=self.data,
            anonymizer=self.anonymizer,
            utility=self.utility,
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

        def anonymizer_loss(batch: TrainingBatch) -> Terms:
            anonymized = modules.anonymized(batch)
            return {
                **modules.anonymizer_loss(batch, anonymized),
                "penalty": self.penalty.weight * self.excess(batch.clip, anonymized, modules.utility),
            }

        return adversarial_training(modules, data, devices, anonymizer_loss, modules.utility_terms)

    def excess(self, clip: Tensor, anonymized: Tensor, utility: nn.Module) -> Tensor:
        """max(0, RMS − B), one number."""
        penalty = self.penalty
        if penalty.space == "pixel":
            over = distortion_penalty(clip, anonymized, penalty.bound, penalty.per)
        else:
            # Paper: the distance of pixels to T(A(x)), which have no common shape. Here: of T's features of both.
            with torch.no_grad():
                before = F.normalize(utility.features(clip).float(), dim=1)  # type: ignore[operator]
            after = F.normalize(utility.features(anonymized).float(), dim=1)  # type: ignore[operator]
            rms = ((before - after).square().mean(1) + 1e-12).sqrt()  # (B,)
            over = F.relu(rms - penalty.bound).mean()
        return over.detach() if penalty.detached else over
