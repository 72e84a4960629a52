"""The path of one video from its file through an anonymizer to a new file; every front end takes it."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Literal

from veil.apps.explain import ExplanationFolder
from veil.apps.report import Report, ReportBuilder, ReportFile, either
from veil.apps.sheets import Preview
from veil.core import Anonymizer, FrameExplanation, Frames, Progress, Veiled, VeilError
from veil.media.sinks import open_sink
from veil.media.sources import open_source
from veil.media.video import Codec, FrameTime, VideoSource
from veil.methods import DEFAULT, make


def anonymize_video(
    source: str | Path,
    output: str | Path,
    method: str | Anonymizer = DEFAULT,
    *,
    region: str | None = None,
    audio: Literal["drop", "keep"] = "drop",
    codec: Codec = "h264",
    quality: int | None = None,
    report: str | Path | None = None,
    preview: str | Path | None = None,
    explain: str | Path | None = None,
    require_match: bool = False,
    overwrite: bool = False,
    salvage: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Anonymize one video (or still, camera, stream) and write it to `output`: all of it, or nothing.

    source    a file, the number of a camera, or the URL of a stream
    method    as on the command line, ``NAME`` or ``NAME:key=value,…``, or an `Anonymizer`
    region    what the method changes (``face``, ``person`` or ``frame``), where the method lets one choose
    audio     the sound is dropped, or kept as it is: voices identify people
    codec     ``h264``, ``h265``, or ``ffv1``, which is lossless; `quality` is its constant rate factor
    report    a JSON file with what was hidden in every frame, and how it was found
    preview   a picture with frames of the *anonymized* video, the hidden regions outlined
    explain   a folder for pictures of why the method hid what it hid, for methods that choose what they hide
    require_match  fail where something that is to be hidden was not found in any frame
    salvage   go on where frames cannot be decoded (they are missing then, and counted) instead of failing
    progress  called with the number of frames done and the number in all

    Raises `VeilError`, with one sentence for the user, when anything is wrong; then no file is left behind.
    """
    anonymizer = method if isinstance(method, Anonymizer) else make(method, region=region)
    output = Path(output)
    wanted = [output, *map(Path, filter(None, (report, preview)))]
    _all_different(source, wanted, Path(explain) if explain else None)
    with ExitStack() as files:
        reading = files.enter_context(closing(open_source(source, salvage=salvage, audio=audio == "keep")))
        # Left in the opposite order: the video gets its name first, its report only when it has.
        sheet = files.enter_context(Preview(Path(preview), overwrite=overwrite)) if preview else None
        why = files.enter_context(ExplanationFolder(Path(explain), overwrite=overwrite)) if explain else None
        listing = files.enter_context(ReportFile(Path(report), overwrite=overwrite)) if report else None
        sink = open_sink(
            output,
            reading.info,
            codec=codec,
            quality=quality,
            overwrite=overwrite,
            audio_from=reading if audio == "keep" else None,
        )
        writing = files.enter_context(sink)
        counted = ReportBuilder(reading.info, anonymizer.targets())
        begun = time.monotonic()
        with _interruptible(reading) as check:
            for (frames, regions, shares), times in _veiled(anonymizer, reading, why):
                seconds = [float(t.pts * reading.info.time_base) for t in times]
                # Before the sink has them: it may still be reading the frames when it has returned.
                if sheet:
                    sheet.add(counted.frames, seconds, frames, regions)
                if listing:
                    listing.add(counted.frames, seconds, regions)
                counted.add(frames, regions, shares)
                writing.write(frames, times)
                if progress:
                    progress(counted.frames, reading.info.frames)
                check()
        if require_match and (not counted.matched or counted.missing):
            raise _nothing_found(source, counted)
        result = counted.report(
            output=output.name,
            method=anonymizer.name,
            params=anonymizer.params(),
            undecodable=reading.undecodable,
            seconds=time.monotonic() - begun,
            size=writing.size,
        )
        if sheet:
            sheet.finish()
        if why:
            why.finish()
        if listing:
            listing.finish(result)
    return dataclasses.replace(result, bytes=output.stat().st_size)


def _veiled(
    anonymizer: Anonymizer, source: VideoSource, why: ExplanationFolder | None
) -> Iterator[tuple[Veiled, list[FrameTime]]]:
    """The anonymized source, each frame with its time; every frame once, or an error."""
    waiting: deque[FrameTime] = deque()
    unexplained: deque[FrameTime] = deque()

    def windows() -> Iterator[Frames]:
        for window in source.windows():
            waiting.extend(window.times)
            if why:
                unexplained.extend(window.times)
            yield window.frames

    def explain(explained: FrameExplanation) -> None:
        if not unexplained or not why:
            raise RuntimeError(f"{type(anonymizer).__name__} explained a frame that it did not get")
        why.add(float(unexplained.popleft().pts * source.info.time_base), explained)

    height, width = source.info.height, source.info.width
    for veiled in anonymizer.explain(windows(), explain) if why else anonymizer.stream(windows()):
        frames = veiled.frames
        if frames.shape[1:] != (height, width, 3) or len(frames) > len(waiting):
            raise RuntimeError(
                f"{type(anonymizer).__name__} made frames {frames.shape} of {len(waiting)} of {height} x {width}"
            )
        yield veiled, [waiting.popleft() for _ in range(len(frames))]
    if left := waiting or unexplained:
        raise RuntimeError(f"{type(anonymizer).__name__} kept {len(left)} frames back")


def _nothing_found(source: str | Path, counted: ReportBuilder) -> VeilError:
    option = "--hide" if any(target.expected for target in counted.targets) else "--region"
    what = either(counted.missing or [target.name for target in counted.targets]) or "region"
    return VeilError(
        f"no {what} was found in {source}, so nothing was written: look for something else with {option}, lower the "
        "threshold, or leave out --require-match.",
        code="nothing-found",
    )


@contextmanager
def _interruptible(source: VideoSource) -> Iterator[Callable[[], None]]:
    """Ctrl-C ends a live source, and with it the file, cleanly; a second one, or one for a file, breaks off.

    Yields a check, which repeats a signal whose exception was lost: raised inside a callback of a library, it is ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    numbers = [number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))]
    before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and source.live:
            signal.signal(number, before[number])
            source.stop()
        else:
            received.append(number)
            before[number](number, frame)

    def check() -> None:
        if received:
            before[received[-1]](received[-1], None)

    try:
        for number in before:
            signal.signal(number, handle)
        yield check
        check()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _all_different(source: str | Path, written: list[Path], folder: Path | None = None) -> None:
    """Refuse to write over what is read, or two things into one file; `folder` gets pictures and a table."""
    if folder:
        for path in (Path(source), *written):
            within = path.resolve().parent == folder.resolve() and path.suffix.lower() in (".png", ".csv")
            if within or path.resolve() == folder.resolve():
                raise VeilError(
                    f"{folder} cannot hold the explanation of {path}: name another folder.",
                    code="output-conflict",
                )
    for i, path in enumerate(written):
        if Path(source).exists() and path.exists() and path.samefile(source):
            raise VeilError(f"{path} is both input and output: name another output.", code="output-is-input")
        if path.resolve() in [other.resolve() for other in written[:i]]:
            raise VeilError(
                f"{path} is named for two outputs: give the video, the report and the preview a file each.",
                code="output-conflict",
            )
