"""Samples and datasets, in the same form for every dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from veil.core import Frames, VeilError

Split = Literal["train", "val", "test"]


class Segment(NamedTuple):
    """An action in an untrimmed video."""

    start: float  # seconds
    end: float
    label: int  # index into Dataset.actions


@dataclass(frozen=True)
class Sample:
    """One clip, video or still with its labels; None or empty where the dataset has no such label."""

    id: str  # the video's name, unique in its dataset; clips of one video share it as a prefix before '#'
    split: Split
    path: Path | None = None  # the file, or the folder of frames; None where frames are generated
    span: tuple[int, int] | None = (
        None  # first and one past the last frame, where a sample is part of its file
    )
    action: int | None = None  # index into Dataset.actions
    attributes: tuple[float, ...] = ()  # one value (0 or 1) for each of Dataset.attributes
    identity: int | None = None  # index into Dataset.identities
    groups: Mapping[str, str] = field(default_factory=dict)  # e.g. {"gender": "female", "view": "090"}
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """Samples with their vocabulary, and how to read their frames."""

    name: str
    samples: Sequence[Sample]
    frames: Callable[[Sample], Frames]  # (T, H, W, 3) uint8; a still has T = 1
    actions: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    notes: tuple[
        str, ...
    ] = ()  # sentences about what was missing, skipped or differs from the published counts
    batch: Callable[[Sequence[Sample]], Iterable[Frames]] | None = None  # of several, where that is faster

    def split(self, name: Split) -> list[Sample]:
        """The samples of one split."""
        return [sample for sample in self.samples if sample.split == name]


def narrowed(dataset: Dataset, actions: Sequence[str], attributes: Sequence[str]) -> Dataset:
    """The dataset with some actions and attributes only, renumbered, for the novel-label protocols."""
    for given, known, word in (
        (actions, dataset.actions, "action"),
        (attributes, dataset.attributes, "attribute"),
    ):
        if missing := [name for name in given if name not in known]:
            raise VeilError(
                f"{dataset.name} has no {word} {missing[0]!r}: choose from {', '.join(known) or 'none'}.",
                code="label-unknown",
            )
    samples: Iterable[Sample] = dataset.samples
    if actions:
        place = {dataset.actions.index(name): index for index, name in enumerate(actions)}
        samples = [replace(s, action=place[s.action]) for s in samples if s.action in place]  # type: ignore[index]
    if attributes:
        columns = [dataset.attributes.index(name) for name in attributes]
        samples = [
            replace(s, attributes=tuple(s.attributes[c] for c in columns)) for s in samples if s.attributes
        ]
    return replace(
        dataset,
        samples=list(samples),
        actions=tuple(actions) or dataset.actions,
        attributes=tuple(attributes) or dataset.attributes,
    )
