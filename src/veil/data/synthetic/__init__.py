"""Synthetic videos of people whose action, segments, identity, gait and private attributes are known exactly."""

from veil.data.synthetic.dataset import read, render_samples, rendered_on
from veil.data.synthetic.generator import POINTS, GroundTruth, VideoGenerator
from veil.data.synthetic.motion import ACTIONS
from veil.data.synthetic.preview import show
from veil.data.synthetic.scenarios import (
    ANOMALIES,
    ATTRIBUTES,
    COUNTS,
    FPS,
    IDENTITIES,
    KINDS,
    LENGTHS,
    Kind,
)

__all__ = [
    "ACTIONS",
    "ANOMALIES",
    "ATTRIBUTES",
    "COUNTS",
    "FPS",
    "IDENTITIES",
    "KINDS",
    "LENGTHS",
    "POINTS",
    "GroundTruth",
    "Kind",
    "VideoGenerator",
    "read",
    "render_samples",
    "rendered_on",
    "show",
]
