"""The stage on which learned pixel anonymizers are trained: videos in memory, batches by number, a look at the rest.

A *batch* holds clips of videos whose action is known, and pairs of pictures of people: two views of one still, or two
frames of one video. Where a method wants them, the batch also tells who or what the people are. Everything that is left to
chance in a batch is a function of the seed and the batch's number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.core import Frames, VeilError
from veil.data import Dataset
from veil.data import read as read_data
from veil.data.augment import PRESETS
from veil.data.frames import FrameReader, square
from veil.data.sample import narrowed
from veil.fit import Setup, rank, world
from veil.metrics import class_mean_average_precision, top1
from veil.nn import image, video
from veil.recipe import STRICT

ROOM = 24 << 30  # bytes of frames that are held in memory; what does not fit is refused
CHECKED = 96  # validation videos that are looked at in training

Pairs = Literal["views", "frames", "near", "far"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Source:
    """A dataset, and which labels of it are used."""

    name: str = "synthetic"
    root: str | None = None
    options: dict[str, str | int] = Field(default_factory=dict)
    actions: tuple[
        str, ...
    ] = ()  # only these; none: all. With others in the audit: the novel-action protocol
    attributes: tuple[str, ...] = ()

    def read(self, size: int) -> Dataset:
        """The dataset; the synthetic world is made at that size."""
        options = {"size": size, **self.options} if self.name == "synthetic" else self.options
        return narrowed(read_data(self.name, self.root, **options), self.actions, self.attributes)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stage:
    """What is played with: which videos, how clips and pairs are taken from them, how many make a batch."""

    use: Source = Field(default_factory=Source)  # has the actions
    private: Source | None = None  # has the people to be hidden; none: those in the same videos
    size: Annotated[int, Field(ge=16, le=512)] = 112
    length: Annotated[int, Field(ge=1, le=64)] = 16  # frames in a clip
    skip: Annotated[int, Field(ge=1, le=16)] = 2  # frames from one to the next
    augment: Literal["none", "spact", "spact-paper", "penalty", "penalty-paper", "tedspad"] = "spact"
    flip: bool = True  # where left and right mean different actions, mirroring must be off
    pairs: Pairs = (
        "frames"  # two views of one picture; two frames of a video: any, less than 8 or more than 64 apart
    )
    batch: Annotated[int, Field(ge=1)] = 24  # clips
    stills: Annotated[int, Field(ge=1)] = 64  # pairs
    held: Annotated[int, Field(ge=2)] = 160  # frames of a video that are kept, from its middle


class Batch(NamedTuple):
    """One turn's data, on the device."""

    clip: Tensor  # (B, 3, T, S, S) in [0, 1]
    action: Tensor  # (B,) int64, or (B, K) float where a video shows several
    first: Tensor  # (N, 3, S, S): pictures of people, and
    second: Tensor  # (N, 3, S, S): a partner of each
    private: Tensor | None  # (N,) int64 identities or (N, A) attributes, where they are known
    who: Tensor | None  # the same of the clips, where the people are those in them
    again: Callable[
        [], Tensor
    ]  # (B, 3, T, S, S): the clips' frames in another augmentation, made when asked for
    other: Callable[[], Tensor]  # (B, 3, T, S, S): other clips of the same videos, likewise


