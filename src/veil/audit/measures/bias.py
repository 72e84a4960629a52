"""Bias: the accuracy of each gender, and the gap between them, where the test videos are labelled with it."""

from collections.abc import Iterator

from veil.audit.answers import Answers
from veil.audit.result import Row
from veil.metrics import group_accuracy, group_gap


def measure(answers: Answers) -> Iterator[Row]:
    """One row for utility."""
    groups = [sample.groups.get("gender", "") for sample in answers.test.samples]
    if answers.role != "utility" or len(set(groups)) < 2 or "" in groups:
        return
    mean, truth = answers.probabilities.mean(1), answers.test.truth(answers.target).numpy()
    each = group_accuracy(mean, truth, groups)
    gap = group_gap(mean, truth, groups, bootstrap=answers.bootstrap)
    parts = {name: (score.value, score.chance or 0.0) for name, score in each.items()}
    yield answers.row(gap, role="bias", parts=parts)
