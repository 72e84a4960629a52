"""`veil fetch`: download weights."""

from __future__ import annotations

from veil.cli.terminal import print_result
from veil.core import VeilError


def fetch(name: str, /) -> int:
    """Download weights from their hub, check them, and keep them for this user.

    Parameters
    ----------
    name
        One of the weights that `veil doctor` lists.
    """
    from veil.nn import weights

    if name not in weights.WEIGHTS:
        raise VeilError(
            f"there are no weights '{name}': choose one of {', '.join(weights.WEIGHTS)}.",
            code="unknown-weights",
        )
    print_result(weights.fetch(name))
    return 0