class Reel:
    """Videos of one split, all frames, small and square; clips of them by row and frame."""

    def __init__(self, dataset: Dataset, split: str, size: int, held: int, device: torch.device) -> None:
        samples = [sample for sample in dataset.samples if sample.split == split]
        if not samples:
            raise VeilError(f"{dataset.name} has no {split} videos; check it with `veil data check`.")
        self.dataset, self.samples = dataset, []
        parts: list[Tensor] = []
        lengths: list[int] = []
        room = ROOM
        for sample, frames in FrameReader(dataset, size=size).each(samples):
            small = square(_middle(frames, held), size)
            room -= small.nbytes
            if room < 0:
                raise VeilError(
                    f"the {split} videos of {dataset.name} do not fit into {ROOM >> 30} GiB at {size} pixels: "
                    "keep fewer frames of each (stage.held), or fewer pixels (stage.size)."
                )
            parts.append(torch.from_numpy(small))
            lengths.append(len(small))
            self.samples.append(sample)
        self.frames = torch.cat(parts).to(device)  # (M, S, S, 3) uint8
        self.lengths = torch.tensor(lengths)  # (N,)
        self.first = torch.tensor([0, *lengths[:-1]]).cumsum(0)  # (N,)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def still(self) -> bool:
        """Whether these are pictures rather than videos."""
        return bool((self.lengths == 1).all())

    def clips(self, rows: Tensor, when: Tensor) -> Tensor:
        """Frames ``when`` ``(B, T)`` of videos ``rows`` ``(B,)`` as ``(B, 3, T, S, S)`` uint8; past the end, the last one."""
        when = torch.minimum(when.clamp_min(0), self.lengths[rows, None] - 1)
        return self.frames[(self.first[rows, None] + when).to(self.frames.device)].permute(0, 4, 1, 2, 3)

    def truth(self, target: Literal["action", "identity", "attributes"]) -> Tensor | None:
        """What is known of each video: ``(N,)`` int64 or, of attributes, ``(N, A)`` float; None where it is not."""
        if target == "attributes":
            told = [sample.attributes for sample in self.samples]
            return torch.tensor(told, dtype=torch.float32) if all(told) and self.dataset.attributes else None
        answers = [getattr(sample, target) for sample in self.samples]
        if any(answer is None for answer in answers) or len(set(answers)) < 2:
            return None
        return torch.tensor(answers, dtype=torch.int64)

    def private(self) -> Tensor | None:
        """Who is seen, or else what can be seen of them."""
        identities = self.truth("identity")
        return self.truth("attributes") if identities is None else identities


