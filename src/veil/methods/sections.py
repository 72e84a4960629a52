"""Recipe sections that several methods share: `[utility]`, and the `[schedule]` of adversarial training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from veil.training.recipe import STRICT, LearningRate


@dataclass(frozen=True, kw_only=True, config=STRICT)
class UtilityConfig:
    """`[utility]`: the network that recognizes actions in anonymized clips."""

    network: str
    weights: str | None = None  # a file of published weights


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AdversarialSchedule:
    """`[schedule]`: reconstruction by the anonymizer, warm-up of the other networks, then adversarial training."""

    reconstruction_steps: Annotated[int, Field(ge=0)] = 300
    warmup_steps: Annotated[int, Field(ge=0)] = 300
    adversarial_steps: Annotated[int, Field(ge=2)] = 1200
    repeats: Annotated[int, Field(ge=1)] = (
        1  # updates of the other networks for each update of the anonymizer
    )
    lr_reconstruction: LearningRate = 1e-3
    lr_warmup: LearningRate = 1e-3
    lr_anonymizer: LearningRate = 1e-4  # in adversarial training
    lr_others: LearningRate = 1e-4  # of the utility and budget networks, in adversarial training
