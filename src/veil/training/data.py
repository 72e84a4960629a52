"""Training data of learned pixel anonymizers: batches of clips and image pairs, each a function of seed and batch number.

A batch holds clips of videos with their action labels, and pairs of images of people: two views of one image, or two frames
of one video. Where the private labels are known, the batch holds them too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from veil.core import VeilError
from veil.data import Dataset
from veil.data.augment import PRESETS
from veil.training.data_config import DataConfig, Kept
from veil.training.distributed import rank, world_size
from veil.training.frame_cache import FrameCache


class TrainingBatch(NamedTuple):
    """The data of one training step, on the device."""

    clip: Tensor  # (B, 3, T, S, S) in [0, 1]
    action: Tensor  # (B,) int64, or (B, K) float where a video shows several
    first: Tensor  # (N, 3, S, S): images of people, and
    second: Tensor  # (N, 3, S, S): the second image of each pair
    private: Tensor | None  # (N,) int64 identities or (N, A) attributes of the pairs, where they are known
    clip_private: Tensor | None  # the same of the clips, where the clips show the people to hide
    other_view: Callable[
        [], Tensor
    ]  # (B, 3, T, S, S): the same frames in another augmentation, made on demand
    other_clip: Callable[[], Tensor]  # (B, 3, T, S, S): other clips of the same videos, likewise


class TrainingData:
    """The videos of a `DataConfig`, their labels, and batches by number."""

    def __init__(self, config: DataConfig, device: torch.device, seed: int) -> None:
        self.config, self.device, self.seed = config, device, seed
        dataset = config.read()
        if not (dataset.actions if config.keep == "action" else dataset.attributes):
            raise _no_label_to_keep(dataset, config.keep)  # before any frame is read
        self.train = FrameCache(dataset, "train", config.size, config.max_frames, device)
        self.val = FrameCache(dataset, "val", config.size, config.max_frames, device)
        self.people = self.train
        if config.private is not None:
            private = config.private.read(config.size)
            self.people = FrameCache(private, "train", config.size, config.max_frames, device)
        self.actions, self.val_actions = self._actions()
        self.n_outputs = len(dataset.attributes if self.actions.ndim == 2 else dataset.actions)
        self.private = self._private()
        self.clip_private = self.private if self.people is self.train else None
        preset = PRESETS[config.augment]
        flip = preset.flip if config.flip else 0.0
        self.augment = replace(preset, size=config.size, length=config.length, skip=config.skip, flip=flip)
        if config.pairs != "views" and self.people.images_only:
            raise VeilError(
                f'{self.people.dataset.name} has single images, which make no pairs of frames: set data.pairs = "views".',
                code="pairs-of-single-images",
            )

    @property
    def n_private(self) -> int:
        """The number of private classes: identities, or attributes."""
        if self.private is None:
            raise VeilError(
                f"the training videos of {self.people.dataset.name} have neither identity labels nor attributes to hide, "
                "and this method needs private labels: choose other data, or a method without labels, such as spact.",
                code="private-labels-missing",
            )
        dataset = self.people.dataset
        return len(dataset.attributes) if self.private.ndim == 2 else len(dataset.identities)

    def __call__(self, number: int) -> TrainingBatch:
        """The batch of this number, from 0; with several processes, the share of this one."""
        config = self.config
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + number * 8191 + rank())
        count, pairs = max(1, config.batch // world_size()), max(1, config.image_pairs // world_size())
        rows = torch.randint(len(self.train), (count,), generator=rng)
        clip = self.train.clips(rows, self._clip_times(rows, rng))
        chosen = torch.randint(len(self.people), (pairs,), generator=rng)
        times = self._pair_times(chosen, rng)
        first, second = (self.people.clips(chosen, time[:, None]) for time in times)

        def augmented(clips: Tensor) -> Tensor:
            with torch.autocast(self.device.type, enabled=False):  # a loss may call it under autocast
                return self.augment.train(clips, rng)

        views = augmented(first), augmented(second)
        return TrainingBatch(
            augmented(clip),
            self.actions[rows].to(self.device),
            views[0][:, :, 0],
            views[1][:, :, 0],
            None if self.private is None else self.private[chosen].to(self.device),
            None if self.clip_private is None else self.clip_private[rows].to(self.device),
            lambda: augmented(clip),
            lambda: augmented(self.train.clips(rows, self._clip_times(rows, rng))),
        )

    def _clip_times(self, rows: Tensor, rng: torch.Generator) -> Tensor:
        """The frame numbers ``(B, T)`` of a random clip of each video; in a short video, closer together."""
        lengths = self.train.lengths[rows]
        strides = torch.clamp((lengths - 1) // max(1, self.config.length - 1), 1, self.config.skip)
        free = (lengths - (self.config.length - 1) * strides).clamp_min(1)
        start = (torch.rand(len(rows), generator=rng) * free).long()
        return start[:, None] + strides[:, None] * torch.arange(self.config.length)

    def _pair_times(self, rows: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The frame numbers ``(N,)`` of both images of each pair, as far apart as `data.pairs` states."""
        lengths, count = self.people.lengths[rows], len(rows)
        first = (torch.rand(count, generator=rng) * lengths).long()
        if self.config.pairs == "views":
            return first, first
        if self.config.pairs == "near":
            offset = torch.randint(1, 8, (count,), generator=rng)
            offset = torch.where(torch.rand(count, generator=rng) < 0.5, offset, -offset)
            outside = (first + offset < 0) | (first + offset >= lengths)
            second = (first + torch.where(outside, -offset, offset)).clamp_min(0)
            return first, torch.minimum(second, lengths - 1)
        second = (torch.rand(count, generator=rng) * lengths).long()
        if self.config.pairs == "far":  # a video that is too short gives its first and last frame
            first = (torch.rand(count, generator=rng) * (lengths - 65).clamp_min(1)).long()
            more = (torch.rand(count, generator=rng) * (lengths - first - 65).clamp_min(1)).long()
            second = torch.minimum(first + 65 + more, lengths - 1)
        return first, second

    def _actions(self) -> tuple[Tensor, Tensor]:
        """The label to keep of each training and each validation video: its action, or its attributes."""
        keep = self.config.keep
        train, val = self.train.labels(keep), self.val.labels(keep, n_distinct=1)
        if train is None or val is None:
            needed = "two different actions" if keep == "action" else "attribute labels"
            raise VeilError(
                f"the videos of {self.train.dataset.name} do not have {needed}: choose data with labels to keep.",
                code="action-labels-missing",
            )
        return train, val

    def _private(self) -> Tensor | None:
        """The private label of each sample that shows people, where it is known."""
        wanted = self.config.target or ("attributes" if self.config.private_attributes else None)
        if wanted is None:
            identity = self.people.labels("identity")
            kept = self.config.keep == "attributes" and self.people is self.train
            return self.people.labels("attributes") if identity is None and not kept else identity
        labels = self.people.labels(wanted)
        if labels is None:
            known = [name for name in ("identity", "attributes") if self.people.labels(name) is not None]
            raise VeilError(
                f"the training videos of {self.people.dataset.name} have no {wanted} labels, which data.target requires "
                f"(they have {' and '.join(known) or 'no private labels'}): change data.target, or choose other data.",
                code="private-target-missing",
            )
        return labels


def _no_label_to_keep(dataset: Dataset, keep: Kept) -> VeilError:
    if keep == "attributes":
        return VeilError(
            f'{dataset.name} has no attributes, which data.keep = "attributes" requires: remove data.keep.',
            code="label-to-keep-missing",
        )
    tags = ', or set data.keep = "attributes" if its attributes are tags of actions'
    return VeilError(
        f"{dataset.name} has no actions to keep: choose other data{tags if dataset.attributes else ''}.",
        code="label-to-keep-missing",
    )
