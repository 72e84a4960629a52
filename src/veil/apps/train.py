"""Training from a recipe, and all recipes by method: phases, batches by number, and a check on validation data.

``veil train RECIPE.toml -o RUN`` trains, logs, saves, and keeps the checkpoint with the best check; after a kill it resumes
from the last checkpoint with the same result, since a batch is a function of its number.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from veil.apps.recognize import RecognizeRecipe
from veil.core import Progress, VeilError
from veil.data.listing import FolderNotGiven
from veil.features.registry import RECIPES as FEATURE_RECIPES
from veil.methods.recipes import RECIPES as PIXEL_RECIPES
from veil.training import config
from veil.training.distributed import launch, rank, world_size
from veil.training.fit import fit
from veil.training.memory import is_batch_too_small, is_out_of_memory, torch_device
from veil.training.recipe import Recipe, Training
from veil.training.run import Run
from veil.training.steps import NotFinite, StepResult

RECIPES: dict[str, type[Recipe]] = {
    **PIXEL_RECIPES,
    **FEATURE_RECIPES,
    "recognize": RecognizeRecipe,
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
    """Train a recipe into a run folder, and return the weights that were best on validation data.

    `progress` gets the step, the number of steps, and the values that were measured last.
    """
    method = config.kind_of(recipe)
    if method not in RECIPES:
        raise VeilError(
            f"{recipe} is of method '{method}', which cannot be trained{config.nearest(method, RECIPES)}: "
            f"choose one of {', '.join(RECIPES)}.",
            code="method-unknown",
        )
    made = config.read(recipe, RECIPES[method], sets)
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    accelerator = "cuda" if where.startswith("cuda") else "cpu"
    arguments = (method, config.as_dict(made), Path(output), resume, devices, where, every, tensorboard)
    if devices == 1:  # nothing is pickled then, and progress can be shown
        arguments = (*arguments, progress)
    return launch(_with_keys, devices, *arguments, accelerator=accelerator)


def _with_keys(method: str, plain: dict[str, Any], *arguments: Any) -> Path:
    """`_train`, with the keys of this recipe in the messages of its errors."""
    try:
        return _train(method, plain, *arguments)
    except FolderNotGiven as error:
        raise VeilError(
            f"{error.dataset} is read from a folder: add --set {_missing_root(plain)}=FOLDER.",
            code="data-root-missing",
        ) from error
    except (RuntimeError, MemoryError, ValueError) as error:  # torch.OutOfMemoryError is a RuntimeError
        *most, last = _ending_in(_flat(plain), "batch", "image_pairs", "size")
        sizes = " or ".join(filter(None, (", ".join(most), last)))
        if is_batch_too_small(error):
            raise VeilError(
                "batch normalisation needs more than one value for each channel, and a batch of this recipe has one: "
                f"begin a new run with a higher {sizes}.",
                code="batch-too-small",
            ) from error
        if not is_out_of_memory(error):
            raise
        reason = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    raise VeilError(
        f"this training does not fit into memory{f' ({reason})' if reason else ''}: "
        f"begin a new run with a lower {sizes}.",
        code="out-of-memory",
    )


def _flat(plain: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The values of a recipe by their dotted keys, without the options of datasets."""
    found: dict[str, Any] = {}
    for key, value in plain.items():
        if key != "options":
            found |= _flat(value, f"{at}{key}.") if isinstance(value, Mapping) else {at + key: value}
    return found


def _ending_in(values: Mapping[str, Any], *names: str) -> list[str]:
    """The dotted keys that end in these names, name by name."""
    return [key for name in names for key in values if key.rpartition(".")[2] == name]


def _missing_root(plain: Mapping[str, Any]) -> str:
    """The key of the first folder that is not given, of a dataset on disk."""
    values = _flat(plain)
    for key in _ending_in(values, "root"):
        name = values.get(key.removesuffix("root") + "name")
        if values[key] is None and name not in (None, "synthetic"):
            return key
    return "data.root"


def _learning_rates(plain: Mapping[str, Any]) -> str:
    rates = {key: value for key, value in _flat(plain).items() if key.rpartition(".")[2].startswith("lr")}
    return ", ".join(f"{key} = {value:g}" for key, value in rates.items())


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
            _run_loop(run, training, recipe.steps, resume, every, progress)
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
            raise VeilError(
                f"{error} (now {_learning_rates(plain)}); {kept}.", code="loss-not-finite"
            ) from error
    return weights


def _run_loop(
    run: Run, training: Training, steps: int, resume: bool, every: int | None, progress: Progress | None
) -> None:
    phases = training.phases
    first = run.load(phases) if resume else 0
    best = max((r["val"] for r in run.records() if "val" in r and r["step"] <= first), default=-math.inf)
    every = every or max(50, steps // 20)
    latest: dict[str, StepResult] = {}  # of each step name, the last result that is not logged yet
    results = fit(phases, map(training.batch, range(first, steps)))
    for measured in _logged_on_error(results, run, latest):
        latest[measured.step_name] = measured
        stopped = training.stop(measured)
        if measured.step % every and measured.step != steps and not stopped:
            continue
        for result in sorted(latest.values()):
            run.log(result)
        latest.clear()
        found = training.check()
        run.log(found, measured.step)
        better = "val" in found and found["val"] > best
        run.save(phases, best=better)
        best = found["val"] if better else best
        if progress:
            values = {name: float(value) for name, value in measured.terms.items()} | found
            progress(measured.step, steps, ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
        if stopped:
            break
    if world_size() > 1:
        distributed.barrier()  # the best checkpoint is there when the first process has written it
    if best > -math.inf:
        run.load(phases, "best")
    if rank() == 0:
        run.publish(training.weights(), training.metadata)
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
