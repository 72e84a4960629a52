"""Work for a cluster that needs nothing, in a module that worker processes import fast."""

import os
import signal
from pathlib import Path

from veil.core import VeilError


class Squares:
    """A worker that dies of some numbers: of 3 each time, of 5 once; and 4 is a mistake."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / f"made-{os.getpid()}").touch(exist_ok=False)

    def __call__(self, number: int) -> int:
        with (self._folder / f"tried-{number}").open("a") as file:
            file.write("x")
        if number == 3 or (number == 5 and (self._folder / "tried-5").stat().st_size == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 4:
            raise ValueError("four is too many")
        return number * number


class Unmade:
    """A worker that cannot be made."""

    def __init__(self) -> None:
        raise VeilError("the weights are not on this machine.", code="unmade")

    def __call__(self, number: int) -> int:
        return number
