"""`veil train`: train an anonymizer from a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from veil.cli.arguments import Flag, Output
from veil.cli.terminal import print_result, progress_bar


def train(
    recipe: str,
    /,
    *,
    output: Output,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = (),
    resume: Flag = False,
    devices: int = 1,
    device: str | None = None,
    tensorboard: Flag = False,
) -> int:
    """Train by a recipe; the run folder holds the recipe, the log, checkpoints and the weights.

    Parameters
    ----------
    recipe
        A TOML file.
    output
        The folder of the run.
    set_
        KEY=VALUE: change one value of the recipe; may be given several times.
    resume
        Continue after an interruption, exactly as if there had been none.
    devices
        Processes, each with a GPU of its own where there are GPUs.
    device
        cpu or cuda [a GPU where there is one].
    tensorboard
        Write logs for TensorBoard too.
    """
    from veil.apps.train import train as run_training

    with progress_bar("training", "steps") as bar:
        last = ""

        def progress(done: int, total: int | None, message: str | None = None) -> None:
            nonlocal last
            last = message or ""
            bar(done, total)

        try:
            weights = run_training(
                recipe,
                output,
                sets=set_,
                resume=resume,
                devices=devices,
                device=device,
                tensorboard=tensorboard,
                progress=progress,
            )
        except KeyboardInterrupt as interrupt:
            if (Path(output) / "run.json").is_file():  # else it was stopped before it had begun
                interrupt.args = ("The same command with --resume continues the run.",)
            raise
    print_result(f"weights: {weights}" + (f"  (last: {last})" if last else ""))
    return 0
