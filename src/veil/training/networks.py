"""Networks of clips and frames by name, for the data of a recipe; with published weights, behind their standardization."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from veil.core import VeilError
from veil.nn import image, video
from veil.nn.classifier import Classifier, ClassifierSpec
from veil.training.config import nearest
from veil.training.data_config import DataConfig


class Standardized(Classifier):
    """A network behind the standardization (x − mean) / deviation of its published weights; the input stays in [0, 1]."""

    mean: Tensor  # (3,)
    deviation: Tensor

    def __init__(self, net: Classifier, entry: ClassifierSpec) -> None:
        super().__init__()
        self.net, self.dim, self.last = net, net.dim, f"net.{net.last}"
        self.register_buffer("mean", torch.tensor(entry.mean))
        self.register_buffer("deviation", torch.tensor(entry.std))

    def _standardize(self, x: Tensor) -> Tensor:
        shape = 3, *[1] * (x.ndim - 2)
        return (x - self.mean.view(shape)) / self.deviation.view(shape)

    def features(self, x: Tensor) -> Tensor:
        """See `Classifier`."""
        return self.net.features(self._standardize(x))

    def forward(self, x: Tensor) -> Tensor:
        """See `Classifier`."""
        return self.net(self._standardize(x))


def check_names(*, clips: Iterable[str] = (), frames: Iterable[str] = ()) -> None:
    """Refuse names of networks that do not exist, before any video is read."""
    for names, nets, kind in ((clips, video.VIDEO_NETS, "clips"), (frames, image.IMAGE_NETS, "frames")):
        for name in names:
            if name not in nets:
                raise VeilError(
                    f"there is no network of {kind} named '{name}'{nearest(name, nets)}: "
                    f"choose one of {', '.join(nets)}.",
                    code="network-unknown",
                )


def clip_network(name: str, outputs: int, data: DataConfig, weights: str | None = None) -> Classifier:
    """A network of clips of the data's length and size."""
    net = video.make(name, outputs, frames=data.length, size=data.size, weights=weights)
    return net if weights is None else Standardized(net, video.VIDEO_NETS[name])


def frame_network(name: str, outputs: int, data: DataConfig, weights: str | None = None) -> Classifier:
    """A network of frames of the data's size."""
    net = image.make(name, outputs, size=data.size, weights=weights)
    return net if weights is None else Standardized(net, image.IMAGE_NETS[name])
