"""The tables of learned anonymizers come from the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from experiments import learned, records
from experiments import learned_report as report
from experiments.records import Record
from veil.data import read


def row(role: str, by: str, value: float, knowledge: str = "adaptive") -> dict[str, Any]:
    """One score."""
    target, chance = ("action", 0.04) if role == "utility" else ("identity", 0.125)
    return {
        "role": role, "target": target, "by": by, "knowledge": knowledge, "encoding": "8-bit",
        "protocol": "same dataset: utd-mhad", "metric": "top-1", "value": value, "chance": chance, "n": 200,
    }  # fmt: skip


def put(folder: Path, method: str, seed: int, *scores: dict[str, Any]) -> None:
    """A record as experiments.learned leaves it."""
    seconds: dict[str, Any] = {"training_seconds": 100.0 + seed, "evaluation_seconds": 60.0}
    records.append(folder, Record("utd-mhad", method, seed, list(scores), commit="0123456789", **seconds))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Raw video, one filter whose second seed met one attacker only, and one learned method of two seeds."""
    put(tmp_path, "raw", 0, row("utility", "a", 0.97), row("leakage", "b", 1.0))
    both = row("leakage", "b", 0.6), row("leakage", "c", 0.9)
    put(tmp_path, "pixelate 16", 0, row("utility", "a", 0.96), *both)
    put(tmp_path, "pixelate 16", 1, row("utility", "a", 0.98), row("leakage", "b", 0.5))
    for seed, (use, leak) in enumerate([(0.94, 0.30), (0.96, 0.38)]):
        answers = row("utility", "a", use), row("utility", "a", 0.99, "oblivious"), row("leakage", "b", 0.2)
        attacks = row("leakage", "c", leak), row("leakage", "b", 0.13, "oblivious")
        put(tmp_path, "action prototypes", seed, *answers, *attacks)
    return tmp_path


def line_of(page: str, method: str, part: int = 0) -> list[str]:
    """The cells of a method's line."""
    found = [line for line in page.splitlines() if line.startswith(f"| {method} |")]
    return [cell.strip() for cell in found[part].strip("|").split("|")]


def test_tables(rows: Path) -> None:
    """Of each seed the strongest attacker, those of fewer attackers left out; the rest of the page stays."""
    page = rows / "page.md"
    page.write_text(
        "# Mine\n<!-- utd-mhad -->\nold\n<!-- end -->\nbetween\n<!-- bound -->\n<!-- end -->\n<!-- targets -->\n<!-- end -->\nlast\n"
    )
    report.report(rows, page)
    once = page.read_text()
    assert once.startswith("# Mine\n<!-- utd-mhad -->\n| method")
    assert once.endswith("<!-- end -->\nlast\n") and "\nbetween\n" in once and "old" not in once
    ours = line_of(once, "action prototypes")
    assert ours[1] == "`veil train recipes/prototypes.toml -o RUN`"
    assert ours[2:8] == [
        ".950 [.940–.960]",
        ".340 [.300–.380]",
        "c, adaptive",
        ".130 [.130–.130]",
        "2",
        "100–101 s",
    ]
    assert line_of(once, "pixelate 16")[2:4] == [".970 [.960–.980]", ".900"]
    assert "Not run yet: penalty B 0.3; penalty B 0.5" in once
    assert line_of(once, "action prototypes", 1)[2:] == [".940", ".380", "yes", "no"]
    assert line_of(once, "pixelate 16", 1)[2:] == [".960", ".900", "no", "no"]
    report.report(rows, page)
    assert page.read_text() == once


def test_plots(rows: Path) -> None:
    """Every method has a mark and a name; whiskers are those of its seeds; a second metric is refused."""
    found = report.read(rows, "utd-mhad", report.PROTOCOLS["utd-mhad"])
    (svg,) = report.plots(found).values()
    drawing = ElementTree.fromstring(svg)
    names = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"raw", "pixelate 16", "action prototypes", "identity, top-1, strongest attacker"} <= set(names)
    ours = report.plot_point(found[-1])
    assert (ours.utility_spread, ours.leakage_spread) == ((0.94, 0.96), (0.3, 0.38))
    put(rows, "noise 0.3", 0, row("utility", "a", 0.97), row("leakage", "b", 1.0))
    put(rows, "noise 0.3", 1, row("utility", "a", 0.97), {**row("leakage", "b", 1.0), "metric": "cMAP"})
    with pytest.raises(ValueError, match="noise"):
        report.plots(report.read(rows, "utd-mhad", report.PROTOCOLS["utd-mhad"]))


def test_a_crowd_has_a_plot_of_its_own(rows: Path) -> None:
    for name in ("pixelate 4", "noise 0.3", "blur weak", "blur strong"):
        put(rows, name, 0, row("utility", "a", 0.97), row("leakage", "b", 0.99))
    names = {
        end: {text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
        for end, svg in report.plots(report.read(rows, "utd-mhad", report.PROTOCOLS["utd-mhad"])).items()
    }
    assert {"action prototypes", "destroyed", "ideal"} <= names[""] and "noise 0.3" not in names[""]
    assert {"noise 0.3", "blur weak", "raw"} <= names["-corner"]
    assert not {"destroyed", "ideal", "action prototypes"} & names["-corner"]


def test_other_networks_are_listed_one_by_one() -> None:
    """Each by itself, where it was trained on what a method leaves; none in the cell of one that did not evaluate it."""
    raw = row("utility", "x", 0.9), row("leakage", "y", 1.0), row("leakage", "y on one frame", 0.8)
    ours = row("utility", "x", 0.8), row("utility", "x", 0.1, "oblivious")
    found = [
        report.MethodRecords(name, (Record("utd-mhad", name, 0, list(rows)),))
        for name, rows in (("raw", raw), ("action prototypes", ours))
    ]
    page = report.by_network(found)
    assert line_of(page, "x") == ["x", "action", ".900", ".800"]
    assert line_of(page, "y") == ["y", "identity", "1.000", ""]
    assert line_of(page, "measured at")[2:] == ["unknown ‡", "unknown ‡"]


def test_training_videos_come_several_times() -> None:
    """Each begun a frame later than the one before; those that are chosen and tested with stay as they are."""
    data = read("synthetic", size=16, count=80)
    often = learned.often(data)
    assert len(often.split("train")) == 6 * len(data.split("train"))
    assert len({sample.id for sample in often.samples}) == len(often.samples)
    first = data.split("train")[0]
    for begun, sample in enumerate(often.split("train")[:6]):
        assert (sample.action, sample.identity) == (first.action, first.identity)
        assert np.array_equal(often.frames(sample), data.frames(first)[begun:])
    for split in ("val", "test"):
        assert often.split(split) == data.split(split)
        assert np.array_equal(often.frames(often.split(split)[0]), data.frames(data.split(split)[0]))
