"""The page of an audit: one file of HTML that asks the network for nothing.

Style, plots and pictures are inside it, and a policy in its head forbids the rest. Every element is made by `tag`,
which escapes what is not HTML already: names come from users. Colours never stand alone: a word or a sign is with them.
"""

from __future__ import annotations

import base64
import html
import io
import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from veil.audit.result import KNOWLEDGE, Picture, Result, Role, Row
from veil.audit.summary import (
    ENCODING,
    TERMS,
    UNDERFITTED,
    WORDS,
    Question,
    State,
    best,
    cautions,
    ceiling,
    cells,
    chance_of,
    excess_of,
    facts,
    is_raw,
    listed,
    loss,
    named,
    notes,
    percent,
    questions,
    row_state,
    several,
    share,
    span,
    spread,
    state,
    summary,
    title,
    underfitted,
    untested,
    with_raw,
    word,
)
from veil.audit.trade_off import TradeOff
from veil.core import Frames

ROLES: dict[Role, tuple[str, str]] = {
    "utility": ("Utility", "↑"),
    "leakage": ("Leakage", "↓"),
    "bias": ("Bias", "↓"),
}
Tone = State | Literal["use"]  # a class of the style sheet
SIGNS: dict[State, tuple[str, str]] = {
    "safe": ("M12 2a10 10 0 1 0 0 20 10 10 0 1 0 0-20Z", "M7.5 12.5l3 3 6-6.5"),
    "some": ("M12 3 22.5 21h-21Z", "M12 10v5M12 18v.01"),
    "much": ("M8 2h8l6 6v8l-6 6H8l-6-6V8Z", "M9 9l6 6M15 9l-6 6"),
    "unknown": (
        "M12 2a10 10 0 1 0 0 20 10 10 0 1 0 0-20Z",
        "M9.2 9.3a2.9 2.9 0 1 1 4.2 2.6c-1 .5-1.4 1-1.4 2M12 17.3v.01",
    ),
}


class Html(str):
    """Text that is HTML already."""


