"""The tables of a report: every row, methods by questions, and the parts of the rows that count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from veil.audit.report_cards import ROLES, tone
from veil.audit.result import KNOWLEDGE, Result, Row
from veil.audit.summary import (
    ENCODING,
    UNDERFITTED,
    Question,
    best,
    cells,
    chance_of,
    excess_of,
    is_raw,
    named,
    notes,
    questions,
    several,
    share,
    span,
    with_raw,
)

Table = dict[str, Any]
_HIDDEN = "-9999px"


def row_tables(results: Sequence[Result]) -> list[tuple[str, Result, Table]]:
    """Every row of each method."""
    alone = len(results) == 1
    return [
        (
            name,
            result,
            _row_table(
                result,
                result.rows,
                "Every row" if alone else f"{name}, every row",
                "note" if alone else f"note-{k}",
            ),
        )
        for k, (name, result) in enumerate(named(results))
    ]


def raw_tables(results: Sequence[Result]) -> list[Table]:
    """Every row of raw video, where it is not one of the methods."""
    if with_raw(results):
        return []
    raws = {repr(result.raw): result.raw for result in results if result.raw}
    return [
        _row_table(None, rows, "raw video, every row", f"raw-note-{k}")
        for k, rows in enumerate(raws.values())
    ]


def _row_table(result: Result | None, rows: Sequence[Row], label: str, key: str) -> Table:
    """Every row, question by question; without a result those of raw video."""
    remarks = notes(rows)
    groups = []
    for role, target, protocol in questions(rows):
        same = [row for row in rows if row.question == (role, target, protocol)]
        counts = result.headline(role, target, protocol) if result else None
        lines = [_line(result, row, row is counts, remarks) for row in same]
        groups.append({"title": f"{ROLES[role][0]}: {target}", "protocol": protocol, "lines": lines})
    return {"label": label, "key": key, "groups": groups, "notes": remarks}


def _line(result: Result | None, row: Row, counts: bool, remarks: Sequence[str]) -> dict[str, Any]:
    raw = result.raw_of(row) if result else row
    numbers = span(row.interval), str(row.n), share(chance_of(row)), share(raw.value if raw else None)
    return {
        "row": row,
        "counts": counts,
        "tone": tone(result, row) if result else "unknown",
        "notes": [remarks.index(note) + 1 for note in row.notes],
        "numbers": (*numbers, share(excess_of(result, row)) if result else "–"),
    }


def column_terms(rows: Iterable[Row]) -> dict[str, str]:
    """What the columns of the row tables mean."""
    rows = list(rows)
    knowledge, encodings = {row.knowledge for row in rows}, {row.encoding for row in rows}
    terms = {f"knowledge: {key}": f"{text}." for key, text in KNOWLEDGE.items() if key in knowledge}
    terms |= {f"encoding: {key}": f"{text}." for key, text in ENCODING.items() if key in encodings}
    return {**terms, "underfitted": UNDERFITTED}


def matrix(results: Sequence[Result]) -> Table:
    """Methods by questions."""
    columns = []
    lines = [{"name": name, "muted": is_raw(result), "cells": []} for name, result in named(results)]
    raw_line, chance_line = ({"name": name, "muted": True, "cells": []} for name in ("raw video", "chance"))
    for question in questions(row for result in results for row in result.rows):
        role, target, protocol = question
        column = cells(results, question)
        first = next((cell for cell in column if cell), None)
        metric = first[1].metric if first else ""
        raw = first[0].raw_of(first[1]) if first else None
        most = best(column, role) if several(results) else math.nan
        columns.append({"target": target, "arrow": ROLES[role][1], "protocol": protocol, "metric": metric})
        for line, cell in zip(lines, column, strict=True):
            line["cells"].append(_cell(*cell, metric, most) if cell else _plain("–"))
        raw_line["cells"].append(_plain(share(raw.value if raw else None)))
        chance_line["cells"].append(_plain(share(chance_of(first[1]) if first else None)))
    edges = [chance_line] if with_raw(results) else [raw_line, chance_line]
    return {"columns": columns, "lines": [*lines, *edges]}


def _cell(result: Result, row: Row, metric: str, most: float) -> dict[str, Any]:
    more = [row.metric] if row.metric != metric else []
    more += [f"[{span(row.interval)}]"] if row.interval else []
    more += ["at chance"] if row.role == "leakage" and row.at_chance else []
    return {"row": row, "best": row.value == most and not is_raw(result), "more": more, "text": ""}


def _plain(text: str) -> dict[str, Any]:
    return {"row": None, "best": False, "more": [], "text": text}


def part_tables(results: Sequence[Result]) -> list[Table]:
    """The parts (attributes or groups) of the rows that count."""
    tables = []
    for question in questions(row for result in results for row in result.rows):
        shown = [cell for cell in cells(results, question) if cell and cell[1].parts]
        if shown:
            role, target, protocol = question
            label = f"{ROLES[role][0]}: {target}, {protocol}"
            made = _parts_of_one(*shown[0]) if len(results) == 1 else _parts_of_all(results, question)
            tables.append({"label": label, **made})
    return tables


def _parts_of_one(result: Result, row: Row) -> Table:
    raw = result.raw_of(row)
    lines = []
    for part, (value, chance) in row.parts.items():
        most = raw.parts[part][0] if raw and part in raw.parts else None
        lines.append(
            {
                "part": part,
                "value": value,
                "chance": chance,
                "raw": most,
                "at": _at(value),
                "chance_at": _at(chance) or _HIDDEN,
                "raw_at": _at(most) or _HIDDEN,
            }
        )
    metric = row.metric.removesuffix(" gap")  # the parts of a gap are the groups, each with its own value
    return {"tone": tone(result, row), "metric": metric, "lines": lines}


def _at(value: float | None) -> str:
    """Where a share lies on a bar from 0 to 1; nothing where it is not known."""
    return "" if value is None or math.isnan(value) else f"{min(max(value, 0.0), 1.0):.1%}"


def _parts_of_all(results: Sequence[Result], question: Question) -> Table:
    """Parts by methods."""
    column = cells(results, question)
    raws = [raw.parts for cell in column if cell and (raw := cell[0].raw_of(cell[1]))]
    pick = min if question[0] == "leakage" else max  # the parts of a gap are utility
    lines = []
    for part in dict.fromkeys(part for cell in column if cell for part in cell[1].parts):
        values = [cell[1].parts[part][0] if cell and part in cell[1].parts else math.nan for cell in column]
        known = [v for v, r in zip(values, results, strict=True) if not is_raw(r) and not math.isnan(v)]
        most = pick(known, default=None) if several(results) else None
        marked = [(v, v == most and not is_raw(r)) for v, r in zip(values, results, strict=True)]
        raw = next((parts[part][0] for parts in raws if part in parts), None)
        chance = next((cell[1].parts[part][1] for cell in column if cell and part in cell[1].parts), None)
        edges = [chance] if with_raw(results) else [raw, chance]
        lines.append({"part": part, "marked": marked, "edges": edges})
    names = [*(name for name, _ in named(results)), *([] if with_raw(results) else ["raw video"]), "chance"]
    return {"names": names, "lines": lines}
