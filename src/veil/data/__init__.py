"""Every dataset by its name; what a sample is stands in `veil.data.sample`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from veil.core import VeilError
from veil.data import attributes, clips, untrimmed
from veil.data.sample import Dataset, Sample, Segment, Split

__all__ = ["DATASETS", "Dataset", "Sample", "Segment", "Split", "read"]


def _synthetic(
    root: Path | None = None,
    *,
    kind: str = "clips",
    count: int | None = None,
    seed: int = 0,
    size: int = 112,
) -> Dataset:
    """Synthetic dataset: rendered people with known actions, identities and attributes; needs torch.

    See `synthetic.read`; its options stand here, too, so that they can be checked without torch.
    """
    from veil.data import synthetic  # needs torch, which the others do not

    return synthetic.read(root, kind=kind, count=count, seed=seed, size=size)


DATASETS: dict[str, Callable[..., Dataset]] = {
    "ucf101": clips.ucf101,
    "hmdb51": clips.hmdb51,
    "kinetics400": clips.kinetics400,
    "kth": clips.kth,
    "ipn": clips.ipn,
    "sbu": clips.sbu,
    "ntu60": clips.ntu60,
    "toyota-smarthome": clips.toyota_smarthome,
    "casia-b": clips.casia_b,
    "utd-mhad": clips.utd_mhad,
    "ucf-sports": clips.ucf_sports,
    "vispr": attributes.vispr,
    "pa-hmdb51": attributes.pa_hmdb51,
    "vp-ucf101": attributes.vp_ucf101,
    "vp-hmdb51": attributes.vp_hmdb51,
    "p-hvu": attributes.p_hvu,
    "utkface": attributes.utkface,
    "thumos14": untrimmed.thumos14,
    "ucf-crime": untrimmed.ucf_crime,
    "synthetic": _synthetic,
}


def read(name: str, root: Path | str | None = None, /, **options: Any) -> Dataset:
    """The dataset of that name, from the folder that holds it; the options are those of its reader."""
    reader = DATASETS.get(name)
    if reader is None:
        near = difflib.get_close_matches(name, DATASETS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(DATASETS)}"
        raise VeilError(f"there is no dataset {name!r}; {hint}")
    known = inspect.signature(reader, eval_str=True).parameters
    for option, value in options.items():
        if option not in known or option == "root":
            choices = ", ".join(key for key in known if key != "root") or "none"
            raise VeilError(f"{name} has no option {option!r}; it has {choices}")
        _check(name, option, value, known[option].annotation)
    return reader(None if root is None else Path(root), **options)


def _check(name: str, option: str, value: object, kind: Any) -> None:
    """Refuse what an option cannot be: the readers trust their types."""
    if value is None and type(None) in get_args(kind):
        return
    kind = next((part for part in get_args(kind) if part in (int, Path)), kind)  # of "int | None", int
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise VeilError(
            f"{name} has no {option} {value!r}; choose from {', '.join(map(str, get_args(kind)))}"
        )
    if kind in (int, bool, str) and type(value) is not kind:
        raise VeilError(f"the option {option} of {name} is {value!r}; it must be of type {kind.__name__}")
    if kind is Path and not isinstance(value, str | Path):
        raise VeilError(f"the option {option} of {name} is {value!r}; it must be a path, such as ./{value}")
