"""Training from a recipe: every recipe is a game, batches by number, and a check on validation data.

``veil train RECIPE.toml -o RUN`` plays the game, logs, saves, and keeps the checkpoint that does best in the check; after
a kill it goes on from the last checkpoint as if nothing had happened, since a batch is a function of its number.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from safetensors.torch import save_file
from torch import distributed

from veil import config
from veil.audit.footage import gather
from veil.audit.recognize import Batches, Effort, Recognizer, Sees, fresh, validated
from veil.core import VeilError
from veil.data import read as read_data
from veil.draft import Draft
from veil.fit import Game, Measured, Move, Schedule, Setup, fit, is_out_of_memory, launch, rank, world
from veil.methods import learned, splavu
from veil.nn.encoder_training import EncoderRecipe
from veil.recipe import STRICT, Recipe, Training
from veil.run import Run

Progress = Callable[[int, int, dict[str, float]], None]  # step, steps in all, what was measured last


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Recognize:
    """A recognizer of actions, people or attributes, trained on raw video: `--weights NET=RUN` begins an attack with it."""

    target: Literal["action", "identity", "attributes"] = "action"
    net: str = "small3d"
    sees: Sees = "clips"
    data: str = "synthetic"
    root: str | None = None
    options: dict[str, str | int] = Field(default_factory=dict)
    size: Annotated[int, Field(ge=16, le=512)] = 56
    frames: Annotated[int, Field(ge=1, le=256)] = 16  # kept of each video
    length: Annotated[int, Field(ge=1, le=64)] = 8  # of a clip
    steps: Annotated[int, Field(ge=2)] = 600
    batch: Annotated[int, Field(ge=1)] = 32
    lr: Annotated[float, Field(gt=0)] = 3e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.02
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    seed: int = 0

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        options = {"size": self.size} if self.data == "synthetic" else {}
        dataset = read_data(self.data, self.root, **{**options, **self.options})
        footage = gather(dataset, None, size=self.size, frames=self.frames)
        train, val = footage.split("train"), footage.split("val").to(device)
        if self.target not in train.targets() or self.target not in val.targets():
            raise VeilError(f"the videos of {self.data} do not say {self.target}; choose another target.")
        frames, truth = train.frames.to(device), train.truth(self.target).to(device)
        effort = Effort(steps=self.steps, batch=self.batch, lr=self.lr, length=self.length)
        recognizer = Recognizer(self.net, self.sees)
        trained = fresh(
            recognizer, self.target, frames, len(train.classes(self.target)), effort, self.seed, None
        )
        trained.net.to(device)
        cuda = device.type == "cuda"
        plan = Schedule(warmup=self.steps // 20, shape="cosine", updates=self.steps, floor=0.01)
        move = Move("learn", (trained.net,), trained.terms, self.lr, "adamw", self.weight_decay, plan)
        setup = Setup(
            seed=self.seed,
            precision="bf16" if cuda else "fp32",
            clip=5.0,
            ema=self.ema,
            channels_last=cuda,
            devices=devices,
        )
        batches = Batches(recognizer, frames, truth, effort, self.seed, mirror=self.target != "action")
        return Training(
            Game([move], setup),
            batches,
            lambda: {"val": validated(trained, val)[0]},
            trained.net.state_dict,
            told={"mean": trained.mean.tolist(), "std": trained.std.tolist()},
        )


RECIPES: dict[str, type[Recipe]] = {
    "recognize": Recognize,
    "encoder": EncoderRecipe,
    "splavu": splavu.SPLAVU,
    **learned.RECIPES,
}


def train(
    recipe: str | Path,
    output: str | Path,
    *,
    sets: tuple[str, ...] = (),
    resume: bool = False,
    devices: int = 1,
    device: str | None = None,
    every: int | None = None,
    tensorboard: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Train what a recipe says into a run folder, and return the weights that did best on validation data."""
    method = config.kind_of(recipe)
    if method not in RECIPES:
        raise VeilError(
            f"{recipe} is of method '{method}'{config.nearest(method, RECIPES)}; there are {', '.join(RECIPES)}."
        )
    made = config.read(recipe, RECIPES[method], sets)
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    accelerator = "cuda" if where.startswith("cuda") else "cpu"
    arguments = (method, config.as_dict(made), Path(output), resume, devices, where, every, tensorboard)
    if devices == 1:  # nothing is pickled then, and progress can be shown
        arguments = (*arguments, progress)
    return launch(_told, devices, *arguments, accelerator=accelerator)


def _told(*arguments: Any) -> Path:
    """`_train`, where a memory that is full is a sentence."""
    try:
        return _train(*arguments)
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if not is_out_of_memory(error):
            raise
        why = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    raise VeilError(
        f"this training does not fit into memory ({why or 'nothing more is told'}): "
        "begin a new run with a lower stage.batch, stage.stills or stage.size."
    )


def _train(
    method: str,
    plain: dict[str, Any],
    output: Path,
    resume: bool,
    devices: int,
    device: str,
    every: int | None,
    tensorboard: bool,
    progress: Progress | None = None,
) -> Path:
    if device == "cuda" and devices > 1:
        device = f"cuda:{rank() % torch.cuda.device_count()}"
    recipe = config.checked(plain, RECIPES[method])
    if resume:
        run = Run.open(output, recipe=plain, kind=method, seed=recipe.seed, tensorboard=tensorboard)
    else:
        run = Run.create(output, plain, method, recipe.seed, tensorboard=tensorboard)
    weights = output / "weights.safetensors"
    if run.finished and weights.is_file():  # also one that stopped before its last step
        return weights
    with run:
        try:
            training = recipe.training(torch.device(device), devices)
        except BaseException:
            if not resume and rank() == 0:
                shutil.rmtree(output)  # it was made a moment ago, and a run that cannot begin is none
            raise
        game = training.game
        first = run.load(game) if resume else 0
        best = max((r["val"] for r in run.records() if "val" in r and r["step"] <= first), default=-math.inf)
        every = every or max(50, recipe.steps // 20)
        latest: dict[str, Measured] = {}  # of each move, the last turn that was not logged yet
        for measured in fit(game, map(training.batch, range(first, recipe.steps))):
            latest[measured.move] = measured
            stopped = training.stop(measured)
            if measured.step % every and measured.step != recipe.steps and not stopped:
                continue
            for turn in sorted(latest.values()):
                run.log(turn)
            latest.clear()
            found = training.check()
            run.log(found, measured.step)
            better = "val" in found and found["val"] > best
            run.save(game, best=better)
            best = found["val"] if better else best
            if progress:
                progress(
                    measured.step, recipe.steps, {**{k: float(v) for k, v in measured.terms.items()}, **found}
                )
            if stopped:
                break
        if world() > 1:
            distributed.barrier()  # the best checkpoint is there when the first process has written it
        if best > -math.inf:
            run.load(game, "best")
        if rank() == 0:
            draft = Draft(weights, overwrite=True)
            tensors = {name: value.contiguous() for name, value in training.weights().items()}
            save_file(tensors, draft.path, {key: json.dumps(value) for key, value in training.told.items()})
            draft.publish()
            run.plot()
        run.finish()
    return weights
