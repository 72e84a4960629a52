"""SPAct: self-supervised privacy preservation for action recognition (Dave et al. 2022, arXiv 2203.15205).

An anonymizer changes frames so that the action can still be recognized, while two images of the same people can no longer be
matched. No private labels are needed.

Modules: the anonymizer A (U-Net, frame by frame, sigmoid), the utility network T (of clips), the budget network B (of frames,
with a projector). With x a clip, y its action, (v, v') two images of the same people::

    L_T = CE(T(A(x)), y)                     BCE where a video shows several actions
    L_B = NT-Xent(B(A(v)), B(A(v')))         or MoCo, or RotNet
    reconstruct           A  ←  descend |A(x) − x|₁
    warmup                T, B  ←  descend L_T + L_B                       A is frozen
    anonymize             A  ←  descend L_T − ω · min(L_B, c + m)          T, B are frozen
    utility_and_budget    T, B  ←  descend L_T + L_B                       A is frozen; a B with branch "frozen" is, too
    stop                  when L_B reaches `stop`

The last two alternate. c is the loss of an uninformative B (NT-Xent of N pairs: ln(2N − 1)). Beyond it A would only invert
similarities, which are as informative as before, while L_T suffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.core import VeilError
from veil.methods.sections import AdversarialSchedule, UtilityConfig
from veil.nn import unet
from veil.nn.classifier import Classifier
from veil.training.data import TrainingBatch, TrainingData
from veil.training.data_config import DataConfig
from veil.training.losses import (
    MomentumQueue,
    chance_loss,
    clamped,
    classification_loss,
    nt_xent,
    rotation_loss,
    rotations,
)
from veil.training.networks import check_names, clip_network, frame_network
from veil.training.phase import Phase
from veil.training.precision import mixed_precision
from veil.training.recipe import STRICT, Seed, Training
from veil.training.sequence import PhaseSequence
from veil.training.steps import Step, StepResult, Terms
from veil.training.validation import validate

Contrast = Literal["nt_xent", "moco", "rotnet"]
QUEUE = 1024  # keys in MoCo's queue; not in the released code


@dataclass(frozen=True, kw_only=True, config=STRICT)
class UNetConfig:
    """`[anonymizer]` of SPAct and the methods built on it."""

    net: Literal["unet", "unet++"] = "unet"
    width: Annotated[int, Field(ge=4, le=128)] = 64  # channels of the U-Net's first level


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SelfSupervisedBudgetConfig:
    """`[budget]` of SPAct and the methods built on it."""

    networks: tuple[str, ...] = ("resnet50",)  # several: an ensemble
    weights: str | None = None  # a file of published weights
    branch: Literal["updated", "frozen", "spatiotemporal"] = "updated"
    contrast: Contrast = "nt_xent"
    temperature: Annotated[float, Field(gt=0)] = 0.1
    weight: Annotated[float, Field(ge=0)] = 1.0  # ω
    cap: Annotated[float, Field(ge=0)] | None = 0.5  # m; none: as published, without a bound
    stop: Annotated[float, Field(gt=0)] | None = None  # th_Bmax; none: all steps are taken
    batch_stats: bool = False  # while B is frozen, it normalises by the statistics of the batch


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SPActRecipe:
    """How SPAct is trained. Defaults: the paper's networks; where only the released code gives a value, that value."""

    data: DataConfig = Field(default_factory=DataConfig)
    anonymizer: UNetConfig = Field(default_factory=UNetConfig)
    utility: UtilityConfig = Field(default_factory=lambda: UtilityConfig(network="r3d_18_spact"))
    budget: SelfSupervisedBudgetConfig = Field(default_factory=SelfSupervisedBudgetConfig)
    schedule: AdversarialSchedule = Field(default_factory=AdversarialSchedule)
    seed: Seed = 0

    def __post_init__(self) -> None:
        budget, of_clips = self.budget, self.budget.branch == "spatiotemporal"
        check_names(
            clips=(self.utility.network, *(budget.networks if of_clips else ())),
            frames=() if of_clips else budget.networks,
        )
        if not budget.networks:
            raise VeilError(
                "budget.networks is empty: name at least one budget network.", code="budget-empty"
            )
        if budget.branch == "frozen" and budget.stop is not None:
            raise VeilError(
                'budget.stop has no effect with budget.branch = "frozen", which computes no budget loss: '
                "remove budget.stop, or choose another branch.",
                code="stop-of-frozen-budget",
            )
        key = "batch" if of_clips else "image_pairs"
        pairs: int = getattr(self.data, key)
        if pairs < 2 and budget.contrast != "rotnet":
            raise VeilError(
                f"a contrastive loss needs at least two pairs: raise data.{key}, which is {pairs}.",
                code="too-few-pairs",
            )

    @property
    def steps(self) -> int:
        """Batches in all."""
        schedule = self.schedule
        return schedule.reconstruction_steps + schedule.warmup_steps + schedule.adversarial_steps

    def network(self) -> nn.Module:
        """A fresh anonymizer."""
        return frame_anonymizer(self.anonymizer.net, self.anonymizer.width)

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        data = TrainingData(self.data, device, self.seed)
        modules = SPActModules(self, data)
        return adversarial_training(modules, data, devices, modules.anonymizer_loss, modules.utility_terms)


