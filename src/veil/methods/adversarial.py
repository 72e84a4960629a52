"""Supervised adversarial anonymization (Wu et al. 2018, arXiv 1807.08379; 2020, arXiv 1906.05675): "VITA" or "ALF".

Private labels are known in training, and several budget networks try to tell them from what A leaves. With x a clip, y its
action, v a picture of people, p its private label (a person, or attributes), B_1 … B_M the budget networks::

    L_T = CE(T(A(x)), y)
    ignorance of B_m:   L_U(m) = CE(uniform, B_m(A(v)))     or −H(B_m(A(v))), or −CE(B_m(A(v)), p)
    A  ←  descend L_T + γ · max_m L_U(m)
    T, B_1 … B_M  ←  descend L_T + Σ_m CE(B_m(A(v)), p)     `turns` times
    every `restart` steps the budget networks begin anew, and catch up before A moves again

Budget networks of frames see pictures of people; `clip_budget` networks see the clips as T does, where the clips' own people
are the private ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.core import VeilError
from veil.methods.spact import Redraw
from veil.nn import unet
from veil.training.data import Batch, DataConfig, TrainingData, named, of_clips, of_frames, setup
from veil.training.fit import LRSchedule, Phase, PhaseSequence, Step, Terms
from veil.training.losses import (
    binary_entropy,
    binary_uniform_cross_entropy,
    classification_loss,
    entropy,
    max_over_networks,
    uniform_cross_entropy,
)
from veil.training.recipe import STRICT, Seed, Training

Ignorance = Literal["uniform", "entropy", "reversal"]


def ignorance(logits: Tensor, labels: Tensor, kind: Ignorance) -> Tensor:
    """L_U of one budget network, low where it is ignorant: logits ``(N, K)``; labels are looked at by "reversal" alone."""
    if kind == "reversal":
        return -classification_loss(logits, labels)
    several = labels.ndim == 2
    if kind == "uniform":
        return binary_uniform_cross_entropy(logits) if several else uniform_cross_entropy(logits)
    return -(binary_entropy(logits) if several else entropy(logits))


class Seekers(nn.Module):
    """The budget networks: of frames, and of clips."""

    def __init__(self, frames: Sequence[nn.Module], clips: Sequence[nn.Module]) -> None:
        super().__init__()
        self.frames, self.clips = nn.ModuleList(frames), nn.ModuleList(clips)

    def forward(self, pictures: Tensor, clip: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """What each says of the pictures ``(N, 3, S, S)``, and of the clips ``(B, 3, T, S, S)``."""
        return [net(pictures) for net in self.frames], [net(clip) for net in self.clips]


class Players:
    """A, T and the budget networks, and what each of them descends."""

    def __init__(self, recipe: Adversarial, redraw: nn.Module, staged: TrainingData) -> None:
        self.recipe, self.redraw, self.staged, stage = recipe, redraw, staged, staged.stage
        self.kinds = staged.kinds
        if recipe.clip_budget and staged.who is None:
            raise VeilError(
                f"the clips of {staged.train.dataset.name} do not say who is seen, which a clip_budget learns: leave it out."
            )
        self.task = of_clips(recipe.task, staged.outputs, stage, recipe.task_weights).to(staged.device)
        self.seekers = self._fresh().to(staged.device)

    def _fresh(self) -> Seekers:
        recipe, stage = self.recipe, self.staged.stage
        frames = [of_frames(name, self.kinds, stage, recipe.budget_weights) for name in recipe.budget]
        return Seekers(frames, [of_clips(name, self.kinds, stage) for name in recipe.clip_budget])

    def all(self) -> dict[str, nn.Module]:
        """By the name under which a checkpoint knows them."""
        return {"redraw": self.redraw, "task": self.task, "seekers": self.seekers}

    def pictures(self, batch: Batch, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Pictures of people after A, and their private labels."""
        if batch.who is not None:  # one frame of each clip: what is in a file is what is attacked
            number = torch.randint(drawn.shape[2], (len(drawn),), device=drawn.device)
            return drawn[torch.arange(len(drawn), device=drawn.device), :, number], batch.who
        assert batch.private is not None
        pair = torch.stack([batch.first, batch.second], 2)  # (N, 3, 2, S, S): the second has a past
        return self.redraw(pair)[:, :, 1], batch.private

    def draw(self, batch: Batch) -> Terms:
        """A learns to redraw what it sees."""
        return {"clips": (self.redraw(batch.clip) - batch.clip).abs().mean()}

    def hide(self, batch: Batch, drawn: Tensor | None = None) -> Terms:
        """What A descends; `drawn` is A(x) where it is known already."""
        if drawn is None:
            drawn = self.drawn(batch)
        pictures, labels = self.pictures(batch, drawn)
        of_pictures, of_clip = self.seekers(pictures, drawn)
        kind = self.recipe.ignorance
        ignorances = [ignorance(answer, labels, kind) for answer in of_pictures]
        if batch.who is not None:
            ignorances += [ignorance(answer, batch.who, kind) for answer in of_clip]
        return {
            "task": +classification_loss(self.task(drawn), batch.action),
            "budget": +self.recipe.gamma * max_over_networks(ignorances),
        }

    def drawn(self, batch: Batch) -> Tensor:
        """A(x)."""
        return self.redraw(batch.clip)

    def learn(self, batch: Batch) -> Terms:
        """What T and the budget networks descend."""
        with torch.no_grad():
            drawn = self.drawn(batch)
            pictures, labels = self.pictures(batch, drawn)
        of_pictures, of_clip = self.seekers(pictures, drawn)
        terms = {"task": +classification_loss(self.task(drawn), batch.action)}
        for number, answer in enumerate(of_pictures):
            terms[f"budget{number}"] = +classification_loss(answer, labels)
        for number, answer in enumerate(of_clip):
            assert batch.who is not None
            terms[f"clip_budget{number}"] = +classification_loss(answer, batch.who)
        return terms

    def restart(self, number: int) -> None:
        """The budget networks begin anew, with other random weights where none are given."""
        torch.manual_seed(self.recipe.seed + 104_729 * number)
        self.seekers.load_state_dict(self._fresh().state_dict())


