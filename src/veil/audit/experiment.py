"""One experiment: one recognizer, one target and one seed, the unit that an audit schedules.

Evaluators (`veil.audit.evaluators`) get it as their data. The recognizer of raw video is trained once for all of
them, and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from veil.audit.answers import Answers
from veil.audit.measures import MEASURES
from veil.audit.recognition import RecognizerSpec, TrainedRecognizer, TrainingBudget
from veil.audit.recognizer_training import train_recognizer
from veil.audit.result import Encoding, Knowledge, Role, Row
from veil.audit.videos import Videos
from veil.media.draft import Draft
from veil.training.memory import with_smaller_batches

SplitVideos = dict[str, Videos]  # train, val, test
Anonymize = Callable[[str], Videos]  # the videos of a split, as an attacker has them


@dataclass(frozen=True)
class Experiment:
    """One recognizer, one target, one seed."""

    role: Role
    target: str
    protocol: str
    recognizer: RecognizerSpec
    seed: int
    budget: TrainingBudget
    weights: str | None  # published weights to start from
    device: str
    cached: Path  # the file of the recognizer of raw video


class ExperimentData:
    """An experiment with its raw videos: what an evaluator trains and tests with."""

    def __init__(self, experiment: Experiment, raw: SplitVideos):
        self.experiment, self.raw = experiment, raw

    @cached_property
    def on_raw(self) -> TrainedRecognizer:
        """The recognizer of raw video, from the cache where it is there."""
        one, path = self.experiment, self.experiment.cached
        if path.exists():
            try:
                return TrainedRecognizer.from_tensors(
                    one.recognizer,
                    one.target,
                    load_file(path, device=one.device),
                    one.budget,
                    self.raw["train"],
                    one.seed,
                )
            except (SafetensorError, KeyError, RuntimeError):
                path.unlink(missing_ok=True)  # truncated, or of another version: train again
        trained = self._train(self.raw.__getitem__, None)
        with Draft(path, overwrite=True, sync=False) as draft:
            save_file(trained.tensors(), draft.path)
        return trained

    def train_on(self, videos: Anonymize) -> TrainedRecognizer:
        """Train the recognizer of raw video further on other videos."""
        return self._train(videos, self.on_raw)

    def rows(
        self,
        trained: TrainedRecognizer,
        videos: Anonymize,
        knowledge: Knowledge,
        encoding: Encoding = "8-bit",
    ) -> list[Row]:
        """All measures of a recognizer on the test videos."""
        one, test = self.experiment, videos("test")
        probabilities = trained.probabilities(test.frames)
        train = videos("train")
        answers = Answers(trained, one.role, one.protocol, knowledge, encoding, train, test, probabilities)
        return [row for measure in MEASURES for row in measure(answers)]

    def _train(self, videos: Anonymize, start: TrainedRecognizer | None) -> TrainedRecognizer:
        one = self.experiment
        budget = one.budget
        if start is not None:
            budget = replace(budget, steps=max(1, round(budget.adaptation * budget.steps)))

        def train(batch: int) -> TrainedRecognizer:
            return train_recognizer(
                one.recognizer,
                one.target,
                videos("train"),
                videos("val"),
                budget=replace(budget, batch=batch),
                seed=one.seed,
                device=one.device,
                start=start,
                weights=one.weights if start is None else None,
            )

        return with_smaller_batches(train, budget.batch)[0]


def merge_seeds(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows of several seeds as one: all values, and the mean of the interval's ends."""
    same: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        same.setdefault(row.key, []).append(row)
    out = []
    for group in same.values():
        first = group[0]
        ends = [row.interval for row in group if row.interval]
        parts = {
            name: (fmean(row.parts[name][0] for row in group), chance)
            for name, (_, chance) in first.parts.items()
        }
        out.append(
            replace(
                first,
                values=tuple(row.values[0] for row in group),
                train_loss=tuple(row.train_loss[0] for row in group),
                interval=(fmean(e[0] for e in ends), fmean(e[1] for e in ends)) if ends else None,
                parts=parts,
                notes=tuple(dict.fromkeys(note for row in group for note in row.notes)),
            )
        )
    order = {"utility": 0, "leakage": 1, "bias": 2}
    return tuple(sorted(out, key=lambda row: order[row.role]))
