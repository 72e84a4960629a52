"""Supervised adversarial anonymization (Wu et al. 2018, arXiv 1807.08379; 2020, arXiv 1906.05675): "VITA" or "ALF".

Private labels are known in training, and several budget networks predict them from anonymized images. With x a clip, y its
action, v an image of people, p its private label (an identity, or attributes), B_1 … B_M the budget networks::

    L_T = CE(T(A(x)), y)
    uncertainty of B_m:   L_U(m) = CE(uniform, B_m(A(v)))     or −H(B_m(A(v))), or −CE(B_m(A(v)), p)
    anonymize             A  ←  descend L_T + γ · max_m L_U(m)
    utility_and_budget    T, B_1 … B_M  ←  descend L_T + Σ_m CE(B_m(A(v)), p)     `repeats` times
    every `restart_every` steps the budget networks are initialised anew, and catch up before A is updated again

Budget networks of frames see images of people; `clip_networks` see the clips as T does, where the people in the clips are the
private ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.core import VeilError
from veil.methods.sections import AdversarialSchedule, UtilityConfig
from veil.methods.spact import frame_anonymizer
from veil.training.data import TrainingBatch, TrainingData
from veil.training.data_config import DataConfig
from veil.training.losses import (
    binary_entropy,
    binary_uniform_cross_entropy,
    classification_loss,
    entropy,
    max_over_networks,
    uniform_cross_entropy,
)
from veil.training.networks import check_names, clip_network, frame_network
from veil.training.phase import Phase
from veil.training.precision import mixed_precision
from veil.training.recipe import STRICT, Seed, Training
from veil.training.schedule import LRSchedule
from veil.training.sequence import PhaseSequence
from veil.training.steps import Step, Terms
from veil.training.validation import validate

Uncertainty = Literal["uniform", "entropy", "reversal"]
Loss = Callable[[TrainingBatch], Terms]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ImageNetworkConfig:
    """`[anonymizer]` of the supervised method."""

    net: Literal["translator", "unet", "unet++"] = "translator"
    width: Annotated[int, Field(ge=4, le=128)] = 64  # channels of a U-Net's first level


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SupervisedBudgetConfig:
    """`[budget]` of the supervised method and those built on it."""

    networks: tuple[str, ...] = ("mobilenet_v1",)  # M networks of frames
    weights: str | None = None  # a file of published weights
    clip_networks: tuple[str, ...] = ()
    uncertainty: Uncertainty = "uniform"
    weight: Annotated[float, Field(ge=0)] = 0.5  # γ
    batch_stats: bool = False  # while they are frozen, they normalise by the statistics of the batch
    restart_every: Annotated[int, Field(ge=10)] | None = None  # steps


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SupervisedSchedule(AdversarialSchedule):
    """`[schedule]` of the supervised method and those built on it."""

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    cosine: bool = False  # lr_anonymizer decays to nearly 0 over adversarial training


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AdversarialRecipe:
    """How the supervised method is trained. Defaults: the paper's weights with networks of today's names."""

    data: DataConfig = Field(default_factory=lambda: DataConfig(batch=8, image_pairs=16, augment="none"))
    anonymizer: ImageNetworkConfig = Field(default_factory=ImageNetworkConfig)
    utility: UtilityConfig = Field(default_factory=lambda: UtilityConfig(network="c3d"))
    budget: SupervisedBudgetConfig = Field(default_factory=SupervisedBudgetConfig)
    schedule: SupervisedSchedule = Field(default_factory=SupervisedSchedule)
    seed: Seed = 0

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"budget": {"restart_every": 200}},
        "ours": {
            "anonymizer": {"net": "unet", "width": 16},
            "utility": {"network": "small3d"},
            "budget": {
                "networks": ["resnet18"],
                "uncertainty": "entropy",
                "weight": 10.0,
                "batch_stats": True,
            },
            "schedule": {"repeats": 3, "lr_anonymizer": 3e-4, "lr_others": 1e-3},
        },
    }

    def __post_init__(self) -> None:
        budget = self.budget
        if not budget.networks and not budget.clip_networks:
            raise VeilError(
                "budget.networks and budget.clip_networks are empty: name at least one budget network.",
                code="budget-empty",
            )
        check_names(clips=(self.utility.network, *budget.clip_networks), frames=budget.networks)

    @property
    def steps(self) -> int:
        """Batches in all."""
        return sum(steps for steps, *_ in self._phases())

    def network(self) -> nn.Module:
        """A fresh anonymizer."""
        return frame_anonymizer(self.anonymizer.net, self.anonymizer.width)

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        torch.manual_seed(self.seed)
        data = TrainingData(self.data, device, self.seed)
        modules = SupervisedModules(self, self.network().to(device), data)
        return self.training_of(modules, devices, modules.anonymizer_loss)

    def _phases(self) -> list[tuple[int, str, int]]:
        """The phases: steps, name, and the number of restarts before it."""
        schedule, total = self.schedule, self.schedule.adversarial_steps
        phases = [(schedule.reconstruction_steps, "reconstruct", 0), (schedule.warmup_steps, "warmup", 0)]
        length = total if self.budget.restart_every is None else self.budget.restart_every
        for number, first in enumerate(range(0, total, length)):
            if number:  # against networks that have learned nothing yet, A would learn nothing
                phases.append((length // 2, "catch_up", number))
            phases.append((min(length, total - first), "adversarial", number))
        return phases

    def training_of(self, modules: SupervisedModules, devices: int, anonymizer_loss: Loss) -> Training:
        """The training of these modules, with this loss of A; methods built on this one pass their own."""
        data, anonymizer, utility = modules.data, modules.anonymizer, modules.utility
        classifiers, others_loss = modules.classifiers, modules.utility_and_budget_loss
        setup = mixed_precision(data.device, devices, self.seed)
        schedule, kind = self.schedule, self.schedule.optimizer

        def phase(name: str, number: int, steps: int) -> Phase[TrainingBatch]:
            if name == "reconstruct":
                loss = modules.reconstruction_loss
                return Phase([Step(name, (anonymizer,), loss, schedule.lr_reconstruction, kind)], setup)
            others = utility, classifiers
            if name != "adversarial":
                if name == "catch_up":
                    modules.restart(number)
                return Phase([Step(name, others, others_loss, schedule.lr_warmup, kind)], setup)
            updates = steps // (1 + schedule.repeats) + 1
            decay = LRSchedule(shape="cosine", updates=updates, floor=0.02)
            anonymize = Step(
                "anonymize",
                (anonymizer,),
                anonymizer_loss,
                schedule.lr_anonymizer,
                kind,
                schedule=decay if schedule.cosine else LRSchedule(),
                batch_stats=(classifiers,) if self.budget.batch_stats else (),
            )
            lr, repeats = schedule.lr_others, schedule.repeats
            return Phase(
                [anonymize, Step("utility_and_budget", others, others_loss, lr, kind, repeats=repeats)], setup
            )

        phases = [
            (steps, lambda name=name, number=number, steps=steps: phase(name, number, steps))
            for steps, name, number in self._phases()
        ]
        return Training(
            PhaseSequence(modules.by_name(), phases),
            data,
            lambda: validate(data, anonymizer, utility),
            anonymizer.state_dict,
        )


def uncertainty_loss(logits: Tensor, labels: Tensor, kind: Uncertainty) -> Tensor:
    """L_U of one budget network, low where it is uncertain: logits ``(N, K)``; only "reversal" uses the labels."""
    if kind == "reversal":
        return -classification_loss(logits, labels)
    several = labels.ndim == 2
    if kind == "uniform":
        return binary_uniform_cross_entropy(logits) if several else uniform_cross_entropy(logits)
    return -(binary_entropy(logits) if several else entropy(logits))


class PrivacyClassifiers(nn.Module):
    """The budget networks: of frames, and of clips."""

    def __init__(self, frames: Sequence[nn.Module], clips: Sequence[nn.Module]) -> None:
        super().__init__()
        self.frames, self.clips = nn.ModuleList(frames), nn.ModuleList(clips)

    def forward(self, images: Tensor, clip: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The logits of each, of images ``(N, 3, S, S)`` and of clips ``(B, 3, T, S, S)``."""
        return [net(images) for net in self.frames], [net(clip) for net in self.clips]


