"""Plots of utility against leakage: deterministic, for themselves, and with the whiskers of what they show."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from veil.audit.label_placement import PlotBox, overlaps, place_labels
from veil.audit.plots import (
    PlotPoint,
    TradeOffPlot,
    inline_trade_off,
    shortened,
    trade_off_svg,
)
from veil.audit.result import Result, Row
from veil.audit.trade_off import trade_offs

SPACE = "{http://www.w3.org/2000/svg}"
POINTS = (
    PlotPoint("blur", 0.8, 0.6, (0.78, 0.82), (0.5, 0.65)),
    PlotPoint("<b>'s & c", 0.7, 0.2, (0.68, 0.74), (0.15, 0.22), "front"),
    PlotPoint("one seed", 0.9, 0.5, (0.9, 0.9), (0.5, 0.5), "front"),
)
PLOT = TradeOffPlot(POINTS, "utility: action", "leakage: identity", (0.1, 0.12), (0.95, 0.98))


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SPACE}text")]


def lines(svg: str) -> list[list[float]]:
    """Straight lines as x0, y0, x1, y1."""
    paths = (path.get("d") or "" for path in ElementTree.fromstring(svg).iter(f"{SPACE}path"))
    numbers = ([float(n) for n in re.findall(r"-?[\d.]+", d)] for d in paths if d.count("L") == 1)
    return [found for found in numbers if len(found) == 4]


def test_the_same_plot_has_the_same_bytes():
    assert trade_off_svg(PLOT) == trade_off_svg(PLOT)
    assert not re.search(r"\d{4}-\d{2}-\d{2}", trade_off_svg(PLOT))


def test_every_point_and_corner_is_named():
    assert {"blur", "<b>'s & c", "one seed", "raw", "ideal", "destroyed"} <= set(texts(trade_off_svg(PLOT)))
    listed = replace(PLOT, points=(*POINTS, PlotPoint("raw", 0.95, 0.98, (0.9, 1.0), (0.9, 1.0), "raw")))
    assert texts(trade_off_svg(listed)).count("raw") == 1


def test_inside_a_page_a_plot_loads_nothing_and_follows_its_colours():
    inline = inline_trade_off(PLOT, "plot-1", "a & b", "c < d")
    assert not re.search(r"https?:|//|url\(|@import|xlink|<style|#\d{6}", inline)
    assert re.findall(r'id="([^"]*)"', inline) == ["plot-1", "plot-1-desc"]
    assert "var(--ink)" in inline and "a &amp; b" in inline and "c &lt; d" in inline
    ElementTree.fromstring(inline)


def test_one_seed_has_no_whisker():
    one = replace(PLOT, points=POINTS[2:])
    several = replace(
        PLOT, points=(POINTS[2]._replace(utility_spread=(0.8, 0.95), leakage_spread=(0.4, 0.6)),)
    )
    vertical = [line for line in lines(trade_off_svg(several)) if line[0] == line[2]]
    assert len(lines(trade_off_svg(several))) > len(lines(trade_off_svg(one))) and vertical


def test_whiskers_have_the_length_of_the_spread():
    point = PlotPoint("x", 0.5, 0.5, (0.4, 0.7), (0.45, 0.6))
    drawn = lines(trade_off_svg(replace(PLOT, points=(point,), chance=(0.0, 0.0), raw=(1.0, 1.0))))
    scale_x, scale_y = (392 - 44) / 1.18, (328 - 26) / 1.18  # the axes from 0 to 1, and 9 % at each end
    wide = [abs(x1 - x0) for x0, y0, x1, y1 in drawn if y0 == y1]
    high = [abs(y1 - y0) for x0, y0, x1, y1 in drawn if x0 == x1]
    assert any(length == pytest.approx(0.3 * scale_x, abs=0.1) for length in wide)
    assert any(length == pytest.approx(0.15 * scale_y, abs=0.1) for length in high)


def row(role, target, protocol, metric, *values: float) -> Row:
    return Row(role, target, "net", "adaptive", "8-bit", protocol, metric, values, 0.1, 100, (0.0, 1.0))


def test_a_trade_off_has_the_spread_of_its_own_protocol_and_metric():
    """One target under two protocols and two metrics: four questions, each with its own values and seeds."""
    rows = (
        row("utility", "action", "same dataset: a", "top-1", 0.7, 0.8),
        row("utility", "action", "same dataset: b", "top-1", 0.95, 0.99),
        row("leakage", "face", "gallery", "rank-1", 0.2, 0.3),
        row("leakage", "face", "gallery", "recognized", 0.6, 0.9),
    )
    offs = trade_offs([Result("m", {}, "", rows, tuple(replace(r, values=(1.0,)) for r in rows), {}, ())])
    spreads = {(str(off.utility_axis), off.leakage_axis.metric): off for off in offs}
    assert len(spreads) == len(offs) == 4
    for off in offs:
        uses = {"same dataset: a": (0.7, 0.8), "same dataset: b": (0.95, 0.99)}
        leaks = {"rank-1": (0.2, 0.3), "recognized": (0.6, 0.9)}
        assert off.utility_spread == (uses[off.utility_axis.protocol],)
        assert off.leakage_spread == (leaks[off.leakage_axis.metric],)
        low, high = off.utility_spread[0]
        assert low <= off.utility[0] <= high
        assert off.leakage_spread[0][0] <= off.leakage[0] <= off.leakage_spread[0][1]


def test_labels_do_not_overlap():
    rng = np.random.default_rng(0)
    frame = PlotBox(44, 26, 392, 328)
    for _ in range(5):
        points = [(float(x), float(y)) for x, y in rng.uniform((70, 20), (410, 310), (10, 2))]
        points[5:8] = [(points[0][0] + 2 * k, points[0][1]) for k in range(3)]
        marks = [PlotBox(x - 6, y - 6, x + 6, y + 6) for x, y in points]
        boxes = place_labels(points, [100.0] * 10, marks, frame)
        assert np.triu(overlaps(boxes, boxes), 1).sum() == 0
        assert overlaps(boxes, marks).sum() == 0


def test_long_names_are_shortened_in_the_middle():
    assert shortened("short", 22) == "short"
    assert len(shortened("a" * 40, 22)) == 22


def test_names_are_text_whatever_is_in_them():
    odd = PlotPoint("$x$\n\ud800", 0.7, 0.2, (0.7, 0.7), (0.2, 0.2))
    assert "$x$ ?" in texts(trade_off_svg(replace(PLOT, points=(odd,))))
