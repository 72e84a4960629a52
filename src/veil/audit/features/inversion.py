"""Inversion: a decoder reconstructs a frame from the features; then a kernel recognizes the identity in it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.audit.features.probes import ProbeResult, mean_and_scale, score_probabilities
from veil.features.bank import Bank
from veil.metrics import softmax
from veil.nn.kernel import KernelClassifier
from veil.training.fit import fit
from veil.training.phase import Phase
from veil.training.schedule import LRSchedule
from veil.training.steps import Setup, Step


class FeatureDecoder(nn.Module):
    """Features ``(B, D)`` to images ``(B, 3, 32, 32)`` in [0, 1]."""

    def __init__(self, dim: int, width: int = 256) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, width * 16))
        steps: list[nn.Module] = []
        for inner, outer in ((width, width // 2), (width // 2, width // 4), (width // 4, width // 8)):
            steps += [nn.ConvTranspose2d(inner, outer, 4, 2, 1), nn.BatchNorm2d(outer), nn.GELU()]
        self.rest = nn.Sequential(*steps, nn.Conv2d(width // 8, 3, 3, padding=1), nn.Sigmoid())
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """The reconstructed image."""
        return self.rest(self.first(x).view(-1, self.width, 4, 4))


def invert_features(
    train: Bank,
    images: Tensor,
    others: Sequence[Bank],
    *,
    seed: int = 0,
    steps: int = 600,
    width: int = 256,
) -> tuple[list[Tensor], Tensor]:
    """The images that a decoder reconstructs of the first clips of other videos, and of the training videos: ``(V, 3, 32, 32)``.

    ``images (V, 3, 32, 32)`` in [0, 1] are those of the first clips of the training videos: an attacker can anonymize
    videos of their own, and so has both.
    """
    torch.manual_seed(seed)
    mean, scale = mean_and_scale(train.clips[train.mask])
    device = train.clips.device
    net = FeatureDecoder(train.dim, width).to(device)
    x, y = (train.clips[:, 0] - mean) / scale, images.to(device)

    def loss(rows: Tensor) -> dict[str, Tensor]:
        return {"distance": (net(x[rows]) - y[rows]).abs().mean()}

    plan = LRSchedule(warmup=steps // 20, shape="cosine", updates=steps, floor=0.01)
    rng = torch.Generator().manual_seed(seed)
    batches = (torch.randperm(len(x), generator=rng)[:256].to(device) for _ in range(steps))
    for _ in fit(
        Phase([Step("reconstruct", (net,), loss, 1e-3, "adamw", 0.01, plan)], Setup(seed=seed)), batches
    ):
        pass
    net.eval()
    with torch.no_grad():
        reconstructed = [
            torch.cat([net(part) for part in ((bank.clips[:, 0] - mean) / scale).split(1024)])
            for bank in (train, *others)
        ]
    return reconstructed[1:], reconstructed[0]


def evaluate_inversion(
    images: Sequence[Tensor], rights: Sequence[Tensor], banks: Sequence[Bank]
) -> ProbeResult:
    """The identity by a kernel on images of training, validation and test videos."""
    classes = int(max(int(right.max()) for right in rights)) + 1
    net = KernelClassifier(classes).to(images[0].device)
    labels = F.one_hot(rights[0], classes)
    best, kept = -math.inf, np.zeros(0)
    shrunk = net.pixels(images[0])[:, None]
    for _ in net.solutions(shrunk, labels):
        net.to(images[0].device)
        value = score_probabilities(softmax(net(images[1]).double().cpu().numpy()), rights[1], banks[1]).value
        if value > best:
            best, kept = value, softmax(net(images[2]).double().cpu().numpy())
    return ProbeResult(score_probabilities(kept, rights[2], banks[2]), best, kept)
