"""Training from a recipe: every recipe is a game, batches by number, and a check on validation data.

``veil train RECIPE.toml -o RUN`` plays the game, logs, saves, and keeps the checkpoint that does best in the check; after
a kill it goes on from the last checkpoint as if nothing had happened, since a batch is a function of its number.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import distributed

from veil.audit.recognition import RecognizerInput, RecognizerSpec, TrainingBudget
from veil.audit.recognizer_training import RecognizerBatches, new_recognizer, validate
from veil.audit.videos import gather
from veil.core import VeilError
from veil.data import read as read_data
from veil.data.listing import NoFolder
from veil.features import splavu
from veil.features.encoder_training import EncoderRecipe
from veil.methods import learned
from veil.training import config
from veil.training.fit import (
    LRSchedule,
    NotFinite,
    Phase,
    Setup,
    Step,
    StepResult,
    fit,
    is_batch_too_small,
    is_out_of_memory,
    launch,
    rank,
    torch_device,
    world_size,
)
from veil.training.recipe import STRICT, Recipe, Seed, Training
from veil.training.run import Run

Progress = Callable[[int, int, dict[str, float]], None]  # step, steps in all, what was measured last


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Recognize:
    """A recognizer of actions, people or attributes, trained on raw video: `--weights NET=RUN` begins an attack with it."""

    target: Literal["action", "identity", "attributes"] = "action"
    net: str = "small3d"
    sees: RecognizerInput = "clips"
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
    seed: Seed = 0

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        options = {"size": self.size} if self.data == "synthetic" else {}
        dataset = read_data(self.data, self.root, **{**options, **self.options})
        videos = gather(dataset, None, size=self.size, frames=self.frames)
        train, val = videos.split("train"), videos.split("val").to(device)
        if self.target not in train.targets() or self.target not in val.targets():
            raise VeilError(f"the videos of {self.data} do not say {self.target}; choose another target.")
        frames, truth = train.frames.to(device), train.truth(self.target).to(device)
        budget = TrainingBudget(steps=self.steps, batch=self.batch, lr=self.lr, clip_length=self.length)
        recognizer = RecognizerSpec(self.net, self.sees)
        trained = new_recognizer(
            recognizer, self.target, frames, len(train.classes(self.target)), budget, self.seed, None
        )
        trained.net.to(device)
        cuda = device.type == "cuda"
        plan = LRSchedule(warmup=self.steps // 20, shape="cosine", updates=self.steps, floor=0.01)
        move = Step("learn", (trained.net,), trained.terms, self.lr, "adamw", self.weight_decay, plan)
        setup = Setup(
            seed=self.seed,
            precision="bf16" if cuda else "fp32",
            clip=5.0,
            ema=self.ema,
            channels_last=cuda,
            devices=devices,
        )
        batches = RecognizerBatches(
            recognizer, frames, truth, budget, self.seed, mirror=self.target != "action"
        )
        return Training(
            Phase([move], setup),
            batches,
            lambda: {"val": validate(trained, val)[0]},
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


def _told(method: str, plain: dict[str, Any], *arguments: Any) -> Path:
    """`_train`, where what does not fit is told by its key in this recipe."""
    try:
        return _train(method, plain, *arguments)
    except NoFolder as error:
        raise VeilError(
            f"{error.what} is read from disk: add --set {_unread(plain)}=FOLDER, which holds it."
        ) from error
    except (RuntimeError, MemoryError, ValueError) as error:  # torch.OutOfMemoryError is a RuntimeError
        *most, last = _named(_flat(plain), "batch", "stills", "size")
        sizes = " or ".join(filter(None, (", ".join(most), last)))
        if is_batch_too_small(error):
            raise VeilError(
                "a network standardises over its batch, and a batch of this recipe has a single value for it: "
                f"begin a new run with a higher {sizes}."
            ) from error
        if not is_out_of_memory(error):
            raise
        why = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    raise VeilError(
        f"this training does not fit into memory ({why or 'nothing more is told'}): "
        f"begin a new run with a lower {sizes}."
    )


def _flat(plain: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The values of a recipe by their dotted keys, without the options of datasets."""
    found: dict[str, Any] = {}
    for key, value in plain.items():
        if key != "options":
            found |= _flat(value, f"{at}{key}.") if isinstance(value, Mapping) else {at + key: value}
    return found


