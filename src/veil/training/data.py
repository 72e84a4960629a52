"""The stage on which learned pixel anonymizers are trained: videos at hand, batches by number, a look at the rest.

A *batch* holds clips of videos whose action is known, and pairs of pictures of people: two views of one still, or two
frames of one video. Where a method wants them, the batch also tells who or what the people are. Everything that is left to
chance in a batch is a function of the seed and the batch's number.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated, Literal, NamedTuple

import numpy as np
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
from veil.metrics import class_mean_average_precision, top1
from veil.nn import image, video
from veil.nn.classifier import Classifier, ClassifierSpec
from veil.training.config import nearest
from veil.training.fit import Setup, rank, world_size
from veil.training.recipe import STRICT

ROOM = (
    24 << 30
)  # bytes of frames that a split may take of memory; where there are more, they are kept on disk
CHECKED = 96  # validation videos that are looked at in training

Pairs = Literal["views", "frames", "near", "far"]
Kept = Literal["action", "attributes"]
Private = Literal["identity", "attributes"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Source:
    """A dataset, and which labels of it are used."""

    name: str
    root: str | None = None
    options: dict[str, str | int] = Field(default_factory=dict)
    actions: tuple[
        str, ...
    ] = ()  # only these; none: all. With others in the audit: the novel-action protocol
    attributes: tuple[str, ...] = ()  # likewise

    def __post_init__(self) -> None:
        if self.name == "synthetic" and self.root is not None:
            raise ValueError(
                f'name is "synthetic", whose videos are made, so that nothing of {self.root} would be read: '
                "set name to the dataset that lies there, or leave root out"
            )

    def read(self, size: int) -> Dataset:
        """The dataset; the synthetic world is made at that size."""
        options = {"size": size, **self.options} if self.name == "synthetic" else self.options
        return narrowed(read_data(self.name, self.root, **options), self.actions, self.attributes)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataConfig:
    """What is played with: which videos, how clips and pairs are taken from them, how many make a batch."""

    use: Source = Field(default_factory=lambda: Source(name="synthetic"))  # has the actions
    keep: Kept = "action"  # what of them is kept: one action a video, or the attributes, where these are tags of actions
    private: Source | None = None  # has the people to be hidden; none: those in the same videos
    # What of them is private; none: the attributes where some are chosen, or else who they are, or else all attributes.
    target: Private | None = None
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

    def __post_init__(self) -> None:
        people = "use" if self.private is None else "private"
        if people == "private" and self.keep == "action" and self.use.attributes:
            raise ValueError(
                "use.attributes would not be looked at: set private.attributes, of the people to be hidden"
            )
        if self.target == "identity" and self.chosen:
            raise ValueError(
                f'target = "identity" and {people}.attributes say two things: leave one of them out'
            )
        if self.target == self.keep == "attributes" and people == "use":
            raise ValueError(
                "the same attributes are to be kept and to be hidden: change keep, target or private"
            )

    @property
    def chosen(self) -> tuple[str, ...]:
        """The attributes of the people that were chosen to be hidden."""
        if self.private is not None:
            return self.private.attributes
        return self.use.attributes if self.keep == "action" else ()


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


class FrameCache:
    """Videos of one split, all frames, small and square; clips of them by row and frame."""

    def __init__(self, dataset: Dataset, split: str, size: int, held: int, device: torch.device) -> None:
        samples = [sample for sample in dataset.samples if sample.split == split]
        if not samples:
            raise VeilError(f"{dataset.name} has no {split} videos; check it with `veil data check`.")
        self.dataset, self.samples, self.device = dataset, [], device

        def videos() -> Iterator[Frames]:
            for sample, frames in FrameReader(dataset, size=size).each(samples):
                self.samples.append(sample)
                yield square(_middle(frames, held), size)

        self.frames, lengths = _stored(videos(), device)  # (M, S, S, 3) uint8
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
        chosen = self.frames[(self.first[rows, None] + when).to(self.frames.device)]
        return chosen.to(self.device).permute(0, 4, 1, 2, 3)

    def truth(self, target: Literal["action", "identity", "attributes"], least: int = 2) -> Tensor | None:
        """What is known of each video: ``(N,)`` int64 or, of attributes, ``(N, A)`` float.

        None where it is not, or where there are not even `least` different answers.
        """
        if target == "attributes":
            told = [sample.attributes for sample in self.samples]
            return torch.tensor(told, dtype=torch.float32) if all(told) and self.dataset.attributes else None
        answers = [getattr(sample, target) for sample in self.samples]
        if any(answer is None for answer in answers) or len(set(answers)) < least:
            return None
        return torch.tensor(answers, dtype=torch.int64)


def _middle(frames: Frames, held: int) -> Frames:
    first = max(0, (len(frames) - held) // 2)
    # A copy, so that the rest of the video can go.
    return frames if len(frames) <= held else frames[first : first + held].copy()


def _stored(videos: Iterable[Frames], device: torch.device) -> tuple[Tensor, list[int]]:
    """The frames of all videos one after another, and how many each has.

    On the device, where they fit into a quarter of what is free there; else in memory; else on disk, from where the frames
    of a batch are read when it is made. Nothing of it is ever there twice.
    """
    parts: list[Frames] = []
    lengths: list[int] = []
    room = min(ROOM, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
    shape: tuple[int, ...] = ()
    file: IO[bytes] | None = None
    for frames in videos:
        parts.append(frames)
        lengths.append(len(frames))
        shape = frames.shape[1:]
        room -= frames.nbytes
        if room < 0:
            file = _written(parts, file)
    shape = sum(lengths), *shape
    if file is not None:
        return torch.from_numpy(np.memmap(file, np.uint8, "c", shape=shape)), lengths
    if device.type == "cuda" and sum(part.nbytes for part in parts) > torch.cuda.mem_get_info(device)[0] // 4:
        device = torch.device("cpu")
    whole, end = torch.empty(shape, dtype=torch.uint8, device=device), sum(lengths)
    while parts:
        part = torch.from_numpy(parts.pop())
        whole[end - len(part) : end] = part
        end -= len(part)
    return whole, lengths


def _written(parts: list[Frames], file: IO[bytes] | None) -> IO[bytes]:
    """A file without a name, so that it is gone with the process; the parts go into it, out of memory."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "veil" / "frames"
    try:
        if file is None:
            folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        for part in parts:
            file.write(part.data)
        file.flush()
    except OSError as error:
        raise VeilError(
            f"the frames are more than fits into memory, and {folder} cannot take them ({error.strerror or error}): "
            "name a larger disk by XDG_CACHE_HOME, or keep fewer frames of each video (stage.held) or fewer pixels (stage.size)."
        ) from error
    parts.clear()
    return file


