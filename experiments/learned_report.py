"""The tables and the plots of docs/results/learned.md, made from the records: no number there is typed by hand.

    python -m experiments.learned_report [-o docs/results/learned.md]

The text between `<!-- NAME -->` and `<!-- end -->` is replaced; NAME is `targets`, a protocol (all methods, and a plot
beside the page) or one of `GROUPS`. Of each seed the best utility (adaptive) and the strongest attacker count; a cell is
their mean over seeds, and [least–greatest]; seeds with fewer attackers do not count for these. Records whose code or suite
has changed, or is unknown, are marked (`experiments.records`). The rest of the page stays as it is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

from experiments import records
from experiments.filters import METHODS
from experiments.learned import FIXED, ROWS, current
from experiments.records import Measurement, Record, Status
from veil.audit.plots import PlotPoint, TradeOffPlot, trade_off_svg

GROUPS: dict[str, tuple[str, ...]] = {  # of UTD-MHAD
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
        "action prototypes, phase temperature 0",
        *(f"action prototypes, phase temperature {w}" for w in (0.003, 0.005)),
        "action prototypes",
        *(f"action prototypes, phase temperature {w}" for w in (0.02, 0.03)),
    ),
    "variants": (
        *(
            f"action prototypes, {change}"
            for change in ("phase temperature 0", "not quantized", "class weight 0", "cells of 16")
        ),
        "adversarial, ours",
        "SPAct stronger",
        "penalty as released",
    ),
}
PROTOCOLS = {
    "utd-mhad": ("raw", *METHODS, *(name for name, row in ROWS.items() if row.main), *FIXED),
    "ucf-sports-utkface": ("raw", *METHODS, *(name for name, row in ROWS.items() if row.main), *FIXED),
    "utd-mhad-unseen": ("raw", "BDQ", *FIXED, "action prototypes"),
    "utd-mhad-often": ("raw", "action prototypes, phase temperature 0", "action prototypes"),
    "utd-mhad-novel": ("raw", "SPAct", "BDQ", "action prototypes"),
    "ucf-sports-utkface-novel": ("raw", "SPAct", "adversarial", "STPrivacy", "action prototypes"),
    "utd-mhad-others": ("raw", "SPAct", "BDQ", "action prototypes"),
}
APART = ("utd-mhad-others",)  # with a line for each network
PLOTTED = ("utd-mhad", "ucf-sports-utkface")
TARGETS = {"target": (0.93, 0.40), "moonshot": (0.95, 0.25)}  # action at least, identity at most
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class MethodRecords:
    """All records of one method under one protocol."""

    method: str
    records: tuple[Record, ...]  # one a seed

    @cached_property
    def scores(self) -> list[list[Measurement]]:
        """The scores of each seed."""
        return [records.measurements(record) for record in self.records]

    def best(self, role: str, knowledge: Sequence[str]) -> list[Measurement]:
        """Of each seed the recognizer with the highest score, among those with the given knowledge.

        A seed with fewer adaptive attackers than another does not count for leakage.
        """
        out = []
        attackers = [
            sum(s.role == "leakage" and s.knowledge == "adaptive" for s in scores) for scores in self.scores
        ]
        for scores, count in zip(self.scores, attackers, strict=True):
            chosen = [s for s in scores if s.role == role and s.knowledge in knowledge]
            if chosen and (role == "utility" or count == max(attackers)):
                out.append(max(chosen, key=lambda s: s.value))
        return out

    @property
    def utility(self) -> list[Measurement]:
        """The best adaptive recognizer of actions, of each seed."""
        return self.best("utility", ("adaptive",))

    @property
    def leakage(self) -> list[Measurement]:
        """The strongest attacker, of each seed."""
        return self.best("leakage", ("oblivious", "adaptive", "reconstruction"))

    @property
    def status(self) -> Status:
        """Whether code and suite of all seeds are those of this checkout."""
        return records.worst(
            records.status(record, lambda r: current(r.protocol, r.method, r.seed)) for record in self.records
        )


def read(folder: Path, protocol: str, names: Iterable[str]) -> list[MethodRecords]:
    """The records of these methods, in their order."""
    found: dict[str, dict[int, Record]] = {}
    for record in records.read(folder, protocol):
        found.setdefault(record.method, {})[record.seed] = record
    out = []
    for name in dict.fromkeys(names):
        if chosen := tuple(found[name][seed] for seed in SEEDS if seed in found.get(name, {})):
            out.append(MethodRecords(name, chosen))
    return out


def number(value: float) -> str:
    """Three digits, without the leading zero."""
    return f"{value:.3f}".removeprefix("0")


def mean_and_range(scores: Sequence[Measurement]) -> str:
    """The mean over seeds, and the least and the greatest."""
    values = [score.value for score in scores]
    if not values:
        return ""
    mean = number(fmean(values))
    return mean if len(values) == 1 else f"{mean} [{number(min(values))}–{number(max(values))}]"


def seconds(values: Iterable[float | None]) -> str:
    """The least and the greatest of some durations."""
    known = sorted({round(value) for value in values if value})
    return "" if not known else f"{known[0]} s" if len(known) == 1 else f"{known[0]}–{known[-1]} s"


def strongest(method: MethodRecords) -> str:
    """The strongest attacker of all seeds, as a cell of a table."""
    top = max(method.leakage, key=lambda s: s.value, default=None)
    return "" if method.method == "raw" or top is None else f"{top.by}, {top.knowledge}"


def made_by(name: str) -> str:
    """The recipe and its changes, or a method as `--method` takes it; what the protocol adds is on the protocol's page."""
    if name in ROWS:
        changes = "".join(f" --set '{text}'" for text in ROWS[name].sets)
        return f"`veil train recipes/{ROWS[name].recipe}.toml -o RUN{changes}`"
    spec = METHODS.get(name)
    return f"`--method {spec}`" if spec else "`experiments/learned.py`" if name in FIXED else ""


