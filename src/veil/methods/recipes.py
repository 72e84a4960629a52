"""The recipes of learned pixel anonymizers by method; `veil train` reads them from TOML."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from veil.methods.adversarial import AdversarialRecipe
from veil.methods.bdq import BDQRecipe
from veil.methods.elr import ELRRecipe
from veil.methods.noisy import NoisyRecipe
from veil.methods.penalty import PenaltyRecipe
from veil.methods.prototypes.recipe import PrototypesRecipe
from veil.methods.spact import SPActRecipe
from veil.methods.stprivacy import STPrivacyRecipe
from veil.methods.tedspad import TeDSPADRecipe
from veil.training.data_config import DataConfig
from veil.training.recipe import Recipe


class PixelRecipe(Recipe, Protocol):
    """The recipe of a pixel anonymizer."""

    @property
    def data(self) -> DataConfig:
        """The training data, with their size."""
        ...

    def network(self) -> nn.Module:
        """A fresh anonymizer: clips ``(B, 3, T, H, W)`` in [0, 1] to clips.

        It has the attributes `past` and `block`, and `dense` is True where it takes every frame.
        """
        ...


RECIPES: dict[str, type[PixelRecipe]] = {
    "spact": SPActRecipe,
    "penalty": PenaltyRecipe,
    "adversarial": AdversarialRecipe,
    "tedspad": TeDSPADRecipe,
    "bdq": BDQRecipe,
    "elr": ELRRecipe,
    "stprivacy": STPrivacyRecipe,
    "noisy": NoisyRecipe,
    "prototypes": PrototypesRecipe,
}
