"""Subspace: our adapter, in closed form. A linear discriminant subspace, then k-nearest-neighbour averaging (k-same).

The adapter keeps the few directions of the features that separate the labels of the tasks, erases all others
(`veil.features.erasure`), and replaces each clip by the mean of its k nearest clips of training videos (k-same: Newton et al.
2005, here on features)::

    A(x) = mean of the k references nearest to E(x)          E: projection onto the discriminant (LDA) subspace

Distances are Euclidean after whitening; a clip is never its own neighbour. The k references may be of fewer than k videos. They
are clips of training videos after E and are stored with the weights.

No network and no private label is used, and no attacker can recover what E erases. Heads are trained on the result to show
which utility is left. Instead of the discriminant subspace, the motion subspace can be kept, or a concept erased by LEACE.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from veil.core import VeilError
from veil.features.adapter import Adapter
from veil.features.bank import Bank
from veil.features.projection import ProjectionConfig, fit_projection, fit_scale
from veil.features.task_heads import HeadsConfig, TaskHeads
from veil.features.training_data import FeatureBatch, FeatureBatches, FeatureData, check_one_encoder
from veil.training.phase import Phase
from veil.training.recipe import STRICT, Seed, Training
from veil.training.sequence import PhaseSequence
from veil.training.steps import Setup, Step, Terms

SAME_CLIP = 1e-2  # deviations: a reference that is nearer is the same clip


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SubspaceConfig(ProjectionConfig):
    """Which subspace is kept, and how many neighbours are averaged."""

    dims: Annotated[int, Field(ge=1)] | None = 20
    neighbours: Annotated[int, Field(ge=0)] = 16  # k; 0: no averaging


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SubspaceSchedule:
    """The training of the heads; the adapter itself is computed in closed form."""

    steps: Annotated[int, Field(ge=1)] = 200
    lr_action: Annotated[float, Field(gt=0)] = 1e-3
    lr_detection: Annotated[float, Field(gt=0)] = 1e-3
    lr_anomaly: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SubspaceRecipe:
    """A discriminant (LDA) subspace of the features, then k-nearest-neighbour averaging; in closed form (ours)."""

    data: FeatureData
    anonymizer: SubspaceConfig = Field(default_factory=SubspaceConfig)
    utility: HeadsConfig = Field(default_factory=HeadsConfig)
    schedule: SubspaceSchedule = Field(default_factory=SubspaceSchedule)
    seed: Seed = 0

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"ours": {}}

    def __post_init__(self) -> None:
        if self.anonymizer.projection == "none" and not self.anonymizer.neighbours:
            raise VeilError(
                "without a projection and without neighbours nothing is anonymized: set anonymizer.projection.",
                code="nothing-anonymized",
            )

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.schedule.steps

    def adapter(self, dim: int) -> SubspaceAdapter:
        """A fresh adapter."""
        return SubspaceAdapter(dim, neighbours=self.anonymizer.neighbours)

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        return train_on(self, self.data.banks(device), device, devices)


class SubspaceAdapter(Adapter):
    """An adapter whose transform is k-same; without references it is the projection alone."""

    references: Tensor  # (M, D) clips of training videos after the projection
    whitened: Tensor  # (M, R) the same, whitened
    whitening: Tensor  # (D, R)
    resizable = ("metadata", "references", "whitened", "whitening")

    def __init__(self, dim: int, *, neighbours: int = 0) -> None:
        super().__init__(dim)
        self.neighbours = neighbours
        for name in ("references", "whitened", "whitening"):
            self.register_buffer(name, torch.zeros(0, 0))

    def params(self) -> dict[str, Any]:
        """See `FeatureAnonymizer`."""
        return {"dim": self.dim, "neighbours": self.neighbours}

    @torch.no_grad()
    def fit_references(self, bank: Bank) -> None:
        """Use the clips of these videos as references from now on."""
        x = self.eraser(self.standardized(bank.clips))[bank.mask]
        check_neighbours(len(x), self.neighbours)
        variances, vectors = torch.linalg.eigh((x - x.mean(0)).double().T.cov())
        nonzero = variances > 1e-6 * variances[-1]
        self.whitening = (vectors[:, nonzero] / variances[nonzero].sqrt()).to(x)
        self.references, self.whitened = x, x @ self.whitening

    def transform(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """See `Adapter`: the mean of the nearest references, ``(B, N, D)``."""
        if not len(self.references):
            return x
        out = []
        for part in x.flatten(0, 1).split(4096):
            distance = torch.cdist(part @ self.whitening, self.whitened)
            same = distance < SAME_CLIP * self.whitening.shape[1] ** 0.5
            distance = distance.masked_fill(same, math.inf)
            nearest = distance.topk(self.neighbours, 1, largest=False).indices
            out.append(self.references[nearest].mean(1))
        return torch.cat(out).view_as(x)


def check_neighbours(clips: int, neighbours: int) -> None:
    """Refuse too few references for k-same."""
    if clips <= neighbours:
        raise VeilError(
            f"{clips} clips are too few for neighbours = {neighbours}: lower neighbours, or train on more videos.",
            code="too-few-references",
        )


def train_on(
    recipe: SubspaceRecipe, banks: dict[str, Bank], device: torch.device, devices: int = 1
) -> Training:
    """The fit of a recipe to features in memory, by task, and the training of the heads."""
    plan, train = recipe.schedule, {name: bank.split("train") for name, bank in banks.items()}
    batches = FeatureBatches(recipe.data, banks, device, seed=recipe.seed, static=False)
    neighbours = recipe.anonymizer.neighbours
    check_neighbours(int(batches.action.mask.sum()), neighbours)  # before training, not after
    check_one_encoder(list(banks.values()))
    torch.manual_seed(recipe.seed)
    adapter = recipe.adapter(banks["action"].dim)
    fit_scale(adapter, train["action"])
    fit_projection(adapter, recipe.anonymizer, train)
    heads = TaskHeads(recipe.utility, banks)
    modules = {"adapter": adapter, **heads.by_task}
    for module in modules.values():
        module.to(device)

    def loss(batch: FeatureBatch) -> Terms:
        return heads.loss(adapter, batch, adapter(batch.clips, batch.mask))

    def phase() -> Phase[FeatureBatch]:
        rates = {"action": plan.lr_action, "detection": plan.lr_detection, "anomaly": plan.lr_anomaly}
        scales = tuple(rates[name] / plan.lr_action for name in heads.by_task)
        step = Step(
            "heads",
            tuple(heads.by_task.values()),
            loss,
            plan.lr_action,
            "adamw",
            plan.weight_decay,
            lr_scale=scales,
        )
        # TriDet's and MGFN's losses are steep at first.
        return Phase([step], Setup(seed=recipe.seed, clip=1.0, devices=devices))

    def weights() -> dict[str, Tensor]:
        if neighbours:
            adapter.eval().fit_references(batches.action)
        return adapter.state_dict()

    val = banks["action"].split("val")
    return Training(
        PhaseSequence(modules, [(plan.steps, phase)]),
        batches,
        lambda: heads.check(adapter, val, device),
        weights,
    )
