"""The headline of each question: a card for one method, or a strip of dots for several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from veil.audit.plots import axis_range
from veil.audit.result import Result, Role, Row
from veil.audit.summary import (
    Question,
    State,
    best,
    ceiling,
    cells,
    chance_of,
    is_raw,
    listed,
    named,
    percent,
    questions,
    row_state,
    several,
)

ROLES: dict[Role, tuple[str, str]] = {
    "utility": ("Utility", "↑"),
    "leakage": ("Leakage", "↓"),
    "bias": ("Bias", "↓"),
}
Tone = State | Literal["use"]  # a class of the style sheet
SIGNS: dict[State, tuple[str, str]] = {  # outlines of 24 x 24 pixels: shape, and what is in it
    "safe": ("M12 2a10 10 0 1 0 0 20 10 10 0 1 0 0-20Z", "M7.5 12.5l3 3 6-6.5"),
    "some": ("M12 3 22.5 21h-21Z", "M12 10v5M12 18v.01"),
    "much": ("M8 2h8l6 6v8l-6 6H8l-6-6V8Z", "M9 9l6 6M15 9l-6 6"),
    "unknown": (
        "M12 2a10 10 0 1 0 0 20 10 10 0 1 0 0-20Z",
        "M9.2 9.3a2.9 2.9 0 1 1 4.2 2.6c-1 .5-1.4 1-1.4 2M12 17.3v.01",
    ),
}
_HIDDEN = "-9999px"


def tone(result: Result, row: Row) -> Tone:
    """The colour of a row."""
    return row_state(result, row) if row.role == "leakage" else "use"


def has_interval(results: Sequence[Result]) -> bool:
    """Whether any row has a confidence interval."""
    return any(row.interval for result in results for row in result.rows)


def headline_cards(result: Result) -> list[dict[str, Any]]:
    """A card for each question of one method."""
    rows = [result.headline(*question) for question in questions(result.rows)]
    return [
        {
            "role": ROLES[row.role][0],
            "state": row_state(result, row) if row.role == "leakage" else None,
            "tone": tone(result, row),
            "row": row,
            "bar": _bar(result, row),
            "meaning": meaning(result, row),
        }
        for row in rows
        if row
    ]


def _bar(result: Result, row: Row) -> dict[str, Any] | None:
    """From chance to raw; None where raw is not known or no better than chance."""
    raw = result.raw_of(row)
    if raw is None or not raw.value > row.chance or row.role == "bias":
        return None

    def at(value: float) -> float:
        return min(max((value - row.chance) / (raw.value - row.chance), 0.0), 1.0)

    interval = None
    if row.interval:
        low, high = map(at, row.interval)
        interval = {"left": f"{low:.1%}", "width": f"{high - low:.1%}"}
    label = f"{percent(row.value)}, between chance {percent(row.chance)} and raw {percent(raw.value)}"
    return {"label": label, "fill": f"{at(row.value):.1%}", "interval": interval, "raw": raw.value}


def meaning(result: Result, row: Row) -> str:
    """A card in a sentence."""
    raw, left = result.raw_of(row), result.excess(row)
    if is_raw(result):
        return "This is raw video."
    if raw is None or math.isnan(raw.value):
        return "Raw video was not measured."
    if row.role == "bias":
        return (
            f"Between the groups with the highest and the lowest accuracy; {percent(raw.value)} on raw video."
        )
    if math.isnan(left) or raw.at_chance:
        return f"Raw video is at chance, too ({percent(raw.value)}): this proves nothing."
    if row.role == "utility":
        return f"{percent(left)} of what raw video gives above chance is kept."
    if not row.at_chance:
        return f"{percent(left)} of what raw video leaks above chance is still found."
    if not row.interval:
        return "No better than chance; there is no interval, so how much may be left was not measured."
    most = max(ceiling(result, row), 0.0)
    return f"No better than chance; its interval ends at {percent(most)} of what raw video leaks."


def headline_strips(results: Sequence[Result]) -> list[dict[str, Any]]:
    """For each question, all methods as dots on a common scale."""
    every = questions(row for result in results for row in result.rows)
    return [strip for question in every if (strip := _strip(results, question))]


def _strip(results: Sequence[Result], question: Question) -> dict[str, Any] | None:
    role, target, protocol = question
    column = cells(results, question)
    shown = [(name, *cell) for (name, _), cell in zip(named(results), column, strict=True) if cell]
    if not shown:
        return None
    chance, raw = chance_of(shown[0][2]), shown[0][1].raw_of(shown[0][2])
    ends = [end for _, _, row in shown for end in (*(row.interval or ()), row.value)]
    low, high = axis_range([chance or 0.0, raw.value if raw else math.nan, *ends], pad=0.04)

    def at(value: float) -> str:
        return f"{(value - low) / (high - low):.2%}"

    most = best(column, role) if several(results) else math.nan
    shown.sort(key=lambda item: (is_raw(item[1]), -item[2].value if role == "utility" else item[2].value))
    lines = []
    for name, result, row in shown:
        is_best = row.value == most and not is_raw(result)
        interval = None
        if row.interval:
            left, right = row.interval
            interval = {"left": at(left), "width": f"{(right - left) / (high - low):.2%}"}
        lines.append(
            {
                "name": name,
                "kind": "muted" if is_raw(result) else "best" if is_best else None,
                "tone": "unknown" if is_raw(result) else tone(result, row),
                "interval": interval,
                "at": at(row.value),
                "value": row.value,
                "aside": ", at chance" * (role == "leakage" and row.at_chance) + ", best" * is_best,
            }
        )
    return {
        "role": ROLES[role][0],
        "arrow": ROLES[role][1],
        "target": target,
        "protocol": protocol,
        "metric": listed(list(dict.fromkeys(row.metric for _, _, row in shown))),
        "chance": chance,
        "raw": raw.value if raw else None,
        "chance_at": _HIDDEN if chance is None else at(chance),
        "raw_at": at(raw.value) if raw else _HIDDEN,
        "lines": lines,
    }
