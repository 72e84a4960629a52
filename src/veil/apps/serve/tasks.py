"""One job in a process of its own: its task comes by standard input, its progress leaves by standard output (`veil.apps.serve.jobs`).

Tasks: *sample* (write the built-in sample), *inspect* (properties of a video, and stills to click on), *template* (from
clicks in a still), *anonymize*, *audit*. An error becomes one sentence, without the names of files.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from PIL import Image

from veil.apps.serve.preview import previewed, shrink
from veil.core import Anonymizer, Frames, VeilError
from veil.media.processes import end_with_parent

STILLS = 6  # moments of a video to click on
INSPECTED = 600  # frames among which they are chosen
PREVIEWS = 3  # that are kept on disk
Task = dict[str, Any]


class ProgressWriter:
    """Writes lines of JSON to the server; a `veil.core.Progress`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._last, self._message = stream, -math.inf, ""

    def __call__(self, done: int, total: int | None, message: str | None = None) -> None:
        """Progress, written a few times a second at most."""
        message, now = message or "", time.monotonic()
        if message != self._message or now - self._last > 0.2 or done == total:
            self._last, self._message = now, message
            self.send({"done": done, "total": total, "message": message})

    def send(self, report: dict[str, Any]) -> None:
        """Write one line."""
        self._stream.write(json.dumps(report) + "\n")
        self._stream.flush()


def sample(task: Task, progress: ProgressWriter) -> dict[str, Any]:
    """Write the built-in sample."""
    from veil.apps.demo import LENGTH, SIZE
    from veil.apps.demo import sample as frames
    from veil.media.sinks import open_sink
    from veil.media.video import FrameTime, VideoInfo

    info = VideoInfo(*SIZE, fps=Fraction(30), frames=LENGTH, time_base=Fraction(1, 30))
    with open_sink(Path(task["folder"]) / "sample.mp4", info, quality=20) as sink:
        sink.write(frames(), [FrameTime(i, 1) for i in range(LENGTH)])
    return {}


def inspect(task: Task, progress: ProgressWriter) -> dict[str, Any]:
    """Properties of the video and stills of its beginning; a video that is too long or too large is refused."""
    from veil.media.sources import open_source

    path, stills = Path(task["video"]), Path(task["stills"])
    kept: list[tuple[float, Frames]] = []  # second and frame
    step, seen, end = 1, 0, 0.0
    with closing(open_source(path)) as source:
        info = source.info
        if info.width * info.height > task["pixels"]:
            raise VeilError(
                f"this video has {info.width} x {info.height} pixels, more than the limit: make it smaller first.",
                code="video-too-large",
            )
        stated = info.frames / float(info.fps) if info.frames else None
        _check_length(stated, task["seconds"])
        for window in source.windows():
            for frame, shown in zip(window.frames, window.times, strict=True):
                if seen % step == 0:
                    kept.append((float(shown.pts * info.time_base), shrink(frame)))
                    if len(kept) > 2 * STILLS:
                        kept, step = kept[::2], 2 * step
                seen += 1
                end = float((shown.pts + shown.duration) * info.time_base)
            _check_length(end, task["seconds"])
            if seen >= INSPECTED:
                source.stop()
                break
    chosen = [kept[i] for i in np.linspace(0, len(kept) - 1, min(STILLS, len(kept))).round().astype(int)]
    for number, (_, frame) in enumerate(chosen):
        Image.fromarray(frame).save(stills / f"still-{number}.png")
    whole = seen < INSPECTED
    return {
        "width": info.width,
        "height": info.height,
        "fps": float(info.fps),
        "frames": info.frames or (seen if whole else None),
        "seconds": end if whole else stated,  # the length that a recorder states is not always true
        "stills": [round(at, 2) for at, _ in chosen],
    }


def _check_length(seconds: float | None, limit: float) -> None:
    if seconds and seconds > limit:
        raise VeilError(
            f"this video is {seconds / 60:.1f} minutes long, and the limit is {limit / 60:.0f}: cut it, or use "
            "`veil anonymize`, which has no limit.",
            code="video-too-long",
        )


def template(task: Task, progress: ProgressWriter) -> dict[str, Any]:
    """Make a template from clicks in a still, and a picture of what it matches there."""
    from veil.people import pictures, templates
    from veil.people.overlays import draw_template

    pixels = pictures.read(task["still"])
    height, width = pixels.shape[:2]
    points = [(x * width, y * height) for x, y in task["points"]]
    made = templates.add(task["name"], pixels, points, overwrite=True)
    draw_template(pixels, made).save(Path(task["folder"]) / "heat.png")
    return {"name": made.name, "clicks": len(made.origins)}


