"""The report of an audit, for people and for programs: HTML, Markdown and JSON.

`audit.html` begins with what a data-protection officer needs (the verdict and why to doubt it), then what a researcher
needs (every row, and how it was measured); `audit.md` has the same in tables; `audit.json` holds all of it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from veil.audit.html_report import html_report
from veil.audit.result import KNOWLEDGE, Result
from veil.audit.summary import (
    UNDERFITTED,
    best,
    cautions,
    cells,
    chance_of,
    excess_of,
    facts,
    is_raw,
    listed,
    loss,
    named,
    notes,
    questions,
    several,
    share,
    span,
    spread,
    summary,
    title,
    underfitted,
    untested,
    with_raw,
    word,
)
from veil.audit.trade_off import TradeOff, trade_offs
from veil.core import VeilError, io_errors
from veil.media.draft import Draft


class ReportFiles(NamedTuple):
    """The files of one report."""

    html: Path
    json: Path
    markdown: Path


def write(results: Sequence[Result], folder: Path) -> ReportFiles:
    """Write `audit.html`, `audit.json` and `audit.md`; each is whole or not there, and replaces an earlier one."""
    if not results:
        raise VeilError("there is no result to report: audit at least one method.", code="report-empty")
    offs = trade_offs(results)
    data = {"results": [result.to_json() for result in results], "trade_offs": [*map(_data, offs)]}
    places = ReportFiles(folder / "audit.html", folder / "audit.json", folder / "audit.md")
    texts = html_report(results, offs), json.dumps(data, indent=1) + "\n", markdown(results, offs)
    with io_errors(folder, "written", advice="choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as drafts:  # published only when all of them are whole: the three files are of one audit
        for place, text in zip(places, texts, strict=True):
            draft = drafts.enter_context(Draft(place, overwrite=True))
            draft.path.write_bytes(text.encode("utf-8", "replace"))
    return places


def _data(off: TradeOff) -> dict[str, Any]:
    volume = None if math.isnan(off.hypervolume) else off.hypervolume  # JSON has no nan
    return {**dataclasses.asdict(off), "hypervolume": volume}


def markdown(results: Sequence[Result], offs: Sequence[TradeOff]) -> str:
    """The audit as Markdown: verdict, headlines, every row, what was not tested, how it was measured."""
    rows = [row for result in results for row in result.rows]
    lines = [f"# {_plain(title(results))}", ""]
    if len(results) > 1:
        _, lead, more = summary(results)
        lines += [f"**{_plain(lead)}** {_plain(more)}".rstrip(), ""]
    for name, result in named(results):
        head = (
            f"**{_plain(name)}** ({word(result).lower()}): " if len(results) > 1 else f"**{word(result)}.** "
        )
        lines += [head + _plain(result.verdict()), ""]
        if doubts := cautions(result):
            lines += [*(f"- Caution: {_plain(sentence)}" for sentence in doubts), ""]
    if rows:
        reads = "Of leakage the strongest attacker, of utility the best recognizer: mean over seeds"
        bold = " Bold: the best of the column, raw video apart." if several(results) else ""
        lines += ["## Headlines", "", table_markdown(results), "", f"{reads} [95% interval].{bold}", ""]
    if offs:
        names = [name for name, _ in named(results)]
        table = [
            [
                *map(_plain, (str(o.utility_axis), str(o.leakage_axis))),
                share(o.hypervolume),
                _plain(listed([names[i] for i in o.front])),
            ]
            for o in offs
        ]
        head = ["utility", "leakage", "normalised hypervolume", "on the front"]
        lines += ["## Trade-off", "", _table(head, table, "llrl"), ""]
    if rows:
        shown = {row.knowledge for row in rows}
        lines += ["## Every row", "", _every_row(results), ""]
        lines += [f"- *{key}*: {means}." for key, means in KNOWLEDGE.items() if key in shown]
        lines += [f"- *underfitted*: {UNDERFITTED}", *(f"- {_plain(note)}" for note in notes(rows)), ""]
    if silent := untested(results):
        lines += ["## Not tested", "", *(f"- {_plain(sentence)}" for sentence in silent), ""]
    lines += ["## How it was measured", ""]
    for fact, values in facts(results):
        texts = [(f"{_plain(name)}: " if name else "") + _quoted(fact, value) for name, value in values]
        lines += [f"- {_plain(fact)}: {texts[0]}"] if len(texts) == 1 else [f"- {_plain(fact)}:"]
        lines += [f"  - {one}" for one in texts if len(texts) > 1]
    return "\n".join(lines) + "\n"


def table_markdown(results: Sequence[Result]) -> str:
    """Methods by questions as a Markdown table, with raw video and chance; the best of a column is bold."""
    first = [_plain(name) for name, _ in named(results)]
    first += ["chance"] if with_raw(results) else ["raw video", "chance"]
    head, columns = ["method"], [first]
    for question in questions(row for result in results for row in result.rows):
        role, target, protocol = question
        column = cells(results, question)
        known = [cell for cell in column if cell]
        metric = known[0][1].metric if known else ""
        head.append(_plain(f"{target} {'↑' if role == 'utility' else '↓'} {metric} ({protocol})"))
        most = best(column, role) if several(results) else math.nan
        shown = []
        for cell in column:
            if cell is None:
                shown.append("–")
                continue
            result, row = cell
            value = (
                f"**{share(row.value)}**" if row.value == most and not is_raw(result) else share(row.value)
            )
            other = f" {_plain(row.metric)}" if row.metric != metric else ""
            shown.append(value + other + (f" [{span(row.interval)}]" if row.interval else ""))
        raw = known[0][0].raw_of(known[0][1]) if known else None
        shown += [] if with_raw(results) else [share(raw.value if raw else None)]
        columns.append([*shown, share(chance_of(known[0][1]) if known else None)])
    return _table(head, list(zip(*columns, strict=True)), "l" + "r" * (len(head) - 1))


def _every_row(results: Sequence[Result]) -> str:
    head = ["method", "role", "target", "by", "knowledge", "encoding", "protocol", "metric", "mean", "seeds"]
    head += ["95% interval", "n", "chance", "raw", "excess", "train loss"]
    table = []
    for name, result in named(results):
        for row in result.rows:
            raw = result.raw_of(row)
            words = name, row.role, row.target, row.by, row.knowledge, row.encoding, row.protocol, row.metric
            numbers = share(row.value), spread(row), span(row.interval), str(row.n), share(chance_of(row))
            beside = share(raw.value if raw else None), share(excess_of(result, row))
            table.append(
                [*map(_plain, words), *numbers, *beside, loss(row) + " (underfitted)" * underfitted(row)]
            )
    return _table(head, table, "l" * 8 + "r" * 8)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    rule = ["---:" if side == "r" else "---" for side in align]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *rows])


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*\[\]<>|&])", r"\\\1", " ".join(text.split()))


def _quoted(fact: str, text: str) -> str:
    """A command as code, the rest as text."""
    return f"`{' '.join(text.split())}`" if fact == "command" and "`" not in text else _plain(text)
