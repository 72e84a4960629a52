"""One job, in a process of its own: a task by its standard input, how far it is by its standard output (`veil.apps.serve.jobs`).

Tasks: *sample* (write the built-in sample), *look* (what is this video, and stills of it to click on), *template* (of
clicks in one of those), *anonymize*, *audit*. What goes wrong becomes one sentence, without the names of files.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, TextIO

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from veil.core import Anonymizer, Explained, Frames, Veiled, VeilError

SIDE = 720  # pixels of the longer side of a picture to look at
STILLS = 6  # moments of a video to click on
LOOKED = 600  # frames among which they are chosen
OFTEN = 0.35  # seconds between two pairs of pictures
PAIRS = 3  # that are kept
Show = Callable[[int, dict[str, Frames]], None]  # the number of a frame, and pictures: before, after, heat
Task = dict[str, Any]


class Watched(Anonymizer):
    """Another anonymizer that is looked at while it works: some frames before, and the same ones after."""

    def __init__(self, inner: Anonymizer, show: Show, most: int | None = None) -> None:
        self.inner, self.show, self.most = inner, show, most

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer.stream`."""
        return self._watched(windows, lambda seen, _: self.inner.stream(seen))

    def explained(self, windows: Iterable[Frames], tell: Callable[[Explained], None]) -> Iterator[Veiled]:
        """See `Anonymizer.explained`."""

        def run(seen: Iterable[Frames], learn: Callable[[Explained], None]) -> Iterator[Veiled]:
            def both(explained: Explained) -> None:
                learn(explained)
                tell(explained)

            return self.inner.explained(seen, both)

        return self._watched(windows, run)

    @property
    def name(self) -> str:
        """That of the anonymizer that is watched."""
        return self.inner.name

    def params(self) -> dict[str, Any]:
        """Those of the anonymizer that is watched."""
        return self.inner.params()

    def _watched(
        self,
        windows: Iterable[Frames],
        run: Callable[[Iterable[Frames], Callable[[Explained], None]], Iterator[Veiled]],
    ) -> Iterator[Veiled]:
        kept: deque[tuple[int, Frames]] = deque()
        heats: dict[int, Frames] = {}
        taken = told = given = 0
        last = -math.inf

        def taking() -> Iterator[Frames]:
            nonlocal taken, last
            for frames in windows:
                if self.most is not None and taken + len(frames) > self.most:
                    raise VeilError("this video is longer than what is taken here: cut it, and try again.")
                if len(frames) and time.monotonic() - last > OFTEN:
                    last = time.monotonic()
                    kept.append((taken, small(frames[0])))
                taken += len(frames)
                yield frames

        def learn(explained: Explained) -> None:
            nonlocal told
            if any(at == told for at, _ in kept):
                heats[told] = heat(small(explained.frame), explained.hidden)
            told += 1

        for veiled in run(taking(), learn):
            while kept and kept[0][0] < given + len(veiled.frames):
                at, before = kept.popleft()
                pictures = {"before": before, "after": small(veiled.frames[at - given])}
                self.show(at, pictures | ({"heat": heats.pop(at)} if at in heats else {}))
            given += len(veiled.frames)
            yield veiled


def watched(inner: Anonymizer, show: Show, most: int | None = None) -> Anonymizer:
    """The anonymizer, looked at; a report names it by its type, which therefore keeps its name."""
    return type(type(inner).__name__, (Watched,), {})(inner, show, most)


def small(frame: Frames) -> Frames:
    """A frame ``(H, W, 3)`` no larger than a picture to look at."""
    height, width = frame.shape[:2]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA).astype(np.uint8)


