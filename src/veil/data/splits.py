"""Training, validation and test splits from names alone, so that they are the same on every machine."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from veil.data.sample import Split


def name_hash(name: str) -> int:
    """A pseudo-random number that is a function of the name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


def hold_out(samples: Iterable[tuple[str, str]], share: float = 0.1) -> set[tuple[str, str]]:
    """Of ``(stratum, group)`` pairs, one for each sample, those that go to the validation split.

    A group is held out as a whole. Each stratum contributes about its share, and at least one group if it has two.
    """
    strata: dict[str, Counter[str]] = defaultdict(Counter)
    for stratum, group in samples:
        strata[stratum][group] += 1
    held: set[tuple[str, str]] = set()
    for stratum, sizes in strata.items():
        room = share * sizes.total()
        taken = 0
        for group in sorted(sizes, key=lambda group: name_hash(f"{stratum}/{group}")):
            if taken + sizes[group] <= room:
                held.add((stratum, group))
                taken += sizes[group]
        if not taken and len(sizes) > 1:
            held.add((stratum, min(sizes, key=lambda group: (sizes[group], name_hash(f"{stratum}/{group}")))))
    return held


def deal(name: str, shares: tuple[int, int, int] = (7, 1, 2)) -> Split:
    """The pseudo-random split of a name that is in no list."""
    place = name_hash(name) % sum(shares)
    return "train" if place < shares[0] else "val" if place < shares[0] + shares[1] else "test"


def deal_in_turn(names: Iterable[str], pattern: Sequence[Split]) -> dict[str, Split]:
    """Names in pseudo-random order, assigned to the pattern in turn: exact shares, however few names there are."""
    ordered = sorted(names, key=name_hash)
    return {name: pattern[place % len(pattern)] for place, name in enumerate(ordered)}