def tag(name: str, /, *inner: str, **attributes: object) -> Html:
    """An element; what is in it and in its attributes is escaped. `class_` is class, `aria_label` aria-label."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{told}>" + ("" if name in ("img", "meta") else f"{join(*inner)}</{name}>"))


def join(*pieces: str) -> Html:
    """Pieces one after the other, each escaped unless it is HTML."""
    return Html("".join(piece if isinstance(piece, Html) else html.escape(piece) for piece in pieces))


def page(results: Sequence[Result], offs: Sequence[TradeOff]) -> str:
    """The whole page."""
    methods = [name for name, result in named(results) if not is_raw(result)]
    sections = {
        ("verdict", "Verdict"): _verdict(results),
        ("headlines", "What is kept and what is found"): _headlines(results),
        ("trade-off", "Use against leakage"): _trade_offs(results, offs),
        ("frames", "Frames"): _frames(results),
        ("numbers", "All numbers"): _numbers(results),
        ("parts", "Part by part"): _parts(results),
        ("untested", "What was not tested"): _untested(results),
        ("how", "How it was measured"): _how(results),
        ("words", "What the words mean"): [_terms(TERMS)],
    }
    shown = {key: inner for key, inner in sections.items() if inner}
    links = [tag("li", tag("a", name, href=f"#{key}")) for key, name in shown if key != "verdict"]
    versions = listed(list(dict.fromkeys(f" {result.version}" for result in results if result.version)))
    footer = f"Written by Veil{versions}. The same numbers lie beside this page, in audit.json and audit.md."
    body = (
        tag("a", "To the verdict", href="#verdict", class_="hidden skip"),
        tag(
            "header",
            tag("p", "Veil audit", class_="eyebrow"),
            tag("h1", title(results)),
            tag("p", listed(methods), class_="lede") if len(methods) > 2 else "",
            tag("nav", tag("ul", *links), aria_label="Sections"),
        ),
        tag("main", *(_section(key, name, inner) for (key, name), inner in shown.items())),
        tag("footer", tag("p", footer)),
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title(results)} · Veil"),
        tag("style", Html((Path(__file__).parent / "templates" / "report.css").read_text(encoding="utf-8"))),
    )
    return f"<!doctype html>\n{tag('html', tag('head', *head), tag('body', *body), lang='en')}\n"


def _section(key: str, name: str, inner: Iterable[Html]) -> Html:
    heading = tag("h2", name, id=f"{key}-title", class_="hidden" if key == "verdict" else None)
    return tag("section", heading, *inner, id=key, aria_labelledby=f"{key}-title")


def _lede(text: str) -> Html:
    return tag("p", text, class_="lede")


def _hidden(text: str) -> Html:
    """For screen readers only."""
    return tag("span", text, class_="hidden")


def _breakable(name: str) -> Html:
    """A name whose lines break after a sign, not within a word."""
    return Html("<wbr>".join(map(html.escape, re.split(r"(?<=[:,=/_+])(?=.)", name))))


def _sign(kind: State) -> Html:
    strokes = (tag("path", d=stroke) for stroke in SIGNS[kind])
    return tag("svg", *strokes, viewBox="0 0 24 24", class_="sign", aria_hidden="true")


def _badge(kind: State, text: str) -> Html:
    return tag("span", _sign(kind), text, class_=f"badge {kind}")


def _badge_of(result: Result) -> Html:
    return _badge("unknown" if is_raw(result) else state(result), word(result))


def _tone(result: Result, row: Row) -> Tone:
    return row_state(result, row) if row.role == "leakage" else "use"


def _terms(terms: dict[str, str]) -> Html:
    told = (
        tag("div", tag("dt", name), tag("dd", text[0].upper() + text[1:])) for name, text in terms.items()
    )
    return tag("dl", *told, class_="terms")


def _scroll(label: str, head: Sequence[Html], *bodies: Html, class_: str | None = None) -> Html:
    """A table that scrolls within its own box."""
    caption = tag("caption", label, class_="hidden")
    table = tag("table", caption, tag("thead", tag("tr", *head)), *bodies, class_=class_)
    return tag("div", table, class_="scroll", role="region", tabindex="0", aria_label=label)


def _verdict(results: Sequence[Result]) -> list[Html]:
    if len(results) == 1:
        result = results[0]
        lead, *rest = _sentences(result.verdict())
        return [_box("much" if is_raw(result) else state(result), word(result), lead, rest, cautions(result))]
    worst, lead, more = summary(results)
    mixed = worst == "some" and any(state(result) == "safe" for result in results)
    items = []
    for name, result in named(results):
        first, *rest = _sentences(result.verdict())
        who = tag("span", _breakable(name), class_="who")
        lines = (tag("p", *_labelled(sentence)) for sentence in rest)
        fold = tag("details", tag("summary", who, _badge_of(result), tag("span", first)), *lines)
        items.append(tag("li", fold, _doubts(cautions(result))))
    box = _box(worst, "Mixed" if mixed else WORDS[worst], lead, [more] if more else [], [])
    return [box, tag("ul", *items, class_="methods")]


def _box(kind: State, head: str, lead: str, rest: Sequence[str], doubts: Sequence[str]) -> Html:
    said = (tag("p", *_labelled(sentence)) for sentence in rest)
    inner = (tag("p", head, class_="word"), tag("p", lead, class_="lead"), *said, _doubts(doubts))
    return tag("div", _sign(kind), tag("div", *inner), class_=f"verdict {kind}")


def _sentences(verdict: str) -> list[str]:
    """A verdict as what counts, what is private and what is of use."""
    return re.split(r" (?=Leakage: |Utility: )", verdict)


def _labelled(sentence: str) -> tuple[str, ...]:
    label, colon, rest = sentence.partition(": ")
    return (tag("strong", label + colon), rest) if label in ("Leakage", "Utility") else (sentence,)


def _doubts(sentences: Sequence[str]) -> Html:
    items = (tag("li", _hidden("Caution: "), sentence) for sentence in sentences)
    return tag("ul", *items, class_="cautions") if sentences else Html()


def _headlines(results: Sequence[Result]) -> list[Html]:
    asked = questions(row for result in results for row in result.rows)
    if len(results) == 1:
        rows = [results[0].headline(*question) for question in asked]
        cards = [_card(results[0], row) for row in rows if row]
        lede = (
            "Each bar runs from chance, which is reached without looking, to what raw video gives. A use should stay "
            "far right; something private should stay at the left. The thin line is the 95% interval."
        )
        kind = "cards" if len(cards) % 4 in (0, 3) else "cards three"  # no card stays alone in its row
        return [_lede(lede), tag("div", *cards, class_=kind)] if cards else []
    cards = [card for question in asked if (card := _strip(results, question))]
    lede = (
        "One card a question, best method first. Of a use (↑) more is better, of something private (↓) less: at the "
        "dashed line the attacker is at chance. The thin bars are 95% intervals."
    )
    return [_lede(lede), tag("div", *cards, class_="cards wide")] if cards else []


def _card(result: Result, row: Row) -> Html:
    """One question of one method."""
    kind = row_state(result, row)
    eyebrow = tag("p", ROLES[row.role][0], class_="eyebrow")
    return tag(
        "article",
        tag("div", eyebrow, _badge(kind, WORDS[kind]) if row.role == "leakage" else "", class_="top"),
        tag("h3", row.target),
        tag("p", percent(row.value), " ", tag("small", row.metric), class_="figure"),
        *_bar(result, row),
        tag("p", _meaning(result, row), class_="says"),
        tag("p", f"{row.protocol} · by {row.by}, {row.knowledge} · n\u00a0{row.n}", class_="small"),
        class_=f"card {_tone(result, row)}",
    )


def _bar(result: Result, row: Row) -> list[Html]:
    """From chance to raw; nothing where raw is not known or no better than chance."""
    raw = result.raw_of(row)
    if raw is None or not raw.value > row.chance or row.role == "bias":
        return []

    def at(value: float) -> float:
        return min(max((value - row.chance) / (raw.value - row.chance), 0.0), 1.0)

    low, high = map(at, row.interval or row.spread)
    inner = (
        tag("span", class_="fill", style=f"width:{at(row.value):.1%}"),
        tag("span", class_="range", style=f"left:{low:.1%};width:{high - low:.1%}"),
    )
    label = f"{percent(row.value)}, between chance {percent(row.chance)} and raw {percent(raw.value)}"
    ends = tag("span", f"chance {percent(row.chance)}"), tag("span", f"raw {percent(raw.value)}")
    return [tag("div", *inner, class_="bar", role="img", aria_label=label), tag("div", *ends, class_="ends")]


def _meaning(result: Result, row: Row) -> str:
    """What a card says, in a sentence."""
    raw, left = result.raw_of(row), result.excess(row)
    if is_raw(result):
        return "This is raw video."
    if raw is None or math.isnan(raw.value):
        return "Raw video was not measured."
    if row.role == "bias":
        return f"Between the groups that are served best and worst; {percent(raw.value)} on raw video."
    if math.isnan(left) or raw.at_chance:
        return f"Raw video is at chance, too ({percent(raw.value)}): this proves nothing."
    if row.role == "utility":
        return f"{percent(left)} of what raw video gives above chance is kept."
    if row.at_chance:
        most = max(ceiling(result, row), 0.0)
        return f"No better than chance; its interval ends at {percent(most)} of what raw video leaks."
    return f"{percent(left)} of what raw video leaks above chance is still found."


def _strip(results: Sequence[Result], question: Question) -> Html | None:
    """One question of all methods, as dots on a common scale."""
    role, target, protocol = question
    column = cells(results, question)
    shown = [(name, *cell) for (name, _), cell in zip(named(results), column, strict=True) if cell]
    if not shown:
        return None
    chance, raw = chance_of(shown[0][2]), shown[0][1].raw_of(shown[0][2])
    ends = [end for _, _, row in shown for end in (*(row.interval or row.spread), row.value)]
    low, high = _range([chance or 0.0, raw.value if raw else math.nan, *ends], pad=0.04)

    def at(value: float) -> str:
        return f"{(value - low) / (high - low):.2%}"

    away = "-9999px"
    lines = f"--chance:{away if chance is None else at(chance)};--raw:{at(raw.value) if raw else away}"
    most = best(column, role) if several(results) else math.nan
    shown.sort(key=lambda item: (is_raw(item[1]), -item[2].value if role == "utility" else item[2].value))
    rows = []
    for name, result, row in shown:
        tone = "unknown" if is_raw(result) else _tone(result, row)
        left, right = row.interval or row.spread
        whisker = tag("i", style=f"left:{at(left)};width:{(right - left) / (high - low):.2%}")
        lane = tag(
            "span", whisker, tag("b", style=f"left:{at(row.value)}"), class_=f"lane {tone}", style=lines
        )
        mark = row.value == most and not is_raw(result)
        aside = ", at chance" * (role == "leakage" and row.at_chance) + ", best" * mark
        value = tag("td", share(row.value), _hidden(aside) if aside else "", class_="num")
        name_cell = tag("th", _breakable(name), scope="row")
        kind = "muted" if is_raw(result) else "best" if mark else None
        rows.append(
            tag("tr", name_cell, tag("td", lane, class_="track", aria_hidden="true"), value, class_=kind)
        )
    metric = listed(list(dict.fromkeys(row.metric for _, _, row in shown)))
    legend = [] if chance is None else [tag("span", class_="key dashed"), f"chance {share(chance)}"]
    legend += [" \u2002", tag("span", class_="key"), f"raw {share(raw.value)}"] if raw else []
    heads = tag("th", "Method", scope="col"), tag("td", aria_hidden="true"), tag("th", metric, scope="col")
    return tag(
        "article",
        tag("p", ROLES[role][0], class_="eyebrow"),
        tag("h3", f"{target} {ROLES[role][1]}"),
        tag("p", f"{protocol} · {metric} ", tag("span", *legend, class_="nowrap"), class_="small"),
        tag(
            "table",
            tag("caption", f"{target}, {protocol}: {metric} of each method", class_="hidden"),
            tag("thead", tag("tr", *heads), class_="hidden"),
            tag("tbody", *rows),
            class_="strip",
        ),
        class_="card",
    )


def _range(values: Iterable[float], pad: float) -> tuple[float, float]:
    """The ends of an axis that shows all values."""
    known = [value for value in values if not math.isnan(value)]
    low, high = min(known), max(known)
    room = max((high - low) * pad, 0.01)
    return low - room, high + room


class Box(NamedTuple):
    """A rectangle of a plot, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


