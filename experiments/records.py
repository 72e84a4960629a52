"""Results with provenance: one JSON Lines file for each protocol, one record for each method and seed.

A record carries its scores, and what they depend on: the commit, the fingerprints of code, weights, data and suite
(`veil.audit.provenance`), the seed, the time, the hardware and the command. A fingerprint of None is unknown: the record is
older than fingerprints, its commit is the one that added it, and its time that of the commit. `status` compares a record
with the code of this checkout; reports mark records that are not current.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
Status = Literal["current", "changed", "unknown"]
MARKS: dict[Status, str] = {"current": "", "changed": " †", "unknown": " ‡"}
LEGEND: dict[Status, str] = {
    "changed": "† The method's code, its recipe or the suite has changed since.",
    "unknown": "‡ Measured before fingerprints were recorded; whether code or suite has changed since is unknown.",
}


class Current(NamedTuple):
    """The fingerprints that a record would have now."""

    code: str
    suite: str


@dataclass(frozen=True)
class Record:
    """The scores of one method under one protocol with one seed, and their provenance."""

    protocol: str
    method: str
    seed: int
    scores: Any  # a list of rows (`Measurement`), or for features a dictionary by name
    commit: str | None = None  # "-dirty" at its end: with changes that were not committed
    code: str | None = None  # fingerprints; None: unknown
    weights: str | None = None
    data: str | None = None
    suite: str | None = None
    time: str | None = None  # ISO 8601, UTC
    hardware: str | None = None
    command: str | None = None
    training_seconds: float | None = None
    evaluation_seconds: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)  # parameters, settings, a line about the data


@dataclass(frozen=True)
class Measurement:
    """One number of a video protocol: what one recognizer scores on held-out video."""

    role: str  # utility, leakage
    target: str
    by: str  # the recognizer
    knowledge: str  # oblivious, adaptive, reconstruction
    encoding: str
    protocol: str
    metric: str
    value: float
    chance: float
    n: int
    interval: tuple[float, float] | None = None
    train_loss: float | None = None
    parts: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def measurements(record: Record) -> list[Measurement]:
    """The scores of a record of a video protocol."""
    return [Measurement(**score) for score in record.scores]


def path_of(folder: Path, protocol: str) -> Path:
    """The file of a protocol."""
    return folder / f"{protocol}.jsonl"


def read(folder: Path, protocol: str) -> list[Record]:
    """All records of a protocol, in the order of methods and seeds in the file; none where there is no file."""
    path = path_of(folder, protocol)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Record(**json.loads(line)) for line in lines if line]


def protocols(folder: Path) -> list[str]:
    """The protocols that have a file."""
    return sorted(path.stem for path in folder.glob("*.jsonl"))


def done(folder: Path, protocol: str) -> set[tuple[str, int]]:
    """The methods and seeds that have a record."""
    return {(record.method, record.seed) for record in read(folder, protocol)}


def append(folder: Path, record: Record) -> None:
    """Add a record, in place of one of the same method and seed; several processes may do so at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = [
            r for r in read(folder, record.protocol) if (r.method, r.seed) != (record.method, record.seed)
        ]
        write(folder, record.protocol, [*others, record])


def write(folder: Path, protocol: str, records: Iterable[Record]) -> None:
    """Write all records of a protocol; the file is replaced at once."""
    lines = [
        json.dumps(dataclasses.asdict(record), ensure_ascii=False, allow_nan=False) for record in records
    ]
    draft = path_of(folder, protocol).with_suffix(".part")
    draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    draft.replace(path_of(folder, protocol))


def status(record: Record, current: Callable[[Record], Current]) -> Status:
    """Whether the method's code and the suite are those of this checkout, whose fingerprints `current` computes."""
    if record.code is None or record.suite is None:
        return "unknown"
    return "current" if (record.code, record.suite) == tuple(current(record)) else "changed"


def worst(statuses: Iterable[Status]) -> Status:
    """The status of several records together."""
    found = set(statuses)
    return "changed" if "changed" in found else "unknown" if "unknown" in found else "current"


def measured_at(records: Sequence[Record], state: Status) -> str:
    """A cell of a table: the commits of some records, and the mark of their status."""
    commits = dict.fromkeys(short(record.commit) for record in records)
    return f"{', '.join(commits)}{MARKS[state]}"


def short(commit: str | None) -> str:
    """A commit as a table shows it."""
    return "unknown" if commit is None else commit[:7] + ("-dirty" if commit.endswith("-dirty") else "")


def legend(states: Iterable[Status]) -> str:
    """The meaning of the marks that occur."""
    there = set(states)
    return "".join(f"\n\n{text}" for state, text in LEGEND.items() if state in there)


def digest(*parts: Any) -> str:
    """One fingerprint of several values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def commit() -> str | None:
    """The commit of this checkout; None without git."""
    try:
        head = _git("rev-parse", "HEAD")
        return f"{head}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.CalledProcessError):
        return None


def now() -> str:
    """The time, as a record has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()
