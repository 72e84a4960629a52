"""The HTML of a report: one file that makes no request.

Style, plots and pictures are inside it, and a policy in its head forbids the rest. The templates are in `templates/`;
everything that they show is escaped, because names come from users. What each section shows is computed in
`veil.audit.report_cards` and `veil.audit.report_tables`.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from veil.audit import summary
from veil.audit.plots import PlotPoint, TradeOffPlot, inline_trade_off
from veil.audit.report_cards import SIGNS, has_interval, headline_cards, headline_strips
from veil.audit.report_tables import column_terms, matrix, part_tables, raw_tables, row_tables
from veil.audit.result import Picture, Result
from veil.audit.summary import TERMS, WORDS, cautions, is_raw, listed, named, share, state, title, word
from veil.audit.trade_off import TradeOff
from veil.core import Frames

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).with_name("templates")


class Section(NamedTuple):
    """One section of the report; an empty body is not shown."""

    key: str
    title: str
    body: str


def html_report(results: Sequence[Result], offs: Sequence[TradeOff]) -> str:
    """The whole report."""
    from markupsafe import Markup

    environment = _environment()

    def render(template: str, shown: object = True, **context: Any) -> str:
        return Markup(environment.get_template(template).render(**context)) if shown else ""

    facts, untested = summary.facts(results), summary.untested(results)
    moments = _moments(results)
    sections = (
        Section("verdict", "Verdict", render("verdict.html", **_verdict(results))),
        Section("headlines", "Utility and leakage", _headlines(results, render)),
        Section("trade-off", "Utility against leakage", _trade_offs(results, offs, render)),
        Section("frames", "Frames", render("frames.html", moments, moments=moments, alone=len(results) == 1)),
        Section("numbers", "All numbers", _numbers(results, render)),
        Section("parts", "Part by part", _parts(results, render)),
        Section("untested", "Not measured", render("untested.html", untested, sentences=untested)),
        Section("how", "How it was measured", render("facts.html", facts, facts=facts)),
        Section("words", "Terms", render("terms.html", terms=TERMS)),
    )
    versions = listed(list(dict.fromkeys(f" {result.version}" for result in results if result.version)))
    return environment.get_template("report.html").render(
        title=title(results),
        style=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
        methods=[name for name, result in named(results) if not is_raw(result)],
        sections=[section for section in sections if section.body],
        versions=versions,
    )


def sentences(verdict: str) -> list[str]:
    """A verdict as conclusion, leakage and utility."""
    return re.split(r" (?=Leakage: |Utility: )", verdict)


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def breakable(name: str) -> str:
        """A name that wraps after punctuation, not within a word."""
        return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[:,=/_+])(?=.)", name))

    environment.filters |= {"share": share, "percent": summary.percent, "breakable": breakable}
    environment.globals |= {
        "SIGNS": SIGNS,
        "WORDS": WORDS,
        "is_raw": is_raw,
        "state": state,
        "word": word,
        "listed": listed,
        "spread": summary.spread,
        "loss": summary.loss,
        "underfitted": summary.underfitted,
    }
    return environment


def _verdict(results: Sequence[Result]) -> dict[str, Any]:
    if len(results) == 1:
        result = results[0]
        lead, *rest = sentences(result.verdict())
        kind = "much" if is_raw(result) else state(result)
        overall = {
            "state": kind,
            "head": word(result),
            "lead": lead,
            "rest": rest,
            "cautions": cautions(result),
        }
        return {"overall": overall, "methods": []}
    worst, lead, more = summary.summary(results)
    mixed = worst == "some" and any(state(result) == "safe" for result in results)
    head = "Mixed" if mixed else WORDS[worst]
    overall = {"state": worst, "head": head, "lead": lead, "rest": [more] if more else [], "cautions": []}
    methods = []
    for name, result in named(results):
        first, *rest = sentences(result.verdict())
        methods.append(
            {"name": name, "result": result, "lead": first, "rest": rest, "cautions": cautions(result)}
        )
    return {"overall": overall, "methods": methods}


def _headlines(results: Sequence[Result], render: Any) -> str:
    intervals = has_interval(results)
    if len(results) == 1:
        cards = headline_cards(results[0])
        return render("cards.html", cards, cards=cards, intervals=intervals)
    strips = headline_strips(results)
    return render("strips.html", strips, strips=strips, intervals=intervals)


def _trade_offs(results: Sequence[Result], offs: Sequence[TradeOff], render: Any) -> str:
    plots = [_plot(results, off, f"plot-{number}") for number, off in enumerate(offs)]
    spreads = (ends for off in offs for ends in (*off.utility_spread, *off.leakage_spread))
    return render("trade_offs.html", plots, plots=plots, whiskers=any(high > low for low, high in spreads))


def _plot(results: Sequence[Result], off: TradeOff, key: str) -> dict[str, Any]:
    from markupsafe import Markup

    names = [named(results)[k][0] for k in off.which]
    x, y = off.utility_axis, off.leakage_axis
    points = []
    for i, k in enumerate(off.which):
        kind = "raw" if is_raw(results[k]) else "front" if i in off.front else "method"
        spreads = off.utility_spread[i], off.leakage_spread[i]
        points.append(PlotPoint(names[i], off.utility[i], off.leakage[i], *spreads, kind))
    numbers = "; ".join(
        f"{point.name}: {x.target} {share(point.utility)}, {y.target} {share(point.leakage)}"
        for point in points
    )
    (no_use, raw_use), (no_leak, raw_leak) = off.utility_range, off.leakage_range
    about = (
        f"{numbers}. Raw video: {x.target} {share(raw_use)}, {y.target} {share(raw_leak)}. "
        f"Chance: {x.target} {share(no_use)}, {y.target} {share(no_leak)}."
    )
    heading = f"{x} against {y}"
    labels = (
        f"utility: {x.target}, {x.metric} (more is better)",
        f"leakage: {y.target}, {y.metric} (less is better)",
    )
    plot = TradeOffPlot(points, *labels, (no_use, no_leak), (raw_use, raw_leak))
    front = f"On the front: {listed([names[i] for i in off.front])}."
    return {
        "title": heading,
        "svg": Markup(inline_trade_off(plot, key, heading, about)),
        "hypervolume": None if math.isnan(off.hypervolume) else off.hypervolume,
        "caption": front if len(off.which) > 1 else about,
    }


def _moments(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The pictures of all methods, by the raw frame that they show."""
    grouped: dict[tuple[str, bytes], list[tuple[str, Picture]]] = {}
    for name, result in named(results):
        for picture in result.pictures:
            grouped.setdefault((picture.caption, picture.raw.tobytes()), []).append((name, picture))
    alone = len(results) == 1
    moments = []
    for (caption, _), pictures in grouped.items():
        frames = [_frame(pictures[0][1].raw, "raw", f"{caption}: raw video")]
        reconstructed = []
        for name, picture in pictures:
            if name == "raw" and not alone:
                continue
            about = f"{caption}: anonymized by {name}"
            frames.append(_frame(picture.anonymized, "anonymized" if alone else name, about))
            if picture.reconstructed is not None:
                label = "reconstructed by the attacker" if alone else name
                about = f"{about}, then reconstructed by the attacker"
                reconstructed.append(_frame(picture.reconstructed, label, about))
        moments.append({"caption": caption, "frames": frames, "reconstructed": reconstructed})
    return moments


def _frame(frame: Frames, name: str, about: str) -> dict[str, Any]:
    """A frame inside the page: small ones exactly, larger ones as JPEG no wider than a column."""
    picture = Image.fromarray(np.ascontiguousarray(frame))
    picture.thumbnail((480, 480))
    kind = "png" if picture.width * picture.height <= 160 * 120 else "jpeg"
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=88)
    source = f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return {"source": source, "name": name, "about": about, "width": picture.width, "height": picture.height}


def _numbers(results: Sequence[Result], render: Any) -> str:
    rows = [row for result in results for row in result.rows]
    return render(
        "numbers.html",
        rows,
        matrix=matrix(results) if len(results) > 1 else None,
        tables=row_tables(results),
        raw_tables=raw_tables(results),
        terms=column_terms(rows),
    )


def _parts(results: Sequence[Result], render: Any) -> str:
    tables = part_tables(results)
    return render("parts.html", tables, tables=tables, alone=len(results) == 1)
