"""Matching: SPLAVU's network, trained against a matcher instead of the contrast of static clips (ours).

In SPLAVU the adapter A can make static clips alike and leave moving ones unchanged. Here a matcher M must find, for a *moving* clip
after A, the static clips of its video among those of videos with the same action, so that the action is no clue. Before the
network, all but the discriminant subspace is erased (`veil.features.erasure`). With i over clips, J(i) over videos of the same
action, and s̄ the mean of a video's static clips before A::

    p_ij = softmax_{j ∈ J(i)} ( M(A(x_i)) · M'(s̄_j) / τ )
    warmup       T, M, M'  ←  descend L_T − mean_i ln p_ii                                       A is frozen
    adversarial  A, T      ←  descend ω_T L_T + ω_B mean_i KL(uniform over J(i) ‖ p_i) + ω_LC L_LC
                 M, M'     ←  descend −mean_i ln p_ii, the next batches

L_T and L_LC are SPLAVU's (`veil.features.splavu`). A brings the matcher to chance, not to error, and has a gradient even where
the matcher is sure.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.core import VeilError
from veil.features.adapter import Context, NetworkAdapter
from veil.features.bank import Bank
from veil.features.projection import ProjectionConfig, fit_projection, fit_scale
from veil.features.task_heads import FeatureUtility, TaskHeads
from veil.features.training_data import FeatureBatch, FeatureBatches, FeatureData, check_one_encoder
from veil.training.phase import Phase
from veil.training.recipe import STRICT, Seed, Training
from veil.training.sequence import PhaseSequence
from veil.training.steps import Setup, Step, Terms

MATCH_DIM = 128  # of the space in which a matcher compares


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MatchingConfig(ProjectionConfig):
    """What is erased in closed form, and the network after it, which starts as the identity."""

    network: Literal["attention", "mlp"] = "attention"
    layers: Annotated[int, Field(ge=1, le=12)] = 3
    heads: Annotated[int, Field(ge=1)] = 8
    mlp_ratio: Annotated[float, Field(ge=0, le=8)] = 2.0  # of the feed-forward's width; 0: none
    norm: bool = True  # LayerNorm before attention and feed-forward
    context: Context = "clip"  # what attention sees


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MatchingBudget:
    """The matchers."""

    weight: Annotated[float, Field(ge=0)] = 1.0  # ω_B; 0: no matchers
    temperature: Annotated[float, Field(gt=0)] = 0.1  # τ
    matchers: Annotated[int, Field(ge=1)] = 2
    repeats: Annotated[int, Field(ge=1)] = 3  # steps of the matchers to one of the adapter


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MatchingSchedule:
    """How many batches each phase takes, and the learning rates."""

    warmup_steps: Annotated[int, Field(ge=0)] = 200
    adversarial_steps: Annotated[int, Field(ge=0)] = 1000
    lr_anonymizer: Annotated[float, Field(gt=0)] = 3e-4  # of the adapter
    lr_action: Annotated[float, Field(gt=0)] = 1e-3
    lr_detection: Annotated[float, Field(gt=0)] = 1e-3
    lr_anomaly: Annotated[float, Field(gt=0)] = 1e-3
    lr_matcher: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MatchingRecipe:
    """SPLAVU's network after the discriminant subspace, trained against matchers of moving and static clips (ours)."""

    data: FeatureData
    anonymizer: MatchingConfig = Field(default_factory=MatchingConfig)
    utility: FeatureUtility = Field(default_factory=FeatureUtility)
    budget: MatchingBudget = Field(default_factory=MatchingBudget)
    schedule: MatchingSchedule = Field(default_factory=MatchingSchedule)
    seed: Seed = 0

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"ours": {}}

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise VeilError("all steps of the schedule are 0: set at least one of them.", code="no-steps")

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.schedule.warmup_steps + self.schedule.adversarial_steps

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
            identity=True,
        )

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        return train_on(self, self.data.banks(device), device, devices)


