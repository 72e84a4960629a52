"""A sample that needs no download: a camera that moves over a photograph of an astronaut.

The photograph (Eileen Collins, NASA) is in the public domain.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from veil.apps.pipeline import anonymize_video
from veil.apps.report import Report
from veil.apps.sheets import draw_sheet, save_picture
from veil.core import Anonymizer, Frames, Progress
from veil.media.sinks import open_sink
from veil.media.sources import open_source
from veil.media.video import FrameTime, VideoInfo
from veil.people.pictures import built_in

SIZE = (480, 360)  # width, height
LENGTH = 90


class DemoResult(NamedTuple):
    """What the demo made."""

    report: Report
    video: Path
    picture: Path


def sample(length: int = LENGTH, size: tuple[int, int] = SIZE) -> Frames:
    """The clip ``(length, H, W, 3)``: the camera starts wide, closes in on the face, sways and tilts."""
    photo = built_in("astronaut")  # (512, 512, 3)
    frames = np.empty((length, size[1], size[0], 3), np.uint8)
    for i in range(length):
        turn = 2 * np.pi * i / max(1, length)
        zoom = size[0] / 512 * (1.45 - 0.45 * np.cos(turn))
        centre = 230 + 45 * np.sin(2 * turn), 170 - 40 * np.sin(turn) ** 2
        matrix = cv2.getRotationMatrix2D(centre, float(7 * np.sin(turn)), float(zoom))
        matrix[:, 2] += np.array(size) / 2 - centre
        frames[i] = cv2.warpAffine(photo, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    return frames


def run_demo(folder: Path, anonymizer: Anonymizer, progress: Progress | None = None) -> DemoResult:
    """Write the sample, anonymize it, and put frames of both side by side."""
    folder.mkdir(parents=True, exist_ok=True)
    raw, anonymized, picture = folder / "sample.mp4", folder / "anonymized.mp4", folder / "side-by-side.jpg"
    info = VideoInfo(*SIZE, fps=Fraction(30), frames=LENGTH, time_base=Fraction(1, 30))
    with open_sink(raw, info, quality=18, overwrite=True) as sink:
        sink.write(sample(), [FrameTime(i, 1) for i in range(LENGTH)])
    report = anonymize_video(
        raw,
        anonymized,
        anonymizer,
        report=folder / "report.json",
        preview=folder / "preview.jpg",
        overwrite=True,
        progress=progress,
    )
    at = [int(share * (LENGTH - 1)) for share in (0.0, 0.2, 0.5, 0.8)]
    pictures = [Image.fromarray(frame) for path in (raw, anonymized) for frame in _frames(path, at)]
    save_picture(draw_sheet(pictures, columns=len(at)), picture)
    return DemoResult(report, anonymized, picture)


def _frames(path: Path, at: list[int]) -> Frames:
    source = open_source(path)
    frames = np.concatenate([window.frames for window in source.windows()])
    source.close()
    return frames[at]