def heat(frame: Frames, salient: npt.NDArray[np.float32]) -> Frames:
    """An anonymized frame ``(H, W, 3)`` in grey under the colours of a map ``(h, w)`` of what was hidden in it."""
    height, width = frame.shape[:2]
    wide = cv2.resize(np.clip(np.nan_to_num(salient, nan=1.0), 0, 1), (width, height))
    colours = cv2.applyColorMap(np.round(wide * 255).astype(np.uint8), cv2.COLORMAP_INFERNO)[..., ::-1]
    return (0.7 * colours + 0.3 * frame.mean(-1, keepdims=True)).astype(np.uint8)


def sample(task: Task, tell: Tell) -> dict[str, Any]:
    """Write the built-in sample."""
    from veil.apps.demo import LENGTH, SIZE
    from veil.apps.demo import sample as frames
    from veil.media.video import Time, VideoInfo, open_sink

    info = VideoInfo(*SIZE, fps=Fraction(30), frames=LENGTH, time_base=Fraction(1, 30))
    with open_sink(Path(task["folder"]) / "sample.mp4", info, quality=20) as sink:
        sink.write(frames(), [Time(i, 1) for i in range(LENGTH)])
    return {}


def look(task: Task, tell: Tell) -> dict[str, Any]:
    """What the video is, and stills of its beginning; one that is too long or too large is refused."""
    from veil.media.video import open_source

    path, stills = Path(task["video"]), Path(task["stills"])
    kept: list[tuple[float, Frames]] = []  # when it is shown, and the frame
    step, seen, ends = 1, 0, 0.0
    with closing(open_source(path)) as source:
        info = source.info
        if info.width * info.height > task["pixels"]:
            raise VeilError(
                f"this video has {info.width} x {info.height} pixels, more than is taken here: make it smaller first."
            )
        stated = info.frames / float(info.fps) if info.frames else None
        _short_enough(stated, task["seconds"])
        for window in source.windows():
            for frame, shown in zip(window.frames, window.times, strict=True):
                if seen % step == 0:
                    kept.append((float(shown.pts * info.time_base), small(frame)))
                    if len(kept) > 2 * STILLS:
                        kept, step = kept[::2], 2 * step
                seen += 1
                ends = float((shown.pts + shown.duration) * info.time_base)
            _short_enough(ends, task["seconds"])
            if seen >= LOOKED:
                source.stop()
                break
    chosen = [kept[i] for i in np.linspace(0, len(kept) - 1, min(STILLS, len(kept))).round().astype(int)]
    for number, (_, frame) in enumerate(chosen):
        Image.fromarray(frame).save(stills / f"still-{number}.png")
    whole = seen < LOOKED
    return {
        "width": info.width,
        "height": info.height,
        "fps": float(info.fps),
        "frames": info.frames or (seen if whole else None),
        "seconds": ends if whole else stated,  # what a recorder states is not always so
        "stills": [round(at, 2) for at, _ in chosen],
    }


def _short_enough(seconds: float | None, most: float) -> None:
    if seconds and seconds > most:
        raise VeilError(
            f"this video is {seconds / 60:.1f} minutes long; {most / 60:.0f} are taken here: cut it, or use "
            "`veil anonymize`, which takes any."
        )


def template(task: Task, tell: Tell) -> dict[str, Any]:
    """Make a template of clicks in a still, and a picture of what of the still it matches."""
    from veil.people import pictures, templates
    from veil.people.overlays import draw_template

    pixels = pictures.read(task["still"])
    height, width = pixels.shape[:2]
    points = [(x * width, y * height) for x, y in task["points"]]
    made = templates.add(task["name"], pixels, points, overwrite=True)
    draw_template(pixels, made).save(Path(task["folder"]) / "heat.png")
    return {"name": made.name, "clicks": len(made.origins)}


