"""Hide the people in a video, and read what was done.

    python examples/hide_people.py [VIDEO]

Without a video it takes the sample that comes with Veil, and leaves nothing behind.
"""

import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import veil
from veil.apps.demo import sample
from veil.media.sinks import open_sink
from veil.media.video import FrameTime, VideoInfo


def film(path: Path) -> Path:
    """Write the sample as a video: a camera that moves over a photograph."""
    frames = sample(length=20, size=(240, 180))
    with open_sink(path, VideoInfo(240, 180, fps=Fraction(15), time_base=Fraction(1, 15))) as sink:
        sink.write(frames, [FrameTime(i, 1) for i in range(len(frames))])
    return path


with tempfile.TemporaryDirectory() as folder:
    video = Path(sys.argv[1]) if sys.argv[1:] else film(Path(folder, "sample.mp4"))
    for name, method in {
        "people": "selective",
        "faces": "selective:hide=face+hair",
        "blur": "blur:strong",
    }.items():
        output = Path(f"{video.stem}-{name}.mp4") if sys.argv[1:] else Path(folder, f"{name}.mp4")
        report = veil.anonymize_video(video, output, method, report=output.with_suffix(".json"))
        print(report.sentence())
        if report.frames_without:  # nothing found is not nothing there
            print(f"  look at {report.frames_without} of its frames yourself: {report.nothing_found}")
