"""Erasing a concept from features in closed form: no attacker can recover what is projected away.

**LEACE** (Belrose et al. 2023, arXiv 2306.03819). Of all affine maps after which no linear predictor of the concept z does better than a
constant, this one moves the features x the least (in every norm that belongs to an inner product)::

    W  = (Σ_xx)^(−1/2)                                 Σ_xx: covariance of x; the inverse where it has one
    P  = projection onto the columns of W Σ_xz         Σ_xz: covariance of x and z
    r(x) = x − W⁻¹ P W (x − mean x)

z may be classes (one column each) or numbers. Of numbers, P has as many directions as z has, and little would be left; of
them, only the `rank` that are most correlated with x are taken: the leading left singular vectors of W Σ_xz (Σ_zz)^(−1/2), as in
canonical correlation. What a linear predictor cannot find, a nonlinear one may.

**Motion subspace** (ours). Features of a moving clip x also hold what one frame shows: the features s of static clips of the same
video, which contain no motion. With both whitened as above, keep the few directions v in which moving clips differ most from their
static ones, relative to how much static ones differ from video to video, and nothing else::

    M = covariance of W (x − s)          S = covariance of W s
    keep the v with the largest  vᵀ M v / vᵀ (S + ε) v;   Q: an orthonormal basis of them
    r(x) = mean x + W⁻¹ Q Qᵀ W (x − mean x)

No label is used, neither of what is private nor of what is useful.

**Discriminant subspace** (ours; Fisher's linear discriminant analysis, LDA). Where the tasks are known, keep the directions that
separate their labels z, and nothing else. For each task, with one column of z for each class, Σ_B is the covariance between classes
and Σ_W that within a class (Fisher 1936); all tasks have the same weight::

    Σ_B = mean of Σ_xz (Σ_zz)⁻¹ Σ_zx          Σ_W = mean of (Σ_xx − Σ_xz (Σ_zz)⁻¹ Σ_zx)          over the tasks
    V = (Σ_W + ε)^(−1/2);   Q: the eigenvectors of V Σ_B V with the largest values
    r(x) = mean x + V⁻¹ Q Qᵀ V (x − mean x)

There are fewer such directions than classes: about twenty numbers are left of a clip. No label of what is private is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

MIN_VARIANCE = 1e-6  # of the largest variance: smaller ones count as none
RIDGE = 1e-3  # ε, of features with deviation 1: smaller variances from video to video are raised to it


class AffineErasure(nn.Module):
    """x ↦ x − (x − mean) · erased: ``(…, D)`` to ``(…, D)``; initially the identity."""

    mean: Tensor  # (D,)
    erased: Tensor  # (D, D)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("erased", torch.zeros(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """The features without what is erased."""
        return x - (x - self.mean) @ self.erased


def leace(x: Tensor, z: Tensor, rank: int | None = None) -> AffineErasure:
    """The map that erases the concept z ``(N, C)`` from features x ``(N, D)``; of it, the first ``rank`` directions."""
    if len(x) != len(z) or x.ndim != 2 or z.ndim != 2:
        raise ValueError(
            f"features are (N, D) and the concept (N, C), got {tuple(x.shape)} and {tuple(z.shape)}"
        )
    exact, concept = x.double(), z.double()
    mean = exact.mean(0)
    exact, concept = exact - mean, concept - concept.mean(0)
    root, whiten = _roots(exact.T @ exact / len(exact))
    _, of_concept = _roots(concept.T @ concept / len(concept))
    across = whiten @ (exact.T @ concept / len(exact)) @ of_concept
    left, strength, _ = torch.linalg.svd(across, full_matrices=False)
    found_rank = int((strength > MIN_VARIANCE).sum())
    left = left[:, : found_rank if rank is None else min(rank, found_rank)]
    return _without(x, mean, root @ left @ left.T @ whiten)


def motion_subspace(x: Tensor, stills: Tensor, keep: int) -> AffineErasure:
    """The map onto ``keep`` directions of motion, from clips x ``(N, D)`` and static clips of their videos ``(N, D)``."""
    if x.shape != stills.shape or x.ndim != 2:
        raise ValueError(
            f"clips and static clips are (N, D) and (N, D), got {tuple(x.shape)} and {tuple(stills.shape)}"
        )
    if not 1 <= keep <= x.shape[1]:
        raise ValueError(f"of {x.shape[1]} directions {keep} cannot be kept")
    mean = x.double().mean(0)
    exact = x.double() - mean
    root, whiten = _roots(exact.T @ exact / len(exact))
    clips, still = exact @ whiten, (stills.double() - stills.double().mean(0)) @ whiten
    motion = clips - still
    one = torch.eye(len(root), dtype=root.dtype, device=root.device)
    _, against = _roots(still.T @ still / len(still) + RIDGE * one)
    _, vectors = torch.linalg.eigh(against @ (motion.T @ motion / len(motion)) @ against)
    basis, _ = torch.linalg.qr(against @ vectors[:, -keep:])
    return _without(x, mean, root @ (one - basis @ basis.T) @ whiten)


def discriminant_subspace(tasks: Sequence[tuple[Tensor, Tensor]], keep: int | None = None) -> AffineErasure:
    """The map onto the directions that separate the labels z ``(N, C)`` of features x ``(N, D)``, of one task or several.

    ``keep``: how many directions; None: all in which classes differ.
    """
    if not tasks or any(x.ndim != 2 or z.ndim != 2 or len(x) != len(z) for x, z in tasks):
        shapes = ", ".join(f"{tuple(x.shape)} and {tuple(z.shape)}" for x, z in tasks)
        raise ValueError(f"features are (N, D) and labels (N, C) of each task, got {shapes or 'no task'}")
    between, within = [], []
    for x, z in tasks:
        exact, labels = x.double() - x.double().mean(0), z.double() - z.double().mean(0)
        _, whiten = _roots(labels.T @ labels / len(labels))
        across = exact.T @ labels @ whiten / len(exact)
        between.append(across @ across.T)
        within.append(exact.T @ exact / len(exact) - between[-1])
    one = torch.eye(len(between[0]), dtype=torch.double, device=between[0].device)
    root, whiten = _roots(torch.stack(within).mean(0) + RIDGE * one)
    values, vectors = torch.linalg.eigh(whiten @ torch.stack(between).mean(0) @ whiten)
    found_rank = int((values > MIN_VARIANCE * values[-1].clamp_min(MIN_VARIANCE)).sum())
    if not found_rank:
        raise ValueError("no label separates these features: there is nothing to keep")
    basis = vectors[:, -(found_rank if keep is None else min(keep, found_rank)) :]
    mean = tasks[0][0].double().mean(0)
    return _without(tasks[0][0], mean, root @ (one - basis @ basis.T) @ whiten)


def _without(x: Tensor, mean: Tensor, taken: Tensor) -> AffineErasure:
    erasure = AffineErasure(x.shape[1]).to(x.device)
    erasure.mean = mean.to(x.dtype)
    erasure.erased = taken.T.contiguous().to(x.dtype)  # rows are features, so the map acts from the right
    return erasure


def _roots(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """The square root of a covariance, and its inverse on what varies."""
    values, vectors = torch.linalg.eigh(covariance)
    values = torch.where(values > MIN_VARIANCE * values.max().clamp_min(1e-30), values, 0)
    root = values.sqrt()
    inverse = torch.where(root > 0, 1 / root.clamp_min(1e-30), 0)
    return (vectors * root) @ vectors.T, (vectors * inverse) @ vectors.T
