"""Retrieval: whether the nearest item of a gallery has the identity of a probe."""

from __future__ import annotations

import numpy as np

from veil.core import VeilError
from veil.metrics.score import CELLS, Array, Floats, Resampling, Score, mean_of, measured

_TIE = 1e-12  # similarities this close differ by rounding only


def rank1(
    probe: Array,
    probe_ids: Array,
    gallery: Array,
    gallery_ids: Array,
    *,
    views: tuple[Array, Array] | None = None,
    bootstrap: Resampling = None,
) -> Score:
    """Share of probes whose nearest gallery item, by cosine, has their identity.

    probe `(P, D)`, gallery `(G, D)`: a feature for each video (`video_mean` of its clips); ids `(P,)` and
    `(G,)`. views: those of the probes and of the gallery; given, items seen from a probe's own view are not
    in its gallery. Items tied for the nearest count in equal parts, so that features that fell onto one point
    score chance. Chance: the mean share of a probe's gallery that has its identity. A probe whose identity is
    not in its gallery cannot be found: it is left out of n, with a note.
    """
    x, ids = _normalised(probe), np.asarray(probe_ids)
    items, item_ids = _normalised(gallery), np.asarray(gallery_ids)
    no_views = (np.zeros(len(x)), np.ones(len(items)))  # never identical
    view, item_view = (np.asarray(v) for v in views or no_views)
    if not len(x) == len(ids) == len(view) or not len(items) == len(item_ids) == len(item_view):
        raise VeilError(
            "ids or views are not as many as features: give one for each probe and item.",
            code="metric-input-shape",
        )
    credit, chances = np.zeros(len(x)), np.zeros(len(x))
    step = max(1, 8 * CELLS // max(1, len(items)))
    for rows in (slice(i, i + step) for i in range(0, len(x) if len(items) else 0, step)):
        allowed = view[rows, None] != item_view
        same = allowed & (ids[rows, None] == item_ids)
        near = np.where(allowed, x[rows] @ items.T, -np.inf)
        best = allowed & (near >= near.max(axis=1, keepdims=True) - _TIE)
        credit[rows] = (best & same).sum(axis=1) / np.maximum(best.sum(axis=1), 1)
        chances[rows] = same.sum(axis=1) / np.maximum(allowed.sum(axis=1), 1)
    notes: tuple[str, ...] = ()
    if absent := int((chances == 0).sum()):
        notes += (f"{absent} of {len(x)} probes are left out: their identity is not in their gallery",)
    if empty := int((~x.any(axis=1)).sum() + (~items.any(axis=1)).sum()):
        notes += (f"{empty} features are zero and so equally near to everything",)
    if len(np.unique(item_ids)) == 1:
        notes += ("the gallery holds one identity: every probe finds it",)
    credit, chances = credit[chances > 0], chances[chances > 0]
    name = "rank-1" if views is None else "rank-1, identical view excluded"
    chance = float(chances.mean()) if len(chances) else None
    return measured(name, mean_of(credit), len(credit), chance, notes, bootstrap)


def _normalised(values: Array) -> Floats:
    """Features `(N, D)` of length 1; those of length 0 stay 0."""
    x = np.asarray(values, dtype=np.float64)
    x = x if x.size else np.empty((0, 0))
    if x.ndim != 2 or not np.isfinite(x).all():
        raise VeilError(
            f"features are {x.shape}, or not finite: give finite ones (N, D).", code="features-invalid"
        )
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(length > 0, length, 1)