class SupervisedModules:
    """A, T and the budget networks, and the loss of each."""

    def __init__(self, recipe: AdversarialRecipe, anonymizer: nn.Module, data: TrainingData) -> None:
        self.recipe, self.anonymizer, self.data = recipe, anonymizer, data
        self.n_private = data.n_private
        if recipe.budget.clip_networks and data.clip_private is None:
            raise VeilError(
                f"the clips of {data.train.dataset.name} have no private labels, which budget.clip_networks requires: "
                "remove budget.clip_networks.",
                code="clip-labels-missing",
            )
        utility = recipe.utility
        self.utility = clip_network(utility.network, data.n_outputs, data.config, utility.weights)
        self.utility = self.utility.to(data.device)
        self.classifiers = self._fresh_classifiers().to(data.device)

    def _fresh_classifiers(self) -> PrivacyClassifiers:
        budget, config, count = self.recipe.budget, self.data.config, self.n_private
        frames = [frame_network(name, count, config, budget.weights) for name in budget.networks]
        return PrivacyClassifiers(
            frames, [clip_network(name, count, config) for name in budget.clip_networks]
        )

    def by_name(self) -> dict[str, nn.Module]:
        """By their names in a checkpoint."""
        return {"anonymizer": self.anonymizer, "utility": self.utility, "budget": self.classifiers}

    def anonymized(self, batch: TrainingBatch) -> Tensor:
        """A(x)."""
        return self.anonymizer(batch.clip)

    def images(self, batch: TrainingBatch, anonymized: Tensor) -> tuple[Tensor, Tensor]:
        """A(v), anonymized images of people, and their private labels."""
        if batch.clip_private is not None:  # one frame of each clip: an attacker has the frames of a file
            number = torch.randint(anonymized.shape[2], (len(anonymized),), device=anonymized.device)
            rows = torch.arange(len(anonymized), device=anonymized.device)
            return anonymized[rows, :, number], batch.clip_private
        assert batch.private is not None
        pair = torch.stack([batch.first, batch.second], 2)  # (N, 3, 2, S, S): the second has a past
        return self.anonymizer(pair)[:, :, 1], batch.private

    def reconstruction_loss(self, batch: TrainingBatch) -> Terms:
        """Of A."""
        return {"clips": (self.anonymizer(batch.clip) - batch.clip).abs().mean()}

    def anonymizer_loss(self, batch: TrainingBatch, anonymized: Tensor | None = None) -> Terms:
        """Of A in adversarial training; `anonymized` is A(x) where it is computed already."""
        if anonymized is None:
            anonymized = self.anonymized(batch)
        images, labels = self.images(batch, anonymized)
        of_images, of_clips = self.classifiers(images, anonymized)
        budget = self.recipe.budget
        losses = [uncertainty_loss(logits, labels, budget.uncertainty) for logits in of_images]
        if batch.clip_private is not None:
            losses += [
                uncertainty_loss(logits, batch.clip_private, budget.uncertainty) for logits in of_clips
            ]
        return {
            "utility": +classification_loss(self.utility(anonymized), batch.action),
            "budget": +budget.weight * max_over_networks(losses),
        }

    def utility_and_budget_loss(self, batch: TrainingBatch) -> Terms:
        """Of T and the budget networks."""
        with torch.no_grad():
            anonymized = self.anonymized(batch)
            images, labels = self.images(batch, anonymized)
        of_images, of_clips = self.classifiers(images, anonymized)
        terms = {"utility": +classification_loss(self.utility(anonymized), batch.action)}
        for number, logits in enumerate(of_images):
            terms[f"budget{number}"] = +classification_loss(logits, labels)
        for number, logits in enumerate(of_clips):
            assert batch.clip_private is not None
            terms[f"clip_budget{number}"] = +classification_loss(logits, batch.clip_private)
        return terms

    def restart(self, number: int) -> None:
        """Initialise the budget networks anew, with other random weights where none are given."""
        torch.manual_seed(self.recipe.seed + 104_729 * number)
        self.classifiers.load_state_dict(self._fresh_classifiers().state_dict())