def table(methods: Sequence[MethodRecords], private: str) -> str:
    """A line for each method."""
    lines = [
        f"| method | made by | action | {private}, strongest attacker | attacker | {private}, oblivious attacker | seeds | trained in | evaluated in | measured at |",
        "|---|---|---:|---:|---|---:|---:|---:|---:|---|",
    ]
    for one in methods:
        cells = (
            one.method,
            made_by(one.method),
            mean_and_range(one.utility),
            mean_and_range(one.leakage),
            strongest(one),
            mean_and_range(one.best("leakage", ("oblivious",))),
            str(len(one.records)),
            seconds(record.training_seconds for record in one.records),
            seconds(record.evaluation_seconds for record in one.records),
            records.measured_at(one.records, one.status),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + records.legend(one.status for one in methods)


def by_network(methods: Sequence[MethodRecords]) -> str:
    """A line for each network, a column for each method: the score of the network after training on anonymized video."""
    lines = ["| network | target | " + " | ".join(one.method for one in methods) + " |"]
    lines.append("|---|---|" + "---:|" * len(methods))
    networks = {
        (score.target, score.by): None
        for one in methods
        for score in one.scores[0]
        if score.knowledge == "adaptive" and not score.by.endswith("one frame")
    }
    for target, by in networks:
        cells = []
        for one in methods:
            chosen = [
                score
                for scores in one.scores
                for score in scores
                if (score.target, score.by, score.knowledge) == (target, by, "adaptive")
            ]
            cells.append(mean_and_range(chosen))
        lines.append(f"| {by} | {target} | {' | '.join(cells)} |")
    marked = (records.measured_at(one.records, one.status) for one in methods)
    lines.append(f"| measured at | | {' | '.join(marked)} |")
    return "\n".join(lines) + records.legend(one.status for one in methods)


def missing(folder: Path, protocol: str, names: Iterable[str]) -> str:
    """A sentence about the methods that have no record."""
    none = [name for name in names if not read(folder, protocol, [name])]
    return f"\n\nNot run yet: {'; '.join(none)}." if none else ""


def targets(folder: Path) -> str:
    """Which method meets the targets, in its worst seed by its strongest attacker."""
    lines = ["| method | seeds | action, worst seed | identity, worst seed | " + " | ".join(TARGETS) + " |"]
    lines.append("|---|---:|---:|---:|" + "---|" * len(TARGETS))
    met = []
    for one in read(folder, "utd-mhad", PROTOCOLS["utd-mhad"]):
        use, leak = min(s.value for s in one.utility), max(s.value for s in one.leakage)
        yes = ["yes" if use >= least and leak <= most else "no" for least, most in TARGETS.values()]
        line = f"| {one.method} | {len(one.records)} | {number(use)} | {number(leak)} | {' | '.join(yes)} |"
        met.append((leak, line))
    lines += [line for _, line in sorted(met)[:6]]
    aims = "; ".join(
        f"{name}: action ≥ {number(a)[:3]}, identity ≤ {number(i)[:3]}" for name, (a, i) in TARGETS.items()
    )
    return "\n".join([*lines, "", f"The six with the least leakage. {aims}."])


COLOURS = {"filter": "#2f74ad", "selective": "#c4820e", "learned": "#c4453a", "fixed": "#6b4aa0"}
CROWD = 0.9  # methods with utility and leakage above are in a plot of their own


def family(name: str) -> str:
    """What kind of method it is, for its colour."""
    if name in ROWS:
        return "learned"
    return "fixed" if name in FIXED else "selective" if name.startswith("selective") else "filter"


def plot_point(one: MethodRecords) -> PlotPoint:
    """The mean of a method over seeds, and its least and greatest seed: of one protocol, target and metric each."""
    ends = []
    for scores in (one.utility, one.leakage):
        if len({(score.protocol, score.target, score.metric) for score in scores}) != 1:
            raise ValueError(f"{one.method}: scores of several protocols or metrics cannot be in one plot")
        values = [score.value for score in scores]
        ends.append((fmean(values), (min(values), max(values))))
    (use, uses), (leak, leaks) = ends
    if one.method == "raw":
        return PlotPoint("raw", use, leak, uses, leaks, "raw")
    return PlotPoint(one.method, use, leak, uses, leaks, colour=COLOURS[family(one.method)])


def plots(methods: Sequence[MethodRecords]) -> dict[str, str]:
    """SVGs by the end of their names: all methods, and where these crowd, those of the corner by themselves."""
    points = [plot_point(one) for one in methods]
    raw = next(point for point in points if point.kind == "raw")
    score, leak = methods[0].utility[0], methods[0].leakage[0]
    goal = TARGETS["target"] if leak.target == "identity" else None

    labels = f"{score.target}, {score.metric}", f"{leak.target}, {leak.metric}, strongest attacker"
    plot = TradeOffPlot(points, *labels, (score.chance, leak.chance), (raw.utility, raw.leakage), goal)
    crowd = [p for p in points if p.utility >= CROWD and p.leakage >= CROWD and p.kind != "raw"]
    if len(crowd) <= 3:
        return {"": trade_off_svg(plot)}
    apart = replace(plot, points=[p for p in points if p not in crowd])
    corner = replace(plot, points=[raw, *crowd], goal=None, enlarged=True)
    return {"": trade_off_svg(apart), "-corner": trade_off_svg(corner)}


def replaced(text: str, name: str, content: str) -> str:
    """The text with the content between two marks replaced; unchanged where the marks are absent."""
    begin, end = f"<!-- {name} -->", "<!-- end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


def report(folder: Path, page: Path) -> None:
    """Write all tables into a page, and its plots beside it."""
    text = page.read_text()
    blocks: dict[str, Callable[[], str]] = {"targets": lambda: targets(folder)}
    for protocol, names in PROTOCOLS.items():
        blocks[protocol] = lambda p=protocol, n=names: block(folder, p, n)
    for group, names in GROUPS.items():
        blocks[group] = lambda n=names: block(folder, "utd-mhad", n)
    for name, made in blocks.items():
        if f"<!-- {name} -->" in text:
            text = replaced(text, name, made())
    page.write_text(text)
    for protocol in PLOTTED:
        found = read(folder, protocol, PROTOCOLS[protocol])
        if any(one.method in ROWS for one in found):
            for end, svg in plots(found).items():
                page.with_name(f"{page.stem}-{protocol}{end}.svg").write_text(svg)


def private_target(protocol: str) -> str:
    """What attackers look for under a protocol."""
    return "attributes" if protocol.startswith("ucf") else "identity"


def block(folder: Path, protocol: str, names: Sequence[str]) -> str:
    """A table, and the names of the methods that are not in it."""
    found = read(folder, protocol, names)
    none = missing(folder, protocol, dict.fromkeys(name for name in names if name != "raw"))
    made = by_network(found) if protocol in APART else table(found, private_target(protocol))
    return made + none if found else none.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=records.RESULTS, help="folder of the records")
    parser.add_argument("-o", "--output", type=Path, default=records.RESULTS / "learned.md", help="the page")
    given = parser.parse_args()
    report(given.results, given.output)


if __name__ == "__main__":
    main()
