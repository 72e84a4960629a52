"""Accuracy: top-1, or class-mean average precision of attributes; a video's answer is the mean over its views."""

from collections.abc import Iterator

from veil.audit.answers import Answers
from veil.audit.recognition import scored
from veil.audit.result import Row


def measure(answers: Answers) -> Iterator[Row]:
    """One row, unless the test videos show unseen identities."""
    if not answers.unseen_identities:
        mean = answers.probabilities.mean(1)
        score, parts = scored(answers.target, mean, answers.test, answers.bootstrap)
        yield answers.row(score, parts=parts)
