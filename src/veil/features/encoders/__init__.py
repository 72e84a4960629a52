"""Frozen encoders of clips: clips ``(B, 3, T, H, W)`` in [0, 1] to tokens ``(B, N, D)``, or to one vector a clip."""

from veil.features.encoders.catalogue import ENCODERS
from veil.features.encoders.loading import SHIPPED, load_compact, make

__all__ = ["ENCODERS", "SHIPPED", "load_compact", "make"]
