"""Which part of the features an adapter erases in closed form before its transform, fitted to training videos."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from veil.core import VeilError
from veil.features.adapter import Adapter
from veil.features.bank import Bank
from veil.features.erasure import discriminant_subspace, leace, motion_subspace
from veil.training.recipe import STRICT

Projection = Literal["none", "discriminant", "motion", "leace-static", "leace-identity", "leace-attributes"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ProjectionConfig:
    """What of the features is kept (discriminant or motion subspace), or which concept is erased (LEACE)."""

    projection: Projection = "discriminant"
    # Directions that are kept at most; none: all that separate the labels, of motion an eighth of all.
    dims: Annotated[int, Field(ge=1)] | None = None
    leace_rank: Annotated[int, Field(ge=1)] | None = None  # directions that LEACE erases; none: all


@torch.no_grad()
def fit_scale(adapter: Adapter, train: Bank, *, standardize: bool = True) -> None:
    """Record the encoder of the features and, where they are standardised, their mean and deviation."""
    adapter.set_encoder(train)
    if standardize:
        clips = train.clips[train.mask]
        adapter.mean = clips.mean(0)
        adapter.scale = clips.std(0).clamp_min(1e-4 * float(clips.std()))


@torch.no_grad()
def fit_projection(adapter: Adapter, config: ProjectionConfig, banks: dict[str, Bank]) -> None:
    """Fit the erasure of an adapter to training videos, by task; its scale must be known."""
    train = banks["action"]
    if config.projection == "none":
        return
    if config.projection == "discriminant":
        labelled = [_labelled_clips(bank) for name, bank in banks.items() if name != "anomaly"]
        if all(bool((labels == labels[:1]).all()) for _, labels in labelled):
            raise VeilError(
                "the training videos of the features for action all have the same label: choose data with several actions.",
                code="one-label",
            )
        pairs = [(adapter.standardized(x), labels) for x, labels in labelled]
        adapter.eraser = discriminant_subspace(pairs, config.dims)
        return
    x = adapter.standardized(train.clips)[train.mask]
    if config.projection == "motion":
        static = adapter.standardized(_per_clip(train, _static_means(train)))
        adapter.eraser = motion_subspace(x, static, min(train.dim, config.dims or max(1, train.dim // 8)))
    else:
        concept = config.projection.removeprefix("leace-")
        each = _static_means(train) if concept == "static" else _private_labels(train, concept)
        adapter.eraser = leace(x, _per_clip(train, each), config.leace_rank)


def _labelled_clips(bank: Bank) -> tuple[Tensor, Tensor]:
    """The clips of training videos ``(N, D)`` and the label of each ``(N, C)``: its segment's, or its video's."""
    places = bank.mask.nonzero()
    if any(sample.segments for sample in bank.samples):
        middle = (bank.starts + bank.length / 2)[bank.mask].tolist()
        label = [
            next((s.label + 1 for s in bank.samples[row].segments if s.start <= at < s.end), 0)
            for row, at in zip(places[:, 0].tolist(), middle, strict=True)
        ]
        return bank.clips[bank.mask], F.one_hot(torch.tensor(label, device=places.device)).float()
    labels = bank.truth("action")[places[:, 0]]
    return bank.clips[bank.mask], (F.one_hot(labels) if labels.ndim == 1 else labels).float()


def _static_means(train: Bank) -> Tensor:
    """The mean of each video's static clips, ``(V, D)``."""
    if not train.stills.shape[1]:
        raise VeilError(
            "the features for action have no static clips: extract them with --stills.",
            code="static-clips-missing",
        )
    return train.stills.mean(1)


def _private_labels(train: Bank, concept: str) -> Tensor:
    """The private labels of each video, ``(V, C)``."""
    labels = train.truth(concept)
    if not bool((labels >= 0).all()):  # also false for nan
        raise VeilError(
            f"some training videos of the features for action have no {concept}, which is to be erased: leave these out.",
            code="label-missing",
        )
    return F.one_hot(labels).float() if labels.ndim == 1 else labels


def _per_clip(train: Bank, each: Tensor) -> Tensor:
    """The labels of each video, repeated for each of its clips: ``(V, C)`` to ``(clips, C)``."""
    return each[:, None].expand(-1, train.clips.shape[1], -1)[train.mask]
