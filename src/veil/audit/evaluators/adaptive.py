"""Adaptive: a recognizer of raw video is trained further on anonymized video; for utility, this is its intended use."""

from veil.audit.evaluator import Evaluator, MethodVideos
from veil.audit.experiment import Anonymize, ExperimentData, SplitVideos
from veil.audit.result import Row


def prepare(videos: MethodVideos) -> SplitVideos | None:
    """The anonymized videos."""
    return videos.anonymized if "adaptive" in videos.suite.knowledge else None


def evaluate(anonymize: Anonymize, data: ExperimentData) -> list[Row]:
    """Train on anonymized video, then test."""
    return data.rows(data.train_on(anonymize), anonymize, "adaptive")


EVALUATOR = Evaluator("adaptive", prepare, evaluate)