class FrameAnonymizer(nn.Module):
    """An image network that anonymizes every frame of a clip ``(B, 3, T, H, W)`` by itself."""

    past, block = 0, 1  # earlier frames that a frame depends on; frames that are anonymized together

    def __init__(self, net: unet.ImageToImage) -> None:
        super().__init__()
        self.net = net

    def forward(self, clip: Tensor) -> Tensor:
        """The clip, anonymized."""
        return unet.per_frame(self.net, clip)


def frame_anonymizer(net: str, width: int) -> FrameAnonymizer:
    """A fresh one; `width` is that of a U-Net."""
    return FrameAnonymizer(unet.make(net, **({"width": width} if net == "unet" else {})))


class Projector(nn.Module):
    """Features of a network, projected for a contrastive loss: ``(N, 128)``."""

    def __init__(self, net: Classifier) -> None:
        super().__init__()
        self.net = net
        self.head = nn.Sequential(nn.Linear(net.dim, net.dim), nn.ReLU(inplace=True), nn.Linear(net.dim, 128))

    def forward(self, x: Tensor) -> Tensor:
        """Of images ``(N, 3, S, S)``, or of clips where the network is one of clips."""
        return self.head(self.net.features(x))


class SelfSupervisedBudget(nn.Module):
    """What can be found about people without labels: the loss of a self-supervised task, low where much is found."""

    def __init__(self, net: Classifier, contrast: Contrast, temperature: float) -> None:
        super().__init__()
        self.contrast, self.temperature = contrast, temperature
        self.net: nn.Module
        if contrast == "moco":
            self.net = MomentumQueue(Projector(net), size=QUEUE, temperature=temperature)
        else:
            self.net = Projector(net) if contrast == "nt_xent" else net

    def chance_loss(self, pairs: int) -> float:
        """c: the loss of a network that has found nothing."""
        if isinstance(self.net, MomentumQueue):
            return self.net.chance_loss
        return chance_loss(pairs) if self.contrast == "nt_xent" else math.log(4)

    def forward(self, first: Tensor, second: Tensor, update: bool) -> Tensor:
        """The loss of N pairs of anonymized images."""
        if isinstance(self.net, MomentumQueue):
            return self.net(first, second, update=update)
        if self.contrast == "rotnet":
            rotated, labels = rotations(first)
            return rotation_loss(self.net(rotated), labels)
        return nt_xent(self.net(first), self.net(second), self.temperature)


