"""SPAct: self-supervised privacy preservation for action recognition (Dave et al. 2022, arXiv 2203.15205).

An anonymizer redraws frames so that an action can still be recognised, and two pictures of the same people no longer be told to
belong together. No label says what is private.

Players: the anonymizer A (U-Net, frame by frame, sigmoid), the task T (a network of clips), the budget B (a network of
frames with a projector). With x a clip, y its action, (v, v') two pictures of the same people::

    L_T = CE(T(A(x)), y)                     BCE, where a video shows several actions
    L_B = NT-Xent(B(A(v)), B(A(v')))         or MoCo, or RotNet
    draw    A  ←  descend |A(x) − x|₁
    warm    T, B  ←  descend L_T + L_B                       A holds still
    play    A  ←  descend L_T − ω · min(L_B, c + m)          T, B hold still
            T, B  ←  descend L_T + L_B                       A holds still, the next batches; a frozen B does, too
    stop    when L_B reaches `stop`

c is the loss of a B that knows nothing (NT-Xent of N pairs: ln(2N − 1)). Beyond it A would only invert similarities, which tell as
much as before, while L_T suffers.
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
from veil.nn import unet
from veil.nn.classifier import Classifier
from veil.training.data import Batch, DataConfig, TrainingData, named, of_clips, of_frames, setup
from veil.training.fit import Phase, PhaseSequence, Step, StepResult, Terms
from veil.training.losses import (
    MomentumQueue,
    chance_loss,
    clamped,
    classification_loss,
    nt_xent,
    rotation_loss,
    rotations,
)
from veil.training.recipe import STRICT, Seed, Training

Contrast = Literal["nt_xent", "moco", "rotnet"]
QUEUE = 1024  # keys that MoCo remembers; the released code has none of it


class Redraw(nn.Module):
    """An image network that redraws every frame of a clip ``(B, 3, T, H, W)`` by itself."""

    past, block = 0, 1  # earlier frames that a frame's result depends on; frames that are redrawn together

    def __init__(self, net: unet.ImageToImage) -> None:
        super().__init__()
        self.net = net

    def forward(self, clip: Tensor) -> Tensor:
        """The clip, redrawn."""
        return unet.per_frame(self.net, clip)


class Projector(nn.Module):
    """Features of a network, projected for contrast: ``(N, 128)``."""

    def __init__(self, net: Classifier) -> None:
        super().__init__()
        self.net = net
        self.head = nn.Sequential(nn.Linear(net.dim, net.dim), nn.ReLU(inplace=True), nn.Linear(net.dim, 128))

    def forward(self, x: Tensor) -> Tensor:
        """Of images ``(N, 3, S, S)``, or of clips where the network is one of clips."""
        return self.head(self.net.features(x))


class Budget(nn.Module):
    """What can be found of the people without any label: the loss of one self-supervised task, low where much is found."""

    def __init__(self, net: Classifier, contrast: Contrast, temperature: float) -> None:
        super().__init__()
        self.contrast, self.temperature = contrast, temperature
        self.net: nn.Module
        if contrast == "moco":
            self.net = MomentumQueue(Projector(net), size=QUEUE, temperature=temperature)
        else:
            self.net = Projector(net) if contrast == "nt_xent" else net

    def ignorant(self, pairs: int) -> float:
        """The loss of a network that knows nothing."""
        if isinstance(self.net, MomentumQueue):
            return self.net.chance_loss
        return chance_loss(pairs) if self.contrast == "nt_xent" else math.log(4)

    def forward(self, first: Tensor, second: Tensor, learning: bool) -> Tensor:
        """The loss of N pairs of anonymized pictures."""
        if isinstance(self.net, MomentumQueue):
            return self.net(first, second, update=learning)
        if self.contrast == "rotnet":
            return rotation_loss(*self._turned(first))
        return nt_xent(self.net(first), self.net(second), self.temperature)

    def _turned(self, images: Tensor) -> tuple[Tensor, Tensor]:
        turned, labels = rotations(images)
        return self.net(turned), labels


class Players:
    """The networks of the game and what each of them descends."""

    def __init__(self, recipe: SPAct, staged: TrainingData) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, stage = recipe, staged.stage
        self.redraw = recipe.network()
        self.task: nn.Module = of_clips(recipe.task, staged.outputs, stage, recipe.task_weights)
        clips = recipe.branch == "spatiotemporal"
        outputs = 4 if recipe.contrast == "rotnet" else 1
        make = of_clips if clips else of_frames
        self.budgets = nn.ModuleList(
            Budget(make(name, outputs, stage, recipe.budget_weights), recipe.contrast, recipe.temperature)
            for name in recipe.budget
        )
        for module in self.all().values():
            module.to(staged.device)

    def all(self) -> dict[str, nn.Module]:
        """By the name under which a checkpoint knows them."""
        return {"redraw": self.redraw, "task": self.task, "budgets": self.budgets}

    def drawn(self, batch: Batch) -> Tensor:
        """A(x)."""
        return self.redraw(batch.clip)

    def task_loss(self, batch: Batch, drawn: Tensor) -> Tensor:
        """L_T of the clips after A."""
        return classification_loss(self.task(drawn), batch.action)

    def budget_loss(self, batch: Batch, drawn: Tensor, *, hiding: bool = False) -> Tensor:
        """L_B of the pairs after A, the mean over all budget networks; when A hides, capped."""
        with torch.set_grad_enabled(hiding):
            if self.recipe.branch == "spatiotemporal":  # the pair is two augmentations of one clip
                first, second = drawn, self.redraw(batch.again())
            else:
                pictures = torch.cat([batch.first, batch.second])[:, :, None]
                first, second = self.redraw(pictures)[:, :, 0].chunk(2)
        losses = []
        for budget in self.budgets:
            assert isinstance(budget, Budget)
            loss = budget(first, second, learning=not hiding)
            if hiding and self.recipe.cap is not None:
                loss = clamped(loss, budget.ignorant(len(first)) + self.recipe.cap)
            losses.append(loss)
        return torch.stack(losses).mean()

    def draw(self, batch: Batch) -> Terms:
        """A learns to redraw what it sees: clips, and pictures of people."""
        people = batch.first[:, :, None]
        return {
            "clips": (self.redraw(batch.clip) - batch.clip).abs().mean(),
            "people": (self.redraw(people) - people).abs().mean(),
        }

    def hide(self, batch: Batch, drawn: Tensor | None = None) -> Terms:
        """What A descends; `drawn` is A(x) where it is known already."""
        if drawn is None:
            drawn = self.drawn(batch)
        return {
            "task": +self.task_loss(batch, drawn),
            "budget": -self.recipe.omega * self.budget_loss(batch, drawn, hiding=True),
        }

    def use(self, batch: Batch, drawn: Tensor) -> Terms:
        """What T descends."""
        return {"task": +self.task_loss(batch, drawn)}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SPAct:
    """SPAct's game. Defaults: the paper's networks, and for what only the released code says, that."""

    stage: DataConfig = Field(default_factory=DataConfig)
    net: Literal["unet", "unet++"] = "unet"
    width: Annotated[int, Field(ge=4, le=128)] = 64  # of the U-Net's first level
    task: str = "r3d_18_spact"
    task_weights: str | None = None
    budget: tuple[str, ...] = ("resnet50",)  # several: an ensemble
    budget_weights: str | None = None
    branch: Literal["updated", "frozen", "spatiotemporal"] = "updated"
    contrast: Contrast = "nt_xent"
    temperature: Annotated[float, Field(gt=0)] = 0.1
    omega: Annotated[float, Field(ge=0)] = 1.0
    cap: Annotated[float, Field(ge=0)] | None = 0.5  # m; none: as published, without bound
    stop: Annotated[float, Field(gt=0)] | None = None  # th_Bmax; none: play all turns
    repeats: Annotated[int, Field(ge=1)] = 1  # of T and B to one of A
    batch_stats: bool = (
        False  # B holds still with the statistics of the batch, not with those of batches long ago
    )
    drawing: Annotated[int, Field(ge=0)] = 300  # steps
    warming: Annotated[int, Field(ge=0)] = 300
    playing: Annotated[int, Field(ge=2)] = 1200
    lr_draw: Annotated[float, Field(gt=0)] = 1e-3
    lr_warm: Annotated[float, Field(gt=0)] = 1e-3
    lr: Annotated[float, Field(gt=0)] = 1e-4  # of A in the game
    lr_others: Annotated[float, Field(gt=0)] = 1e-4  # of T and B in the game
    seed: Seed = 0

    def __post_init__(self) -> None:
        clips = self.branch == "spatiotemporal"  # else the budget networks see frames
        named((self.task, *self.budget) if clips else (self.task,), () if clips else self.budget)
        if not self.budget:
            raise VeilError("a game needs at least one budget network: budget is empty.")
        if self.branch == "frozen" and self.stop is not None:
            raise VeilError(
                "a frozen budget network measures no loss at which to stop: leave stop out, or choose another branch."
            )
        name = "batch" if clips else "stills"
        pairs: int = getattr(self.stage, name)
        if pairs < 2 and self.contrast != "rotnet":
            raise VeilError(
                f"a contrastive loss needs at least two pairs: raise stage.{name}, which is {pairs}."
            )

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.drawing + self.warming + self.playing

    def network(self) -> nn.Module:
        """A fresh anonymizer."""
        return Redraw(unet.make(self.net, **({"width": self.width} if self.net == "unet" else {})))

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        staged = TrainingData(self.stage, device, self.seed)
        players = Players(self, staged)
        return played(players, staged, devices, players.hide, players.use)


def played(
    players: Players,
    staged: TrainingData,
    devices: int,
    hide: Callable[[Batch], Terms],
    use: Callable[[Batch, Tensor], Terms],
) -> Training:
    """The three games of SPAct with what A descends, and what T does, given A(x); others who play it change these."""
    recipe, frozen = players.recipe, players.recipe.branch == "frozen"
    made = setup(staged.device, devices, recipe.seed)
    redraw, task, budgets = players.redraw, players.task, players.budgets

    def keep(batch: Batch) -> Terms:
        with torch.no_grad():
            drawn = players.drawn(batch)
        return use(batch, drawn)

    def learn(batch: Batch) -> Terms:
        with torch.no_grad():
            drawn = players.drawn(batch)
        return {**use(batch, drawn), "budget": +players.budget_loss(batch, drawn)}

    def game(*moves: Step[Batch]) -> Phase[Batch]:
        return Phase(moves, made)

    games = [
        (recipe.drawing, lambda: game(Step("draw", (redraw,), players.draw, recipe.lr_draw, "adam"))),
        (recipe.warming, lambda: game(Step("warm", (task, budgets), learn, recipe.lr_warm, "adam"))),
        (
            recipe.playing,
            lambda: game(
                Step(
                    "hide",
                    (redraw,),
                    hide,
                    recipe.lr,
                    "adam",
                    batch_stats=(budgets,) if recipe.batch_stats else (),
                ),
                Step(
                    "learn",
                    (task,) if frozen else (task, budgets),
                    keep if frozen else learn,
                    recipe.lr_others,
                    "adam",
                    repeats=recipe.repeats,
                ),
            ),
        ),
    ]

    def stop(measured: StepResult) -> bool:
        if recipe.stop is None or measured.step_name != "learn" or "budget" not in measured.terms:
            return False
        return float(measured.terms["budget"]) >= recipe.stop

    return Training(
        PhaseSequence(players.all(), games),
        staged,
        lambda: staged.check(redraw, task),
        redraw.state_dict,
        stop,
    )
