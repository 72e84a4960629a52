"""Plots of utility against leakage as SVG, drawn by matplotlib; the same input gives the same bytes.

Inside a report colours are the page's variables, so that plots are light or dark as the page is; a file of its own has
the colours of the light page. Whiskers are those of the points that are drawn, and of no other row.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from veil.audit.label_placement import LETTER_WIDTH, PlotBox, place_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PointKind = Literal["method", "front", "raw", "corner"]

WIDTH, HEIGHT = 400, 372  # pixels
_DPI = 72  # so that a point is a pixel
_COLOURS = {  # as plotted: name in the page's style sheet, colour in a file of its own
    "#010101": ("--ink", "#1c2226"),
    "#010102": ("--soft", "#56606a"),
    "#010103": ("--line", "#dcdfdc"),
    "#010104": ("--use", "#2f74ad"),
    "#010105": ("--use-ink", "#1f5f94"),
    "#010106": ("--card", "#ffffff"),
    "#010107": ("--safe-tint", "#e5f2ea"),
}
_INK, _SOFT, _LINE, _USE, _USE_INK, _CARD, _TINT = _COLOURS


class PlotPoint(NamedTuple):
    """One method: mean, least and greatest seed of its utility and its leakage."""

    name: str
    utility: float
    leakage: float
    utility_spread: tuple[float, float]
    leakage_spread: tuple[float, float]
    kind: PointKind = "method"
    colour: str | None = None  # of its mark, where it is not that of its kind


@dataclass(frozen=True)
class TradeOffPlot:
    """What one plot shows."""

    points: Sequence[PlotPoint]
    utility_label: str
    leakage_label: str
    chance: tuple[float, float]  # of utility and leakage
    raw: tuple[float, float]
    goal: tuple[float, float] | None = None  # least utility and greatest leakage that is aimed at
    enlarged: bool = False  # a part of another plot: chance, destroyed and ideal video lie outside


def trade_off_svg(plot: TradeOffPlot) -> str:
    """The plot as an SVG file."""
    inner = _with_colours(_elements(plot), [colour for _, colour in _COLOURS.values()])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-family="sans-serif">'
    back = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    return f"{head}{back}{inner}</svg>\n"


def inline_trade_off(plot: TradeOffPlot, key: str, title: str, description: str) -> str:
    """The plot as an element of a page, read aloud by title and description; `key` is unique in the page."""
    inner = _with_colours(_elements(plot), [f"var({name})" for name, _ in _COLOURS.values()])
    about = f'<title id="{key}">{html.escape(title)}</title><desc id="{key}-desc">{html.escape(description)}</desc>'
    named = f'role="img" aria-labelledby="{key} {key}-desc" class="plot"'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" {named}>{about}{inner}</svg>'


def _elements(plot: TradeOffPlot) -> str:
    """The elements inside the SVG; colours are those of `_COLOURS`."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    settings: Any = {
        "svg.hashsalt": "veil",
        "svg.fonttype": "none",
        "font.size": 12,
        "path.simplify": False,
    }
    settings["text.parse_math"] = False  # a name with $ is a name
    with matplotlib.rc_context(settings):
        figure = Figure((WIDTH / _DPI, HEIGHT / _DPI), dpi=_DPI, facecolor="none")
        canvas = FigureCanvasSVG(figure)
        frame = PlotBox(44, 26, 392, 328)
        axes = figure.add_axes(
            (
                frame.left / WIDTH,
                1 - frame.bottom / HEIGHT,
                (frame.right - frame.left) / WIDTH,
                (frame.bottom - frame.top) / HEIGHT,
            ),
            facecolor="none",
        )
        (low, high), (bottom, top) = _limits(plot)
        axes.set(xlim=(low, high), ylim=(bottom, top))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xticks(_ticks(low, high))
        axes.set_yticks(_ticks(bottom, top))
        axes.tick_params(length=0, pad=6, labelcolor=_SOFT)
        axes.grid(color=_LINE, linewidth=1)
        axes.set_axisbelow(True)
        for spine in axes.spines.values():
            spine.set_visible(False)
        figure.text(0, 1 - 14 / HEIGHT, shortened(plot.leakage_label, 52), color=_SOFT)
        label = shortened(plot.utility_label, 52)
        figure.text(frame.right / WIDTH, 8 / HEIGHT, label, color=_SOFT, ha="right")
        _draw(axes, plot, frame)
        buffer = io.StringIO()
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _cleaned(buffer.getvalue())


