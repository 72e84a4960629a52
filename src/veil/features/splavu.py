"""SPLAVU: anonymize features instead of pixels (Self-supervised Privacy-preservation via Latent Anonymization, 2025).

A small adapter changes the features of a frozen video encoder, so that actions are still recognized, found in long videos and
separated from anomalies, while what a single frame shows of the people is removed. No private label is used.

Modules: the adapter A, a head T for each task (a linear one for actions, TriDet for where actions are, MGFN for anomalies).
With x the features of a clip, y its label, s and s' those of two static clips (one frame, repeated) of the same video::

    L_T  = L_action(T(A(x)), y) + L_detection + L_anomaly         of the tasks that are trained
    L_B  = NT-Xent(A(s), A(s'))
    L_LC = mean (A(x) − x)²                                       of the action videos
    reconstruct  A     ←  descend |A(x) − x|₁
    warmup       T     ←  descend L_T                             A is frozen
    adversarial  A, T  ←  descend ω_T L_T − ω_B min(L_B, c + m) + ω_LC L_LC        all update together

c = ln(2N − 1) is L_B where all static clips look the same. Other adapters of Veil: `veil.features.subspace` (closed form) and
`veil.features.matching` (the same network against a matcher).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.core import VeilError
from veil.features.adapter import Context, NetworkAdapter
from veil.features.bank import Bank
from veil.features.projection import fit_scale
from veil.features.task_heads import FeatureUtility, TaskHeads
from veil.features.training_data import FeatureBatch, FeatureBatches, FeatureData, check_one_encoder
from veil.training.losses import chance_loss, clamped, nt_xent
from veil.training.phase import Phase
from veil.training.recipe import STRICT, Seed, Training
from veil.training.sequence import PhaseSequence
from veil.training.steps import Setup, Step, Terms


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NetworkConfig:
    """The adapter's network, as in the paper."""

    network: Literal["attention", "mlp"] = "attention"
    layers: Annotated[int, Field(ge=1, le=12)] = 3
    heads: Annotated[int, Field(ge=1)] = 8
    mlp_ratio: Annotated[float, Field(ge=0, le=8)] = 2.0  # of the feed-forward's width; 0: none
    norm: bool = False  # LayerNorm before attention and feed-forward
    context: Context = "clip"  # what attention sees
    standardize: bool = False  # the network sees features with mean 0 and deviation 1


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StaticBudget:
    """L_B, the contrast of static clips."""

    weight: Annotated[float, Field(ge=0)] = 1.0  # ω_B; 0: no budget
    temperature: Annotated[float, Field(gt=0)] = 0.1
    # Paper: no bound. Here: m = 0.5, because beyond c the adapter would only invert similarities; none: no bound.
    cap: Annotated[float, Field(ge=0)] | None = 0.5


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SPLAVUSchedule:
    """How many batches each phase takes, and the learning rates."""

    reconstruction_steps: Annotated[int, Field(ge=0)] = 700
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    adversarial_steps: Annotated[int, Field(ge=0)] = 700
    lr_anonymizer: Annotated[float, Field(gt=0)] = 1e-4  # of the adapter
    lr_reconstruction: Annotated[float, Field(gt=0)] = 2e-5
    lr_action: Annotated[float, Field(gt=0)] = 1e-4
    lr_detection: Annotated[float, Field(gt=0)] = 1e-3
    lr_anomaly: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SPLAVURecipe:
    """A network that keeps tasks and makes static clips of a video dissimilar; the defaults are the paper's."""

    data: FeatureData
    anonymizer: NetworkConfig = Field(default_factory=NetworkConfig)
    utility: FeatureUtility = Field(default_factory=lambda: FeatureUtility(consistency_weight=100.0))
    budget: StaticBudget = Field(default_factory=StaticBudget)
    schedule: SPLAVUSchedule = Field(default_factory=SPLAVUSchedule)
    seed: Seed = 0

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "released": {
            "anonymizer": {"mlp_ratio": 0.0, "context": "batch"},
            "budget": {"cap": "none"},
            "schedule": {"reconstruction_steps": 500, "lr_reconstruction": 1e-4},
        },
    }

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise VeilError("all steps of the schedule are 0: set at least one of them.", code="no-steps")

    @property
    def steps(self) -> int:
        """Batches in all."""
        plan = self.schedule
        return plan.reconstruction_steps + plan.warmup_steps + plan.adversarial_steps

    def adapter(self, dim: int) -> NetworkAdapter:
        """A fresh adapter."""
        net = self.anonymizer
        return NetworkAdapter(
            dim,
            network=net.network,
            layers=net.layers,
            heads=net.heads,
            mlp_ratio=net.mlp_ratio,
            norm=net.norm,
            context=net.context,
        )

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        return train_on(self, self.data.banks(device), device, devices)


