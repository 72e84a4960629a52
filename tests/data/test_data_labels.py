from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

import layouts
from errors import refuses
from veil.core import VeilError
from veil.data.labels import read_json, read_lines, read_pickle, read_table
from veil.data.splits import deal, deal_in_turn, hold_out

PLAIN = {
    "a": np.arange(6).reshape(2, 3),
    "b": [1, 2.5, "three", None, True, b"six"],
    "c": (np.float64(0.25), np.array(["é", "bc"]), {"x"}),
    "d": OrderedDict(e=np.asfortranarray(np.ones((2, 2), np.float32))),
    "big": np.arange(3, dtype=">i4"),
    "flags": np.array([True, False]),
}


def same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype.newbyteorder("=") == right.dtype.newbyteorder("=")
            and (np.array_equal(left, right))
        )
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same(left[k], right[k]) for k in left)
        )
    if isinstance(left, list | tuple):
        return isinstance(right, type(left)) and len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_data_and_arrays_come_back_from_a_pickle(tmp_path: Path, protocol: int) -> None:
    assert same(PLAIN, read_pickle(layouts.pickled(tmp_path / "labels.pkl", PLAIN, protocol)))


class Hostile:
    def __init__(self, run: object, *arguments: object) -> None:
        self.reduced = run, arguments

    def __reduce__(self) -> tuple[object, ...]:
        return self.reduced


def test_a_hostile_pickle_is_refused_and_does_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    attacks = (
        Hostile(os.system, f"touch {trace}"),
        Hostile(eval, f"open({str(trace)!r}, 'w')"),
        Hostile(getattr, np.ndarray, "tofile"),
        Hostile(np.load, str(trace)),
    )
    for attack in attacks:
        path = layouts.pickled(tmp_path / "labels.pkl", {"2017_1": np.zeros(7), "2017_2": attack})
        with refuses("pickle-unsafe"):
            read_pickle(path)
    assert not trace.exists()


def crafted(*parts: bytes) -> bytes:
    return b"\x80\x04" + b"".join(parts) + b"."


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (pickle.dumps(np.array([object], dtype=object)), "an array of things that are no numbers"),
        (pickle.dumps(np.zeros(2, [("a", "i4")])), "an array of records"),
        (pickle.dumps(Path("x")), "an object"),
        (pickle.dumps(range(3)), "an object of Python's own"),
        (crafted(b"cnumpy\nndarray\n"), "a class by itself"),
        (crafted(b"cnumpy\ndtype\n(X\x02\x00\x00\x00f8tR"), "a dtype by itself"),
        (
            crafted(b"cnumpy.core.multiarray\nscalar\n}X\x03\x00\x00\x00keyK\x01s\x86b"),
            "an attribute of a stand-in",
        ),
        (pickle.dumps(PLAIN)[:-20], "a file that was cut off"),
        (b"hello", "no pickle at all"),
        (b"", "nothing"),
        (crafted(b"]\x94h\x00a"), "a list that holds itself"),
    ],
)
def test_whatever_else_is_in_a_pickle_is_refused(tmp_path: Path, program: bytes, what: str) -> None:
    path = tmp_path / "labels.pkl"
    path.write_bytes(program)
    with pytest.raises(VeilError) as raised:
        read_pickle(path)
    assert raised.value.code in ("pickle-unsafe", "label-file-invalid") and "labels.pkl" in str(raised.value)
    assert read_pickle(layouts.pickled(path, {"a": np.float64(2)})) == {"a": 2}, (
        f"{what} did harm that stayed"
    )


def test_shared_parts_of_a_pickle_do_not_multiply(tmp_path: Path) -> None:
    """Thirty lists, each of twice the one before: a billion leaves to whoever counts them one by one."""
    nested: list[object] = [1]
    for _ in range(30):
        nested = [nested, nested]
    assert isinstance(read_pickle(layouts.pickled(tmp_path / "labels.pkl", nested)), list)


def test_errors_in_label_files(tmp_path: Path) -> None:
    with refuses("label-file-missing"):
        read_lines(tmp_path / "gone.txt")
    with refuses("label-file-invalid"):
        read_json(layouts.text(tmp_path / "bad.json", "{"))
    with refuses("column-missing"):
        read_table(layouts.text(tmp_path / "bad.csv", "a,b", "1,2"), "label")
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe\xff")
    with refuses("label-file-invalid"):
        read_lines(tmp_path / "latin.txt")


def test_tables_and_lines_forgive_windows(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_bytes(b"\xef\xbb\xbfidx\tname\r\n0\tred\r\n1\t\r\n")
    assert read_table(path, "idx", "name", delimiter="\t") == [
        {"idx": "0", "name": "red"},
        {"idx": "1", "name": ""},
    ]
    path.write_bytes(b"one \r\n\r\n two\r\n")
    assert read_lines(path) == ["one", "two"]


def test_groups_are_held_out_whole_from_every_stratum() -> None:
    samples = [(action, f"g{group}") for action in ("run", "walk") for group in range(20) for _ in range(5)]
    held = hold_out(samples)
    assert len(held) == 4
    assert {stratum for stratum, _ in held} == {"run", "walk"}
    assert hold_out(samples[::-1]) == held
    assert hold_out([("run", "large")] * 50 + [("run", "small")] * 20) == {("run", "small")}
    assert hold_out([("run", "only")] * 50) == set()


def test_names_are_dealt_in_the_given_shares() -> None:
    dealt = [deal(f"picture {place}") for place in range(10_000)]
    assert [round(dealt.count(split) / 1000) for split in ("train", "val", "test")] == [7, 1, 2]
    turns = deal_in_turn([f"d{place}" for place in range(4)], ("train", "train", "val", "test"))
    assert sorted(turns.values()) == ["test", "train", "train", "val"]
