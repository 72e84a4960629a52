"""TeD-SPAD (Fioresi et al. 2023, arXiv 2308.11072): SPAct with moments of a video kept apart, for anomalies to be found.

T has a second head h (2 layers, unit length). With x a clip, x⁺ the same frames in another augmentation, x⁻ another clip of the
same video, f = h(T(A(·)))::

    L_D = max(0, |f(x) − f(x⁺)| − |f(x) − f(x⁻)| + μ)
    A  ←  descend w · (L_T + α · L_D) − ω · min(L_B, c + m)
    T, B, h  ←  descend L_T + α · L_D + L_B

The paper's text is not at hand; this follows a description of it and of the released code. There, frames were scrambled with
colour planes before A; here they are not.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.core import VeilError
from veil.methods.spact import Players, SPAct, played
from veil.training.data import Batch, DataConfig, TrainingData
from veil.training.fit import Terms
from veil.training.losses import triplet
from veil.training.recipe import STRICT, Training


def _game() -> SPAct:
    stage = DataConfig(size=224, batch=8, stills=12, augment="tedspad")
    return SPAct(stage=stage, net="unet++", task="i3d_r50", lr=4e-6, lr_others=1e-5)


class Distinct(nn.Module):
    """The task with a second head, under which moments of one video lie apart."""

    def __init__(self, task: nn.Module, inner: int = 512) -> None:
        super().__init__()
        dim: int = task.dim  # type: ignore[assignment]
        self.task = task
        self.head = nn.Sequential(
            nn.Linear(dim, inner), nn.BatchNorm1d(inner), nn.ReLU(inplace=True), nn.Linear(inner, 128)
        )

    def forward(self, clip: Tensor) -> Tensor:
        """The task's answer, ``(B, K)``."""
        return self.task(clip)

    def placed(self, clip: Tensor) -> Tensor:
        """Where a clip lies, ``(B, 128)``."""
        return self.head(self.task.features(clip))  # type: ignore[operator]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TeDSPAD:
    """The game of SPAct with temporal distinctiveness."""

    spact: SPAct = Field(default_factory=_game)
    margin: Annotated[float, Field(gt=0)] = 1.0  # μ
    distinct: Annotated[float, Field(ge=0)] = 0.1  # α
    keep: Annotated[float, Field(ge=0)] = 0.7  # w

    def __post_init__(self) -> None:
        if self.stage.batch < 2:
            raise VeilError(
                "the head of TeD-SPAD needs two clips to standardise them: raise spact.stage.batch."
            )

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.spact.steps

    @property
    def seed(self) -> int:
        """Of everything that is left to chance."""
        return self.spact.seed

    @property
    def stage(self) -> DataConfig:
        """What is played with."""
        return self.spact.stage

    def network(self) -> nn.Module:
        """A fresh anonymizer."""
        return self.spact.network()

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        staged = TrainingData(self.stage, device, self.seed)
        players = Players(self.spact, staged)
        task = Distinct(players.task).to(device)
        players.task = task

        def apart(batch: Batch, drawn: Tensor) -> Tensor:
            with torch.set_grad_enabled(drawn.requires_grad):
                near, far = players.redraw(batch.again()), players.redraw(batch.other())
            return triplet(task.placed(drawn), task.placed(near), task.placed(far), self.margin)

        def hide(batch: Batch) -> Terms:
            drawn = players.drawn(batch)
            terms = players.hide(batch, drawn)
            return {
                "task": self.keep * terms["task"],
                "distinct": self.keep * self.distinct * apart(batch, drawn),
                "budget": terms["budget"],
            }

        def use(batch: Batch, drawn: Tensor) -> Terms:
            return {**players.use(batch, drawn), "distinct": self.distinct * apart(batch, drawn)}

        return played(players, staged, devices, hide, use)
