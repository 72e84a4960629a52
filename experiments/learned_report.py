"""The tables and the plot of docs/results/learned.md, made from the rows: no figure there is typed by hand.

    python -m experiments.learned_report docs/results/rows -o docs/results/learned.md

What stands between `<!-- NAME -->` and `<!-- end -->` is replaced; NAME is `targets`, a protocol (all methods, and a plot
beside the page) or one of `GROUPS`. Of each seed the best use (trained anew) and the strongest attacker count; a cell is
their mean over seeds, and [least–greatest]; seeds that met fewer attackers do not count for these. The rest of the page is left as it is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from experiments.filters import METHODS
from experiments.learned import FIXED, ROWS, file_name
from veil.audit.html import LETTER, Box, Html, place_labels, tag
from veil.audit.result import Result, Role, Row, load

GROUPS: dict[str, tuple[str, ...]] = {  # of UTD-MHAD, without a protocol of their own
    "bound": tuple(f"penalty B {b}" for b in (0.3, 0.5, 0.7, 0.9)),
    "lambda": tuple(f"penalty B 0.1 lambda {w}" for w in (0, 0.25, 0.5, 1)),
    "omega": ("SPAct omega 0.1", "SPAct omega 0.3", "SPAct", "SPAct omega 3", "SPAct omega 10"),
    "branch": ("SPAct", "SPAct frozen", "SPAct spatio-temporal"),
    "sampling": ("SPAct", "SPAct views", "SPAct near", "SPAct far"),
    "loss": ("SPAct", "SPAct MoCo", "SPAct RotNet", "SPAct without cap"),
    "architecture": (
        "SPAct",
        "SPAct MobileNet",
        "SPAct ensemble",
        "SPAct UNet++",
        "SPAct, the paper's networks",
    ),
    "sigma": (
        "Everyone, the nearest moment",
        *(f"Everyone sigma {w}" for w in (0.003, 0.005)),
        "Everyone",
        *(f"Everyone sigma {w}" for w in (0.02, 0.03)),
    ),
    "variants": (
        *(name for name in ROWS if name.startswith("Everyone, ")),
        "adversarial, ours",
        "SPAct stronger",
        "penalty as released",
    ),
}
PROTOCOLS = {
    "utd-mhad": ("raw", *METHODS, *(name for name, row in ROWS.items() if row.main), *FIXED),
    "ucf-sports-utkface": ("raw", *METHODS, *(name for name, row in ROWS.items() if row.main), *FIXED),
    "utd-mhad-unseen": ("raw", "BDQ", *FIXED, "Everyone"),
    "utd-mhad-often": ("raw", "Everyone, the nearest moment", "Everyone"),
    "utd-mhad-novel": ("raw", "SPAct", "BDQ", "Everyone"),
    "ucf-sports-utkface-novel": ("raw", "SPAct", "adversarial", "STPrivacy", "Everyone"),
    "utd-mhad-others": ("raw", "SPAct", "BDQ", "Everyone"),
}
APART = ("utd-mhad-others",)  # of which every network is told by itself
PLOTTED = ("utd-mhad", "ucf-sports-utkface")
TARGETS = {"target": (0.93, 0.40), "moonshot": (0.95, 0.25)}  # action at least, identity at most
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Found:
    """What all seeds of one method say."""

    name: str
    results: tuple[Result, ...]  # one a seed

    def best(self, role: Role, knows: Sequence[str]) -> list[Row]:
        """Of each seed the recognizer that does best, among those that know what is named.

        A seed that met fewer adapted attackers than another one says nothing about the strongest.
        """
        out = []
        adapted = [
            sum(r.role == "leakage" and r.knows == "adapted" for r in one.rows) for one in self.results
        ]
        for result, met in zip(self.results, adapted, strict=True):
            rows = [row for row in result.rows if row.role == role and row.knows in knows]
            if rows and (role == "utility" or met == max(adapted)):
                out.append(max(rows, key=lambda row: row.value))
        return out

    @property
    def action(self) -> list[Row]:
        return self.best("utility", ("adapted",))

    @property
    def private(self) -> list[Row]:
        return self.best("leakage", ("raw", "adapted", "restoring"))


def read(folder: Path, protocol: str, names: Iterable[str]) -> list[Found]:
    """What is there of these methods, in their order."""
    out = []
    for name in dict.fromkeys(names):
        paths = [folder / file_name(protocol, name, seed) for seed in SEEDS]
        if results := tuple(load(path) for path in paths if path.exists()):
            out.append(Found(name, results))
    return out


def short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def told(rows: Sequence[Row]) -> str:
    """The mean over seeds, and the least and the greatest."""
    values = [row.value for row in rows]
    if not values:
        return ""
    mean = short(fmean(values))
    return mean if len(values) == 1 else f"{mean} [{short(min(values))}–{short(max(values))}]"


def seconds(values: Sequence[float]) -> str:
    known = sorted({round(value) for value in values if value})
    return "" if not known else f"{known[0]} s" if len(known) == 1 else f"{known[0]}–{known[-1]} s"


def made_by(found: Found) -> str:
    """The command of a training, or a method as `--method` takes it."""
    if found.name in ROWS:
        command = re.sub(r" --set '[a-z.]*seed=\d+'", "", found.results[0].command)
        return f"`{command.strip()}`"
    spec = METHODS.get(found.name)
    return f"`--method {spec}`" if spec else "`experiments/learned.py`" if found.name in FIXED else ""


def table(found: Sequence[Found], private: str) -> str:
    """A line for each method."""
    lines = [
        f"| method | made by | action | {private}, strongest attacker | who | {private}, who knows raw video only | seeds | trained in | judged in |",
        "|---|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for one in found:
        top = max(one.private, key=lambda row: row.value)
        who = "" if one.name == "raw" else f"{top.by}, {top.knows}"
        unadapted = told(one.best("leakage", ("raw",)))
        trained = seconds([result.settings.get("training seconds", 0.0) for result in one.results])
        judged = seconds([result.seconds for result in one.results])
        cells = made_by(one), told(one.action), told(one.private), who, unadapted, str(len(one.results))
        lines.append(f"| {one.name} | {' | '.join(cells)} | {trained} | {judged} |")
    return "\n".join(lines)


def by_network(found: Sequence[Found]) -> str:
    """A line for each network, a column for each method: what it finds where it was trained on what the method leaves."""
    lines = ["| network | finds | " + " | ".join(one.name for one in found) + " |"]
    lines.append("|---|---|" + "---:|" * len(found))
    asked = {
        (row.target, row.by): None
        for one in found
        for row in one.results[0].rows
        if row.knows == "adapted" and not row.by.endswith("one frame")
    }
    for target, by in asked:
        cells = []
        for one in found:
            rows = [row for result in one.results for row in result.rows]
            cells.append(told([r for r in rows if (r.target, r.by, r.knows) == (target, by, "adapted")]))
        lines.append(f"| {by} | {target} | {' | '.join(cells)} |")
    return "\n".join(lines)


def missing(folder: Path, protocol: str, names: Iterable[str]) -> str:
    """A sentence about what was not run."""
    none = [name for name in names if not read(folder, protocol, [name])]
    return f"\n\nNot run yet: {'; '.join(none)}." if none else ""


def targets(folder: Path) -> str:
    """Which method meets what is aimed at, in its worst seed by its strongest attacker."""
    lines = ["| method | seeds | action, worst seed | identity, worst seed | " + " | ".join(TARGETS) + " |"]
    lines.append("|---|---:|---:|---:|" + "---|" * len(TARGETS))
    met = []
    for one in read(folder, "utd-mhad", PROTOCOLS["utd-mhad"]):
        use, leak = min(row.value for row in one.action), max(row.value for row in one.private)
        yes = ["yes" if use >= least and leak <= most else "no" for least, most in TARGETS.values()]
        met.append(
            (leak, f"| {one.name} | {len(one.results)} | {short(use)} | {short(leak)} | {' | '.join(yes)} |")
        )
    lines += [line for _, line in sorted(met)[:6]]
    aims = "; ".join(
        f"{name}: action ≥ {short(a)[:3]}, identity ≤ {short(i)[:3]}" for name, (a, i) in TARGETS.items()
    )
    return "\n".join([*lines, "", f"The six that leave least. {aims}."])


# The plot: use to the right, what is found upwards; the second panel shows the crowded corner.
PANEL, GAP, TOP, BOTTOM, LEFT = 430, 70, 40, 50, 50
COLOURS = {
    "raw": "#1c2226",
    "filter": "#2f74ad",
    "selective": "#c4820e",
    "learned": "#c4453a",
    "fixed": "#6b4aa0",
}
CROWD = 0.9  # of both


@dataclass(frozen=True)
class Mark:
    """A method in the plot."""

    name: str
    kind: str
    use: tuple[float, float, float]  # least, mean, greatest
    leak: tuple[float, float, float]


def marks(found: Sequence[Found]) -> list[Mark]:
    out = []
    for one in found:
        spans = []
        for rows in (one.action, one.private):
            values = [row.value for row in rows]
            spans.append((min(values), fmean(values), max(values)))
        kinds = {"raw": one.name == "raw", "learned": one.name in ROWS, "fixed": one.name in FIXED}
        kinds |= {"selective": one.name.startswith("selective"), "filter": True}
        out.append(Mark(one.name, next(kind for kind, is_it in kinds.items() if is_it), *spans))
    return out


def plot(found: Sequence[Found], private: str) -> str:
    """An SVG with one panel, or a second one of the corner where most methods are."""
    drawn = marks(found)
    chance = found[0].action[0].chance, found[0].private[0].chance
    crowd = [m for m in drawn if m.use[1] >= CROWD and m.leak[1] >= CROWD]
    panels = 2 if len(crowd) > 3 else 1
    width, height = LEFT + panels * (PANEL + GAP), TOP + PANEL + BOTTOM
    apart = [m for m in drawn if m not in crowd or m.name == "raw"] if panels == 2 else drawn
    inner = panel(drawn, apart, LEFT, (0.0, 1.0), (0.0, 1.02), private, chance)
    if panels == 2:
        uses, leaks = [m.use[1] for m in crowd], [m.leak[1] for m in crowd]
        spans = [
            (min(v) - 0.25 * (max(v) - min(v)), max(v) + 0.25 * (max(v) - min(v))) for v in (uses, leaks)
        ]
        inner += panel(crowd, crowd, LEFT + PANEL + GAP, spans[0], spans[1], private, None)
        inner.append(
            words(LEFT + PANEL + GAP, TOP - 22, "the upper right corner of the left panel, larger", "start")
        )
    kinds = [kind for kind in COLOURS if any(m.kind == kind for m in drawn)]
    for k, kind in enumerate(kinds):
        inner.append(tag("circle", cx=LEFT + 6 + 82 * k, cy=TOP - 26, r=5, fill=COLOURS[kind]))
        inner.append(words(LEFT + 15 + 82 * k, TOP - 22, kind, "start"))
    back = tag("rect", x=0, y=0, width=width, height=height, fill="#ffffff")
    style = {"font_family": "sans-serif", "font_size": 12, "fill": "#1c2226"}
    return tag(
        "svg",
        back,
        *inner,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        **style,
    )


def words(x: float, y: float, text: str, anchor: str = "middle") -> Html:
    halo = {"stroke": "#ffffff", "stroke_width": 3, "paint_order": "stroke", "stroke_linejoin": "round"}
    return tag("text", text, x=round(x, 1), y=round(y, 1), text_anchor=anchor, **halo)


def panel(
    drawn: Sequence[Mark],
    named: Sequence[Mark],
    left: float,
    uses: tuple[float, float],
    leaks: tuple[float, float],
    private: str,
    chance: tuple[float, float] | None,
) -> list[Html]:
    frame = Box(left, TOP, left + PANEL, TOP + PANEL)

    def x(use: float) -> float:
        return round(left + (use - uses[0]) / (uses[1] - uses[0]) * PANEL, 1)

    def y(leak: float) -> float:
        return round(TOP + PANEL - (leak - leaks[0]) / (leaks[1] - leaks[0]) * PANEL, 1)

    def line(x1: float, y1: float, x2: float, y2: float, colour: str, **more: object) -> Html:
        return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, **more)

    out = [tag("rect", x=left, y=TOP, width=PANEL, height=PANEL, fill="none", stroke="#b5bcc2")]
    for low, high, across in ((*uses, True), (*leaks, False)):
        step = next(s for s in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if (high - low) / s <= 8 or s == 0.2)
        for k in range(int(low / step) + (low > 0), int(high / step + 1e-9) + 1):
            if across:
                out.append(line(x(k * step), TOP, x(k * step), TOP + PANEL, "#e7eae7"))
                out.append(words(x(k * step), TOP + PANEL + 17, f"{k * step:.3g}"))
            else:
                out.append(line(left, y(k * step), left + PANEL, y(k * step), "#e7eae7"))
                out.append(words(left - 6, y(k * step) + 4, f"{k * step:.3g}", "end"))
    out.append(words(left + PANEL, TOP + PANEL + 38, "action, more is better →", "end"))
    out.append(
        words(left, TOP + PANEL + 38, f"↑ {private} by the strongest attacker, less is better", "start")
    )
    taken = []
    if chance:
        if private == "identity":
            use, leak = TARGETS["target"]
            size = {"width": round(left + PANEL - x(use), 1), "height": round(TOP + PANEL - y(leak), 1)}
            out.append(tag("rect", x=x(use), y=y(leak), **size, fill="#e5f2ea"))
            out.append(words(x(use) - 5, y(0.015), "target", "end"))
        for ends in (
            (x(chance[0]), TOP, x(chance[0]), TOP + PANEL),
            (left, y(chance[1]), left + PANEL, y(chance[1])),
        ):
            out.append(line(*ends, "#6d7780", stroke_dasharray="4 4"))
        out.append(words(left + 0.42 * PANEL, y(chance[1]) - 5, f"chance: {private} {short(chance[1])}"))
        out.append(
            tag(
                "g",
                words(0, 0, f"chance: action {short(chance[0])}"),
                transform=f"translate({x(chance[0]) + 14} {y(0.5)}) rotate(-90)",
            )
        )
    for m in drawn:
        px, py = x(m.use[1]), y(m.leak[1])
        bounded = [min(max(end, frame.left), frame.right) for end in (x(m.use[0]), x(m.use[2]))]
        heights = [min(max(end, frame.top), frame.bottom) for end in (y(m.leak[0]), y(m.leak[2]))]
        colour = COLOURS[m.kind]
        out += [
            line(bounded[0], py, bounded[1], py, colour, opacity=0.5),
            line(px, heights[0], px, heights[1], colour, opacity=0.5),
        ]
        out.append(tag("circle", cx=px, cy=py, r=5, fill=colour))
        taken.append(Box(px - 6, py - 6, px + 6, py + 6))
    points = [(x(m.use[1]), y(m.leak[1])) for m in named]
    for m, (px, py), box in zip(
        named, points, place_labels(points, [len(m.name) * LETTER for m in named], taken, frame), strict=True
    ):
        nx, ny = min(max(px, box.left), box.right), min(max(py, box.top), box.bottom)
        if abs(nx - px) + abs(ny - py) > 14:
            out.append(line(px, py, round(nx, 1), round(ny, 1), "#9aa3aa", stroke_width=0.7))
        side = "start" if box.left >= px else "end" if box.right <= px else "middle"
        at = {"start": box.left, "end": box.right, "middle": (box.left + box.right) / 2}[side]
        out.append(words(at, box.bottom - 3.5, m.name, side))
    return out


def replaced(text: str, name: str, content: str) -> str:
    """The text with what stands between two marks replaced; unchanged where the marks are not there."""
    begin, end = f"<!-- {name} -->", "<!-- end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


def report(folder: Path, page: Path) -> None:
    """Write all tables into a page, and its plots beside it."""
    text = page.read_text()
    blocks: dict[str, Callable[[], str]] = {"targets": lambda: targets(folder)}
    for protocol, names in PROTOCOLS.items():
        private = "attributes" if protocol.startswith("ucf") else "identity"
        blocks[protocol] = lambda p=protocol, n=names, a=private: whole(folder, p, n, a)
    for group, names in GROUPS.items():
        blocks[group] = lambda n=names: whole(folder, "utd-mhad", n, "identity")
    for name, made in blocks.items():
        if f"<!-- {name} -->" in text:
            text = replaced(text, name, made())
    page.write_text(text)
    for protocol in PLOTTED:
        found = read(folder, protocol, PROTOCOLS[protocol])
        if any(one.name in ROWS for one in found):
            private = "attributes" if protocol.startswith("ucf") else "identity"
            page.with_name(f"{page.stem}-{protocol}.svg").write_text(plot(found, private) + "\n")


def whole(folder: Path, protocol: str, names: Sequence[str], private: str) -> str:
    """A table and what is missing in it."""
    found = read(folder, protocol, names)
    none = missing(folder, protocol, dict.fromkeys(name for name in names if name != "raw"))
    made = by_network(found) if protocol in APART else table(found, private)
    return made + none if found else none.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the page")
    given = parser.parse_args()
    report(given.rows, given.output)


if __name__ == "__main__":
    main()
