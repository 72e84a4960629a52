"""All probes on features before and, where given, after anonymization; of banks, or of stores on disk.

An *oblivious* attacker is trained on raw features, an *adaptive* one on features after anonymization.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from veil.audit.features.probes import PROBES, ProbeBudget, train_probe, with_labels
from veil.core import VeilError
from veil.features.bank import Bank
from veil.features.store import Store
from veil.media.draft import Draft
from veil.metrics import Score

Knowledge = Literal["oblivious", "adaptive"]
Splits = tuple[Bank, Bank, Bank]  # train, val, test

# The features that each attacker is trained, selected and tested on, from raw and anonymized ones.
ATTACKERS: dict[Knowledge, Callable[[Splits, Splits], Splits]] = {
    "adaptive": lambda raw, anonymized: anonymized,
    "oblivious": lambda raw, anonymized: (raw[0], raw[1], anonymized[2]),
}


@dataclass(frozen=True)
class FeatureRow:
    """The score of one probe."""

    target: str
    probe: str
    knowledge: Knowledge
    score: Score
    raw: float | None  # the value of the same probe on raw features

    @property
    def left(self) -> float | None:
        """The share of the raw value above chance that is left."""
        chance = self.score.chance
        if self.raw is None or chance is None or self.raw <= chance:
            return None
        return (self.score.value - chance) / (self.raw - chance)

    def to_json(self) -> dict[str, Any]:
        """The row as values that JSON can hold."""
        score = self.score
        return {
            "target": self.target, "probe": self.probe, "knowledge": self.knowledge, "metric": score.metric, "n": score.n,
            "value": score.value, "chance": score.chance, "raw": self.raw, "left": self.left,
        }  # fmt: skip


def audit_store(
    store: str | Path,
    after: str | Path | None = None,
    targets: Sequence[str] = (),
    *,
    seed: int = 0,
    device: str = "cpu",
    output: str | Path | None = None,
) -> list[FeatureRow]:
    """Attack the features of a store, or those of `after` in comparison to it; `output` is a JSON file for the rows."""
    raw = Store.open(store).bank().to(device)
    anonymized = None if after is None else Store.open(after).bank().to(device)
    rows = compare_features(raw, anonymized, targets, seed=seed)
    if output is not None:
        with Draft(Path(output), overwrite=True) as draft:
            draft.path.write_text(json.dumps([row.to_json() for row in rows], indent=1))
    return rows


def compare_features(
    raw: Bank,
    after: Bank | None,
    targets: Sequence[str] = (),
    *,
    seed: int = 0,
    budget: ProbeBudget = ProbeBudget(),
) -> list[FeatureRow]:
    """The scores of all probes on raw features and, where given, on features of the same videos after anonymization.

    The labels are those of ``raw``; ``targets`` [all with labels] are as in `train_probe`.
    """
    before = _splits(raw)
    anonymized = None if after is None else _splits(_labelled_as(after, raw))
    rows: list[FeatureRow] = []
    for target in targets or _known_targets(raw):
        for probe in PROBES:
            score = train_probe(probe, target, *before, seed=seed, budget=budget).score
            if anonymized is None:
                rows.append(FeatureRow(target, probe, "oblivious", score, None))
                continue
            for knowledge, features in ATTACKERS.items():
                found = train_probe(
                    probe, target, *features(before, anonymized), seed=seed, budget=budget
                ).score
                rows.append(FeatureRow(target, probe, knowledge, found, score.value))
    return rows


def _splits(bank: Bank) -> Splits:
    return bank.split("train"), bank.split("val"), bank.split("test")


def _known_targets(bank: Bank) -> list[str]:
    """The targets with labels in all splits that differ among the training videos."""
    found = []
    for target in ("action", "identity", "attributes"):
        try:
            truths = [
                with_labels(part, part.truth(target))[1] for part in map(bank.split, ("train", "val", "test"))
            ]
        except VeilError:
            continue
        if all(len(truth) for truth in truths) and len(truths[0].unique(dim=0)) > 1:
            found.append(target)
    if not found:
        raise VeilError(
            "these features have no labels that differ in train, val and test videos: extract them with --labels or --data.",
            code="labels-missing",
        )
    return found


def _labelled_as(after: Bank, raw: Bank) -> Bank:
    """Features after anonymization, in the order and with the labels of those before."""
    places = {sample.id: place for place, sample in enumerate(after.samples)}
    missing = next((sample.id for sample in raw.samples if sample.id not in places), None)
    if missing is not None:
        raise VeilError(
            f"the anonymized features have no video {missing}: anonymize the same store.",
            code="stores-differ",
        )
    taken = after.take([places[sample.id] for sample in raw.samples])
    names = {name: getattr(raw, name) for name in ("actions", "attributes", "identities")}
    return replace(taken, samples=raw.samples, **names)
