"""The tasks of an adapter: a head for each, their losses on features after the adapter, and a check on validation videos.

L_T is the sum of the losses of the tasks that are trained: a linear head for actions, TriDet for where actions are in long
videos, MGFN for anomalies (`veil.features.heads`).
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.features.adapter import Adapter
from veil.features.bank import Bank
from veil.features.heads.action import ActionHead
from veil.features.heads.anomaly import MGFN, binned
from veil.features.heads.detection import TriDet
from veil.features.training_data import FeatureBatch
from veil.training import config
from veil.training.recipe import STRICT
from veil.training.steps import Terms


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DetectionHead:
    """The sizes of TriDet; the defaults are those for THUMOS14."""

    width: Annotated[int, Field(ge=16, multiple_of=16)] = 512
    hidden: Annotated[int, Field(ge=16)] = 768
    levels: Annotated[int, Field(ge=1, le=8)] = 6
    bins: Annotated[int, Field(ge=1)] = 16


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AnomalyHead:
    """The sizes of MGFN; the defaults are the paper's."""

    widths: tuple[int, int, int] = (64, 128, 1024)
    depths: tuple[int, int, int] = (3, 3, 2)
    top: Annotated[int, Field(ge=1, le=32)] = 3


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HeadsConfig:
    """The heads that are trained on features after the adapter."""

    detection: DetectionHead = Field(default_factory=DetectionHead)
    anomaly: AnomalyHead = Field(default_factory=AnomalyHead)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FeatureUtility(HeadsConfig):
    """What an adapter that is trained must preserve."""

    weight: Annotated[float, Field(ge=0)] = 1.0  # ω_T
    consistency_weight: Annotated[float, Field(ge=0)] = 1.0  # ω_LC


class TaskHeads:
    """The heads by task, and their losses."""

    def __init__(self, config_: HeadsConfig, banks: dict[str, Bank]) -> None:
        dim = banks["action"].dim
        self.action = ActionHead(dim, len(banks["action"].actions))
        self.by_task: dict[str, nn.Module] = {"action": self.action}
        if "detection" in banks:
            sizes = config.as_dict(config_.detection)
            self.by_task["detection"] = TriDet(dim, len(banks["detection"].actions), **sizes)
        if "anomaly" in banks:
            sizes = config_.anomaly
            self.by_task["anomaly"] = MGFN(dim, widths=sizes.widths, depths=sizes.depths, top=sizes.top)

    def loss(self, adapter: Adapter, batch: FeatureBatch, clips: Tensor, weight: float = 1.0) -> Terms:
        """L_T, term by term; ``clips`` are the action videos after the adapter."""
        terms = self.action.loss(self.action(clips, batch.mask), batch.action, batch.mask)
        if batch.detection is not None:
            x, mask, segments = batch.detection
            head = self.by_task["detection"]
            assert isinstance(head, TriDet)
            losses = head.loss(head(adapter(x, mask), mask), segments)
            terms |= {f"detection {name}": value for name, value in losses.items()}
        if batch.anomaly is not None:
            x, mask, abnormal = batch.anomaly
            head = self.by_task["anomaly"]
            assert isinstance(head, MGFN)
            losses = head.loss(head(binned(adapter(x, mask), mask)), abnormal)
            terms |= {f"anomaly {name}": value for name, value in losses.items()}
        return {name: weight * value for name, value in terms.items()}

    @torch.no_grad()
    def check(self, adapter: Adapter, val: Bank, device: torch.device) -> dict[str, float]:
        """The accuracy of actions on validation videos, and how far features have moved."""
        if not len(val):
            return {}
        modes = [(module, module.training) for module in (adapter, self.action)]
        for module, _ in modes:
            module.eval()
        bank = val.to(device)
        after = adapter(bank.clips, bank.mask)
        probabilities = self.action.probabilities(after, bank.mask)
        moved = adapter.standardized(after) - adapter.standardized(bank.clips)
        for module, mode in modes:
            module.train(mode)
        right = (probabilities.argmax(1) == bank.truth("action")).float().mean()
        return {"action accuracy": float(right), "moved": float(moved[bank.mask].square().mean())}