WIDTH, HEIGHT = 400, 372
FRAME = Box(44, 26, 392, 328)
LETTER, LINE = (
    7.2,
    15.0,
)  # room for a letter and a line of text of 12 pixels, in the widest of the usual fonts


def overlaps(boxes: Sequence[Box], others: Sequence[Box]) -> npt.NDArray[np.float64]:
    """The area that each box shares with each of the others."""
    a, b = np.reshape(boxes, (-1, 1, 4)).astype(float), np.reshape(others, (1, -1, 4)).astype(float)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])  # (boxes, others, 2)
    return sides.clip(0).prod(-1)


def place_labels(
    points: Sequence[tuple[float, float]], widths: Sequence[float], taken: Sequence[Box], frame: Box = FRAME
) -> list[Box]:
    """Where labels go so that they cover neither each other nor what is taken, and stay near their points."""
    angles = (0, 180, 90, 270, 45, 315, 135, 225, 22, 338, 158, 202)
    turns = [(math.cos(math.radians(angle)), -math.sin(math.radians(angle))) for angle in angles]
    steps = (9, 14, 22, 32, 44, 58, 74, 92, 112)
    far = np.add.outer(8.0 * np.arange(len(steps)), 0.3 * np.arange(len(turns))).ravel()
    placed: dict[int, Box] = {}
    for _ in range(3):  # again, when the others are known
        for i, ((x, y), wide) in enumerate(zip(points, widths, strict=True)):
            corners = [
                (x + reach * dx + (dx - 1) / 2 * wide, y + reach * dy + (dy - 1) / 2 * LINE)
                for reach in steps
                for dx, dy in turns
            ]
            choices = [Box(left, top, left + wide, top + LINE) for left, top in corners]
            labels = [box for k, box in placed.items() if k != i]
            outside = wide * LINE - overlaps(choices, [frame])[:, 0]
            covered = overlaps(choices, [*taken, *labels]).sum(1)
            crossed = overlaps([spot for box in choices for spot in _leader(x, y, box)], labels).sum(1)
            cost = 10 * outside + 4 * covered + 4 * crossed.reshape(len(choices), -1).sum(1) + far
            placed[i] = choices[int(cost.argmin())]
    return [placed[i] for i in range(len(points))]