class SPActModules:
    """A, T and B, and the loss of each."""

    def __init__(self, recipe: SPActRecipe, data: TrainingData) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, utility, budget = recipe, recipe.utility, recipe.budget
        self.anonymizer = recipe.network()
        self.utility: nn.Module = clip_network(utility.network, data.n_outputs, data.config, utility.weights)
        make = clip_network if budget.branch == "spatiotemporal" else frame_network
        outputs = 4 if budget.contrast == "rotnet" else 1
        self.budgets = nn.ModuleList(
            SelfSupervisedBudget(
                make(name, outputs, data.config, budget.weights), budget.contrast, budget.temperature
            )
            for name in budget.networks
        )
        for module in self.by_name().values():
            module.to(data.device)

    def by_name(self) -> dict[str, nn.Module]:
        """By their names in a checkpoint."""
        return {"anonymizer": self.anonymizer, "utility": self.utility, "budget": self.budgets}

    def anonymized(self, batch: TrainingBatch) -> Tensor:
        """A(x)."""
        return self.anonymizer(batch.clip)

    def utility_loss(self, batch: TrainingBatch, anonymized: Tensor) -> Tensor:
        """L_T, given A(x)."""
        return classification_loss(self.utility(anonymized), batch.action)

    def budget_loss(self, batch: TrainingBatch, anonymized: Tensor, *, of_anonymizer: bool = False) -> Tensor:
        """L_B, the mean over all budget networks; in the loss of A, capped."""
        config = self.recipe.budget
        with torch.set_grad_enabled(of_anonymizer):
            if config.branch == "spatiotemporal":  # the pair is two augmentations of one clip
                first, second = anonymized, self.anonymizer(batch.other_view())
            else:
                images = torch.cat([batch.first, batch.second])[:, :, None]
                first, second = self.anonymizer(images)[:, :, 0].chunk(2)
        losses = []
        for budget in self.budgets:
            assert isinstance(budget, SelfSupervisedBudget)
            loss = budget(first, second, update=not of_anonymizer)
            if of_anonymizer and config.cap is not None:
                loss = clamped(loss, budget.chance_loss(len(first)) + config.cap)
            losses.append(loss)
        return torch.stack(losses).mean()

    def reconstruction_loss(self, batch: TrainingBatch) -> Terms:
        """Of A: clips, and images of people."""
        people = batch.first[:, :, None]
        return {
            "clips": (self.anonymizer(batch.clip) - batch.clip).abs().mean(),
            "people": (self.anonymizer(people) - people).abs().mean(),
        }

    def anonymizer_loss(self, batch: TrainingBatch, anonymized: Tensor | None = None) -> Terms:
        """Of A in adversarial training; `anonymized` is A(x) where it is computed already."""
        if anonymized is None:
            anonymized = self.anonymized(batch)
        return {
            "utility": +self.utility_loss(batch, anonymized),
            "budget": -self.recipe.budget.weight * self.budget_loss(batch, anonymized, of_anonymizer=True),
        }

    def utility_terms(self, batch: TrainingBatch, anonymized: Tensor) -> Terms:
        """Of T."""
        return {"utility": +self.utility_loss(batch, anonymized)}


def adversarial_training(
    modules: SPActModules,
    data: TrainingData,
    devices: int,
    anonymizer_loss: Callable[[TrainingBatch], Terms],
    utility_terms: Callable[[TrainingBatch, Tensor], Terms],
) -> Training:
    """The three phases of SPAct, with these losses of A, and of T given A(x); methods built on SPAct pass their own."""
    recipe, schedule, frozen = (
        modules.recipe,
        modules.recipe.schedule,
        modules.recipe.budget.branch == "frozen",
    )
    setup = mixed_precision(data.device, devices, recipe.seed)
    anonymizer, utility, budgets = modules.anonymizer, modules.utility, modules.budgets

    def utility_only(batch: TrainingBatch) -> Terms:
        with torch.no_grad():
            anonymized = modules.anonymized(batch)
        return utility_terms(batch, anonymized)

    def utility_and_budget(batch: TrainingBatch) -> Terms:
        with torch.no_grad():
            anonymized = modules.anonymized(batch)
        return {**utility_terms(batch, anonymized), "budget": +modules.budget_loss(batch, anonymized)}

    def reconstruction() -> Phase[TrainingBatch]:
        loss, lr = modules.reconstruction_loss, schedule.lr_reconstruction
        return Phase([Step("reconstruct", (anonymizer,), loss, lr, "adam")], setup)

    def warmup() -> Phase[TrainingBatch]:
        step = Step("warmup", (utility, budgets), utility_and_budget, schedule.lr_warmup, "adam")
        return Phase([step], setup)

    def adversarial() -> Phase[TrainingBatch]:
        anonymize = Step(
            "anonymize",
            (anonymizer,),
            anonymizer_loss,
            schedule.lr_anonymizer,
            "adam",
            batch_stats=(budgets,) if recipe.budget.batch_stats else (),
        )
        others = Step(
            "utility_and_budget",
            (utility,) if frozen else (utility, budgets),
            utility_only if frozen else utility_and_budget,
            schedule.lr_others,
            "adam",
            repeats=schedule.repeats,
        )
        return Phase([anonymize, others], setup)

    def stop(measured: StepResult) -> bool:
        goal = recipe.budget.stop
        if goal is None or measured.step_name != "utility_and_budget" or "budget" not in measured.terms:
            return False
        return float(measured.terms["budget"]) >= goal

    phases = [
        (schedule.reconstruction_steps, reconstruction),
        (schedule.warmup_steps, warmup),
        (schedule.adversarial_steps, adversarial),
    ]
    return Training(
        PhaseSequence(modules.by_name(), phases),
        data,
        lambda: validate(data, anonymizer, utility),
        anonymizer.state_dict,
        stop,
    )
