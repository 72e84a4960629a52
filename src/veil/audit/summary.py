"""Results in words, and numbers as they are written: shared by the HTML and the Markdown of a report.

A method has a *state*: safe where every attacker is at chance, some or much where one finds less or more than half of
what raw video leaks, unknown where nothing was really tested. *Cautions* are the reasons to doubt it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from veil.audit.result import UNDERFITTED_NOTE, Result, Role, Row

State = Literal["safe", "some", "much", "unknown"]
Question = tuple[Role, str, str]  # role, target, protocol
Cell = tuple[Result, Row]

HALF = 0.5  # from this share of what raw video leaks on, much is found
WIDE = 0.25  # at chance, but more than this share of what raw video leaks cannot be ruled out: a caution
UNFITTED = 0.5  # an attacker whose training ended above this share of the loss of guessing is underfitted

WORDS: dict[State, str] = {
    "safe": "At chance",
    "some": "Partly recognized",
    "much": "Recognized",
    "unknown": "Inconclusive",
}
ENCODING = {
    "8-bit": "the frames in 8 bits, as in a file with lossless compression",
    "h264": "the frames after H.264 compression, as in a shared video",
}
UNDERFITTED = (
    "a recognizer that did not fit its own training videos: its note states this, or its training loss ended above half "
    "of that of guessing, which is ln(1/chance) for one of several classes and the entropy of a binary attribute. "
    "That it recognizes little proves little."
)
TERMS = {
    "top-1, rank-1": "the share of test videos for which the first answer is right: a classifier's (top-1), or that "
    "of a search among known people (rank-1).",
    "cMAP": "the average precision of each attribute (how well videos with it are ranked before those without), then "
    "the mean over attributes.",
    "chance": "the score of the best constant answer. An attacker at chance has learned nothing.",
    "at chance": "chance lies within the 95% interval, or above it.",
    "raw": "the score of the best recognizer of this audit on raw video.",
    "excess (leakage)": "(value − chance) / (raw − chance): the share of what raw video leaks that is left. 0 is "
    "chance, 1 is raw video. For utility, the share that is kept.",
    "gap": "top-1 of the group with the highest accuracy minus that of the group with the lowest; it has no chance "
    "level. Noise alone makes it positive.",
    "mean and seeds": "the whole training is repeated with other random seeds; the mean over them, the "
    "least and the greatest.",
    "95% interval": "of the mean over seeds, by bootstrap over the test videos.",
    "front, hypervolume": "on the Pareto front are the methods that no other beats in both utility and leakage. The "
    "hypervolume is the area that they dominate between chance and raw: 0 is raw or destroyed video, 1 is full utility "
    "and no leakage.",
    "colours": "green: every attacker is at chance. Amber: one finds less than half of what raw video leaks. Red: half "
    "or more. Grey: inconclusive, as no attacker gave a number, or none succeeded on raw video either.",
}


def is_raw(result: Result) -> bool:
    """Whether this is untouched video."""
    return result.method == "raw"


def with_raw(results: Sequence[Result]) -> bool:
    """Whether raw video is one of the results."""
    return any(map(is_raw, results))


def several(results: Sequence[Result]) -> bool:
    """Whether there are methods to compare: then the best is marked."""
    return sum(not is_raw(result) for result in results) > 1


def named(results: Sequence[Result]) -> list[tuple[str, Result]]:
    """Each result and what it is called here; a name that comes again is numbered."""
    pairs: list[tuple[str, Result]] = []
    for result in results:
        again = sum(other.method == result.method for _, other in pairs)
        pairs.append((f"{result.method} ({again + 1})" if again else result.method, result))
    return pairs


def title(results: Sequence[Result]) -> str:
    """What the report is about."""
    methods = [name for name, result in named(results) if not is_raw(result)]
    return (
        f"Audit of {len(methods)} methods"
        if len(methods) > 2
        else f"Audit of {listed(methods) or 'raw video'}"
    )


def questions(rows: Iterable[Row]) -> list[Question]:
    """The questions: utility first, then leakage, then bias."""
    order = ("utility", "leakage", "bias")
    distinct: dict[Question, None] = dict.fromkeys((row.role, row.target, row.protocol) for row in rows)
    return sorted(distinct, key=lambda question: order.index(question[0]))


def cells(results: Sequence[Result], question: Question) -> list[Cell | None]:
    """The row that counts for a question, of each result."""
    rows = [result.headline(*question) for result in results]
    return [(result, row) if row else None for result, row in zip(results, rows, strict=True)]


def best(column: Iterable[Cell | None], role: Role) -> float:
    """The best value of a question, raw video apart."""
    values = [cell[1].value for cell in column if cell and not is_raw(cell[0])]
    return (max if role == "utility" else min)(values, default=math.nan)


def row_state(result: Result, row: Row) -> State:
    """The state of one row of an attacker; unknown where raw video is at chance, too."""
    if math.isnan(row.value) or (row.at_chance and not proves(result, row)):
        return "unknown"
    if row.at_chance:
        return "safe"
    return "some" if result.excess(row) < HALF else "much"  # nan: raw is not known, so the worst is assumed


def proves(result: Result, row: Row) -> bool:
    """Whether raw video is above chance: only then is a row at chance evidence."""
    raw = result.raw_of(row)
    return raw is not None and not math.isnan(raw.value) and not raw.at_chance


def state(result: Result) -> State:
    """That of the strongest attacker; unknown where a target was not really tested."""
    rows = [row for row in result.rows if row.role == "leakage"]
    states = [row_state(result, row) for row in rows]
    if "much" in states or "some" in states:
        return "much" if "much" in states else "some"
    safe = {row.target for row, kind in zip(rows, states, strict=True) if kind == "safe"}
    return "safe" if safe and safe == {row.target for row in rows} else "unknown"


def word(result: Result) -> str:
    """The state in a word or two."""
    return "Raw video" if is_raw(result) else WORDS[state(result)]


def ceiling(result: Result, row: Row) -> float:
    """The share of raw's leakage that cannot be ruled out, by the upper end of the interval; nan without one."""
    raw = result.raw_of(row)
    if raw is None or not raw.value > row.chance or math.isnan(row.value):
        return math.nan
    if row.interval is None:  # seeds alone do not bound it
        return math.nan
    return (row.interval[1] - row.chance) / (raw.value - row.chance)