class SPLAVUModules:
    """The adapter and the heads, and the loss of each phase."""

    def __init__(self, recipe: SPLAVURecipe, banks: dict[str, Bank], device: torch.device) -> None:
        torch.manual_seed(recipe.seed)
        check_one_encoder(list(banks.values()))
        self.recipe = recipe
        self.adapter = recipe.adapter(banks["action"].dim)
        fit_scale(self.adapter, banks["action"].split("train"), standardize=recipe.anonymizer.standardize)
        self.heads = TaskHeads(recipe.utility, banks)
        for module in self.all().values():
            module.to(device)

    def all(self) -> dict[str, nn.Module]:
        """By their names in a checkpoint."""
        return {"adapter": self.adapter, **self.heads.by_task}

    def reconstruct(self, batch: FeatureBatch) -> Terms:
        """The adapter is trained towards the identity."""
        x = batch.stills.flatten(0, 1)[:, None]
        moving = (self.adapter(batch.clips, batch.mask) - batch.clips)[batch.mask]
        return {"clips": moving.abs().mean(), "stills": (self.adapter(x) - x).abs().mean()}

    def warmup(self, batch: FeatureBatch) -> Terms:
        """L_T, for the heads."""
        return self._task_loss(batch, self.adapter(batch.clips, batch.mask))

    def adversarial(self, batch: FeatureBatch) -> Terms:
        """The objective of the adapter and the heads."""
        r, adapter = self.recipe, self.adapter
        after = adapter(batch.clips, batch.mask)
        moved = (adapter.standardized(after) - adapter.standardized(batch.clips))[batch.mask]
        consistency = +r.utility.consistency_weight * moved.square().mean()
        terms = {**self._task_loss(batch, after), "consistency": consistency}
        if r.budget.weight:
            loss, cap = self.static_loss(batch), r.budget.cap
            bounded = loss if cap is None else clamped(loss, chance_loss(len(batch.stills)) + cap)
            terms["budget"] = -r.budget.weight * bounded
        return terms

    def static_loss(self, batch: FeatureBatch) -> Tensor:
        """L_B."""
        after = self.adapter(batch.stills.flatten(0, 1)[:, None])[:, 0].unflatten(0, (-1, 2))
        return nt_xent(after[:, 0], after[:, 1], self.recipe.budget.temperature)

    def _task_loss(self, batch: FeatureBatch, after: Tensor) -> Terms:
        return self.heads.loss(self.adapter, batch, after, self.recipe.utility.weight)


def train_on(
    recipe: SPLAVURecipe, banks: dict[str, Bank], device: torch.device, devices: int = 1
) -> Training:
    """The training of a recipe on features in memory, by task."""
    plan = recipe.schedule
    batches = FeatureBatches(recipe.data, banks, device, seed=recipe.seed, static=bool(recipe.budget.weight))
    modules = SPLAVUModules(recipe, banks, device)
    # TriDet's and MGFN's losses are steep at first.
    setup = Setup(seed=recipe.seed, clip=1.0, devices=devices)
    heads = tuple(modules.heads.by_task.values())
    rates = {"action": plan.lr_action, "detection": plan.lr_detection, "anomaly": plan.lr_anomaly}
    scales = tuple(rates[name] / plan.lr_anonymizer for name in modules.heads.by_task)

    def reconstruct() -> Phase[FeatureBatch]:
        step = Step("reconstruct", (modules.adapter,), modules.reconstruct, plan.lr_reconstruction, "adamw")
        return Phase([step], setup)

    def warmup() -> Phase[FeatureBatch]:
        step = Step(
            "warmup", heads, modules.warmup, plan.lr_anonymizer, "adamw", plan.weight_decay, lr_scale=scales
        )
        return Phase([step], setup)

    def adversarial() -> Phase[FeatureBatch]:
        trained, scale = (modules.adapter, *heads), (1.0, *scales)
        step = Step(
            "anonymize",
            trained,
            modules.adversarial,
            plan.lr_anonymizer,
            "adamw",
            plan.weight_decay,
            lr_scale=scale,
        )
        return Phase([step], setup)

    phases = [
        (plan.reconstruction_steps, reconstruct),
        (plan.warmup_steps, warmup),
        (plan.adversarial_steps, adversarial),
    ]
    val = banks["action"].split("val")
    return Training(
        PhaseSequence(modules.all(), phases),
        batches,
        lambda: modules.heads.check(modules.adapter, val, device),
        modules.adapter.state_dict,
    )
