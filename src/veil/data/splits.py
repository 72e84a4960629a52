"""Which samples train, choose and have the final word: from names alone, so the same on every machine."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from veil.data.sample import Split


def draw(name: str) -> int:
    """A number that looks random and belongs to the name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


def hold_out(samples: Iterable[tuple[str, str]], share: float = 0.1) -> set[tuple[str, str]]:
    """Of ``(stratum, group)`` pairs, one for each sample, those that go to the validation split.

    A group goes whole or not at all. Each stratum gives about its share, and something if it has two groups.
    """
    strata: dict[str, Counter[str]] = defaultdict(Counter)
    for stratum, group in samples:
        strata[stratum][group] += 1
    held: set[tuple[str, str]] = set()
    for stratum, sizes in strata.items():
        room = share * sizes.total()
        taken = 0
        for group in sorted(sizes, key=lambda group: draw(f"{stratum}/{group}")):
            if taken + sizes[group] <= room:
                held.add((stratum, group))
                taken += sizes[group]
        if not taken and len(sizes) > 1:
            held.add((stratum, min(sizes, key=lambda group: (sizes[group], draw(f"{stratum}/{group}")))))
    return held


def deal(name: str, shares: tuple[int, int, int] = (7, 1, 2)) -> Split:
    """The split of a name that belongs to no list, by chance that is always the same."""
    place = draw(name) % sum(shares)
    return "train" if place < shares[0] else "val" if place < shares[0] + shares[1] else "test"


def deal_in_turn(names: Iterable[str], pattern: Sequence[Split]) -> dict[str, Split]:
    """Names in an order of their own, dealt to the pattern in turn: exact shares, however few there are."""
    ordered = sorted(names, key=draw)
    return {name: pattern[place % len(pattern)] for place, name in enumerate(ordered)}
