"""What is computed of a recognizer's answers, one file each; `MEASURES` lists them."""

from collections.abc import Callable, Iterable

from veil.audit.answers import Answers
from veil.audit.measures import accuracy, bias, gait, one_frame
from veil.audit.result import Row

Measure = Callable[[Answers], Iterable[Row]]

MEASURES: tuple[Measure, ...] = (accuracy.measure, one_frame.measure, bias.measure, gait.measure)
