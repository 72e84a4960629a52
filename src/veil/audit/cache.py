"""What an audit keeps: results with their pictures, by the content that made them; whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from veil.audit import result as results
from veil.audit.result import Picture, Result
from veil.core import Anonymizer, VeilError
from veil.data import Dataset, Sample


def fingerprint(dataset: Dataset, samples: Sequence[Sample]) -> str:
    """Names, labels and the state of the files: what makes the data this data."""
    digest = hashlib.sha256(
        repr((dataset.name, dataset.actions, dataset.attributes, dataset.identities)).encode()
    )
    for sample in samples:
        state: tuple[int, ...] = ()
        place = sample.path
        while place is not None and not place.exists() and place != place.parent:
            place = place.parent  # a picture in a zip file
        if place is not None:
            status = place.stat()
            state = status.st_size, status.st_mtime_ns
        labels = dataclasses.replace(sample, path=None)
        digest.update(repr((labels, sample.path and sample.path.name, state)).encode())
    return digest.hexdigest()


def told(anonymizer: Anonymizer) -> str:
    """What makes an anonymizer this one; a file that it names, by what is in it."""
    params = plain(anonymizer.params())
    files = {
        key: file_digest(v) for key, v in params.items() if isinstance(v, str | Path) and Path(v).is_file()
    }
    return json.dumps([type(anonymizer).__qualname__, params, files], sort_keys=True, default=str)


def file_digest(path: str | Path) -> str:
    """What is in a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that were given."""
    return {key: value for key, value in params.items() if value is not None}


def keep_at(entry: Path, made: Result) -> None:
    """Keep a result and its pictures; whole or not at all."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    names = ("raw", "anonymized", "restored")
    stacks = {
        f"{index}-{name}": picture
        for index, p in enumerate(made.pictures)
        for name in names
        if (picture := getattr(p, name)) is not None
    }
    captions = np.array([p.caption for p in made.pictures])
    beside = entry.with_suffix(f".{os.getpid()}.part")
    with beside.open("wb") as file:
        np.savez_compressed(file, captions=captions, **stacks)  # type: ignore[arg-type]
    beside.replace(entry.with_suffix(".npz"))
    results.save(made, beside)
    beside.replace(entry.with_suffix(".json"))


def kept_at(entry: Path) -> Result | None:
    """A kept result; None where it is of no use any more."""
    try:
        made = results.load(entry.with_suffix(".json"))
        with np.load(entry.with_suffix(".npz"), allow_pickle=False) as stacks:
            pictures = tuple(
                Picture(
                    str(caption),
                    stacks[f"{i}-raw"],
                    stacks[f"{i}-anonymized"],
                    stacks.get(f"{i}-restored"),
                )
                for i, caption in enumerate(stacks["captions"])
            )
        return replace(made, pictures=pictures)
    except (VeilError, OSError, KeyError, ValueError):
        return None
