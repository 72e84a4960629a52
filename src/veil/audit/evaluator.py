"""What an evaluator is: one question about an anonymizer, `(anonymize, data) -> list[Row]`.

A row is a `veil.metrics.Score` with the question that it answers. An evaluator gets the anonymizer only as a function
from the name of a split to the videos that an attacker has of it. What it needs of a method's videos is prepared once
for each method and dataset (`prepare`), and shared by all recognizers, targets and seeds.

To add a question, write a file in `veil.audit.evaluators` and add one line to its list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from veil.audit.experiment import Anonymize, ExperimentData, SplitVideos
from veil.audit.result import Encoding, Row
from veil.audit.suites import Suite


@dataclass(frozen=True)
class MethodVideos:
    """The videos of one dataset before and after one method, by split."""

    raw: SplitVideos
    anonymized: SplitVideos
    suite: Suite
    device: str
    encode: Callable[[Encoding], SplitVideos]  # anonymized, then encoded and decoded
    announce: Callable[[str], None]  # shows what is being prepared

    @property
    def moving(self) -> bool:
        """Whether these are videos, not stills."""
        return self.anonymized["train"].frames.shape[1] > 1


@dataclass(frozen=True)
class Evaluator:
    """One question about an anonymizer."""

    name: str
    prepare: Callable[[MethodVideos], SplitVideos | None]  # what the attacker has; None: not in this suite
    evaluate: Callable[[Anonymize, ExperimentData], list[Row]]
