"""What everything shares: errors as one sentence."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from errors import refuses
from veil.core import VeilError, io_errors, validation_message


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


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, "abc", "should be a whole number"),
        (float, "abc", "should be a number"),
        (bool, "abc", "should be true or false"),
        (Annotated[int, Field(ge=1)], 0, "should be 1 or more"),
        (Literal["a", "b"], "c", "should be 'a' or 'b'"),
    ],
)
def test_a_validation_error_in_plain_words(kind, value, expected):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    assert validation_message(caught.value.errors()[0]) == expected
