"""`veil data`: check datasets and look at them."""

from __future__ import annotations

import json as jsons
from pathlib import Path
from typing import Literal

from cyclopts import App

from veil.cli.arguments import Flag, Output, Repeated, data_options
from veil.cli.terminal import out, print_error, print_result

app = App(name="data", help="Datasets: see whether one is usable, and look at it.")


@app.command
def check(
    name: str,
    root: str | None = None,
    /,
    *,
    option: Repeated = (),
    sheet: str | None = None,
    json: Flag = False,
) -> int:
    """List what of a dataset is there and what is missing; exit with 0 when it is usable, with 2 when not.

    Parameters
    ----------
    name
        The dataset, such as ucf101 or utd-mhad; `veil list datasets` shows all.
    root
        The folder that holds it, laid out as its authors publish it. The synthetic dataset needs none.
    option
        KEY=VALUE for its reader, such as split=2 or labels=FOLDER; may be given several times.
    sheet
        Picture to write, with some of its samples.
    json
        Answer in JSON, with everything that was found.
    """
    from veil.apps.sheets import save_picture
    from veil.data.check import check as check_dataset

    result = check_dataset(name, root, data_options(option), sheet=24 if sheet else 6)
    if json:
        print(jsons.dumps(result.as_dict(), indent=1))
    else:
        print_result("\n".join(result.lines(out.width)))
        if result.problem:
            print_error(result.problem)
    if sheet and result.sheet:
        save_picture(result.sheet, Path(sheet))
    return result.exit_code


@app.command
def show(
    name: Literal["synthetic"],
    /,
    *,
    output: Output = ".",
    seed: int = 0,
) -> int:
    """Write a contact sheet and a video of the synthetic dataset.

    Parameters
    ----------
    name
        The dataset to look at.
    output
        The folder to write to.
    seed
        Another seed gives other videos.
    """
    from veil.data import synthetic

    for path in synthetic.show(Path(output), seed=seed):
        print_result(path)
    return 0