def underfitted(row: Row) -> bool:
    """Whether the recognizer did not fit its own training videos."""
    noted = any(note.startswith(UNDERFITTED_NOTE) for note in row.notes)
    return noted or (bool(row.train_loss) and fmean(row.train_loss) > UNFITTED * _guess(row))


def _guess(row: Row) -> float:
    """The training loss of guessing; nan where it is not known."""
    if row.target == "attributes" or row.metric == "cMAP":
        shares = [chance for _, chance in row.parts.values()] or [row.chance]
        if not all(0 < p < 1 for p in shares):
            return math.nan
        return fmean(-p * math.log(p) - (1 - p) * math.log(1 - p) for p in shares)
    return math.log(1 / row.chance) if 0 < row.chance < 1 else math.nan


def cautions(result: Result) -> list[str]:
    """Why the verdict may be too favourable, in sentences."""
    sentences: list[str] = []
    for target in [] if is_raw(result) else result.targets("leakage"):
        rows = [row for row in result.rows if (row.role, row.target) == ("leakage", target)]
        rows = [row for row in rows if not math.isnan(row.value)]
        worst = result.headline("leakage", target)
        if worst is None:
            sentences.append(f"No attacker on {target} gave a number: it was not measured.")
            continue
        if not worst.at_chance:
            continue
        if not any(proves(result, row) for row in rows):
            sentences.append(f"On raw video {target} was at chance, too: this audit proves nothing about it.")
            continue
        trained = [row for row in rows if row.train_loss]
        if trained and all(map(underfitted, trained)):
            sentences.append(
                f"The attackers on {target} did not fit their own training videos: they are underfitted."
            )
        if worst.interval is None:
            sentences.append(
                f"The test of {target} has no confidence interval (n {worst.n}): how much may be left was not measured."
            )
        if (most := ceiling(result, worst)) > WIDE:
            sentences.append(
                f"The test of {target} is small (n {worst.n}): up to {percent(most)} of what raw video leaks cannot be "
                "ruled out."
            )
    return sentences


def summary(results: Sequence[Result]) -> tuple[State, str, str]:
    """Several methods in a sentence or two: their state, the conclusion, and the best of them."""
    methods = [(name, result) for name, result in named(results) if not is_raw(result)]
    safe = [(name, result) for name, result in methods if state(result) == "safe"]
    leaky = [(name, result) for name, result in methods if state(result) in ("some", "much")]
    count, unsettled = len(methods), len(methods) - len(safe) - len(leaky)
    lead = []
    if not methods:
        lead.append("This is raw video.")
    elif len(safe) == count:
        lead.append("Against none of these methods did an attacker do better than chance.")
    elif safe:
        names = listed([name for name, _ in safe])
        lead.append(f"Against {len(safe)} of {count} methods no attacker did better than chance: {names}.")
    if leaky:
        every = {1: "The method still leaks", 2: "Both methods still leak"}.get(
            count, f"All {count} methods still leak"
        )
        some = f"{len(leaky)} of {count} methods still leak{'s' * (len(leaky) == 1)}"
        lead.append(f"{every if len(leaky) == count else some} something private.")
    if unsettled:
        lead.append(f"For {unsettled} of {count} methods this audit is inconclusive.")
    more = _most_useful(safe) if safe else _least_found(leaky)
    if safe:
        worst: State = "safe" if len(safe) == count else "some"
    else:
        worst = "some" if any(state(r) == "some" for _, r in leaky) else "much" if leaky else "unknown"
    return worst, " ".join(lead), more


