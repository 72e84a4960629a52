"""The data of an audit: which videos are used and attacked, and which questions they can answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from veil.audit.result import Role
from veil.audit.videos import Videos, seen_in_training
from veil.core import VeilError
from veil.data import Dataset, Sample
from veil.data.sample import narrowed

SPLITS = ("train", "val", "test")


class AuditQuestion(NamedTuple):
    """What is recognized in which dataset."""

    dataset: Dataset
    role: Role
    target: str
    protocol: str


@dataclass(frozen=True)
class AuditData:
    """Which videos are used and attacked."""

    utility: Dataset  # has the actions; and the people, where there is no other
    private: Dataset | None = None  # its people are attacked instead: cross-dataset
    actions: tuple[str, ...] = ()  # only these; none: all
    attributes: tuple[str, ...] = ()

    def questions(self) -> list[AuditQuestion]:
        """What can be measured: utility first."""
        actions, attributes = tuple(dict.fromkeys(self.actions)), tuple(dict.fromkeys(self.attributes))
        utility = narrowed(self.utility, actions, attributes if self.private is None else ())
        private = utility if self.private is None else narrowed(self.private, (), attributes)
        if len(actions) == 1:
            raise VeilError(
                f"one action ({actions[0]}) cannot be distinguished from others: name at least two.",
                code="audit-one-action",
            )
        narrow = " of chosen labels" if self.actions or self.attributes else ""
        across = "same dataset" if self.private is None else "cross-dataset"
        questions: list[AuditQuestion] = []
        for target in _targets(utility):
            if target == "action":
                questions.append(
                    AuditQuestion(utility, "utility", target, f"{across}: {utility.name}{narrow}")
                )
        for target in _targets(private):
            if target != "action":
                questions.append(
                    AuditQuestion(private, "leakage", target, f"{across}: {private.name}{narrow}")
                )
        targets = {question.target for question in questions}
        for chosen, target, dataset in ((actions, "action", utility), (attributes, "attributes", private)):
            if chosen and target not in targets:  # labels that were named are never left out silently
                raise VeilError(
                    f"the training, validation and test videos of {dataset.name} do not all have several classes of "
                    f"{', '.join(chosen)}: choose other labels.",
                    code="audit-labels-missing",
                )
        if not questions:
            raise VeilError(
                f"{utility.name} and {private.name} are labelled with neither actions nor identities nor attributes in "
                "their training, validation and test videos: choose data that is.",
                code="audit-unlabelled",
            )
        return questions


def limited(dataset: Dataset, videos: int | None) -> list[Sample]:
    """At most ``videos`` samples, evenly from all of them."""
    samples = list(dataset.samples)
    if videos is None or len(samples) <= videos:
        return samples
    return [samples[i] for i in np.linspace(0, len(samples) - 1, videos).round().astype(int)]


def are_stills(dataset: Dataset, samples: Sequence[Sample]) -> bool:
    """Whether the samples are single images without actions."""
    if any(sample.action is not None or sample.segments for sample in samples):
        return False
    return len(dataset.frames(samples[0])) == 1


def _targets(dataset: Dataset) -> list[str]:
    """The targets that every split is labelled with, and that can be learned from the first for the last."""
    empty = torch.empty(0)
    parts = [Videos(empty, tuple(dataset.split(name)), dataset.name) for name in SPLITS]  # type: ignore[arg-type]
    known = [t for t in ("action", "identity", "attributes") if all(t in part.targets() for part in parts)]
    train, test = parts[0], parts[2]
    return [
        t
        for t in known
        if t == "attributes" or seen_in_training(train, test, t) or (t == "identity" and _has_gallery(test))
    ]


def _has_gallery(test: Videos) -> bool:
    """Whether unseen identities can be retrieved among the test videos themselves."""
    return {"gallery", "probe"} <= {sample.groups.get("role") for sample in test.samples}
