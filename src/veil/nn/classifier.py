"""Classifiers of images or clips: features, logits, and how a registry makes one by name.

Every network has features ``(B, dim)`` and logits ``(B, K)``, takes any size, and names its tensors as the published
weights do. Inputs are standardized with the mean and deviation of the registry; nothing is standardized inside.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from veil.core import VeilError
from veil.nn.published import fetch_state, load_published, read_state

RGB = tuple[float, float, float]
HALVES: tuple[RGB, RGB] = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)  # mean and deviation


class Classifier(nn.Module, ABC):
    """A network from images or clips to logits ``(B, K)``, by way of features ``(B, dim)``."""

    dim: int
    last: str  # the name of the layer from features to logits
    dropout: float = 0.0  # of the features, in training
    loaded: int = 0  # how many tensors came from a file or a hub

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Features ``(B, dim)`` of images ``(B, 3, H, W)`` or clips ``(B, 3, T, H, W)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, K)``."""
        return self.get_submodule(self.last)(F.dropout(self.features(x), self.dropout, self.training))


@dataclass(frozen=True)
class ClassifierSpec:
    """One entry of a registry of classifiers."""

    build: Callable[..., Classifier]  # (outputs, *, frames=16, size=112)
    parameters: int  # with the published number of classes
    classes: int
    source: str  # where weights are published; the first word is the hub, where it is 'torchvision' or 'timm'
    mean: RGB  # what those weights expect of values in [0, 1]
    std: RGB
    size: int  # published height and width
    frames: int = 1


def init_weights(net: nn.Module) -> None:
    """Initialize weights after He et al. 2015 (arXiv 1502.01852)."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)


def make_classifier(
    nets: Mapping[str, ClassifierSpec],
    name: str,
    outputs: int,
    *,
    frames: int,
    size: int,
    weights: Path | str | None,
) -> Classifier:
    """The classifier of that name, randomly initialized or with published weights.

    `frames` and `size` are those of its inputs. `weights` is a published file of this network (.pth, .pt, .safetensors),
    or "hub" to fetch it from torchvision or timm. The file must hold all tensors but those of the last layer, which
    stays random where its shape differs; `Classifier.loaded` is the number of loaded tensors.
    """
    if name not in nets:
        near = difflib.get_close_matches(name, nets, 1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(nets)}."
        raise VeilError(f"there is no network '{name}': {hint}", code="network-unknown")
    if min(outputs, frames, size) < 1:
        raise VeilError(
            f"a network cannot have outputs={outputs}, frames={frames}, size={size}: use 1 or more.",
            code="network-shape",
        )
    net = nets[name].build(outputs, frames=frames, size=size)
    if weights is not None:
        source = nets[name].source if weights == "hub" else str(weights)
        state = fetch_state(name, source) if weights == "hub" else read_state(Path(weights))
        net.loaded = load_published(
            net, state, f"{source} is not a file of weights of '{name}'", (f"{net.last}.",)
        )
    return net
