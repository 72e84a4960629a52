"""Suites: which recognizers an audit trains, on how much video, and for how long.

Nothing here depends on the method under audit: every method is attacked alike.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from veil.audit.recognition import RecognizerSpec, TrainingBudget
from veil.audit.reconstruction import ReconstructionBudget
from veil.audit.result import Encoding, Knowledge


@dataclass(frozen=True)
class Suite:
    """An audit's recognizers and their budgets."""

    about: str
    size: int  # pixels, both ways, of the video that is anonymized and attacked
    frames: int  # of each video, spread over it
    videos: int | None  # at most of each dataset; None: all
    seeds: int
    utility: tuple[RecognizerSpec, ...]
    attackers: tuple[RecognizerSpec, ...]
    budgets: dict[str, TrainingBudget]  # by input; "NET on INPUT" is for one network alone
    reconstruction: ReconstructionBudget
    frames_only: tuple[str, ...] = ()  # targets that are not attacked by clips and motion
    knowledge: tuple[Knowledge, ...] = ("oblivious", "adaptive", "reconstruction")
    encodings: tuple[Encoding, ...] = ("8-bit", "h264")
    weights: dict[str, str] = field(default_factory=dict)  # published weights to start from, by network
    untested: tuple[str, ...] = ()

    def budget(self, recognizer: RecognizerSpec) -> TrainingBudget:
        """The budget of a recognizer."""
        return self.budgets.get(str(recognizer)) or self.budgets[recognizer.input]

    def plain(self) -> dict[str, Any]:
        """All settings, for the record."""
        return dataclasses.asdict(self)


ALWAYS = (
    "People who know the person, the place or the day; speech (sound is dropped) and captions.",
    "Attackers with more data, larger networks or published face, body and language models than the ones named above.",
    "Video unlike the data of this audit: other cameras, sizes, people and actions may leak more or keep less.",
)

SUITES: dict[str, Suite] = {
    "quick": Suite(
        about="small networks on small video, one seed: minutes on two cores",
        size=56,
        frames=8,
        videos=900,
        seeds=1,
        utility=(RecognizerSpec("small3d", "clips"),),
        attackers=(
            RecognizerSpec("small2d", "frames"),
            RecognizerSpec("small3d", "clips"),
            RecognizerSpec("kernel", "frames"),
            RecognizerSpec("kernel", "clips"),
        ),
        budgets={
            "frames": TrainingBudget(steps=600, adaptation=0.3, rounds=1, batch=48, lr=3e-3, clip_length=8),
            "clips": TrainingBudget(steps=480, adaptation=0.3, rounds=1, batch=32, lr=3e-3, clip_length=8),
            "kernel on frames": TrainingBudget(
                batch=48, views=3
            ),  # its time grows with the third power of all views
        },
        reconstruction=ReconstructionBudget(steps=200, batch=16, width=12),
        frames_only=("attributes",),
        encodings=("8-bit",),
        untested=(
            "This was a quick audit: one seed, small networks, 56 x 56 pixels; a full one finds more.",
            "Video after H.264; attackers of motion alone; attributes in clips.",
        ),
    ),
    "standard": Suite(
        about="the networks of the papers on 112 x 112 pixels, three seeds: for a GPU",
        size=112,
        frames=32,
        videos=None,
        seeds=3,
        utility=(RecognizerSpec("r3d_18", "clips"),),
        attackers=(
            RecognizerSpec("resnet18", "frames"),
            RecognizerSpec("r3d_18", "clips"),
            RecognizerSpec("r3d_18", "motion"),
            RecognizerSpec("kernel", "frames"),
            RecognizerSpec("kernel", "clips"),
        ),
        budgets={
            "frames": TrainingBudget(steps=1200, rounds=2, batch=64, clip_length=16),
            "clips": TrainingBudget(steps=1200, rounds=2, batch=32, clip_length=16),
            "motion": TrainingBudget(steps=1200, rounds=2, batch=32, clip_length=16),
        },
        reconstruction=ReconstructionBudget(steps=1000, batch=64, width=32),
    ),
    "full": Suite(
        about="many architectures, three seeds: hours on a GPU",
        size=112,
        frames=32,
        videos=None,
        seeds=3,
        utility=tuple(
            RecognizerSpec(net, "clips") for net in ("r3d_18", "r2plus1d_18", "x3d_s", "mvit_v2_s")
        ),
        attackers=(
            *(
                RecognizerSpec(net, "frames")
                for net in ("resnet18", "resnet50", "resnet101", "mobilenet_v1", "vit_b_16")
            ),
            *(RecognizerSpec(net, "clips") for net in ("r3d_18", "r2plus1d_18")),
            RecognizerSpec("r3d_18", "motion"),
            RecognizerSpec("kernel", "frames"),
            RecognizerSpec("kernel", "clips"),
        ),
        budgets={
            "frames": TrainingBudget(steps=2000, rounds=3, batch=64, clip_length=16),
            "clips": TrainingBudget(steps=2000, rounds=3, batch=32, clip_length=16),
            "motion": TrainingBudget(steps=2000, rounds=3, batch=32, clip_length=16),
        },
        reconstruction=ReconstructionBudget(steps=2000, batch=64, width=32),
    ),
}
