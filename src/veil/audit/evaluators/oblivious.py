"""Oblivious: a recognizer of raw video is tested on anonymized video; it never had access to the anonymizer."""

from veil.audit.evaluator import Evaluator, MethodVideos
from veil.audit.experiment import Anonymize, ExperimentData, SplitVideos
from veil.audit.result import Row


def prepare(videos: MethodVideos) -> SplitVideos | None:
    """The anonymized videos."""
    return videos.anonymized if "oblivious" in videos.suite.knowledge else None


def evaluate(anonymize: Anonymize, data: ExperimentData) -> list[Row]:
    """Test the recognizer of raw video."""
    return data.rows(data.on_raw, anonymize, "oblivious")


EVALUATOR = Evaluator("oblivious", prepare, evaluate)
