"""Features of videos in memory: one vector for each clip from a frozen encoder, and the labels of each video.

A *static clip* is one frame, repeated to the length of a clip: it shows appearance and no motion.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from veil.core import VeilError
from veil.data.sample import Sample, Split

UNKNOWN = -1  # the class of a video without that label


class VideoFeatures(NamedTuple):
    """The features of one video."""

    sample: Sample
    clips: Tensor  # (N, D) float32
    starts: Tensor  # (N,) float32: the second at which each clip begins
    seconds: float  # how long the video is
    length: float  # seconds that a clip covers
    stills: Tensor  # (S, D) float32


class FailedVideo(NamedTuple):
    """A video that could not be read, and why."""

    sample: Sample
    error: VeilError


@dataclass(frozen=True)
class Bank:
    """Features of many videos, in memory."""

    encoder: str  # its name
    fingerprint: str  # of its weights
    samples: tuple[Sample, ...]  # V videos, with their labels
    clips: Tensor  # (V, N, D) float32, zeros after a video's last clip
    counts: Tensor  # (V,) int64: clips of each video
    starts: Tensor  # (V, N) float32: the second at which each clip begins, zeros after the last
    seconds: Tensor  # (V,) float32: how long each video is
    length: float  # seconds that a clip covers, of the first video
    stills: Tensor  # (V, S, D): static clips; S = 0 where none were made
    actions: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        videos, most, dim = self.clips.shape
        wanted = {
            "counts": (videos,),
            "starts": (videos, most),
            "seconds": (videos,),
            "stills": (videos, self.stills.shape[1] if self.stills.ndim == 3 else 0, dim),
        }
        for name, shape in wanted.items():
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(
                    f"{name} of {videos} videos is {shape}, got {tuple(getattr(self, name).shape)}"
                )
        if len(self.samples) != videos:
            raise ValueError(f"features of {videos} videos, and {len(self.samples)} samples")

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def dim(self) -> int:
        """How many numbers a feature has."""
        return self.clips.shape[2]

    @property
    def mask(self) -> Tensor:
        """Which clips there are, ``(V, N)`` bool."""
        return torch.arange(self.clips.shape[1], device=self.counts.device) < self.counts[:, None]

    def split(self, name: Split) -> Bank:
        """The videos of one split."""
        return self.take([place for place, sample in enumerate(self.samples) if sample.split == name])

    def take(self, index: Sequence[int] | Tensor) -> Bank:
        """Some of the videos: by their places, or by a mask ``(V,)`` bool."""
        places = torch.as_tensor(index)
        places = places.nonzero()[:, 0] if places.dtype == torch.bool else places.long()
        places = places.to(self.clips.device)
        return replace(
            self,
            samples=tuple(self.samples[place] for place in places.tolist()),
            clips=self.clips[places],
            counts=self.counts[places],
            starts=self.starts[places],
            seconds=self.seconds[places],
            stills=self.stills[places],
        )

    def to(self, device: torch.device | str) -> Bank:
        """The same on a device."""
        names = ("clips", "counts", "starts", "seconds", "stills")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def changed(self, clips: Tensor, stills: Tensor, fingerprint: str | None = None) -> Bank:
        """Other features of the same videos, such as an adapter leaves; what lies after the last clip is zero."""
        kept = self.mask[..., None].to(clips.device)
        return replace(
            self,
            clips=torch.where(kept, clips, torch.zeros((), dtype=clips.dtype, device=clips.device)),
            stills=stills,
            fingerprint=self.fingerprint if fingerprint is None else fingerprint,
        )

    def truth(self, target: str) -> Tensor:
        """The labels of all videos.

        ``action`` and ``identity`` are classes ``(V,)`` int64, -1 where unknown. ``attributes`` are ``(V, A)`` float32, NaN
        where unknown. Any other name is that of a group, such as "gender": its values in alphabetical order are the classes.
        """
        if target == "attributes":
            blank = (math.nan,) * len(self.attributes)
            rows = [sample.attributes or blank for sample in self.samples]
            found = torch.tensor(rows, dtype=torch.float32).reshape(len(rows), len(self.attributes))
            known = bool(self.attributes) and any(sample.attributes for sample in self.samples)
        else:
            if target in ("action", "identity"):
                classes = [getattr(sample, target) for sample in self.samples]
            else:
                values = [sample.groups.get(target) for sample in self.samples]
                order = {value: place for place, value in enumerate(sorted({v for v in values if v}))}
                classes = [order.get(value) if value else None for value in values]
            found = torch.tensor([UNKNOWN if label is None else label for label in classes], dtype=torch.long)
            known = any(label is not None for label in classes)
        if not known and self.samples:
            groups = sorted({name for sample in self.samples for name in sample.groups})
            known = ", ".join(["action, identity, attributes", *groups])
            raise VeilError(
                f"these {len(self.samples):,} videos have no {target}: choose another of {known}, or other features.",
                code="label-unknown",
            )
        return found.to(self.clips.device)


def collected(
    features: Iterable[VideoFeatures],
    encoder: str,
    fingerprint: str,
    dim: int,
    *,
    actions: Sequence[str] = (),
    attributes: Sequence[str] = (),
    identities: Sequence[str] = (),
) -> Bank:
    """Videos as a bank; all must have the same number of static clips."""
    videos = list(features)
    counts = torch.tensor([len(video.clips) for video in videos], dtype=torch.long)
    most, stills = max([0, *counts.tolist()]), {len(video.stills) for video in videos} or {0}
    if len(stills) != 1:
        raise VeilError(
            f"some videos have {min(stills)} static clips and some {max(stills)}: extract all with the same number.",
            code="static-clips-differ",
        )
    clips = torch.zeros(len(videos), most, dim)
    starts = torch.zeros(len(videos), most)
    static = torch.zeros(len(videos), stills.pop(), dim)
    for place, video in enumerate(videos):
        clips[place, : len(video.clips)] = video.clips
        starts[place, : len(video.clips)] = video.starts
        static[place] = video.stills
    return Bank(
        encoder=encoder,
        fingerprint=fingerprint,
        samples=tuple(video.sample for video in videos),
        clips=clips,
        counts=counts,
        starts=starts,
        seconds=torch.tensor([video.seconds for video in videos], dtype=torch.float32),
        length=videos[0].length if videos else 0.0,
        stills=static,
        actions=tuple(actions),
        attributes=tuple(attributes),
        identities=tuple(identities),
    )


def joined(banks: Sequence[Bank]) -> Bank:
    """Banks as one. Actions, attributes and people of the same name are the same; other encoders are refused."""
    if not banks:
        raise VeilError("there are no features to join: give at least one bank.", code="no-features")
    first = banks[0]
    for bank in banks[1:]:
        if (bank.encoder, bank.fingerprint, bank.dim) != (first.encoder, first.fingerprint, first.dim):
            raise VeilError(
                f"features of {_named(first)} and of {_named(bank)} do not mix: extract all with one encoder.",
                code="features-do-not-mix",
            )
        if bank.stills.shape[1] != first.stills.shape[1]:
            raise VeilError(
                f"one bank has {first.stills.shape[1]} static clips a video and another {bank.stills.shape[1]}: "
                "extract all of them with the same number.",
                code="static-clips-differ",
            )
    actions, attributes, identities = (
        tuple(dict.fromkeys(name for bank in banks for name in getattr(bank, words)))
        for words in ("actions", "attributes", "identities")
    )
    most = max(bank.clips.shape[1] for bank in banks)
    samples = [
        relabelled(sample, bank, actions, attributes, identities) for bank in banks for sample in bank.samples
    ]

    def grown(tensor: Tensor) -> Tensor:
        wide = tensor.new_zeros(len(tensor), most, *tensor.shape[2:])
        wide[:, : tensor.shape[1]] = tensor
        return wide

    return Bank(
        encoder=first.encoder,
        fingerprint=first.fingerprint,
        samples=tuple(samples),
        clips=torch.cat([grown(bank.clips) for bank in banks]),
        counts=torch.cat([bank.counts for bank in banks]),
        starts=torch.cat([grown(bank.starts) for bank in banks]),
        seconds=torch.cat([bank.seconds for bank in banks]),
        length=next((bank.length for bank in banks if len(bank)), 0.0),
        stills=torch.cat([bank.stills for bank in banks]),
        actions=actions,
        attributes=attributes,
        identities=identities,
    )


class Vocabulary(Protocol):
    """The names that labels are numbers of; a `Dataset` and a `Bank` have them."""

    @property
    def actions(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def attributes(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def identities(self) -> tuple[str, ...]: ...  # noqa: D102


@dataclass(frozen=True)
class LabelNames:
    """A vocabulary without videos."""

    actions: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()


def relabelled(
    sample: Sample,
    old: Vocabulary,
    actions: Sequence[str],
    attributes: Sequence[str],
    identities: Sequence[str],
) -> Sample:
    """A sample with its labels numbered in another vocabulary, which must have their names."""
    if (old.actions, old.attributes, old.identities) == (actions, attributes, identities):
        return sample
    values = dict(zip(old.attributes, sample.attributes, strict=False))
    return replace(
        sample,
        action=None if sample.action is None else actions.index(old.actions[sample.action]),
        identity=None if sample.identity is None else identities.index(old.identities[sample.identity]),
        attributes=tuple(values.get(name, math.nan) for name in attributes) if values else (),
        segments=tuple(
            part._replace(label=actions.index(old.actions[part.label])) for part in sample.segments
        ),
    )


def _named(bank: Bank) -> str:
    return f"{bank.encoder} ({bank.fingerprint[:12]}, {bank.dim} numbers)"
