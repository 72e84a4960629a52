"""The anonymizers of features by name, what `veil train` trains for features, and the adapter of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file

from veil.core import FeatureAnonymizer, VeilError
from veil.features.adapter import Adapter, NetworkAdapter
from veil.features.encoder_training import EncoderRecipe
from veil.features.matching import MatchingRecipe
from veil.features.splavu import SPLAVURecipe
from veil.features.subspace import SubspaceAdapter, SubspaceRecipe
from veil.training import config
from veil.training.recipe import Recipe
from veil.training.run import recipe_in, weights_in


class AdapterRecipe(Recipe, Protocol):
    """The recipe of an adapter."""

    def adapter(self, dim: int) -> Adapter:
        """A fresh adapter of features with that many numbers."""
        ...


FEATURE_ANONYMIZERS: dict[str, type[FeatureAnonymizer]] = {
    "subspace": SubspaceAdapter,
    "splavu": NetworkAdapter,
    "matching": NetworkAdapter,
}
ADAPTER_RECIPES: dict[str, type[AdapterRecipe]] = {
    "subspace": SubspaceRecipe,
    "splavu": SPLAVURecipe,
    "matching": MatchingRecipe,
}
RECIPES: dict[str, type[Recipe]] = {**ADAPTER_RECIPES, "encoder": EncoderRecipe}


def load(run: str | Path) -> Adapter:
    """The adapter of a run folder."""
    folder = Path(run)
    method, values = recipe_in(folder)
    if method not in ADAPTER_RECIPES:
        raise VeilError(
            f"{folder} is a run of '{method}', which does not change features: name a run of {', '.join(ADAPTER_RECIPES)}.",
            code="run-kind",
        )
    path = weights_in(folder)
    recipe = config.checked(values, ADAPTER_RECIPES[method], lambda key: str(folder / "run.json"))
    try:
        tensors = load_file(path)
        adapter = recipe.adapter(len(tensors["mean"]))
        adapter.load_weights(tensors)
        adapter.method = method
    except (SafetensorError, RuntimeError, OSError, KeyError) as error:
        why = str(error).strip().splitlines()[0]
        raise VeilError(
            f"{path} does not hold the weights of its run ({why}): train it again.", code="run-weights"
        ) from error
    return adapter.eval().requires_grad_(False)
