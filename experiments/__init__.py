"""The tables of the documentation: each module makes the rows of one table, and reports turn rows into pages."""

import sys

try:
    import torch  # noqa: F401

    import veil  # noqa: F401
except ModuleNotFoundError as missing:
    if sys.argv[0] != "-m":  # as it is while `python -m experiments.NAME` looks for the module
        raise
    raise SystemExit(
        f"The package '{missing.name}' is not installed: run pip install -e '.[dev]' first."
    ) from None
