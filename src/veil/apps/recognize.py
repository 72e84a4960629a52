"""The recipe of a recognizer on raw video, with which an attack of `veil audit` can begin."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from veil.audit.recognition import RecognizerInput, RecognizerSpec, TrainingBudget
from veil.audit.recognizer_training import RecognizerBatches, new_recognizer, validate
from veil.audit.videos import gather
from veil.core import VeilError
from veil.data import read as read_data
from veil.training.phase import Phase
from veil.training.precision import mixed_precision
from veil.training.recipe import STRICT, LearningRate, Seed, Training
from veil.training.schedule import LRSchedule
from veil.training.steps import Step


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RecognizerData:
    """`[data]` of a recognizer."""

    name: str = "synthetic"
    root: str | None = None
    options: dict[str, str | int] = Field(default_factory=dict)
    target: Literal["action", "identity", "attributes"] = "action"  # the label to recognize
    size: Annotated[int, Field(ge=16, le=512)] = 56  # pixels
    length: Annotated[int, Field(ge=1, le=64)] = 8  # frames in a clip
    batch: Annotated[int, Field(ge=1)] = 32
    max_frames: Annotated[int, Field(ge=1, le=256)] = 16  # cached of each video


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RecognizerNetwork:
    """`[utility]` of a recognizer."""

    network: str = "small3d"
    sees: RecognizerInput = "clips"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RecognizerSchedule:
    """`[schedule]` of a recognizer."""

    steps: Annotated[int, Field(ge=2)] = 600
    lr: LearningRate = 3e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.02
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None  # decay of the averaged weights


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RecognizeRecipe:
    """A recognizer of actions, identities or attributes, trained on raw video, for `veil audit --weights NET=RUN`."""

    data: RecognizerData = Field(default_factory=RecognizerData)
    utility: RecognizerNetwork = Field(default_factory=RecognizerNetwork)
    schedule: RecognizerSchedule = Field(default_factory=RecognizerSchedule)
    seed: Seed = 0

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.schedule.steps

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        data, schedule, target = self.data, self.schedule, self.data.target
        options = {"size": data.size} if data.name == "synthetic" else {}
        dataset = read_data(data.name, data.root, **{**options, **data.options})
        videos = gather(dataset, None, size=data.size, frames=data.max_frames)
        train, val = videos.split("train"), videos.split("val").to(device)
        if target not in train.targets() or target not in val.targets():
            raise VeilError(
                f"the videos of {data.name} have no labels of data.target = {target}: choose another target.",
                code="target-labels-missing",
            )
        frames, labels = train.frames.to(device), train.truth(target).to(device)
        budget = TrainingBudget(
            steps=schedule.steps, batch=data.batch, lr=schedule.lr, clip_length=data.length
        )
        recognizer = RecognizerSpec(self.utility.network, self.utility.sees)
        trained = new_recognizer(
            recognizer, target, frames, len(train.classes(target)), budget, self.seed, None
        )
        trained.net.to(device)
        decay = LRSchedule(warmup=schedule.steps // 20, shape="cosine", updates=schedule.steps, floor=0.01)
        step = Step(
            "recognize", (trained.net,), trained.terms, schedule.lr, "adamw", schedule.weight_decay, decay
        )
        return Training(
            Phase([step], mixed_precision(device, devices, self.seed, ema=schedule.ema)),
            RecognizerBatches(recognizer, frames, labels, budget, self.seed, mirror=target != "action"),
            lambda: {"val": validate(trained, val)[0]},
            trained.net.state_dict,
            metadata={"mean": trained.mean.tolist(), "std": trained.std.tolist()},
        )
