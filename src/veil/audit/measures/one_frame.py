"""One frame: the accuracy from a single frame of each video, beside the mean over several."""

from collections.abc import Iterator

from veil.audit.answers import Answers
from veil.audit.recognition import scored
from veil.audit.result import Row


def measure(answers: Answers) -> Iterator[Row]:
    """One row for recognizers of frames, where videos have several."""
    recognizer, views = answers.trained.recognizer, answers.probabilities.shape[1]
    if answers.unseen_identities or recognizer.input != "frames" or views == 1:
        return
    middle = answers.probabilities[:, views // 2]
    score, parts = scored(answers.target, middle, answers.test, answers.bootstrap)
    yield answers.row(score, by=f"{recognizer.net} on one frame", parts=parts)