class TrainingData:
    """A stage with its videos at hand."""

    def __init__(self, stage: DataConfig, device: torch.device, seed: int) -> None:
        self.stage, self.device, self.seed = stage, device, seed
        use = stage.use.read(stage.size)
        if not (use.actions if stage.keep == "action" else use.attributes):  # before any frame is read
            raise VeilError(_nothing_to_keep(use, stage.keep))
        self.train = FrameCache(use, "train", stage.size, stage.held, device)
        self.val = FrameCache(use, "val", stage.size, stage.held, device)
        self.people = self.train
        if stage.private is not None:
            self.people = FrameCache(stage.private.read(stage.size), "train", stage.size, stage.held, device)
        self.actions, self.right = self._actions()  # of the training videos, of the validation videos
        self.outputs = len(use.attributes if self.actions.ndim == 2 else use.actions)
        self.private = self._private()
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
                f"the training videos of {self.people.dataset.name} say neither who is seen nor any attribute that is "
                "not to be kept, and this method learns from such labels: choose other data, or a method that needs "
                "none, such as spact."
            )
        dataset = self.people.dataset
        return len(dataset.attributes) if self.private.ndim == 2 else len(dataset.identities)

    def __call__(self, number: int) -> Batch:
        """The batch of that number, from 0; where there are several processes, this one's share of it."""
        stage = self.stage
        dice = torch.Generator().manual_seed(self.seed * 1_000_003 + number * 8191 + rank())
        count, pairs = max(1, stage.batch // world_size()), max(1, stage.stills // world_size())
        rows = torch.randint(len(self.train), (count,), generator=dice)
        when = self._moments(rows, dice)
        clip = self.train.clips(rows, when)
        chosen = torch.randint(len(self.people), (pairs,), generator=dice)
        here, there = self._partners(chosen, dice)
        first, second = self.people.clips(chosen, here[:, None]), self.people.clips(chosen, there[:, None])

        def changed(clips: Tensor) -> Tensor:
            with torch.autocast(self.device.type, enabled=False):  # a turn's, when it asks for more
                return self.augment.train(clips, dice)

        views = changed(first), changed(second)
        return Batch(
            changed(clip),
            self.actions[rows].to(self.device),
            views[0][:, :, 0],
            views[1][:, :, 0],
            None if self.private is None else self.private[chosen].to(self.device),
            None if self.who is None else self.who[rows].to(self.device),
            lambda: changed(clip),
            lambda: changed(self.train.clips(rows, self._moments(rows, dice))),
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
            away = torch.randint(1, 8, (count,), generator=dice)
            away = torch.where(torch.rand(count, generator=dice) < 0.5, away, -away)
            outside = (here + away < 0) | (here + away >= lengths)
            there = (here + torch.where(outside, -away, away)).clamp_min(0)
            return here, torch.minimum(there, lengths - 1)
        there = (torch.rand(count, generator=dice) * lengths).long()
        if self.stage.pairs == "far":  # a video that is too short gives its ends
            here = (torch.rand(count, generator=dice) * (lengths - 65).clamp_min(1)).long()
            more = (torch.rand(count, generator=dice) * (lengths - here - 65).clamp_min(1)).long()
            there = torch.minimum(here + 65 + more, lengths - 1)
        return here, there

    def _actions(self) -> tuple[Tensor, Tensor]:
        """The one action of each video, or, where attributes are kept, all of them."""
        train, val = self.train.truth(self.stage.keep), self.val.truth(self.stage.keep, least=1)
        if train is None or val is None:
            told = "two different actions" if self.stage.keep == "action" else "their attributes"
            raise VeilError(
                f"the videos of {self.train.dataset.name} do not say {told}: choose data whose actions are to be kept."
            )
        return train, val

    def _private(self) -> Tensor | None:
        """What is not to be seen of each of the people, where it is known."""
        wanted = self.stage.target or ("attributes" if self.stage.chosen else None)
        if wanted is None:
            found = self.people.truth("identity")
            kept = self.stage.keep == "attributes" and self.people is self.train
            return self.people.truth("attributes") if found is None and not kept else found
        found = self.people.truth(wanted)
        if found is None:
            knows = [known for known in ("identity", "attributes") if self.people.truth(known) is not None]
            raise VeilError(
                f"the training videos of {self.people.dataset.name} do not say the {wanted} of who is seen, which "
                f"stage.target asks for; they say {' and '.join(knows) or 'nothing that is private'}."
            )
        return found

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
        right = self.right[self._looked_at()].numpy()
        scored = class_mean_average_precision if right.ndim == 2 else top1
        return scored(answers.numpy(), right).value

    def _looked_at(self) -> Tensor:
        return torch.arange(0, len(self.val), max(1, len(self.val) // CHECKED))


def _nothing_to_keep(dataset: Dataset, keep: Kept) -> str:
    if keep == "attributes":
        return f'{dataset.name} has no attributes, which stage.keep = "attributes" keeps: leave that out.'
    tags = (
        ', or set stage.keep = "attributes" where its attributes are tags of actions'
        if dataset.attributes
        else ""
    )
    return f"{dataset.name} has no actions, which are what is kept: choose other data{tags}."


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


class Standardized(Classifier):
    """A network that sees (x − mean) / deviation, as published weights want it; what goes in stays in [0, 1]."""

    mean: Tensor  # (3,)
    deviation: Tensor

    def __init__(self, net: Classifier, entry: ClassifierSpec) -> None:
        super().__init__()
        self.net, self.dim, self.last = net, net.dim, f"net.{net.last}"
        self.register_buffer("mean", torch.tensor(entry.mean))
        self.register_buffer("deviation", torch.tensor(entry.std))

    def _seen(self, x: Tensor) -> Tensor:
        shape = 3, *[1] * (x.ndim - 2)
        return (x - self.mean.view(shape)) / self.deviation.view(shape)

    def features(self, x: Tensor) -> Tensor:
        """See `Classifier`."""
        return self.net.features(self._seen(x))

    def forward(self, x: Tensor) -> Tensor:
        """See `Classifier`."""
        return self.net(self._seen(x))


def named(clips: Iterable[str], frames: Iterable[str] = ()) -> None:
    """Refuse networks that are not there, before any video is read."""
    for names, nets, word in ((clips, video.VIDEO_NETS, "clips"), (frames, image.IMAGE_NETS, "frames")):
        for name in names:
            if name not in nets:
                raise VeilError(
                    f"there is no network of {word} '{name}'{nearest(name, nets)}; there are {', '.join(nets)}."
                )


def of_clips(name: str, outputs: int, stage: DataConfig, weights: str | None = None) -> Classifier:
    """A network of clips of the stage; with published weights, behind their standardisation."""
    net = video.make(name, outputs, frames=stage.length, size=stage.size, weights=weights)
    return net if weights is None else Standardized(net, video.VIDEO_NETS[name])


def of_frames(name: str, outputs: int, stage: DataConfig, weights: str | None = None) -> Classifier:
    """A network of frames of the stage; likewise."""
    net = image.make(name, outputs, size=stage.size, weights=weights)
    return net if weights is None else Standardized(net, image.IMAGE_NETS[name])