def _draw(axes: Axes, plot: TradeOffPlot, frame: PlotBox) -> None:
    """Chance, front, whiskers, marks and labels."""
    lines: list[tuple[float, float, float, float]] = []

    def pixel(x: float, y: float) -> tuple[float, float]:
        across, up = axes.transData.transform((x, y))
        return float(across), HEIGHT - float(up)

    def line(x0: float, y0: float, x1: float, y1: float, **style: object) -> None:
        axes.plot([x0, x1], [y0, y1], **style)  # type: ignore[arg-type]
        lines.append((*pixel(x0, y0), *pixel(x1, y1)))

    (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    if plot.goal:
        axes.fill(
            [plot.goal[0], high, high, plot.goal[0]],
            [bottom, bottom, plot.goal[1], plot.goal[1]],
            color=_TINT,
        )
    front = _front(plot)
    if front:
        corners = [*front, (front[-1][0], max(plot.raw[1], front[-1][1]))]
        area = [*corners, (plot.chance[0], corners[-1][1])]
        axes.fill([x for x, _ in area], [y for _, y in area], color=_USE, alpha=0.1, linewidth=0)
        for (x0, y0), (x1, y1) in pairwise(corners):
            line(x0, y0, x1, y1, color=_USE, linewidth=1.75)
    dashed = {"color": _SOFT, "linewidth": 1.25, "linestyle": (0, (4, 4))}
    if not plot.enlarged:
        line(plot.chance[0], bottom, plot.chance[0], top, **dashed)
        line(low, plot.chance[1], high, plot.chance[1], **dashed)
    points = [*_corners(plot), *plot.points]
    for point in points:
        (u0, u1), (l0, l1) = point.utility_spread, point.leakage_spread
        if u1 > u0:
            line(u0, point.leakage, u1, point.leakage, color=point.colour or _USE_INK, linewidth=1.25)
        if l1 > l0:
            line(point.utility, l0, point.utility, l1, color=point.colour or _USE_INK, linewidth=1.25)
    places = [pixel(point.utility, point.leakage) for point in points]
    taken = [PlotBox(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1) for a, b, c, d in lines]
    taken += [PlotBox(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    names = [shortened(point.name, 22) for point in points]
    boxes = place_labels(places, [len(name) * LETTER_WIDTH + 2 for name in names], taken, frame)
    for point, name, (x, y), box in zip(points, names, places, boxes, strict=True):
        near = box.nearest(x, y)
        at = axes.transData.inverted().transform((near[0], HEIGHT - near[1]))
        if math.hypot(near[0] - x, near[1] - y) > 16:
            axes.plot([point.utility, at[0]], [point.leakage, at[1]], color=_SOFT, linewidth=0.75)
        _mark(axes, point)
        side = "left" if box.left >= x else "right" if box.right <= x else "center"
        across = {"left": box.left, "right": box.right, "center": (box.left + box.right) / 2}[side]
        colour = _INK if point.kind in ("method", "front") else _SOFT
        place = (across / WIDTH, 1 - (box.bottom - 3.5) / HEIGHT)
        axes.figure.text(*place, name, ha=side, va="baseline", color=colour)


def _mark(axes: Axes, point: PlotPoint) -> None:
    square = point.kind in ("raw", "corner")
    edge = point.colour or (_SOFT if square else _USE_INK)
    fill = edge if point.kind in ("raw", "front") or point.colour else _CARD
    axes.plot(
        [point.utility],
        [point.leakage],
        marker="s" if square else "o",
        markersize=7 if square else 9,
        markerfacecolor=fill,
        markeredgecolor=edge,
        markeredgewidth=1.5 if square else 2,
    )


def _corners(plot: TradeOffPlot) -> list[PlotPoint]:
    """Destroyed, ideal and, unless it is a point already, raw video."""
    if plot.enlarged:
        return []
    (no_use, no_leak), (raw_use, raw_leak) = plot.chance, plot.raw
    places = [("destroyed", no_use, no_leak), ("ideal", raw_use, no_leak)]
    found = [PlotPoint(name, x, y, (x, x), (y, y), "corner") for name, x, y in places]
    if any(point.kind == "raw" for point in plot.points):
        return found
    return [*found, PlotPoint("raw", raw_use, raw_leak, (raw_use, raw_use), (raw_leak, raw_leak), "raw")]


def _front(plot: TradeOffPlot) -> list[tuple[float, float]]:
    """The stairs through the methods on the Pareto front, from chance on."""
    on = sorted((p for p in plot.points if p.kind == "front"), key=lambda p: (p.utility, p.leakage))
    if not on:
        return []
    stairs = [(plot.chance[0], on[0].leakage)]
    for point in on:
        stairs += [(stairs[-1][0], point.leakage), (point.utility, point.leakage)]
    return stairs


def _limits(plot: TradeOffPlot) -> tuple[tuple[float, float], tuple[float, float]]:
    uses = [end for p in plot.points for end in (*p.utility_spread, p.utility)]
    leaks = [end for p in plot.points for end in (*p.leakage_spread, p.leakage)]
    if not plot.enlarged:
        uses, leaks = [*uses, plot.chance[0], plot.raw[0]], [*leaks, plot.chance[1], plot.raw[1]]
    if plot.goal:
        uses, leaks = [*uses, plot.goal[0]], [*leaks, plot.goal[1]]
    return axis_range(uses, 0.09), axis_range(leaks, 0.09)


def axis_range(values: Sequence[float], pad: float) -> tuple[float, float]:
    """The ends of an axis that shows all values."""
    known = [value for value in values if not math.isnan(value)]
    low, high = min(known), max(known)
    room = max((high - low) * pad, 0.01)
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    step = next((step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25) if (high - low) / step <= 6), 0.5)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def shortened(name: str, most: int) -> str:
    """A name on one line, of at most that many letters: its beginning and its end."""
    name = " ".join(
        name.encode("utf-8", "replace").decode().split()
    )  # no lone surrogates, which have no glyph
    return name if len(name) <= most else f"{name[: most - 9]}…{name[-8:]}"


def _cleaned(svg: str) -> str:
    """What is inside matplotlib's SVG, without ids, definitions and addresses, so that several fit into one page."""
    inner = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    markers = dict(re.findall(r'<path id="(\w+)" (d="[^"]*"[^>]*)/>', inner))
    inner = re.sub(r"<!--.*?-->", "", inner, flags=re.S)
    inner = re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.S)
    inner = re.sub(r"<defs>.*?</defs>", "", inner, flags=re.S)

    def used(match: re.Match[str]) -> str:
        path = re.sub(r' style="[^"]*"', "", markers[match["id"]])
        return f'<path {path} transform="translate({match["x"]} {match["y"]})" style="{match["style"]}"/>'

    use = r'<use xlink:href="#(?P<id>\w+)" x="(?P<x>[^"]*)" y="(?P<y>[^"]*)" style="(?P<style>[^"]*)"/>'
    inner = re.sub(use, used, inner)
    inner = re.sub(r' (?:id="[^"]*"|clip-path="[^"]*")', "", inner)
    inner = re.sub(
        r"font-family: [^;\"]*;? ?", "", re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", inner)
    )
    inner = re.sub(r' transform="rotate\(-0 [^"]*"', "", inner)
    return re.sub(r"\s*\n\s*", "", re.sub(r"<g>\s*</g>|<g/>", "", inner))


def _with_colours(svg: str, colours: Sequence[str]) -> str:
    for placeholder, shown in zip(_COLOURS, colours, strict=True):
        svg = svg.replace(placeholder, shown)
    return svg
