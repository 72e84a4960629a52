"""Re-identification: are people of a gallery still recognized in videos that any tool anonymized?

This question needs no labels but stills of known people, so it takes two folders of videos (`veil audit --videos`)
instead of a dataset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from veil.audit.reidentification import Comparison, compare_folders
from veil.audit.result import Row
from veil.core import Progress
from veil.people.bodies import BodyEmbedder
from veil.people.faces import FaceEmbedder


@dataclass(frozen=True)
class GalleryData:
    """Raw videos, their anonymized form and stills of people in them."""

    raw: Path
    anonymized: Path
    gallery: Path
    by: Literal["face", "body"] = "face"
    progress: Progress | None = None

    @cached_property
    def comparison(self) -> Comparison:
        """Every person of the gallery, in raw and anonymized video."""
        embedder = FaceEmbedder() if self.by == "face" else BodyEmbedder()
        return compare_folders(self.raw, self.anonymized, self.gallery, embedder, progress=self.progress)


def evaluate(data: GalleryData) -> list[Row]:
    """The share of probes that are recognized and, with several people, rank-1."""
    after = data.comparison.anonymized
    recognized = Row(
        role="leakage",
        target=data.by,
        by=f"{data.by} embedding",
        knowledge="embedding",
        encoding="8-bit",
        protocol="gallery of stills",
        metric="recognized",
        values=(after.recognized / after.probes if after.probes else math.nan,),
        chance=0.0,
        n=after.probes,
        notes=data.comparison.notes,
    )
    if after.rank1 is None or len(data.comparison.names) < 2:
        return [recognized]
    score = after.rank1
    rank1 = replace(
        recognized,
        metric=score.metric,
        values=(score.value,),
        chance=score.chance or 0.0,
        n=score.n,
        interval=score.interval,
    )
    return [recognized, rank1]