Loss = Callable[[Batch], Terms]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Adversarial:
    """The supervised game. Defaults: the paper's weights with networks of today's names."""

    stage: DataConfig = Field(default_factory=lambda: DataConfig(batch=8, stills=16, augment="none"))
    net: Literal["translator", "unet", "unet++"] = "translator"
    width: Annotated[int, Field(ge=4, le=128)] = 64  # of a U-Net
    task: str = "c3d"
    task_weights: str | None = None
    budget: tuple[str, ...] = ("mobilenet_v1",)  # M networks of frames
    budget_weights: str | None = None
    clip_budget: tuple[str, ...] = ()  # networks of clips
    ignorance: Ignorance = "uniform"
    gamma: Annotated[float, Field(ge=0)] = 0.5
    repeats: Annotated[int, Field(ge=1)] = 1  # of T and the budget networks to one of A
    batch_stats: bool = False  # they hold still with the statistics of the batch
    restart: Annotated[int, Field(ge=10)] | None = None  # steps
    drawing: Annotated[int, Field(ge=0)] = 300  # steps
    warming: Annotated[int, Field(ge=0)] = 300
    playing: Annotated[int, Field(ge=2)] = 1200
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    cosine: bool = False  # rates fall to nothing over the game
    lr_draw: Annotated[float, Field(gt=0)] = 1e-3
    lr_warm: Annotated[float, Field(gt=0)] = 1e-3
    lr: Annotated[float, Field(gt=0)] = 1e-4
    lr_others: Annotated[float, Field(gt=0)] = 1e-4
    seed: Seed = 0

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"restart": 200},
        "ours": {
            "net": "unet",
            "width": 16,
            "task": "small3d",
            "budget": ["resnet18"],
            "ignorance": "entropy",
            "gamma": 10.0,
            "turns": 3,
            "batch_stats": True,
            "lr": 3e-4,
            "lr_others": 1e-3,
        },
    }

    def __post_init__(self) -> None:
        if not self.budget and not self.clip_budget:
            raise VeilError("a game needs at least one budget network: budget and clip_budget are empty.")
        named((self.task, *self.clip_budget), self.budget)

    @property
    def steps(self) -> int:
        """Batches in all."""
        return sum(steps for steps, *_ in self._parts())

    def network(self) -> nn.Module:
        """A fresh anonymizer."""
        numbers = {"width": self.width} if self.net == "unet" else {}
        return Redraw(unet.make(self.net, **numbers))

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        torch.manual_seed(self.seed)
        staged = TrainingData(self.stage, device, self.seed)
        players = Players(self, self.network().to(device), staged)
        return self.played(players, devices, players.hide, players.learn)

    def _parts(self) -> list[tuple[int, str, int]]:
        """The games: steps, which, and the number of its restart."""
        parts = [(self.drawing, "draw", 0), (self.warming, "warm", 0)]
        length = self.playing if self.restart is None else self.restart
        for number, first in enumerate(range(0, self.playing, length)):
            if number:  # fresh networks know nothing: a game against them would teach A nothing
                parts.append((length // 2, "catch up", number))
            parts.append((min(length, self.playing - first), "play", number))
        return parts

    def played(self, players: Players, devices: int, hide: Loss, learn: Loss) -> Training:
        """The game with what A descends, and what the others do; others who play it change these."""
        staged, redraw, task, seekers = players.staged, players.redraw, players.task, players.seekers
        made = setup(staged.device, devices, self.seed)
        kind = self.optimizer

        def plan(updates: int) -> LRSchedule:
            return LRSchedule(shape="cosine", updates=updates, floor=0.02) if self.cosine else LRSchedule()

        def game(part: str, number: int, steps: int) -> Phase[Batch]:
            if part == "draw":
                return Phase([Step("draw", (redraw,), players.draw, self.lr_draw, kind)], made)
            if part == "warm":
                return Phase([Step("warm", (task, seekers), learn, self.lr_warm, kind)], made)
            if part == "catch up":
                players.restart(number)
                return Phase([Step("catch up", (task, seekers), learn, self.lr_warm, kind)], made)
            rounds = steps // (1 + self.repeats) + 1
            batch_stats = (seekers,) if self.batch_stats else ()
            moves = [
                Step("hide", (redraw,), hide, self.lr, kind, schedule=plan(rounds), batch_stats=batch_stats),
                Step("learn", (task, seekers), learn, self.lr_others, kind, repeats=self.repeats),
            ]
            return Phase(moves, made)

        games = [
            (steps, lambda part=part, number=number, steps=steps: game(part, number, steps))
            for steps, part, number in self._parts()
        ]
        return Training(
            PhaseSequence(players.all(), games), staged, lambda: staged.check(redraw, task), redraw.state_dict
        )
