"""Features to train adapters on: where they come from, and batches of them by number.

A batch holds clips of videos whose action is known, with static clips of the same videos, and, where they are trained for,
long videos with segments (detection) and normal and abnormal videos (anomaly). It is a function of the seed and its number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from veil.core import VeilError
from veil.data import read as read_data
from veil.data.synthetic import rendered_on
from veil.features import encoders
from veil.features.bank import Bank
from veil.features.extract import extract
from veil.features.heads.grid import Span, on_grid
from veil.training.recipe import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FeatureSource:
    """Features of a dataset, extracted when training begins; or those of a store."""

    name: str | None = None  # of the dataset
    root: str | None = None
    options: dict[str, str | int] = Field(default_factory=dict)  # of its reader
    stride: Annotated[int, Field(ge=1)] | None = None  # frames from clip to clip; none: as many as a clip has
    store: str | None = None  # the folder of a store, instead of a dataset

    def __post_init__(self) -> None:
        if (self.store is None) == (self.name is None):
            raise VeilError(
                "features come from a dataset or from a store: set either name or store.",
                code="feature-source",
            )

    def bank(self, encoder: str, weights: str | None, device: torch.device) -> Bank:
        """The features, in memory."""
        if self.store is not None:
            from veil.features.store import Store

            return Store.open(self.store).bank()
        assert self.name is not None
        network = encoders.make(encoder, weights, device)
        if self.name == "synthetic":
            size = int(self.options.get("size", network.size))
            dataset = read_data(self.name, self.root, **{**self.options, "size": size})
            dataset = rendered_on(dataset, device, size=size)
        else:
            dataset = read_data(self.name, self.root, **self.options)
        return extract(dataset, network, stride=self.stride, device=device)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DetectionSource(FeatureSource):
    """Features of long videos whose actions have segments."""

    batch: Annotated[int, Field(ge=1)] = 2  # videos


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AnomalySource(FeatureSource):
    """Features of normal and abnormal videos."""

    batch: Annotated[int, Field(ge=2)] = 8  # normal videos, and as many abnormal ones


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FeatureData(FeatureSource):
    """The data of an adapter: videos whose action is known, and optionally those of the other tasks."""

    encoder: str = "veil"  # of features that are extracted
    encoder_weights: str | None = None
    batch: Annotated[int, Field(ge=2)] = 512  # videos
    static_batch: Annotated[int, Field(ge=2)] | None = (
        None  # of them, those whose static clips are used; none: all
    )
    detection: DetectionSource | None = None
    anomaly: AnomalySource | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.static_batch is not None and self.static_batch > self.batch:
            raise VeilError(
                f"static_batch = {self.static_batch} is more than batch = {self.batch}: lower it or raise batch.",
                code="static-batch",
            )

    def sources(self) -> dict[str, FeatureSource]:
        """By the name of its task."""
        every = {"action": self, "detection": self.detection, "anomaly": self.anomaly}
        return {name: source for name, source in every.items() if source is not None}

    def banks(self, device: torch.device) -> dict[str, Bank]:
        """The features of each task, all of one encoder."""
        return {
            name: source.bank(self.encoder, self.encoder_weights, device)
            for name, source in self.sources().items()
        }


class FeatureBatch(NamedTuple):
    """The data of one step; tasks that are not trained have none."""

    clips: Tensor  # (B, N, D) of action videos
    mask: Tensor  # (B, N)
    action: Tensor  # (B,), or (B, K) where a video shows several
    stills: Tensor  # (P, 2, D): two static clips of each of the first P of them
    appearance: Tensor  # (P, D): the mean of all their static clips
    detection: tuple[Tensor, Tensor, list[Sequence[Span]]] | None = (
        None  # features, mask, segments on the grid
    )
    anomaly: tuple[Tensor, Tensor, Tensor] | None = None  # features, mask, which are abnormal


class FeatureBatches:
    """Batches by their number, from 0: the same number, the same batch.

    ``static``: the budget needs two static clips of each video.
    """

    def __init__(
        self, data: FeatureData, banks: dict[str, Bank], device: torch.device, *, seed: int, static: bool
    ) -> None:
        self.data, self.seed = data, seed
        self.banks = {name: bank.split("train").to(device) for name, bank in banks.items()}
        for name, bank in self.banks.items():
            if not len(bank):
                raise VeilError(
                    f"the features for {name} have no training videos: check their splits.",
                    code="split-empty",
                )
        self.action = self.banks["action"]
        if static and self.action.stills.shape[1] < 2:
            raise VeilError(
                f"the features for action have {self.action.stills.shape[1]} static clips a video, and the budget needs two: "
                "extract them with --stills.",
                code="static-clips-missing",
            )
        self.labels = self.action.truth("action")
        if (self.labels < 0).any():
            raise VeilError(
                "some features for action are of videos without an action: leave these out.",
                code="label-missing",
            )
        self.segments: list[Sequence[Span]] = []
        if "detection" in self.banks:
            bank = self.banks["detection"]
            rows = zip(bank.samples, bank.starts.cpu().numpy(), bank.counts.tolist(), strict=True)
            self.segments = [on_grid(s.segments, starts[:count], bank.length) for s, starts, count in rows]
            if not any(self.segments):
                raise VeilError(
                    "the features for detection are of videos without segments: choose data with segments.",
                    code="segments-missing",
                )
        if "anomaly" in self.banks:
            abnormal = self.banks["anomaly"].truth("action") > 0  # 0 is normal
            self.kinds = [abnormal.logical_not().nonzero()[:, 0], abnormal.nonzero()[:, 0]]
            if not all(map(len, self.kinds)):
                raise VeilError(
                    "the features for anomaly are all of one kind: give normal and abnormal videos.",
                    code="anomaly-one-kind",
                )

    def __call__(self, number: int) -> FeatureBatch:
        """Batch ``number``."""
        data, bank = self.data, self.action
        rng = torch.Generator().manual_seed(1_000_003 * self.seed + number)
        device = bank.clips.device
        rows = _sampled(len(bank), data.batch, rng).to(device)
        static = rows[: data.static_batch]
        which = torch.rand(len(static), max(2, bank.stills.shape[1]), generator=rng).argsort(1)[:, :2]
        has = bank.stills.shape[1] >= 2
        blank = bank.clips.new_zeros(len(static), 2, bank.dim)
        return FeatureBatch(
            clips=bank.clips[rows],
            mask=bank.mask[rows],
            action=self.labels[rows],
            stills=bank.stills[static[:, None], which.to(device)] if has else blank,
            appearance=bank.stills[static].mean(1) if has else blank[:, 0],
            detection=self._detection(rng),
            anomaly=self._anomaly(rng),
        )

    def _detection(self, rng: torch.Generator) -> tuple[Tensor, Tensor, list[Sequence[Span]]] | None:
        bank, source = self.banks.get("detection"), self.data.detection
        if bank is None or source is None:
            return None
        rows = _sampled(len(bank), source.batch, rng)
        index = rows.to(bank.clips.device)
        return bank.clips[index], bank.mask[index], [self.segments[row] for row in rows.tolist()]

    def _anomaly(self, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor] | None:
        bank, source = self.banks.get("anomaly"), self.data.anomaly
        if bank is None or source is None:
            return None
        half = source.batch
        rows = torch.cat([kind[_sampled(len(kind), half, rng).to(kind.device)] for kind in self.kinds])
        return bank.clips[rows], bank.mask[rows], torch.arange(2 * half, device=rows.device) >= half


def check_one_encoder(banks: Sequence[Bank]) -> None:
    """Refuse banks of different encoders."""
    first = banks[0]
    for bank in banks[1:]:
        if (bank.encoder, bank.fingerprint, bank.dim) != (first.encoder, first.fingerprint, first.dim):
            raise VeilError(
                f"features of {first.encoder} ({first.fingerprint[:12]}) and of {bank.encoder} ({bank.fingerprint[:12]}) "
                "do not mix: extract all with one encoder.",
                code="features-do-not-mix",
            )


def _sampled(count: int, wanted: int, rng: torch.Generator) -> Tensor:
    """Indices in 0..count−1: each once, or, where more are wanted than there are, again from the start."""
    rounds = [torch.randperm(count, generator=rng) for _ in range(math.ceil(wanted / count))]
    return torch.cat(rounds)[:wanted]
