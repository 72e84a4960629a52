"""Errors are recognized by their code, so that their wording can change."""

from typing import Any

import pytest

from veil.core import VeilError


def refuses(code: str) -> Any:
    """A context in which a `VeilError` with this code must be raised."""
    return pytest.raises(VeilError, check=lambda error: error.code == code)
