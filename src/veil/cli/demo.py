"""`veil demo`: anonymize the sample that comes with Veil."""

from __future__ import annotations

from pathlib import Path

from veil.cli.arguments import Output
from veil.cli.terminal import print_result, progress_bar
from veil.methods import DEFAULT, make


def demo(*, output: Output = "veil-demo", method: str = DEFAULT) -> int:
    """Anonymize the sample that comes with Veil: a camera that moves over a photograph of an astronaut.

    Parameters
    ----------
    output
        The folder to write to; what an earlier demo left there is replaced.
    method
        As for `veil anonymize`.
    """
    from veil.apps.demo import run_demo

    with progress_bar("anonymizing") as progress:
        result = run_demo(Path(output), make(method), progress)
    print_result(result.report.sentence())
    print_result(f"video:        {result.video}\nside by side: {result.picture}")
    return 0
