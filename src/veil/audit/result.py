"""What an audit measured: rows of numbers, and the few sentences that follow from them.

A *row* is one question ("which action?", "which person?") answered by one recognizer, over several seeds. A *result*
is all rows of one method on one choice of data, beside the same rows on raw video. What follows from rows is defined
here and nowhere else: the *headline* of a question is its strongest attacker, and a method is safe where even that one
is at chance.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from veil.core import Frames, VeilError

Role = Literal["utility", "leakage", "bias"]  # bias: how unequal the accuracy of groups is; lower is better
Knowledge = Literal["oblivious", "adaptive", "reconstruction", "embedding"]
Encoding = Literal["8-bit", "h264"]

UNDERFITTED_NOTE = "underfitted"  # how the note of a row of an underfitted recognizer begins

KNOWLEDGE: dict[Knowledge, str] = {
    "oblivious": "trained on raw video, without access to the anonymizer",
    "adaptive": "trained on raw video, then on anonymized video",
    "reconstruction": "trained on pairs to reconstruct raw from anonymized video, then to recognize the reconstruction",
    "embedding": "compares with stills of known people, by a published embedding",
}


@dataclass(frozen=True)
class Row:
    """One question, answered by one recognizer on held-out video; one value for each seed."""

    role: Role
    target: str  # action, identity, attributes, face, body
    by: str  # the recognizer, such as "resnet18 on frames"
    knowledge: Knowledge  # what the recognizer was trained on
    encoding: Encoding
    protocol: str  # such as "same dataset: utd-mhad", "cross-dataset: utkface", "gait retrieval: casia-b"
    metric: str  # such as "top-1", "cMAP", "rank-1"
    values: tuple[float, ...]  # on test data; one a seed
    chance: float
    n: int  # test videos or stills
    interval: tuple[float, float] | None = None  # of the mean over seeds: 95 %, by resampling videos
    train_loss: tuple[float, ...] = ()  # where training ended, one a seed
    parts: Mapping[str, tuple[float, float]] = field(
        default_factory=dict
    )  # of each attribute or group: value, chance
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the greatest value over seeds."""
        return min(self.values), max(self.values)

    @property
    def at_chance(self) -> bool:
        """Whether chance lies within the interval, or above it; without one (a single video), within Wilson's for n."""
        if self.interval:
            return self.interval[0] <= self.chance
        z, value, n = 1.96, self.spread[0], max(1, self.n)
        middle, half = value + z * z / (2 * n), z * math.sqrt(value * (1 - value) / n + (z / (2 * n)) ** 2)
        return (middle - half) / (1 + z * z / n) <= self.chance

    @property
    def question(self) -> tuple[Role, str, str]:
        """Role, target and protocol: rows of one question can be compared."""
        return self.role, self.target, self.protocol

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies a row: equal for the same row of another method or seed."""
        return *self.question, self.by, self.knowledge, self.encoding, self.metric


@dataclass(frozen=True)
class Picture:
    """One frame of a video: raw, anonymized and reconstructed."""

    caption: str
    raw: Frames  # (H, W, 3)
    anonymized: Frames
    reconstructed: Frames | None = None  # by the reconstruction attacker


@dataclass(frozen=True)
class Result:
    """The measurements of one method."""

    method: str  # as the user wrote it; "raw" for untouched video
    params: Mapping[str, Any]
    data: str  # one line: which data, how many videos, which size
    rows: tuple[Row, ...]
    raw: tuple[Row, ...]  # the same questions on raw video
    settings: Mapping[str, Any]  # seeds, sizes, suite: all that is needed to repeat it
    untested: tuple[str, ...]  # sentences: what this audit did not measure
    command: str = ""
    seconds: float = 0.0
    device: str = ""
    version: str = ""
    pictures: tuple[Picture, ...] = ()  # not in the JSON

    def headline(
        self, role: Role, target: str, protocol: str | None = None, metric: str | None = None
    ) -> Row | None:
        """The row that counts: of attackers the strongest, of utility the best recognizer that was trained on the output.

        An attacker that is significantly above chance counts before one that is not, whatever their means.
        """
        rows = [r for r in self.rows if (r.role, r.target) == (role, target) and not math.isnan(r.value)]
        rows = [r for r in rows if protocol in (None, r.protocol) and metric in (None, r.metric)]
        if role == "utility":
            rows = [r for r in rows if r.knowledge == "adaptive"] or rows
        return max(rows, key=lambda r: (not r.at_chance, _above_chance(r)), default=None)

    def raw_of(self, row: Row) -> Row | None:
        """The same question on raw video: of all recognizers the best."""
        if self.method == "raw":
            return self.headline(row.role, row.target, row.protocol)
        same = [r for r in self.raw if r.question == row.question and r.metric == row.metric]
        return max(same, key=lambda r: r.value, default=None)

    def excess(self, row: Row) -> float:
        """The share of what raw video gives above chance that is left: 0 is chance, 1 is raw; nan without raw."""
        raw = self.raw_of(row)
        if raw is None or not raw.value > row.chance:
            return math.nan
        return (row.value - row.chance) / (raw.value - row.chance)

    def targets(self, role: Role) -> list[str]:
        """The targets, in the order in which they were measured."""
        return list(dict.fromkeys(r.target for r in self.rows if r.role == role))

    def headlines(self, role: Role) -> Iterator[Row]:
        """The row that counts for each target."""
        for target in self.targets(role):
            if row := self.headline(role, target):
                yield row

    def verdict(self) -> str:
        """The audit in a sentence or two, for somebody who has to decide."""
        leaks = list(self.headlines("leakage"))
        utility = [self._utility(row) for row in self.headlines("utility")]
        leakage = [self._leakage(row) for row in leaks]
        leakage += [
            f"{target}, no number"
            for target in self.targets("leakage")
            if self.headline("leakage", target) is None
        ]
        above = [row for row in leaks if not row.at_chance]
        blind = [
            row for row in leaks if row.at_chance and ((raw := self.raw_of(row)) is None or raw.at_chance)
        ]
        if self.method == "raw":
            conclusion = "This is raw video."
        elif above:
            worst = max(above, key=_above_chance)
            attacker = f"{worst.by}, {worst.knowledge}"
            conclusion = (
                f"It is not anonymous: the strongest attacker ({attacker}) still recognizes {worst.target}."
            )
        elif not leaks or blind or len(leakage) > len(leaks):
            conclusion = (
                "This audit is inconclusive: an attacker that fails on raw video, too, proves nothing."
            )
        else:
            conclusion = "No attacker of this audit did better than chance."
        private = f"Leakage: {'; '.join(leakage) or 'not measured'}."
        kept = f"Utility: {'; '.join(utility) or 'not measured'}."
        return f"{conclusion} {private} {kept}"

    def _utility(self, row: Row) -> str:
        raw = self.raw_of(row)
        beside = f" (raw {raw.value:.0%}, chance {row.chance:.0%})" if raw and self.method != "raw" else ""
        return f"{row.target}, {row.metric} {row.value:.0%}{beside}"

    def _leakage(self, row: Row) -> str:
        if row.at_chance:
            return f"{row.target}, at chance, {row.metric} {row.value:.0%} (chance {row.chance:.0%})"
        share = self.excess(row)
        left = "" if math.isnan(share) or self.method == "raw" else f", {share:.0%} of what raw video leaks"
        return f"{row.target}, {row.metric} {row.value:.0%} (chance {row.chance:.0%}{left})"

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives the result back, without its pictures."""
        plain = dataclasses.asdict(dataclasses.replace(self, pictures=()))
        del plain["pictures"]
        plain["verdict"] = self.verdict()
        plain["excess"] = {f"{r.target} ({r.protocol})": self.excess(r) for r in self.headlines("leakage")}
        return _without_nan(plain)

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Result:
        """The result that `to_json` wrote."""
        try:
            known = {f.name for f in dataclasses.fields(Result)} - {"pictures"}
            given = {key: value for key, value in plain.items() if key in known}
            given["rows"], given["raw"] = (tuple(_row(row) for row in plain[key]) for key in ("rows", "raw"))
            given["untested"] = tuple(plain["untested"])
            return Result(**given)
        except (KeyError, TypeError, AttributeError) as error:
            raise VeilError(
                f"this is not the result of an audit ({error}): run the audit again.",
                code="audit-result-invalid",
            ) from error


def save(result: Result, path: Path) -> None:
    """Write a result as JSON."""
    path.write_text(json.dumps(result.to_json(), indent=1))


def load(path: Path) -> Result:
    """Read a result that `save` wrote."""
    try:
        return Result.from_json(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise VeilError(
            f"{path} is not the result of an audit ({error}): run the audit again.",
            code="audit-result-invalid",
        ) from error


def _above_chance(row: Row) -> float:
    return (row.value - row.chance) / max(1 - row.chance, 1e-9)


def _row(plain: Mapping[str, Any]) -> Row:
    given = dict(plain)
    for key in ("values", "train_loss"):
        given[key] = tuple(map(_number, plain[key]))
    given["chance"] = _number(plain["chance"])
    given["notes"] = tuple(plain["notes"])
    ends = plain["interval"]
    given["interval"] = (_number(ends[0]), _number(ends[1])) if ends else None
    given["parts"] = {name: (_number(value[0]), _number(value[1])) for name, value in plain["parts"].items()}
    return Row(**given)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _without_nan(value: Any) -> Any:
    """JSON has neither nan nor infinity: None."""
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    if isinstance(value, np.integer):
        return int(value)
    return value
