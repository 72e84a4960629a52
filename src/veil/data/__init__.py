"""Datasets by name, sampling and augmentation."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from veil.core import VeilError
from veil.data import attributes, gait, recorded_actions, untrimmed, web_actions
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

    See `synthetic.read`; its options are repeated here, so that they can be checked without torch.
    """
    from veil.data import synthetic  # the only one that needs torch

    return synthetic.read(root, kind=kind, count=count, seed=seed, size=size)


DATASETS: dict[str, Callable[..., Dataset]] = {
    "ucf101": web_actions.ucf101,
    "hmdb51": web_actions.hmdb51,
    "kinetics400": web_actions.kinetics400,
    "kth": recorded_actions.kth,
    "ipn": recorded_actions.ipn,
    "sbu": recorded_actions.sbu,
    "ntu60": recorded_actions.ntu60,
    "toyota-smarthome": recorded_actions.toyota_smarthome,
    "casia-b": gait.casia_b,
    "utd-mhad": recorded_actions.utd_mhad,
    "ucf-sports": web_actions.ucf_sports,
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
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(DATASETS)}."
        raise VeilError(f"there is no dataset {name!r}: {hint}", code="dataset-unknown")
    known = inspect.signature(reader, eval_str=True).parameters
    for option, value in options.items():
        if option not in known or option == "root":
            choices = ", ".join(key for key in known if key != "root") or "none"
            raise VeilError(
                f"{name} has no option {option!r}: choose from {choices}.", code="dataset-option-unknown"
            )
        _check(name, option, value, known[option].annotation)
    return reader(None if root is None else Path(root), **options)


def _check(name: str, option: str, value: object, kind: Any) -> None:
    """Refuse an option of the wrong type: the readers do not check it."""
    if value is None and type(None) in get_args(kind):
        return
    kind = next((part for part in get_args(kind) if part in (int, Path)), kind)  # of "int | None", int
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise VeilError(
            f"{name} has no {option} {value!r}: choose from {', '.join(map(str, get_args(kind)))}.",
            code="dataset-option-invalid",
        )
    if kind in (int, bool, str) and type(value) is not kind:
        raise VeilError(
            f"option {option} of {name} is {value!r}: use a value of type {kind.__name__}.",
            code="dataset-option-invalid",
        )
    if kind is Path and not isinstance(value, str | Path):
        raise VeilError(
            f"option {option} of {name} is {value!r}: use a path, such as ./{value}.",
            code="dataset-option-invalid",
        )
