"""Utility against leakage: the methods of an audit on one plane, the Pareto front and its hypervolume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from veil.audit.result import Result, Role, Row
from veil.metrics import hypervolume, pareto_front


class Axis(NamedTuple):
    """What an axis shows: rows of one target, protocol and metric."""

    target: str
    protocol: str
    metric: str

    def __str__(self) -> str:
        return f"{self.target}, {self.metric} ({self.protocol})"


@dataclass(frozen=True)
class TradeOff:
    """Methods by utility and leakage, for one utility axis and one leakage axis."""

    utility_axis: Axis
    leakage_axis: Axis
    which: tuple[int, ...]  # indices of the results that have numbers for both
    methods: tuple[str, ...]
    utility: tuple[float, ...]
    leakage: tuple[float, ...]
    utility_spread: tuple[tuple[float, float], ...]  # least and greatest seed of the same rows
    leakage_spread: tuple[tuple[float, float], ...]
    front: tuple[int, ...]  # indices of the methods that no other dominates
    utility_range: tuple[float, float]  # chance, raw
    leakage_range: tuple[float, float]
    hypervolume: float  # normalised: 0 is raw or destroyed video, 1 is full utility and no leakage


def trade_offs(results: Sequence[Result]) -> list[TradeOff]:
    """Every pair of a utility axis and a leakage axis, with the methods that have numbers for both."""
    pairs = [(x, y) for x in _axes(results, "utility") for y in _axes(results, "leakage")]
    return [made for x, y in pairs if (made := _trade_off(results, x, y))]


def _axes(results: Sequence[Result], role: Role) -> list[Axis]:
    rows = (row for result in results for row in result.rows if row.role == role)
    return list(dict.fromkeys(Axis(row.target, row.protocol, row.metric) for row in rows))


def _trade_off(results: Sequence[Result], x: Axis, y: Axis) -> TradeOff | None:
    both: list[tuple[int, Row, Row]] = []
    ranges: list[tuple[float, float]] | None = None
    for index, result in enumerate(results):
        gain, loss = result.headline("utility", *x), result.headline("leakage", *y)
        if gain is None or loss is None:
            continue
        both.append((index, gain, loss))
        raws = result.raw_of(gain), result.raw_of(loss)
        if ranges is None and raws[0] and raws[1]:
            ranges = [(both[0][1].chance, raws[0].value), (both[0][2].chance, raws[1].value)]
    if ranges is None:
        return None
    utility, leakage = tuple(gain.value for _, gain, _ in both), tuple(loss.value for _, _, loss in both)
    volume = hypervolume(utility, leakage, accuracy_range=ranges[0], leakage_range=ranges[1])
    return TradeOff(
        x,
        y,
        tuple(index for index, _, _ in both),
        tuple(results[index].method for index, _, _ in both),
        utility,
        leakage,
        tuple(gain.spread for _, gain, _ in both),
        tuple(loss.spread for _, _, loss in both),
        tuple(int(i) for i in pareto_front(utility, leakage)),
        ranges[0],
        ranges[1],
        volume.value,
    )
