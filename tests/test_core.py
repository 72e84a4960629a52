"""What everything shares: errors as one sentence."""

from pathlib import Path

import pytest

from errors import refuses
from veil.core import VeilError, io_errors


def test_an_os_error_becomes_a_sentence(tmp_path: Path):
    missing = tmp_path / "missing.txt"
    with refuses("unreadable") as caught, io_errors(missing):
        missing.read_text()
    assert str(missing) in str(caught.value) and isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize(
    ("action", "code", "expected"),
    [("written", None, "unwritable"), ("listed", None, "not-listed"), ("read", "no-weights", "no-weights")],
)
def test_codes(action, code, expected):
    with refuses(expected), io_errors("x", action, code=code):
        raise OSError("broken")


def test_a_veil_error_passes_unchanged():
    with refuses("own"), io_errors("x", errors=(Exception,)):
        raise VeilError("own sentence.", code="own")


def test_other_errors_are_turned_only_where_they_are_named():
    with pytest.raises(ValueError), io_errors("x"):
        raise ValueError("bad")
    with refuses("unreadable"), io_errors("x", errors=(OSError, ValueError)):
        raise ValueError("bad")