def _middle(frames: Frames, held: int) -> Frames:
    first = max(0, (len(frames) - held) // 2)
    return frames[first : first + held]


class Staged:
    """A stage with its videos in memory."""

    def __init__(self, stage: Stage, device: torch.device, seed: int) -> None:
        self.stage, self.device, self.seed = stage, device, seed
        use = stage.use.read(stage.size)
        self.train = Reel(use, "train", stage.size, stage.held, device)
        self.val = Reel(use, "val", stage.size, stage.held, device)
        self.people = self.train
        if stage.private is not None:
            self.people = Reel(stage.private.read(stage.size), "train", stage.size, stage.held, device)
        self.actions = self._actions(self.train)
        self.outputs = len(use.attributes if self.actions.ndim == 2 else use.actions)
        self.private = self.people.private()
        self.who = self.private if self.people is self.train else None
        preset = PRESETS[stage.augment]
        chances = preset.flip if stage.flip else 0.0
        self.augment = replace(preset, size=stage.size, length=stage.length, skip=stage.skip, flip=chances)
        if stage.pairs != "views" and self.people.still:
            raise VeilError(
                f"{self.people.dataset.name} has stills, of which no two frames can be taken: "
                'set stage.pairs = "views".'
            )

    @property
    def kinds(self) -> int:
        """How many private answers there are: people, or attributes."""
        if self.private is None:
            raise VeilError(
                f"the training videos of {self.people.dataset.name} say neither who is seen nor any attribute, "
                "and this method learns from such labels: choose other data, or a method that needs none, such as spact."
            )
        dataset = self.people.dataset
        return len(dataset.attributes) if self.private.ndim == 2 else len(dataset.identities)

    def __call__(self, number: int) -> Batch:
        """The batch of that number, from 0; where there are several processes, this one's share of it."""
        stage = self.stage
        dice = torch.Generator().manual_seed(self.seed * 1_000_003 + number * 8191 + rank())
        count, pairs = max(1, stage.batch // world()), max(1, stage.stills // world())
        rows = torch.randint(len(self.train), (count,), generator=dice)
        when = self._moments(rows, dice)
        clip = self.train.clips(rows, when)
        chosen = torch.randint(len(self.people), (pairs,), generator=dice)
        here, there = self._partners(chosen, dice)
        first, second = self.people.clips(chosen, here[:, None]), self.people.clips(chosen, there[:, None])
        change = self.augment
        views = change.train(first, dice), change.train(second, dice)
        return Batch(
            change.train(clip, dice),
            self.actions[rows].to(self.device),
            views[0][:, :, 0],
            views[1][:, :, 0],
            None if self.private is None else self.private[chosen].to(self.device),
            None if self.who is None else self.who[rows].to(self.device),
            lambda: change.train(clip, dice),
            lambda: change.train(self.train.clips(rows, self._moments(rows, dice)), dice),
        )

    def _moments(self, rows: Tensor, dice: torch.Generator) -> Tensor:
        """The frames ``(B, T)`` of a clip from anywhere in each video; of a short one, closer together."""
        lengths = self.train.lengths[rows]
        steps = torch.clamp((lengths - 1) // max(1, self.stage.length - 1), 1, self.stage.skip)
        free = (lengths - (self.stage.length - 1) * steps).clamp_min(1)
        start = (torch.rand(len(rows), generator=dice) * free).long()
        return start[:, None] + steps[:, None] * torch.arange(self.stage.length)

    def _partners(self, rows: Tensor, dice: torch.Generator) -> tuple[Tensor, Tensor]:
        """Two frames of each video, as far apart as the stage says."""
        lengths, count = self.people.lengths[rows], len(rows)
        here = (torch.rand(count, generator=dice) * lengths).long()
        if self.stage.pairs == "views":
            return here, here
        if self.stage.pairs == "near":
            away = torch.randint(1, 8, (count,), generator=dice) * (
                2 * torch.randint(2, (count,), generator=dice) - 1
            )
            there = (here + away).clamp_min(0)
            return here, torch.minimum(there, lengths - 1)
        there = (torch.rand(count, generator=dice) * lengths).long()
        if self.stage.pairs == "far":  # a video that is too short for 64 frames gives its ends
            here = (torch.rand(count, generator=dice) * (lengths - 64).clamp_min(1)).long()
            there = torch.minimum(
                here + 64 + (torch.rand(count, generator=dice) * (lengths - here - 64).clamp_min(1)).long(),
                lengths - 1,
            )
        return here, there

    def _actions(self, reel: Reel) -> Tensor:
        """The one action of each video, or, where a dataset has tags only, all of them."""
        actions = reel.truth("action")
        actions = reel.truth("attributes") if actions is None else actions
        if actions is None:
            raise VeilError(
                f"the videos of {reel.dataset.name} do not say two different actions: "
                "choose data whose actions are to be kept."
            )
        return actions

    def check(self, redraw: nn.Module, task: nn.Module) -> dict[str, float]:
        """How well the use still sees the action in validation videos after anonymization: top-1, or class-mean AP."""
        mode = redraw.training
        redraw.eval()
        found = self.score(self.answers(redraw, task))
        redraw.train(mode)
        return {"action": found}

    @torch.no_grad()
    def answers(self, redraw: Callable[[Tensor], Tensor], task: nn.Module) -> Tensor:
        """What a network of actions says of validation videos, one clip of the middle of each: probabilities ``(N, K)``."""
        rows = self._looked_at()
        lengths, length = self.val.lengths[rows], self.stage.length
        steps = torch.clamp((lengths - 1) // max(1, length - 1), 1, self.stage.skip)
        start = (lengths - 1 - steps * (length - 1)).clamp_min(0) // 2
        when = start[:, None] + steps[:, None] * torch.arange(length)
        mode = task.training
        task.eval()
        found = []
        for some in torch.arange(len(rows)).split(self.stage.batch):
            clip = self.val.clips(rows[some], when[some]).float() / 255
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                found.append(task(redraw(clip)).double().cpu())
        task.train(mode)
        logits = torch.cat(found)
        return logits.sigmoid() if self.actions.ndim == 2 else logits.softmax(1)

    def score(self, answers: Tensor) -> float:
        """How right these `answers` are."""
        right = self._actions(self.val)[self._looked_at()].numpy()
        scored = class_mean_average_precision if right.ndim == 2 else top1
        return scored(answers.numpy(), right).value

    def _looked_at(self) -> Tensor:
        return torch.arange(0, len(self.val), max(1, len(self.val) // CHECKED))


def setup(device: torch.device, devices: int, seed: int, *, ema: float | None = None) -> Setup:
    """How a game of pixels is played on a device: in bf16 and channels-last where it is a GPU."""
    cuda = device.type == "cuda"
    return Setup(
        seed=seed,
        precision="bf16" if cuda else "fp32",
        clip=5.0,
        ema=ema,
        channels_last=cuda,
        devices=devices,
    )


def of_clips(name: str, outputs: int, stage: Stage, weights: str | None = None) -> image.Network:
    """A network of clips of the stage."""
    return video.make(name, outputs, frames=stage.length, size=stage.size, weights=weights)


def of_frames(name: str, outputs: int, stage: Stage, weights: str | None = None) -> image.Network:
    """A network of frames of the stage."""
    return image.make(name, outputs, size=stage.size, weights=weights)