def _leader(x: float, y: float, box: Box) -> list[Box]:
    """Spots on the line from a point to its label."""
    near_x, near_y = _nearest(x, y, box)
    spots = [(x + part * (near_x - x), y + part * (near_y - y)) for part in (0.3, 0.5, 0.7, 0.9)]
    return [Box(left - 2, top - 2, left + 2, top + 2) for left, top in spots]


def _nearest(x: float, y: float, box: Box) -> tuple[float, float]:
    return min(max(x, box.left), box.right), min(max(y, box.top), box.bottom)


def _trade_offs(results: Sequence[Result], offs: Sequence[TradeOff]) -> list[Html]:
    lede = (
        "Down is more private, right is more useful: the lower right corner keeps everything and leaks nothing. "
        "Whiskers reach from the least to the greatest seed. The line joins the methods that no other beats; what it "
        "encloses is the hypervolume."
    )
    plots = [_trade_off(results, off, f"plot-{k}") for k, off in enumerate(offs)]
    return (
        [_lede(lede), tag("div", *plots, class_="plots" if len(plots) > 1 else "plots single")]
        if plots
        else []
    )


def _trade_off(results: Sequence[Result], off: TradeOff, key: str) -> Html:
    names = [named(results)[k][0] for k in off.which]
    results = [results[k] for k in off.which]
    numbers = "; ".join(
        f"{name}: {off.utility_axis.target} {share(use)}, {off.leakage_axis.target} {share(leak)}"
        for name, use, leak in zip(names, off.utility, off.leakage, strict=True)
    )
    (no_use, raw_use), (no_leak, raw_leak) = off.utility_range, off.leakage_range
    about = (
        f"{numbers}. Raw video: {off.utility_axis.target} {share(raw_use)}, {off.leakage_axis.target} {share(raw_leak)}. "
        f"Chance: {off.utility_axis.target} {share(no_use)}, {off.leakage_axis.target} {share(no_leak)}."
    )
    name = f"{off.utility_axis.target} against {off.leakage_axis.target}"
    svg = tag(
        "svg",
        tag("title", name, id=key),
        tag("desc", about, id=f"{key}-desc"),
        *_drawing(results, off, names),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{key} {key}-desc",
        class_="plot",
    )
    if math.isnan(off.hypervolume):
        volume: str = "Raw video is no better than chance, so there is no hypervolume. "
    else:
        volume = tag("strong", f"Normalised hypervolume {share(off.hypervolume)}. ")
    more = f"On the front: {listed([names[i] for i in off.front])}." if len(results) > 1 else about
    return tag("figure", tag("h3", name), svg, tag("figcaption", volume, more))


