"""Reconstruction: an attacker reconstructs raw video first (`veil.audit.reconstruction`), then recognizes the result."""

from dataclasses import replace

from veil.audit.evaluator import Evaluator, MethodVideos
from veil.audit.experiment import Anonymize, ExperimentData, SplitVideos
from veil.audit.reconstruction import Reconstructor, train_reconstructor
from veil.audit.result import Row
from veil.training.memory import with_smaller_batches


def prepare(videos: MethodVideos) -> SplitVideos | None:
    """The reconstructed videos."""
    if "reconstruction" not in videos.suite.knowledge:
        return None
    videos.announce("training the reconstruction")
    raw, anonymized, budget = videos.raw, videos.anonymized, videos.suite.reconstruction

    def train(batch: int) -> Reconstructor:
        return train_reconstructor(
            (raw["train"], raw["val"]),
            (anonymized["train"], anonymized["val"]),
            replace(budget, batch=batch),
            device=videos.device,
        )

    reconstruct = with_smaller_batches(train, budget.batch)[0]
    return {split: reconstruct(part) for split, part in anonymized.items()}


def evaluate(anonymize: Anonymize, data: ExperimentData) -> list[Row]:
    """Train on reconstructed video, then test; leakage only."""
    if data.experiment.role != "leakage":
        return []
    return data.rows(data.train_on(anonymize), anonymize, "reconstruction")


EVALUATOR = Evaluator("reconstruction", prepare, evaluate)
