"""What a store of features holds: its encoder, its videos and their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from veil.features.store import Store


class StoreDescription(NamedTuple):
    """A description of a store, for people and for programs."""

    lines: list[str]
    values: dict[str, Any]


def describe_store(store: str | Path) -> StoreDescription:
    """Which encoder's features a store holds, how many, and the labels of its videos."""
    found = Store.open(store)
    info, totals = found.info, found.totals()
    encoder = f"{info.encoder} ({info.fingerprint[:12]}), {info.dim} numbers as {info.dtype}"
    state = "as the encoder made them" if info.anonymized is None else f"anonymized by {info.anonymized[:12]}"
    seconds, size = totals["seconds"], totals["bytes"]
    duration = f"{seconds / 3600:,.2f} hours" if seconds >= 360 else f"{seconds:.1f} seconds"
    lines = [
        f"videos      {totals['videos']:,} of {duration} in all, {totals['clips']:,} clips, "
        f"{info.stills} static clips each",
        f"encoder     {encoder}",
        f"features    {state}",
        f"on disk     {f'{size / 1e6:,.1f} MB' if size >= 1e5 else f'{size / 1e3:.1f} kB'}",
    ]
    for name, plural in (("split", "splits"), ("action", "actions"), ("identity", "people")):
        most = sorted(totals[name].items(), key=lambda pair: (-pair[1], pair[0]))
        if most:
            shown = ", ".join(f"{label} {count:,}" for label, count in most[:8])
            lines.append(f"{plural:<11} {shown}{', …' if len(most) > 8 else ''}")
    return StoreDescription(lines, {**{k: getattr(info, k) for k in _ABOUT}, **totals})


_ABOUT = ("encoder", "fingerprint", "dim", "dtype", "stills", "stride", "anonymized")
