"""The answers of one trained recognizer to the test videos, from which measures compute rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from veil.audit.recognition import Floats, TrainedRecognizer
from veil.audit.result import UNDERFITTED_NOTE, Encoding, Knowledge, Role, Row
from veil.audit.videos import Videos, seen_in_training
from veil.metrics import Bootstrap, Score


@dataclass(frozen=True)
class Answers:
    """What a recognizer answered, and how it was trained."""

    trained: TrainedRecognizer
    role: Role
    protocol: str
    knowledge: Knowledge
    encoding: Encoding
    train: Videos
    test: Videos
    probabilities: Floats  # (N, views, K) of the test videos
    bootstrap: Bootstrap = field(default_factory=Bootstrap)

    @property
    def target(self) -> str:
        """What was recognized."""
        return self.trained.target

    @property
    def by(self) -> str:
        """The recognizer's name."""
        return str(self.trained.recognizer)

    @property
    def unseen_identities(self) -> bool:
        """Whether the people of the test videos are in no training video, so that they cannot be classified."""
        return self.target == "identity" and not seen_in_training(self.train, self.test, "identity")

    def row(
        self,
        score: Score,
        *,
        by: str | None = None,
        role: Role | None = None,
        protocol: str | None = None,
        parts: Mapping[str, tuple[float, float]] | None = None,
    ) -> Row:
        """A score as a row of one seed; what is not given is as in the experiment."""
        notes = [note for note in score.notes if not note.startswith("interval:")]
        if self.trained.underfitted:
            loss, constant = self.trained.loss, self.trained.constant
            notes.append(
                f"{UNDERFITTED_NOTE}: training loss {loss:.3g}, that of a constant answer is {constant:.3g}"
            )
        return Row(
            role=role or self.role,
            target=self.target,
            by=by or self.by,
            knowledge=self.knowledge,
            encoding=self.encoding,
            protocol=protocol or self.protocol,
            metric=score.metric,
            values=(score.value,),
            chance=score.chance or 0.0,
            n=score.n,
            interval=score.interval,
            train_loss=(self.trained.loss,),
            parts=parts or {},
            notes=tuple(notes),
        )