def _drawing(results: Sequence[Result], off: TradeOff, names: Sequence[str]) -> list[Html]:
    """Axes, chance, front, and a labelled mark for each method and for raw, destroyed and ideal video."""
    spans = []  # of each method, use and leakage from the least to the greatest seed
    for result in results:
        kept, lost = (
            result.headline("utility", *off.utility_axis),
            result.headline("leakage", *off.leakage_axis),
        )
        spans.append((kept.spread if kept else (math.nan,) * 2, lost.spread if lost else (math.nan,) * 2))
    (no_use, raw_use), (no_leak, raw_leak) = off.utility_range, off.leakage_range
    x0, x1 = _range([*off.utility_range, *(end for use, _ in spans for end in use)], pad=0.09)
    y0, y1 = _range([*off.leakage_range, *(end for _, leak in spans for end in leak)], pad=0.09)

    def x(use: float) -> float:
        return round(FRAME.left + (use - x0) / (x1 - x0) * (FRAME.right - FRAME.left), 1)

    def y(leak: float) -> float:
        return round(FRAME.bottom - (leak - y0) / (y1 - y0) * (FRAME.bottom - FRAME.top), 1)

    def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Html:
        return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)

    drawn = []
    for tick in _ticks(x0, x1):
        drawn.append(line(x(tick), FRAME.top, x(tick), FRAME.bottom, "grid"))
        drawn.append(_text(x(tick), FRAME.bottom + 17, f"{tick:.0%}", "axis"))
    for tick in _ticks(y0, y1):
        drawn.append(line(FRAME.left, y(tick), FRAME.right, y(tick), "grid"))
        drawn.append(_text(FRAME.left - 6, y(tick) + 4, f"{tick:.0%}", "axis", text_anchor="end"))
    drawn.append(
        _text(
            0,
            14,
            _short(f"leakage: {off.leakage_axis.target} (less is better)", 50),
            "axis",
            text_anchor="start",
        )
    )
    use = _short(f"use: {off.utility_axis.target} (more is better)", 50)
    drawn.append(_text(FRAME.right, HEIGHT - 8, use, "axis", text_anchor="end"))

    corners = [(x(no_use), y(off.leakage[off.front[0]]))]
    for i in off.front:
        corners += [(corners[-1][0], y(off.leakage[i])), (x(off.utility[i]), y(off.leakage[i]))]
    corners.append((corners[-1][0], min(y(raw_leak), corners[-1][1])))
    outline = "L".join(f"{px} {py}" for px, py in corners)
    drawn.append(tag("path", d=f"M{outline}H{x(no_use)}Z", class_="area"))
    drawn.append(line(x(no_use), FRAME.top, x(no_use), FRAME.bottom, "chance"))
    drawn.append(line(FRAME.left, y(no_leak), FRAME.right, y(no_leak), "chance"))
    drawn.append(tag("path", d=f"M{outline}", class_="front"))
    lines = [
        (x(no_use), FRAME.top, x(no_use), FRAME.bottom),
        (FRAME.left, y(no_leak), FRAME.right, y(no_leak)),
    ]
    lines += [(*a, *b) for a, b in pairwise(corners)]

    marks = [(x(no_use), y(no_leak), "destroyed", "corner"), (x(raw_use), y(no_leak), "ideal", "corner")]
    marks += [] if with_raw(results) else [(x(raw_use), y(raw_leak), "raw", "corner raw")]
    for i, (result, (use, leak)) in enumerate(zip(results, spans, strict=True)):
        px, py = x(off.utility[i]), y(off.leakage[i])
        kind = "corner raw" if is_raw(result) else "dot on" if i in off.front else "dot"
        marks.append((px, py, _short(names[i], 22), kind))
        whiskers = [(x(use[0]), py, x(use[1]), py), (px, y(leak[1]), px, y(leak[0]))]
        drawn += [line(*whisker, "whisker") for whisker in whiskers]
        lines += whiskers
    taken = [Box(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1) for a, b, c, d in lines]
    taken += [Box(px - 6, py - 6, px + 6, py + 6) for px, py, _, _ in marks]
    boxes = place_labels([(px, py) for px, py, _, _ in marks], [len(m[2]) * LETTER + 2 for m in marks], taken)
    for (px, py, text, kind), box in zip(marks, boxes, strict=True):
        nx, ny = _nearest(px, py, box)
        if math.hypot(nx - px, ny - py) > 16:
            drawn.append(line(px, py, round(nx, 1), round(ny, 1), "leader"))
        square = tag("rect", x=round(px - 4, 1), y=round(py - 4, 1), width=8, height=8, class_=kind)
        drawn.append(tag("circle", cx=px, cy=py, r=5, class_=kind) if "dot" in kind else square)
        side = "start" if box.left >= px else "end" if box.right <= px else "middle"
        at = {"start": box.left, "end": box.right, "middle": (box.left + box.right) / 2}[side]
        drawn.append(_text(at, box.bottom - 3.5, text, "name" if "dot" in kind else "axis", text_anchor=side))
    return drawn


