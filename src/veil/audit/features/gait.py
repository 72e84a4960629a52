"""Gait: the identity of a walk by the nearest walk of a gallery; nothing is trained."""

from __future__ import annotations

import numpy as np

from veil.core import VeilError
from veil.features.bank import Bank
from veil.metrics import Score, rank1


def evaluate_gait(bank: Bank, *, across_views: bool = False) -> Score:
    """The identity of each walk by the nearest walk of the gallery: rank-1.

    The gallery are the videos of the group role "gallery", the probes those of role "probe", as in CASIA-B.
    """
    total = (bank.clips * bank.mask[..., None]).sum(1) / bank.counts[:, None]
    features = total.double().cpu().numpy()
    role = np.array([sample.groups.get("role", "") for sample in bank.samples])
    view = np.array([sample.groups.get("view", "") for sample in bank.samples])
    identity = bank.truth("identity").cpu().numpy()
    probe, gallery = role == "probe", role == "gallery"
    if not probe.any() or not gallery.any():
        raise VeilError(
            "these videos have no group role of gallery and probe: rank-1 needs both.",
            code="gallery-missing",
        )
    views = (view[probe], view[gallery]) if across_views else None
    return rank1(features[probe], identity[probe], features[gallery], identity[gallery], views=views)