def anonymize(task: Task, progress: ProgressWriter) -> dict[str, Any]:
    """Anonymize the video; with its report, a sheet of frames, and heat maps where the method has them."""
    from veil.apps.pipeline import anonymize_video
    from veil.methods import make

    folder = Path(task["folder"])
    raw = folder / "raw"
    shown: deque[int] = deque()
    progress(0, task.get("frames"), "loading")
    inner = make(task["method"], hide=task.get("hide"), also=task.get("also"))

    def show(at: int, pictures: dict[str, Frames]) -> None:
        for kind, frame in pictures.items():
            draft = raw / f".{kind}.jpg"
            Image.fromarray(frame).save(draft, quality=85)
            draft.rename(raw / f"{kind}-{at}.jpg")
        shown.append(at)
        progress.send({"preview": at, "heat": "heat" in pictures})
        while len(shown) > PREVIEWS:
            old = shown.popleft()
            for kind in pictures:
                (raw / f"{kind}-{old}.jpg").unlink(missing_ok=True)

    explains = type(inner).explain is not Anonymizer.explain
    why = folder / "why" if explains else None
    report = anonymize_video(
        raw / task["file"],
        folder / "anonymized.mp4",
        previewed(inner, show, task.get("max_frames")),
        report=folder / "report.json",
        preview=folder / "preview.jpg",
        explain=why,
        progress=lambda done, total, message=None: progress(
            done, total or task.get("frames"), message or "anonymizing"
        ),
    )
    pictures = sorted(path.name for path in why.glob("*.png")) if why else []
    sentence = report.sentence().removeprefix("anonymized.mp4: ")
    return {
        "sentence": sentence[0].upper() + sentence[1:],
        "warn": report.tracks is not None and (report.frames_without > 0 or bool(report.missing)),
        "hidden": report.hidden,
        "frames": report.frames,
        "seconds": report.seconds,
        "bytes": report.bytes,
        "why": pictures,
    }


def audit(task: Task, progress: ProgressWriter) -> dict[str, Any]:
    """Audit methods on the synthetic dataset with the quick suite."""
    from veil.audit.command import audit_methods

    progress(0, None, "loading")
    folder = Path(task["folder"])
    methods = task["methods"]
    _, summary = audit_methods(
        methods,
        folder,
        suite="quick",
        jobs=task.get("jobs"),
        command=f"veil audit {' '.join(['--compare', *methods] if len(methods) > 1 else methods)} -o audit --quick",
        progress=lambda done, total, message=None: progress(done, total, message or "training attackers"),
    )
    return {"summary": summary}


TASKS: dict[str, Callable[[Task, ProgressWriter], dict[str, Any]]] = {
    "sample": sample,
    "inspect": inspect,
    "template": template,
    "anonymize": anonymize,
    "audit": audit,
}


def main() -> None:
    """Run the one task that standard input names."""
    progress = ProgressWriter(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # what libraries print must not be read as progress
    task = json.loads(sys.stdin.readline())
    _lower_priority()
    end_with_parent(0, group=True)  # the server holds our standard input open
    if home := task.get("home"):  # the visitor's own templates
        os.environ["XDG_DATA_HOME"] = home
    try:
        progress.send({"result": TASKS[task["task"]](task, progress)})
    except VeilError as error:
        progress.send({"error": _without_paths(str(error), task)})
    except MemoryError:
        progress.send({"error": "there is not enough memory for this: try a smaller video."})
    except OSError as error:
        progress.send({"error": f"a file could not be written ({error.strerror}): try again later."})
    # Any other exception is a defect: the process ends without a result, and the server reports a crash.


def _lower_priority() -> None:
    """The server comes first; and a core dump would hold frames."""
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _without_paths(sentence: str, task: Task) -> str:
    """Write 'this video' for the path of a file on this server."""
    folder = Path(task["folder"])
    paths = [
        task.get("video"),
        str(folder / "raw" / task["file"]) if "file" in task else None,
        task.get("still"),
    ]
    for path in (*paths, str(folder), task.get("home")):
        if path:
            sentence = sentence.replace(str(path), "this video")
    return sentence


if __name__ == "__main__":
    main()
