"""The audit of features: what fresh probes learn from two stores, as rows for a table or a JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from veil.audit.latents import compared
from veil.features.store import Store
from veil.media.draft import Draft


@dataclass(frozen=True)
class ProbeRow:
    """What one probe learned: its score, with the score at chance and on raw features beside it."""

    target: str
    by: str
    knows: str
    metric: str
    n: int
    value: float
    chance: float | None
    raw: float | None
    left: float | None  # of what raw features show above chance


def audit_store(
    store: str,
    after: str | None = None,
    targets: Sequence[str] = (),
    *,
    seed: int = 0,
    device: str = "cpu",
    output: str | None = None,
) -> list[ProbeRow]:
    """Attack the features of a store, or those of `after` in comparison to it; `output` is a JSON file for the rows."""
    raw = Store.open(store).bank().to(device)
    anonymized = None if after is None else Store.open(after).bank().to(device)
    rows = [
        ProbeRow(
            answer.target,
            answer.by,
            answer.knows,
            answer.score.metric,
            answer.score.n,
            answer.score.value,
            answer.score.chance,
            answer.raw,
            answer.left,
        )
        for answer in compared(raw, anonymized, tuple(targets), seed=seed)
    ]
    if output is not None:
        with Draft(Path(output), overwrite=True) as draft:
            draft.path.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return rows
