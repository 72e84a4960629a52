"""Veil keeps the action and loses the person: video anonymization that is measured by attacking it."""

from veil.apps.pipeline import anonymize_video
from veil.apps.report import Report
from veil.core import Anonymizer, Frames, Region, Veiled, VeilError, __version__, to_clip, to_frames
from veil.methods import ANONYMIZERS, make

__all__ = [
    "ANONYMIZERS",
    "Anonymizer",
    "Frames",
    "Region",
    "Report",
    "VeilError",
    "Veiled",
    "__version__",
    "anonymize_video",
    "make",
    "to_clip",
    "to_frames",
]
