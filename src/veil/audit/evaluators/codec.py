"""Codec: the adaptive recognizer on anonymized video after an H.264 round trip, as in a file that is shared."""

from veil.audit.evaluator import Evaluator, MethodVideos
from veil.audit.experiment import Anonymize, ExperimentData, SplitVideos
from veil.audit.result import Row


def prepare(videos: MethodVideos) -> SplitVideos | None:
    """The anonymized videos after encoding and decoding; stills are not encoded."""
    if "h264" not in videos.suite.encodings or not videos.moving:
        return None
    videos.announce("through H.264")
    return videos.encode("h264")


def evaluate(anonymize: Anonymize, data: ExperimentData) -> list[Row]:
    """Train on decoded video, then test."""
    return data.rows(data.train_on(anonymize), anonymize, "adaptive", "h264")


EVALUATOR = Evaluator("codec", prepare, evaluate)
