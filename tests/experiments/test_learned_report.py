"""The tables of learned anonymizers are what the rows say."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from experiments import learned
from experiments import learned_report as report
from veil.audit.result import Knows, Result, Role, Row, save
from veil.data import read


def row(role: Role, by: str, value: float, knows: Knows = "adapted") -> Row:
    """One answer."""
    target, chance = ("action", 0.04) if role == "utility" else ("identity", 0.125)
    return Row(role, target, by, knows, "8-bit", "same dataset: utd-mhad", "top-1", (value,), chance, 200)


def put(folder: Path, file: str, method: str, seed: int, *rows: Row, command: str = "") -> None:
    """A file of rows as experiments.learned leaves it."""
    settings = {"seeds": [seed], "training seconds": 100.0 + seed}
    result = Result(method, {}, "utd-mhad", rows, (), settings, (), command=command, seconds=60.0)
    save(result, folder / f"utd-mhad.{file}.{seed}.json")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Raw video, one filter whose second seed met one attacker only, and one learned method of two seeds."""
    put(tmp_path, "raw", "raw", 0, row("utility", "a", 0.97), row("leakage", "b", 1.0))
    both = row("leakage", "b", 0.6), row("leakage", "c", 0.9)
    put(tmp_path, "pixelate-16", "pixelate 16", 0, row("utility", "a", 0.96), *both)
    put(tmp_path, "pixelate-16", "pixelate 16", 1, row("utility", "a", 0.98), row("leakage", "b", 0.5))
    for seed, (use, leak) in enumerate([(0.94, 0.30), (0.96, 0.38)]):
        answers = row("utility", "a", use), row("utility", "a", 0.99, "raw"), row("leakage", "b", 0.2)
        attacks = row("leakage", "c", leak), row("leakage", "b", 0.13, "raw")
        command = f"veil train recipes/prototypes.toml -o RUN --set 'seed={seed}'"
        put(tmp_path, "Everyone", "Everyone", seed, *answers, *attacks, command=command)
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
    everyone = line_of(once, "Everyone")
    assert everyone[1] == "`veil train recipes/prototypes.toml -o RUN`"
    assert everyone[2:8] == [
        ".950 [.940–.960]",
        ".340 [.300–.380]",
        "c, adapted",
        ".130 [.130–.130]",
        "2",
        "100–101 s",
    ]
    assert line_of(once, "pixelate 16")[2:4] == [".970 [.960–.980]", ".900"]
    assert "Not run yet: penalty B 0.3; penalty B 0.5" in once
    assert line_of(once, "Everyone", 1)[2:] == [".940", ".380", "yes", "no"]
    assert line_of(once, "pixelate 16", 1)[2:] == [".960", ".900", "no", "no"]
    report.report(rows, page)
    assert page.read_text() == once


def test_plot(rows: Path) -> None:
    """Every method has a mark and a name; what finds less lies lower."""
    found = report.read(rows, "utd-mhad", report.PROTOCOLS["utd-mhad"])
    drawn = ElementTree.fromstring(report.plot(found, "identity"))
    space = "{http://www.w3.org/2000/svg}"
    names = [text.text for text in drawn.iter(f"{space}text")]
    assert {"raw", "pixelate 16", "Everyone", "target"} <= set(names)
    colours = report.COLOURS
    at = {
        c.get("fill"): float(c.get("cy") or 0)
        for c in drawn.iter(f"{space}circle")
        if float(c.get("cy") or 0) > report.TOP
    }
    assert at[colours["raw"]] < at[colours["filter"]] < at[colours["learned"]]


def test_other_networks_are_told_one_by_one() -> None:
    """Each by itself, where it was trained on what a method leaves; none in the cell of one that did not judge it."""
    raw = row("utility", "x", 0.9), row("leakage", "y", 1.0), row("leakage", "y on one frame", 0.8)
    ours = row("utility", "x", 0.8), row("utility", "x", 0.1, "raw")
    found = [
        report.Found(name, (Result(name, {}, "utd-mhad", rows, (), {}, ()),))
        for name, rows in (("raw", raw), ("Everyone", ours))
    ]
    page = report.by_network(found)
    assert line_of(page, "x") == ["x", "action", ".900", ".800"]
    assert line_of(page, "y") == ["y", "identity", "1.000", ""]
    assert len(page.splitlines()) == 4


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