class Matcher(nn.Module):
    """M and M': moving clips after A and the appearance of static ones, in one space of unit vectors."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.moving, self.still = (
            nn.Sequential(
                nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, MATCH_DIM)
            )
            for _ in range(2)
        )

    def forward(self, clips: Tensor, appearance: Tensor, temperature: float, allowed: Tensor) -> Tensor:
        """Logits ``(P, P)``: clip i against the appearance of video j; −inf where j is not a candidate."""
        a = F.normalize(self.moving(clips).float(), dim=-1)
        b = F.normalize(self.still(appearance).float(), dim=-1)
        return (a @ b.T / temperature).masked_fill(~allowed, -math.inf)


def candidates(action: Tensor) -> Tensor:
    """The candidates of each video, ``(P, P)`` bool: the videos with the same action, itself among them."""
    if action.ndim == 1:
        return action[:, None] == action
    return (action[:, None] == action).all(-1)


def divergence_from_chance(log_p: Tensor, allowed: Tensor) -> Tensor:
    """KL(uniform over the candidates ‖ p), ``(M, P)``; ln p is ``(M, P, P)`` and the candidates ``(P, P)`` bool."""
    count = allowed.sum(1)
    return -log_p.masked_fill(~allowed, 0).sum(-1) / count - count.log()


class MatchingModules:
    """The adapter, the heads and the matchers, and the loss of each step."""

    def __init__(self, recipe: MatchingRecipe, banks: dict[str, Bank], device: torch.device) -> None:
        torch.manual_seed(recipe.seed)
        check_one_encoder(list(banks.values()))
        self.recipe = recipe
        dim, train = banks["action"].dim, {name: bank.split("train") for name, bank in banks.items()}
        self.adapter = recipe.adapter(dim)
        fit_scale(self.adapter, train["action"])
        fit_projection(self.adapter, recipe.anonymizer, train)
        self.heads = TaskHeads(recipe.utility, banks)
        count = recipe.budget.matchers if recipe.budget.weight else 0
        self.matchers = nn.ModuleList(Matcher(dim) for _ in range(count))
        for module in self.all().values():
            module.to(device)

    def all(self) -> dict[str, nn.Module]:
        """By their names in a checkpoint."""
        return {"adapter": self.adapter, **self.heads.by_task, "matchers": self.matchers}

    def log_matches(self, batch: FeatureBatch, clips: Tensor) -> tuple[Tensor, Tensor]:
        """ln p of each matcher ``(M, P, P)``, and which are candidates ``(P, P)``."""
        count = len(batch.appearance)
        allowed = candidates(batch.action[:count])
        one = torch.multinomial(batch.mask[:count].float(), 1)[:, 0]  # a clip of each video
        moving = self.adapter.standardized(clips[torch.arange(count, device=one.device), one])
        appearance = self.adapter.standardized(batch.appearance)
        temperature = self.recipe.budget.temperature
        logits = [matcher(moving, appearance, temperature, allowed) for matcher in self.matchers]
        return torch.stack(logits).log_softmax(-1), allowed

    def adversarial(self, batch: FeatureBatch) -> Terms:
        """The objective of the adapter and the heads."""
        r, adapter = self.recipe, self.adapter
        after = adapter(batch.clips, batch.mask)
        moved = (adapter.standardized(after) - adapter.standardized(batch.clips))[batch.mask]
        consistency = +r.utility.consistency_weight * moved.square().mean()
        terms = {**self._task_loss(batch, after), "consistency": consistency}
        if r.budget.weight:
            divergence = divergence_from_chance(*self.log_matches(batch, after))
            terms["budget"] = +r.budget.weight * divergence.mean()
        return terms

    def warmup(self, batch: FeatureBatch) -> Terms:
        """L_T, and the matchers' loss."""
        after = self.adapter(batch.clips, batch.mask)
        return {**self._task_loss(batch, after), **(self.match(batch) if len(self.matchers) else {})}

    def match(self, batch: FeatureBatch) -> Terms:
        """The matchers' loss."""
        with torch.no_grad():
            after = self.adapter(batch.clips, batch.mask)
        log_p, _ = self.log_matches(batch, after)
        return {"match": -log_p.diagonal(dim1=1, dim2=2).mean()}

    def _task_loss(self, batch: FeatureBatch, after: Tensor) -> Terms:
        return self.heads.loss(self.adapter, batch, after, self.recipe.utility.weight)


def train_on(
    recipe: MatchingRecipe, banks: dict[str, Bank], device: torch.device, devices: int = 1
) -> Training:
    """The training of a recipe on features in memory, by task."""
    plan = recipe.schedule
    batches = FeatureBatches(recipe.data, banks, device, seed=recipe.seed, static=bool(recipe.budget.weight))
    modules = MatchingModules(recipe, banks, device)
    # TriDet's and MGFN's losses are steep at first.
    setup = Setup(seed=recipe.seed, clip=1.0, devices=devices)
    heads = tuple(modules.heads.by_task.values())
    matchers = (modules.matchers,) if len(modules.matchers) else ()
    rates = {"action": plan.lr_action, "detection": plan.lr_detection, "anomaly": plan.lr_anomaly}
    scales = tuple(rates[name] / plan.lr_anonymizer for name in modules.heads.by_task)

    def warmup() -> Phase[FeatureBatch]:
        scale = (*scales, *((plan.lr_matcher / plan.lr_anonymizer,) if matchers else ()))
        step = Step(
            "warmup",
            (*heads, *matchers),
            modules.warmup,
            plan.lr_anonymizer,
            "adamw",
            plan.weight_decay,
            lr_scale=scale,
        )
        return Phase([step], setup)

    def adversarial() -> Phase[FeatureBatch]:
        trained, scale = (modules.adapter, *heads), (1.0, *scales)
        steps = [
            Step(
                "anonymize",
                trained,
                modules.adversarial,
                plan.lr_anonymizer,
                "adamw",
                plan.weight_decay,
                lr_scale=scale,
            )
        ]
        if matchers:
            repeats = recipe.budget.repeats
            steps.append(
                Step(
                    "match",
                    matchers,
                    modules.match,
                    plan.lr_matcher,
                    "adamw",
                    plan.weight_decay,
                    repeats=repeats,
                )
            )
        return Phase(steps, setup)

    phases = [(plan.warmup_steps, warmup), (plan.adversarial_steps, adversarial)]
    val = banks["action"].split("val")
    return Training(
        PhaseSequence(modules.all(), phases),
        batches,
        lambda: modules.heads.check(modules.adapter, val, device),
        modules.adapter.state_dict,
    )
