"""What an audit found: rows of numbers, and the few sentences that follow from them.

A *row* is one question ("which action?", "who?") answered by one recognizer, over several seeds. A *result* is all
rows of one method on one choice of data, beside the same rows on raw video. What is read off rows is here and nowhere
else: the *headline* of a question is the attacker that finds most, and a method is safe where even that one is
at chance.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from veil.core import Frames, VeilError
from veil.metrics import hypervolume, pareto_front

Role = Literal["utility", "leakage", "bias"]  # bias: how unequally groups are served; lower is better
Knows = Literal["raw", "adapted", "restoring", "embedding"]
After = Literal["8-bit", "h264"]

KNOWLEDGE: dict[Knows, str] = {
    "raw": "trained on raw video, knows nothing of the anonymizer",
    "adapted": "trained on raw video, then on video that the anonymizer changed",
    "restoring": "learned from pairs to undo the anonymizer, then recognises what it restored",
    "embedding": "compares with stills of known people, by a published embedding",
}


@dataclass(frozen=True)
class Row:
    """One question, answered by one recognizer on held-out video; one value for each seed."""

    role: Role
    target: str  # what is asked: action, identity, attributes, face, body
    by: str  # who answers, such as "resnet18 on frames"
    knows: Knows
    after: After
    protocol: str  # such as "same dataset: utd-mhad", "cross-dataset: utkface", "gait", "bias"
    metric: str  # such as "top-1", "cMAP", "rank-1"
    values: tuple[float, ...]  # on test data; one a seed
    chance: float
    n: int  # test videos or stills
    interval: tuple[float, float] | None = None  # of the mean over seeds: 95 %, by resampling videos
    train_loss: tuple[float, ...] = ()  # where training ended, one a seed; a high one is a weak witness
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
        """What a row answers: rows of one question can be compared."""
        return self.role, self.target, self.protocol

    @property
    def asked(self) -> tuple[str, ...]:
        """What makes a row the same row for another method."""
        return *self.question, self.by, self.knows, self.after, self.metric


@dataclass(frozen=True)
class Picture:
    """One moment of a video, as it was and as it came out."""

    caption: str
    raw: Frames  # (H, W, 3)
    anonymized: Frames
    restored: Frames | None = None  # what the restoring attacker made of it


@dataclass(frozen=True)
class Result:
    """What was found about one method."""

    method: str  # as the user wrote it; "raw" for untouched video
    params: Mapping[str, Any]
    data: str  # one line: which data, how many videos, which size
    rows: tuple[Row, ...]
    raw: tuple[Row, ...]  # the same questions on raw video
    settings: Mapping[str, Any]  # seeds, sizes, suite: all that is needed to do it again
    untested: tuple[str, ...]  # sentences: what this audit does not say
    command: str = ""
    seconds: float = 0.0
    device: str = ""
    version: str = ""
    pictures: tuple[Picture, ...] = ()  # not in the JSON

    def headline(
        self, role: Role, target: str, protocol: str | None = None, metric: str | None = None
    ) -> Row | None:
        """The row that counts: of attackers the one that finds most, of uses the adapted one that does best.

        An attacker that is above chance counts before one that may be, however much that one seems to find.
        """
        rows = [r for r in self.rows if (r.role, r.target) == (role, target) and not math.isnan(r.value)]
        rows = [r for r in rows if protocol in (None, r.protocol) and metric in (None, r.metric)]
        if role == "utility":
            rows = [r for r in rows if r.knows == "adapted"] or rows
        return max(rows, key=lambda r: (not r.at_chance, _above_chance(r)), default=None)

    def raw_of(self, row: Row) -> Row | None:
        """What raw video gives for the same question: of all recognizers that were put to it the best."""
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
        """What was asked, in the order in which it was asked."""
        return list(dict.fromkeys(r.target for r in self.rows if r.role == role))

    def headlines(self, role: Role) -> Iterator[Row]:
        """The row that counts for each question."""
        for target in self.targets(role):
            if row := self.headline(role, target):
                yield row

    def verdict(self) -> str:
        """The audit in a sentence or two, for somebody who has to decide."""
        leaks, uses = list(self.headlines("leakage")), list(self.headlines("utility"))
        said = []
        for row in uses:
            raw = self.raw_of(row)
            beside = (
                f" (raw {raw.value:.0%}, chance {row.chance:.0%})" if raw and self.method != "raw" else ""
            )
            said.append(f"{row.target}, {row.metric} {row.value:.0%}{beside}")
        told = []
        for row in leaks:
            share = self.excess(row)
            left = (
                "" if math.isnan(share) or self.method == "raw" else f", {share:.0%} of what raw video leaks"
            )
            where = (
                f"at chance, {row.metric} {row.value:.0%}"
                if row.at_chance
                else f"{row.metric} {row.value:.0%}"
            )
            told.append(f"{row.target}, {where} (chance {row.chance:.0%}{'' if row.at_chance else left})")
        told += [
            f"{target}, no number"
            for target in self.targets("leakage")
            if self.headline("leakage", target) is None
        ]
        open_ = [row for row in leaks if not row.at_chance]
        blind = [
            row for row in leaks if row.at_chance and ((raw := self.raw_of(row)) is None or raw.at_chance)
        ]
        if self.method == "raw":
            word = "This is raw video."
        elif open_:
            worst = max(open_, key=_above_chance)
            word = f"It is not anonymous: the strongest attacker ({worst.by}, {worst.knows}) still finds {worst.target}."
        elif not leaks or blind or len(told) > len(leaks):
            word = (
                "This audit does not settle it: an attacker that finds nothing in raw video proves nothing."
            )
        else:
            word = "No attacker of this audit did better than chance."
        private = f"Private: {'; '.join(told)}." if told else ""
        use = f"Of use: {'; '.join(said)}." if said else ""
        return " ".join(part for part in (word, private, use) if part)

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
            raise VeilError(f"this is no audit's result: {error} does not fit.") from error


@dataclass(frozen=True)
class TradeOff:
    """Methods by what they keep and what they leak, for one use and one private thing."""

    use: str
    private: str
    which: tuple[int, ...]  # of the results: those that have numbers for both
    methods: tuple[str, ...]
    utility: tuple[float, ...]
    leakage: tuple[float, ...]
    front: tuple[int, ...]  # indices of the methods that no other beats
    utility_range: tuple[float, float]  # chance, raw
    leakage_range: tuple[float, float]
    hypervolume: float  # normalised: 0 is raw or destroyed video, 1 is all use and no leakage


def trade_offs(results: Sequence[Result]) -> list[TradeOff]:
    """Every pair of a use and a private thing, of the methods that have numbers for both."""
    found = []
    uses = dict.fromkeys(
        (r.target, r.protocol, r.metric) for o in results for r in o.rows if r.role == "utility"
    )
    things = dict.fromkeys(
        (r.target, r.protocol, r.metric) for o in results for r in o.rows if r.role == "leakage"
    )
    for use in uses:
        for thing in things:
            pairs = [
                (k, o, o.headline("utility", *use), o.headline("leakage", *thing))
                for k, o in enumerate(results)
            ]
            both = [(o, gain, loss) for _, o, gain, loss in pairs if gain and loss]
            which = tuple(k for k, _, gain, loss in pairs if gain and loss)
            raws = [(o.raw_of(gain), o.raw_of(loss)) for o, gain, loss in both]
            known = [(best, worst) for best, worst in raws if best and worst]
            if not both or not known:
                continue
            _, gain, loss = both[0]
            up, down = [gain.value for _, gain, _ in both], [loss.value for _, _, loss in both]
            use_range, leak_range = (gain.chance, known[0][0].value), (loss.chance, known[0][1].value)
            volume = hypervolume(up, down, accuracy_range=use_range, leakage_range=leak_range).value
            names, front = tuple(o.method for o, _, _ in both), tuple(int(i) for i in pareto_front(up, down))
            found.append(
                TradeOff(
                    use[0],
                    thing[0],
                    which,
                    names,
                    tuple(up),
                    tuple(down),
                    front,
                    use_range,
                    leak_range,
                    volume,
                )
            )
    return found


def save(result: Result, path: Path) -> None:
    """Write a result as JSON."""
    path.write_text(json.dumps(result.to_json(), indent=1))


def load(path: Path) -> Result:
    """Read a result that `save` wrote."""
    try:
        return Result.from_json(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise VeilError(f"{path} is no audit's result ({error}).") from error


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