def _text(x: float, y: float, words: str, kind: str, **more: object) -> Html:
    return tag("text", words, x=round(x, 1), y=round(y, 1), class_=kind, **({"text_anchor": "middle"} | more))


def _ticks(low: float, high: float) -> list[float]:
    step = next((step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25) if (high - low) / step <= 6), 0.5)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 9]}…{name[-8:]}"


def _frames(results: Sequence[Result]) -> list[Html]:
    moments: dict[tuple[str, bytes], list[tuple[str, Picture]]] = {}
    for name, result in named(results):
        for picture in result.pictures:
            moments.setdefault((picture.caption, picture.raw.tobytes()), []).append((name, picture))
    blocks = []
    alone = len(results) == 1
    for (caption, _), pictures in moments.items():
        tiles, reconstructed = [_tile(pictures[0][1].raw, "raw", f"{caption}: raw video")], []
        for name, picture in pictures:
            if name == "raw" and not alone:
                continue
            about = f"{caption}: anonymized by {name}"
            tiles.append(_tile(picture.anonymized, "anonymized" if alone else name, about))
            if picture.reconstructed is not None:
                words = "reconstructed by the attacker" if alone else name
                reconstructed.append(
                    _tile(picture.reconstructed, words, f"{about}, then reconstructed by the attacker")
                )
        if alone:
            groups = [tag("div", *tiles, *reconstructed, class_="frames few")]
        else:
            groups = [tag("div", *tiles, class_="frames")]
            head = tag("h4", "What the restoring attacker made of it")
            groups += [head, tag("div", *reconstructed, class_="frames")] if reconstructed else []
        blocks.append(tag("div", tag("h3", caption), *groups, class_="moment"))
    lede = "What the attackers were shown. This page holds frames of raw video: guard it as you guard the raw video."
    return [_lede(lede), *blocks] if blocks else []


def _tile(frame: Frames, words: str, about: str) -> Html:
    """A frame inside the page: small ones exactly, larger ones as JPEG no wider than a column."""
    picture = Image.fromarray(np.ascontiguousarray(frame))
    picture.thumbnail((480, 480))
    kind = "png" if picture.width * picture.height <= 160 * 120 else "jpeg"
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=88)
    source = f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    image = tag("img", src=source, alt=about, width=picture.width, height=picture.height)
    return tag("figure", image, tag("figcaption", _breakable(words)))


def _numbers(results: Sequence[Result]) -> list[Html]:
    rows = [row for result in results for row in result.rows]
    if not rows:
        return []
    alone = len(results) == 1
    if alone:
        lede = "Tinted rows count: of attackers the one that finds most, of recognizers the one that keeps most of a use."
        inner = [_lede(lede), *_rows(results[0], results[0].rows, "Every row", "note")]
    else:
        lede = (
            "Of attackers the one that finds most, of recognizers the one that keeps most of a use: mean over seeds, and "
            "95% interval. Underlined: the best of the column, raw video apart."
        )
        inner = [_lede(lede), _matrix(results), tag("h3", "Every row")]
        for k, (name, result) in enumerate(named(results)):
            table = _rows(result, result.rows, f"{name}, every row", f"note-{k}")
            inner.append(_fold("h4", name, _badge_of(result), table))
    if not with_raw(results):
        raws = {repr(result.raw): result.raw for result in results if result.raw}
        for k, raw in enumerate(raws.values()):
            table = _rows(None, raw, "raw video, every row", f"raw-note-{k}")
            inner.append(_fold("h3" if alone else "h4", "The same on raw video", Html(), table))
    knows, after = {row.knowledge for row in rows}, {row.encoding for row in rows}
    terms = {f"knowledge: {key}": f"{text}." for key, text in KNOWLEDGE.items() if key in knows}
    terms |= {f"encoding: {key}": f"{text}." for key, text in ENCODING.items() if key in after}
    terms["underfitted"] = UNDERFITTED
    return [*inner, tag("h3", "How to read the columns"), _terms(terms)]


