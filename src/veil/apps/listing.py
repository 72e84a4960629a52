"""What can be named on the command line, by kind, each with one line of description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from veil.methods import ANONYMIZERS, DEFAULT

Kind = Literal["methods", "features", "recipes", "datasets", "encoders", "attackers"]


class Entry(NamedTuple):
    """One thing that has a name."""

    name: str
    description: str


def first_line(thing: object) -> str:
    """The first line of a docstring, with code between single backticks."""
    return (thing.__doc__ or "").strip().partition("\n")[0].replace("``", "`")


def methods() -> list[Entry]:
    """Anonymizers of pixels, for `--method`."""
    return [
        Entry(name, first_line(kind) + (" (the default)" if name == DEFAULT else ""))
        for name, kind in ANONYMIZERS.items()
    ]


def features() -> list[Entry]:
    """Anonymizers of features, which `veil train` trains and `veil features anonymize --with RUN` applies."""
    from veil.features.registry import ADAPTER_RECIPES, FEATURE_ANONYMIZERS

    return [
        Entry(name, first_line(ADAPTER_RECIPES.get(name, kind))) for name, kind in FEATURE_ANONYMIZERS.items()
    ]


def recipes() -> list[Entry]:
    """Methods that a recipe for `veil train` may name."""
    from veil.apps.train import RECIPES

    return [Entry(name, first_line(kind)) for name, kind in RECIPES.items()]


def datasets() -> list[Entry]:
    """Datasets, for `--data`; check one with `veil data check NAME FOLDER`."""
    from veil.data import DATASETS

    return [Entry(name, first_line(reader)) for name, reader in DATASETS.items()]


def encoders() -> list[Entry]:
    """Encoders of video, for `veil features extract --encoder`."""
    from veil.features.encoders import ENCODERS

    return [Entry(name, f"weights: {entry.source}") for name, entry in ENCODERS.items()]


def attackers() -> list[Entry]:
    """Attackers of `veil audit`: networks trained on anonymized video, by what they see."""
    from veil.audit.suites import SUITES

    suites: dict[str, list[str]] = {}
    for name, suite in SUITES.items():
        for attacker in suite.attackers:
            suites.setdefault(str(attacker), []).append(name)
    return [Entry(name, f"suite {', '.join(used)}") for name, used in suites.items()]


LISTS: dict[Kind, Callable[[], list[Entry]]] = {
    "methods": methods,
    "features": features,
    "recipes": recipes,
    "datasets": datasets,
    "encoders": encoders,
    "attackers": attackers,
}