def _named(values: Mapping[str, Any], *names: str) -> list[str]:
    """The keys that end in these names, name by name."""
    return [key for name in names for key in values if key.rpartition(".")[2] == name]


def _unread(plain: Mapping[str, Any]) -> str:
    """The key of the first folder that is not named, of a dataset that is."""
    values = _flat(plain)
    for key in _named(values, "root"):
        data = [values.get(key.removesuffix("root") + beside) for beside in ("name", "data")]
        if values[key] is None and set(data) - {None, "synthetic"}:
            return key
    return "root"


def _rates(plain: Mapping[str, Any]) -> str:
    every = {key: value for key, value in _flat(plain).items() if key.rpartition(".")[2].startswith("lr")}
    return ", ".join(f"{key} = {value:g}" for key, value in every.items())


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
    where = torch_device(device)
    recipe = config.checked(plain, RECIPES[method])
    if resume:
        run = Run.open(output, recipe=plain, kind=method, seed=recipe.seed, tensorboard=tensorboard)
    else:
        run = Run.create(output, plain, method, recipe.seed, tensorboard=tensorboard)
    weights = output / "weights.safetensors"
    if run.finished and weights.is_file():  # also one that stopped before its last step
        return weights
    with run:
        training = None
        try:
            training = recipe.training(where, devices)
            _play(run, training, recipe.steps, resume, every, progress)
        except BaseException as error:
            last = run.last
            interrupted = training is not None and not isinstance(error, Exception)
            if not resume and not interrupted:
                run.remove_if_empty()
                if is_batch_too_small(error) and rank() == 0:  # this recipe can never be resumed
                    shutil.rmtree(output, ignore_errors=True)
            if not isinstance(error, NotFinite):
                raise
            kept = "no checkpoint was made yet" if last is None else f"the checkpoint of step {last} is kept"
            raise VeilError(f"{error} (now {_rates(plain)}); {kept}.") from error
    return weights


def _play(
    run: Run, training: Training, steps: int, resume: bool, every: int | None, progress: Progress | None
) -> None:
    game = training.game
    first = run.load(game) if resume else 0
    best = max((r["val"] for r in run.records() if "val" in r and r["step"] <= first), default=-math.inf)
    every = every or max(50, steps // 20)
    latest: dict[str, StepResult] = {}  # of each move, the last turn that was not logged yet
    results = fit(game, map(training.batch, range(first, steps)))
    for measured in _logged_on_error(results, run, latest):
        latest[measured.step_name] = measured
        stopped = training.stop(measured)
        if measured.step % every and measured.step != steps and not stopped:
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
            progress(measured.step, steps, {**{k: float(v) for k, v in measured.terms.items()}, **found})
        if stopped:
            break
    if world_size() > 1:
        distributed.barrier()  # the best checkpoint is there when the first process has written it
    if best > -math.inf:
        run.load(game, "best")
    if rank() == 0:
        run.publish(training.weights(), training.told)
        run.plot()
    run.finish()


def _logged_on_error(
    results: Iterator[StepResult], run: Run, latest: Mapping[str, StepResult]
) -> Iterator[StepResult]:
    """The results of a training; where it fails, the latest ones are logged first, since they may show why."""
    try:
        yield from results
    except Exception:
        with suppress(VeilError, RuntimeError):  # a full disk, or a GPU that failed: the first error counts
            for result in sorted(latest.values()):
                run.log(result)
        raise