def _fold(level: str, name: str, badge: Html, inner: Iterable[Html]) -> Html:
    """What is shown when its heading is opened."""
    head = tag("summary", tag(level, _breakable(name)), badge)
    return tag("details", head, tag("div", *inner, class_="inside"), class_="fold")


def _rows(result: Result | None, rows: Sequence[Row], label: str, key: str) -> list[Html]:
    """Every row, question by question; without a result those of raw video."""
    words, numbers = (
        ("by", "knowledge", "encoding", "metric"),
        ("95% interval", "n", "chance", "raw", "excess", "train loss"),
    )
    head = [tag("th", name, scope="col") for name in words]
    head.append(tag("th", "mean", tag("small", " [seeds]"), scope="col", class_="num"))
    head += [tag("th", name, scope="col", class_="num") for name in numbers]
    remarks = notes(rows)
    bodies = []
    for role, target, protocol in questions(rows):
        same = [row for row in rows if row.question == (role, target, protocol)]
        counts = result.headline(role, target, protocol) if result else None
        text = (tag("strong", f"{ROLES[role][0]}: {target}"), " ", tag("small", protocol))
        group = tag("tr", tag("th", *text, scope="rowgroup", colspan=len(head)))
        bodies.append(tag("tbody", group, *(_row(result, row, row is counts, remarks, key) for row in same)))
    listing = (tag("li", remark, id=f"{key}-{k}") for k, remark in enumerate(remarks, 1))
    return [_scroll(label, head, *bodies), *([tag("ol", *listing, class_="notes")] if remarks else [])]


def _row(result: Result | None, row: Row, counts: bool, remarks: Sequence[str], key: str) -> Html:
    tone = _tone(result, row) if result else "unknown"
    raw = result.raw_of(row) if result else row
    marks = []
    for k in (remarks.index(note) + 1 for note in row.notes):
        marks.append(tag("sup", tag("a", str(k), href=f"#{key}-{k}", aria_label=f"note {k}")))
    seeds = tag("small", f" [{spread(row)}]") if len(row.values) > 1 else ""
    numbers = span(row.interval), str(row.n), share(chance_of(row)), share(raw.value if raw else None)
    left = share(excess_of(result, row)) if result else "–"
    flag = tag("span", " underfitted", class_="flag") if underfitted(row) else ""
    return tag(
        "tr",
        tag("th", row.by, *marks, _hidden(" (counts)") if counts else "", scope="row"),
        *(tag("td", text, class_="nowrap") for text in (row.knowledge, row.encoding, row.metric)),
        tag("td", tag("span", share(row.value), class_="value"), seeds, class_="num"),
        *(tag("td", text, class_="num") for text in (*numbers, left)),
        tag("td", loss(row), flag, class_="num"),
        class_=f"counts {tone}" if counts else None,
    )


def _matrix(results: Sequence[Result]) -> Html:
    """Methods by questions."""
    asked = questions(row for result in results for row in result.rows)
    head = [tag("th", "method", scope="col")]
    lines = [[tag("th", _breakable(name), scope="row")] for name, _ in named(results)]
    raw_line, chance_line = ([tag("th", name, scope="row")] for name in ("raw video", "chance"))
    for question in asked:
        role, target, protocol = question
        column = cells(results, question)
        first = next((cell for cell in column if cell), None)
        metric = first[1].metric if first else ""
        raw = first[0].raw_of(first[1]) if first else None
        most = best(column, role) if several(results) else math.nan
        about = tag("small", f"{protocol}, {metric}")
        head.append(tag("th", f"{target} {ROLES[role][1]}", about, scope="col", class_="num cell"))
        for line, cell in zip(lines, column, strict=True):
            line.append(_cell(*cell, metric, most) if cell else tag("td", "–", class_="num cell"))
        raw_line.append(tag("td", share(raw.value if raw else None), class_="num cell"))
        chance_line.append(tag("td", share(chance_of(first[1]) if first else None), class_="num cell"))
    body = [
        tag("tr", *line, class_="muted" if is_raw(r) else None)
        for line, r in zip(lines, results, strict=True)
    ]
    edges = [chance_line] if with_raw(results) else [raw_line, chance_line]
    return _scroll(
        "Methods by questions", head, tag("tbody", *body, *(tag("tr", *e, class_="muted") for e in edges))
    )


def _cell(result: Result, row: Row, metric: str, most: float) -> Html:
    mark = row.value == most and not is_raw(result)
    more = [row.metric] if row.metric != metric else []
    more += [f"[{span(row.interval)}]"] if row.interval else []
    more += ["at chance"] if row.role == "leakage" and row.at_chance else []
    value = tag("span", share(row.value), class_="value")
    small = (tag("small", text) for text in more)
    return tag("td", value, _hidden(" (best)") if mark else "", *small, class_=f"num cell{' best' * mark}")