def _most_useful(safe: Sequence[tuple[str, Result]]) -> str:
    """Of methods at chance, the one with the highest utility for each target."""
    sentences = []
    for use in safe[0][1].targets("utility"):
        kept = [(name, result, row) for name, result in safe if (row := result.headline("utility", use))]
        if kept:
            name, result, row = max(kept, key=lambda item: item[2].value)
            which = (
                f"With {name},"
                if len(safe) == 1
                else f"Of the methods at chance {name} has the highest utility:"
            )
            sentences.append(f"{which} {use} is recognized in {_beside(result, row)}.")
    return " ".join(sentences)


def _least_found(leaky: Sequence[tuple[str, Result]]) -> str:
    """Of methods that leak, the one that leaks least to its strongest attacker."""
    known = []
    for name, result in leaky:
        shares = [result.excess(row) for row in result.headlines("leakage")]
        if shares and not any(map(math.isnan, shares)):
            known.append((max(shares), name, result))
    if not known:
        return ""
    most, name, result = min(known, key=lambda item: item[0])
    kept = [f"; {row.target} is recognized in {_beside(result, row)}" for row in result.headlines("utility")]
    return f"{name} leaks least: at worst {percent(most)} of what raw video leaks{''.join(kept)}."


def _beside(result: Result, row: Row) -> str:
    raw = result.raw_of(row)
    return (
        f"{percent(row.value)} ({f'raw {percent(raw.value)}, ' if raw else ''}chance {percent(row.chance)})"
    )


def untested(results: Sequence[Result]) -> list[str]:
    """What was not tested; of some methods only, with their names."""
    sentences = []
    for sentence in dict.fromkeys(sentence for result in results for sentence in result.untested):
        whose = [name for name, result in named(results) if sentence in result.untested]
        sentences.append(sentence if len(whose) == len(results) else f"{sentence} ({listed(whose)})")
    return sentences


def notes(rows: Iterable[Row]) -> list[str]:
    """The notes of all rows, each once."""
    return list(dict.fromkeys(note for row in rows for note in row.notes))


def facts(results: Sequence[Result]) -> list[tuple[str, list[tuple[str, str]]]]:
    """How it was measured: each fact with its values; a value that is not the same for all has its method before it."""
    keys = dict.fromkeys(key for result in results for key in _flat(result.settings))
    rows: list[tuple[str, Callable[[Result], str]]] = [
        ("method", lambda r: f"{r.method} ({_settings(r.params)})" if r.params else r.method),
        ("data", lambda r: r.data),
        *((key, lambda r, key=key: _flat(r.settings).get(key, "")) for key in keys),
        ("command", lambda r: r.command),
        ("device", lambda r: r.device),
        ("time", lambda r: _duration(r.seconds) if r.seconds else ""),
        ("version", lambda r: f"Veil {r.version}" if r.version else ""),
    ]
    found = []
    for fact, value_of in rows:
        values = [(name, value_of(result)) for name, result in named(results)]
        if len({value for _, value in values}) == 1:
            values = [("", values[0][1])]
        elif fact == "method":
            fact, values = "methods", [("", value) for _, value in values]
        if values := [(name, value) for name, value in values if value]:
            found.append((fact, values))
    return found


def _flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings in words; those of a group, such as a suite, each by itself."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= {f"{key}: {inner}": _setting(v) for inner, v in value.items() if inner != "untested"}
        else:
            found[key] = _setting(value)
    return found


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_setting(value)}" for key, value in values.items())


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({_settings(value)})" if value else ""
    if isinstance(value, list | tuple):
        return ", ".join(map(_setting, value))
    return "none" if value is None else str(value)


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min"


def chance_of(row: Row) -> float | None:
    """The chance level; None for a gap, which has none."""
    return None if row.role == "bias" else row.chance


def excess_of(result: Result, row: Row) -> float | None:
    """The share of what raw video gives above chance that is left; None for a gap."""
    return None if row.role == "bias" else result.excess(row)


def share(value: float | None) -> str:
    """A number for tables: .953."""
    if value is None or math.isnan(value):
        return "–"
    text = f"{abs(value):.3f}".removeprefix("0")
    return f"−{text}" if value < 0 and text != ".000" else text


def percent(value: float) -> str:
    """A number for sentences: 95%."""
    if math.isnan(value):
        return "–"
    text = f"{abs(value):.1%}" if 0 < abs(value) < 0.0095 else f"{abs(value):.0%}"
    return f"−{text}" if value < 0 and text.strip("0.%") else text


def span(ends: tuple[float, float] | None) -> str:
    """The ends of an interval for tables."""
    if ends is None or any(end is None or math.isnan(end) for end in ends):
        return "–"
    return f"{share(ends[0])}–{share(ends[1])}"


def spread(row: Row) -> str:
    """The least and the greatest seed."""
    return "–" if math.isnan(row.value) else span(row.spread)


def loss(row: Row) -> str:
    """Where training ended, as a mean over seeds."""
    if not row.train_loss or math.isnan(mean := fmean(row.train_loss)):
        return "–"
    return "∞" if math.isinf(mean) else f"{mean:.2f}"


def listed(words: Sequence[str]) -> str:
    """One, two and three."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
