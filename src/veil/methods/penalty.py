"""Penalty-driven anonymization (2025, arXiv 2504.14301): SPAct's game with a bound on how far action clips may be distorted.

A is a UNet++, T an I3D, B as in SPAct. A descends, besides SPAct's terms, what its distortion exceeds the bound by::

    RMS(x) = sqrt(mean((x − A(x))²))                        of pixels in [0, 1], or of T's features, of unit length
    A  ←  descend L_T − ω · min(L_B, c + m) + λ · max(0, RMS(x) − B)          of action clips only

B is the distortion that is allowed: B = 0 is the tightest bound; pixels in [0, 1] are never farther than 1, so that B = 1 is no
bound, and the same as λ = 0, which is SPAct.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.methods.spact import Players, SPAct, played
from veil.training.data import Batch, DataConfig, TrainingData
from veil.training.fit import Terms
from veil.training.losses import Per, distortion_penalty
from veil.training.recipe import STRICT, Training


def _game() -> SPAct:
    stage = DataConfig(size=224, batch=8, stills=8, augment="penalty")
    return SPAct(stage=stage, net="unet++", task="i3d_r50", lr=4e-5, lr_others=1e-4)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Penalty:
    """The game of SPAct with a bound on the distortion."""

    spact: SPAct = Field(default_factory=_game)
    bound: Annotated[float, Field(ge=0)] = 0.5  # B
    weight: Annotated[float, Field(ge=0)] = 1.0  # λ
    per: Per = "batch"
    space: Literal["pixel", "feature"] = "pixel"
    detached: bool = False  # as released: a number that has no gradient and so steers nothing

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"spact": {"stage": {"augment": "penalty-paper", "skip": 4}, "cap": None}},
        "released": {"detached": True, "spact": {"cap": None}},
        "ours": {"spact": {"net": "unet", "width": 16}},
    }

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

        def hide(batch: Batch) -> Terms:
            drawn = players.drawn(batch)
            return {
                **players.hide(batch, drawn),
                "penalty": self.weight * self.excess(batch.clip, drawn, players.task),
            }

        return played(players, staged, devices, hide, players.use)

    def excess(self, clip: Tensor, drawn: Tensor, task: nn.Module) -> Tensor:
        """max(0, RMS − B), one number."""
        if self.space == "pixel":
            over = distortion_penalty(clip, drawn, self.bound, self.per)
        else:
            # Paper: the distance of pixels to T(A(x)), which have no common shape. Here: of T's features of both.
            with torch.no_grad():
                seen = F.normalize(task.features(clip).float(), dim=1)  # type: ignore[operator]
            still_seen = F.normalize(task.features(drawn).float(), dim=1)  # type: ignore[operator]
            far = ((seen - still_seen).square().mean(1) + 1e-12).sqrt()  # (B,)
            over = F.relu(far - self.bound).mean()
        return over.detach() if self.detached else over