def anonymize(task: Task, tell: Tell) -> dict[str, Any]:
    """Anonymize the video; beside it come its report, a sheet of frames, and pictures of why."""
    from veil.apps.pipeline import anonymize_video
    from veil.methods import make

    folder = Path(task["folder"])
    raw = folder / "raw"
    shown: deque[int] = deque()
    tell(0, task.get("frames"), "loading")
    inner = make(task["method"], hide=task.get("hide"), also=task.get("also"))

    def show(at: int, pictures: dict[str, Frames]) -> None:
        for kind, frame in pictures.items():
            draft = raw / f".{kind}.jpg"
            Image.fromarray(frame).save(draft, quality=85)
            draft.rename(raw / f"{kind}-{at}.jpg")
        shown.append(at)
        tell.say({"pair": at, "heat": "heat" in pictures})
        while len(shown) > PAIRS:
            old = shown.popleft()
            for kind in pictures:
                (raw / f"{kind}-{old}.jpg").unlink(missing_ok=True)

    explains = type(inner).explained is not Anonymizer.explained
    why = folder / "why" if explains else None
    report = anonymize_video(
        raw / task["file"],
        folder / "anonymized.mp4",
        watched(inner, show, task.get("most")),
        report=folder / "report.json",
        preview=folder / "preview.jpg",
        explain=why,
        progress=lambda done, total: tell(done, total or task.get("frames"), "anonymizing"),
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


def audit(task: Task, tell: Tell) -> dict[str, Any]:
    """Audit methods on the synthetic world; quick."""
    from veil.audit.command import audit_methods

    def progress(done: int, total: int | None, words: str | None = None) -> None:
        tell(done, total, words or "training attackers")

    tell(0, None, "loading")
    folder = Path(task["folder"])
    methods = task["methods"]
    _, said = audit_methods(
        methods,
        folder,
        suite="quick",
        jobs=task.get("jobs"),
        command=f"veil audit {' '.join(['--compare', *methods] if len(methods) > 1 else methods)} -o audit --quick",
        progress=progress,
    )
    return {"said": said}


TASKS: dict[str, Callable[[Task, Tell], dict[str, Any]]] = {
    "sample": sample,
    "look": look,
    "template": template,
    "anonymize": anonymize,
    "audit": audit,
}


class Tell:
    """Lines of JSON to whoever started this process."""

    def __init__(self, to: TextIO) -> None:
        self._to, self._last = to, -math.inf
        self._words = ""

    def __call__(self, done: int, total: int | None, words: str) -> None:
        """How far it is; said a few times a second at most."""
        now = time.monotonic()
        if words != self._words or now - self._last > 0.2 or done == total:
            self._last, self._words = now, words
            self.say({"done": done, "total": total, "words": words})

    def say(self, told: dict[str, Any]) -> None:
        """One line."""
        self._to.write(json.dumps(told) + "\n")
        self._to.flush()


def main() -> None:
    """Do the one task that standard input names."""
    tell = Tell(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # libraries that print would be taken for this process
    task = json.loads(sys.stdin.readline())
    _humble()
    threading.Thread(target=_end_with_server, daemon=True).start()
    if home := task.get("home"):  # a visitor's templates are his own
        os.environ["XDG_DATA_HOME"] = home
    try:
        tell.say({"result": TASKS[task["task"]](task, tell)})
    except VeilError as error:
        tell.say({"error": _without_places(str(error), task)})
    except MemoryError:
        tell.say({"error": "there is not enough memory for this: try a smaller video."})
    except OSError as error:
        tell.say({"error": f"a file could not be written ({error.strerror}): try again later."})
    # Anything else is a defect: the process ends without a word, and that is told.


def _humble() -> None:
    """The server comes first; a core dump would hold frames."""
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _end_with_server() -> None:
    """A job whose server has gone is nobody's."""
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGKILL)  # with all that it has started


def _without_places(sentence: str, task: Task) -> str:
    """Say 'this video' where a file of this server is named."""
    folder = Path(task["folder"])
    places = [
        task.get("video"),
        str(folder / "raw" / task["file"]) if "file" in task else None,
        task.get("still"),
    ]
    for place in (*places, str(folder), task.get("home")):
        if place:
            sentence = sentence.replace(str(place), "this video")
    return sentence


if __name__ == "__main__":
    main()
