"""Suites: which recognizers an audit trains, on how much video, and with how much work.

Nothing here depends on the method under audit: every method meets the same attackers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from veil.audit.recognition import Effort, Recognizer
from veil.audit.reconstruction import Restoring
from veil.audit.result import After, Knows


@dataclass(frozen=True)
class Suite:
    """An audit's questions and the work put into each."""

    about: str
    size: int  # pixels, both ways, of the video that is anonymized and attacked
    frames: int  # kept of each video, spread over it
    videos: int | None  # at most of each dataset; None: all
    seeds: int
    uses: tuple[Recognizer, ...]
    attackers: tuple[Recognizer, ...]
    efforts: dict[str, Effort]  # by what is seen; "NET on SEES" is for one network alone
    restoring: Restoring
    frames_only: tuple[str, ...] = ()  # targets that attackers of clips and motion are not put to
    knows: tuple[Knows, ...] = ("raw", "adapted", "restoring")
    after: tuple[After, ...] = ("8-bit", "h264")
    weights: dict[str, str] = field(default_factory=dict)  # published weights to begin with, by network
    untested: tuple[str, ...] = ()

    def effort(self, recognizer: Recognizer) -> Effort:
        """How much work goes into a recognizer."""
        return self.efforts.get(str(recognizer)) or self.efforts[recognizer.sees]

    def plain(self) -> dict[str, Any]:
        """All of it, for the record."""
        return dataclasses.asdict(self)


ALWAYS = (
    "People who know the person, the place or the day; what is said (sound is dropped), and what a caption tells.",
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
        uses=(Recognizer("small3d", "clips"),),
        attackers=(
            Recognizer("small2d", "frames"),
            Recognizer("small3d", "clips"),
            Recognizer("kernel", "frames"),
            Recognizer("kernel", "clips"),
        ),
        efforts={
            "frames": Effort(steps=600, adapting=0.3, rounds=1, batch=48, lr=3e-3, length=8),
            "clips": Effort(steps=480, adapting=0.3, rounds=1, batch=32, lr=3e-3, length=8),
            "kernel on frames": Effort(batch=48, looks=3),  # its work grows with the third power of all looks
        },
        restoring=Restoring(steps=200, batch=16, width=12),
        frames_only=("attributes",),
        after=("8-bit",),
        untested=(
            "This was a quick audit: one seed, small networks, 56 x 56 pixels; a full one finds more.",
            "What H.264 leaves of it; attackers that see motion alone; attributes in clips.",
        ),
    ),
    "standard": Suite(
        about="the networks of the papers on 112 x 112 pixels, three seeds: for a GPU",
        size=112,
        frames=32,
        videos=None,
        seeds=3,
        uses=(Recognizer("r3d_18", "clips"),),
        attackers=(
            Recognizer("resnet18", "frames"),
            Recognizer("r3d_18", "clips"),
            Recognizer("r3d_18", "motion"),
            Recognizer("kernel", "frames"),
            Recognizer("kernel", "clips"),
        ),
        efforts={
            "frames": Effort(steps=1200, rounds=2, batch=64, length=16),
            "clips": Effort(steps=1200, rounds=2, batch=32, length=16),
            "motion": Effort(steps=1200, rounds=2, batch=32, length=16),
        },
        restoring=Restoring(steps=1000, batch=64, width=32),
    ),
    "full": Suite(
        about="many architectures, three seeds: hours on a GPU",
        size=112,
        frames=32,
        videos=None,
        seeds=3,
        uses=tuple(Recognizer(net, "clips") for net in ("r3d_18", "r2plus1d_18", "x3d_s", "mvit_v2_s")),
        attackers=(
            *(
                Recognizer(net, "frames")
                for net in ("resnet18", "resnet50", "resnet101", "mobilenet_v1", "vit_b_16")
            ),
            *(Recognizer(net, "clips") for net in ("r3d_18", "r2plus1d_18")),
            Recognizer("r3d_18", "motion"),
            Recognizer("kernel", "frames"),
            Recognizer("kernel", "clips"),
        ),
        efforts={
            "frames": Effort(steps=2000, rounds=3, batch=64, length=16),
            "clips": Effort(steps=2000, rounds=3, batch=32, length=16),
            "motion": Effort(steps=2000, rounds=3, batch=32, length=16),
        },
        restoring=Restoring(steps=2000, batch=64, width=32),
    ),
}
