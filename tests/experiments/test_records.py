"""Records keep their provenance, and reports mark those whose code or suite has changed or is unknown."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from experiments import filters, learned, learned_report, records, splavu
from experiments.records import Current, Record
from veil.audit.audit_data import AuditData
from veil.audit.result import Result, Row
from veil.data import read

SCORE = {
    "role": "utility", "target": "action", "by": "a", "knowledge": "adaptive", "encoding": "8-bit",
    "protocol": "same dataset: utd-mhad", "metric": "top-1", "value": 0.9, "chance": 0.04, "n": 200,
}  # fmt: skip
LEAK = {**SCORE, "role": "leakage", "target": "identity", "chance": 0.125}


def record(method: str = "raw", seed: int = 0, **changes) -> Record:
    return replace(Record("utd-mhad", method, seed, [SCORE, LEAK], commit="abcdef0123"), **changes)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    full = record(code="1", weights="2", data="3", suite="4", time=records.now(), hardware="CPU", command="x")
    records.append(tmp_path, full)
    records.append(tmp_path, record(seed=1))
    assert records.read(tmp_path, "utd-mhad") == [full, record(seed=1)]
    assert records.read(tmp_path, "absent") == []
    records.append(tmp_path, record(hardware="GPU"))  # in place of the first
    assert records.done(tmp_path, "utd-mhad") == {("raw", 0), ("raw", 1)}
    assert [one.hardware for one in records.read(tmp_path, "utd-mhad") if one.seed == 0] == ["GPU"]


def add(folder: Path, seed: int) -> None:
    records.append(folder, record(seed=seed))


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add, args=(tmp_path, seed)) for seed in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert records.done(tmp_path, "utd-mhad") == {("raw", seed) for seed in range(8)}


@pytest.mark.parametrize(
    ("code", "suite", "state"),
    [
        ("c", "s", "current"),
        ("d", "s", "changed"),
        ("c", "t", "changed"),
        (None, "s", "unknown"),
        ("c", None, "unknown"),
    ],
)
def test_status(code: str | None, suite: str | None, state: str) -> None:
    assert records.status(record(code=code, suite=suite), lambda _: Current("c", "s")) == state


def test_reports_mark_what_is_not_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of this checkout has no mark; after a change of the suite or of the method's code it has one."""
    now = learned.current("utd-mhad", "raw", 0)
    pixelate = learned.current("utd-mhad", "pixelate 16", 0)
    records.append(tmp_path, record(code=now.code, suite=now.suite))
    records.append(tmp_path, record("pixelate 16", code=pixelate.code, suite=pixelate.suite))
    records.append(tmp_path, record("noise 0.3"))

    def cells() -> dict[str, str]:
        found = learned_report.read(tmp_path, "utd-mhad", ["raw", "pixelate 16", "noise 0.3"])
        lines = [line for line in learned_report.table(found, "identity").splitlines() if "abcdef0" in line]
        return {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in lines}

    assert cells() == {"raw": "abcdef0", "pixelate 16": "abcdef0", "noise 0.3": "abcdef0 ‡"}
    monkeypatch.setattr(
        learned_report, "current", lambda protocol, name, seed: Current(now.code, f"{now.suite} and more")
    )
    assert cells() == {"raw": "abcdef0 †", "pixelate 16": "abcdef0 †", "noise 0.3": "abcdef0 ‡"}
    found = learned_report.read(tmp_path, "utd-mhad", ["raw", "noise 0.3"])
    table = learned_report.table(found, "identity")
    assert all(records.LEGEND[state] in table for state in ("changed", "unknown"))


def test_the_report_of_features_marks_too(tmp_path: Path) -> None:
    scores = {"utility action": {"value": 0.9}, "leakage identity mlp": {"value": 0.5, "chance": 0.1}}
    old = Record("features-utd-mhad", "raw", 0, scores, commit="1234567")
    now = splavu.current("ours")
    records.append(tmp_path, old)
    records.append(tmp_path, replace(old, method="ours", code=now.code, suite=now.suite))
    records.append(tmp_path, replace(old, method="paper", code=now.code, suite=now.suite))  # of another row
    table = splavu.table_of(splavu.read_rows(tmp_path), "utd-mhad", ["raw", "ours", "paper"])
    marks = [line.split("|")[-2].strip() for line in table.splitlines() if "1234567" in line]
    assert marks == ["1234567 ‡", "1234567", "1234567 †"]


@pytest.mark.parametrize("protocol", records.protocols(records.RESULTS))
def test_every_record_has_provenance(protocol: str) -> None:
    found = records.read(records.RESULTS, protocol)
    assert len({(one.method, one.seed) for one in found}) == len(found) > 0
    for one in found:
        assert one.protocol == protocol and one.commit and one.time
        assert "/root" not in json.dumps(one.command) and "/home" not in json.dumps(one.command)
        if protocol.startswith(splavu.PREFIX):
            assert one.method == "raw" or one.method in splavu.ROWS
            assert all("value" in score for score in one.scores.values())
        else:
            assert one.method in {*learned_report.METHODS, *learned.ROWS, *learned.FIXED}
            assert records.measurements(one)


@pytest.mark.parametrize("name", learned.ROWS)
def test_the_recipe_of_every_row_is_read(name: str) -> None:
    assert len(learned.code_of(name)) == 64


@pytest.mark.parametrize("name", splavu.ROWS)
def test_the_recipe_of_every_row_of_features_is_read(name: str) -> None:
    assert len(splavu.current(name).code) == 64


def test_a_result_of_the_audit_becomes_a_record_and_is_read_back() -> None:
    row = Row("leakage", "identity", "a", "adaptive", "8-bit", "same dataset: x", "top-1", (0.5,), 0.1, 20)
    result = Result("raw", {}, "x", (row,), (), {"seeds": [0], "suite": {}}, ("sound",), device="CPU")
    data = AuditData(read("synthetic", size=16, count=8))
    made = filters.record_of(result, "utd-mhad", 0, data, None, Current("c", "s"))
    assert made.code == "c" and made.suite == "s" and made.data and made.weights and made.time
    (score,) = records.measurements(made)
    assert (score.value, score.knowledge, score.encoding) == (0.5, "adaptive", "8-bit")
    plain = Record(**json.loads(json.dumps(asdict(made))))
    assert filters.result_of(plain, [plain]).rows == (row,)
