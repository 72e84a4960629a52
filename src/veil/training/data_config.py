"""The `[data]` section of a recipe: which videos, which labels, and how clips and image pairs are sampled from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from veil.core import VeilError
from veil.data import Dataset
from veil.data import read as read_data
from veil.data.sample import narrowed
from veil.training.recipe import STRICT

Pairs = Literal["views", "frames", "near", "far"]
Kept = Literal["action", "attributes"]
Private = Literal["identity", "attributes"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrivateData:
    """A second dataset, which shows the people to hide."""

    name: str
    root: str | None = None
    options: dict[str, str | int] = Field(default_factory=dict)
    attributes: tuple[str, ...] = ()  # only these; empty: all

    def __post_init__(self) -> None:
        _check_root("data.private", self.name, self.root)

    def read(self, size: int) -> Dataset:
        """The dataset; synthetic videos are rendered at this size."""
        return narrowed(_read(self.name, self.root, self.options, size), (), self.attributes)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataConfig:
    """The training videos, their labels, how clips and image pairs are sampled, and how many make a batch."""

    name: str = "synthetic"  # the dataset with the actions
    root: str | None = None
    options: dict[str, str | int] = Field(default_factory=dict)
    actions: tuple[str, ...] = ()  # only these; empty: all. Others in the audit: the novel-action protocol
    attributes: tuple[str, ...] = ()  # likewise
    keep: Kept = "action"  # the label to keep: one action per video, or attributes that are tags of actions
    private: PrivateData | None = None  # the people to hide; none: those in the same videos
    # The private label; none: the attributes where some are chosen, or else the identity, or else all attributes.
    target: Private | None = None
    size: Annotated[int, Field(ge=16, le=512)] = 112  # pixels
    length: Annotated[int, Field(ge=1, le=64)] = 16  # frames in a clip
    skip: Annotated[int, Field(ge=1, le=16)] = 2  # frames from one frame of a clip to the next
    augment: Literal["none", "spact", "spact-paper", "penalty", "penalty-paper", "tedspad"] = "spact"
    flip: bool = True  # off where left and right mean different actions
    # Two views of one image; two frames of one video: any two, fewer than 8 or more than 64 frames apart.
    pairs: Pairs = "frames"
    batch: Annotated[int, Field(ge=1)] = 24  # clips
    image_pairs: Annotated[int, Field(ge=1)] = 64  # in a batch
    max_frames: Annotated[int, Field(ge=2)] = 160  # cached of each video, from its middle

    def __post_init__(self) -> None:
        _check_root("data", self.name, self.root)
        people = "data" if self.private is None else "data.private"
        if self.private is not None and self.keep == "action" and self.attributes:
            raise VeilError(
                "data.attributes has no effect beside data.private: set data.private.attributes.",
                code="attributes-unused",
            )
        if self.target == "identity" and self.private_attributes:
            raise VeilError(
                f'data.target = "identity" and {people}.attributes conflict: remove one of them.',
                code="private-label-conflict",
            )
        if self.target == self.keep == "attributes" and self.private is None:
            raise VeilError(
                "the same attributes are to be kept and hidden: change data.keep, data.target or data.private.",
                code="kept-and-hidden",
            )

    @property
    def private_attributes(self) -> tuple[str, ...]:
        """The attributes that are chosen to be hidden."""
        if self.private is not None:
            return self.private.attributes
        return self.attributes if self.keep == "action" else ()

    def read(self) -> Dataset:
        """The dataset with the actions; synthetic videos are rendered at this size."""
        return narrowed(_read(self.name, self.root, self.options, self.size), self.actions, self.attributes)


def _read(name: str, root: str | None, options: Mapping[str, str | int], size: int) -> Dataset:
    return read_data(name, root, **({"size": size, **options} if name == "synthetic" else options))


def _check_root(section: str, name: str, root: str | None) -> None:
    if name == "synthetic" and root is not None:
        raise VeilError(
            f'{section}.root = "{root}" has no effect, because synthetic videos are generated: '
            f"set {section}.name to the dataset in that folder, or remove {section}.root.",
            code="synthetic-root",
        )