def _parts(results: Sequence[Result]) -> list[Html]:
    inner = []
    for question in questions(row for result in results for row in result.rows):
        shown = [cell for cell in cells(results, question) if cell and cell[1].parts]
        if shown:
            role, target, protocol = question
            label = f"{ROLES[role][0]}: {target}, {protocol}"
            table = (
                _parts_of_one(*shown[0], label)
                if len(results) == 1
                else _parts_of_all(results, question, label)
            )
            inner += [tag("h3", label), table]
    if len(results) == 1:
        lede = (
            "What the rows that count find of each part. The dashed line is chance, the full one raw video."
        )
    else:
        lede = "What the rows that count find of each part. Underlined: the best method of a line, raw video apart."
    return [_lede(lede), *inner] if inner else []


def _parts_of_one(result: Result, row: Row, label: str) -> Html:
    raw = result.raw_of(row)
    tone = _tone(result, row)
    lines = []
    for part, (value, chance) in row.parts.items():
        most = raw.parts[part][0] if raw and part in raw.parts else None
        bar = tag("i", style=f"width:{_at(value)}") if _at(value) else ""
        marks = f"--chance:{_at(chance) or '-9999px'};--raw:{_at(most) or '-9999px'}"
        lane = tag(
            "td", tag("span", bar, class_=f"lane {tone}", style=marks), class_="track", aria_hidden="true"
        )
        numbers = (tag("td", share(number), class_="num") for number in (value, chance, most))
        lines.append(tag("tr", tag("th", part, scope="row"), lane, *numbers))
    metric = row.metric.removesuffix(" gap")  # the parts of a gap are the groups, each with its own value
    head = [tag("th", "part", scope="col"), tag("td", aria_hidden="true")]
    head += [tag("th", name, scope="col", class_="num") for name in (metric, "chance", "raw")]
    return _scroll(label, head, tag("tbody", *lines), class_="parts")


def _at(value: float | None) -> str:
    """Where a share lies on a bar from 0 to 1; nothing where it is not known."""
    return "" if value is None or math.isnan(value) else f"{min(max(value, 0.0), 1.0):.1%}"


def _parts_of_all(results: Sequence[Result], question: Question, label: str) -> Html:
    """Parts by methods."""
    column = cells(results, question)
    raws = [raw.parts for cell in column if cell and (raw := cell[0].raw_of(cell[1]))]
    pick = min if question[0] == "leakage" else max  # the parts of a gap are uses
    lines = []
    for part in dict.fromkeys(part for cell in column if cell for part in cell[1].parts):
        values = [cell[1].parts[part][0] if cell and part in cell[1].parts else math.nan for cell in column]
        known = [v for v, r in zip(values, results, strict=True) if not is_raw(r) and not math.isnan(v)]
        most = pick(known, default=None) if several(results) else None
        line = [tag("th", part, scope="row")]
        for value, result in zip(values, results, strict=True):
            mark = value == most and not is_raw(result)
            number = tag("span", share(value), class_="value")
            line.append(
                tag("td", number, _hidden(" (best)") if mark else "", class_=f"num cell{' best' * mark}")
            )
        raw = next((parts[part][0] for parts in raws if part in parts), None)
        chance = next((cell[1].parts[part][1] for cell in column if cell and part in cell[1].parts), None)
        edges = [chance] if with_raw(results) else [raw, chance]
        lines.append(tag("tr", *line, *(tag("td", share(edge), class_="num cell muted") for edge in edges)))
    names = [*(name for name, _ in named(results)), *([] if with_raw(results) else ["raw video"]), "chance"]
    head = [tag("th", _breakable(name), scope="col", class_="num cell") for name in names]
    return _scroll(label, [tag("th", "part", scope="col"), *head], tag("tbody", *lines))


def _untested(results: Sequence[Result]) -> list[Html]:
    lede = "What is said here is said of these attackers and this data only. This audit is silent about:"
    items = [tag("li", sentence) for sentence in untested(results)]
    return [_lede(lede), tag("ul", *items, class_="list")] if items else []


def _how(results: Sequence[Result]) -> list[Html]:
    told = []
    for fact, values in facts(results):
        ways = []
        for name, value in values:
            text = tag("pre", tag("code", value)) if fact == "command" else value
            ways.append(join(tag("strong", f"{name}: ") if name else "", text))
        told += [
            tag("dt", fact),
            tag("dd", *ways if len(ways) == 1 else [tag("ul", *(tag("li", w) for w in ways))]),
        ]
    return [_lede("All that is needed to do it again."), tag("dl", *told, class_="facts")] if told else []
