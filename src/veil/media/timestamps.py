"""Frame times that strictly increase, whatever the container states."""

from __future__ import annotations

from fractions import Fraction


class TimestampClock:
    """Turns the times that a container states, or fails to state, into strictly increasing whole ticks."""

    def __init__(self, second: Fraction) -> None:
        self._second = second  # in ticks
        self._shift: Fraction | int = 0
        self._time: Fraction | int = 0
        self._last: int | None = None

    def tick(self, stated: Fraction | int | None, step: Fraction | int) -> int:
        """The tick of the next frame: as stated where that increases, else one step after the last."""
        if self._last is None:
            self._time = stated or 0
        elif stated is None:
            self._time += step
        elif stated + self._shift < self._last - self._second:  # began anew: go on where it broke off
            self._shift = self._time + step - stated
            self._time += step
        else:
            self._time = stated + self._shift
        tick = round(self._time)
        if self._last is not None and tick <= self._last:
            tick = self._time = self._last + 1
        self._last = tick
        return tick
