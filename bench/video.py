"""Veil's video path without a method, against a bare PyAV loop that decodes and encodes with the same settings.

    python bench/video.py VIDEO... [--rounds 3]

The bare loop hands each decoded frame straight to the encoder; Veil's path turns it to RGB and back, keeps the times
and verifies the file. Target: at least 80 % of the bare loop's rate. The two take turns; the ratio is of medians.
`cpu_ratio` is that of processor seconds a frame, which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av

from veil.media.sinks import open_sink
from veil.media.sources import open_source


def bare(video: Path, out: Path) -> int:
    count = 0
    with (
        av.open(str(video)) as reading,
        av.open(str(out), "w", options={"movflags": "+faststart"}) as writing,
    ):
        source = reading.streams.video[0]
        source.thread_type = "AUTO"
        stream = writing.add_stream(
            "libx264", rate=source.average_rate, options={"preset": "veryfast", "crf": "23"}
        )
        stream.width, stream.height, stream.pix_fmt = source.width, source.height, "yuv420p"
        assert source.time_base is not None
        stream.codec_context.time_base = source.time_base
        stream.thread_type = "AUTO"
        for frame in reading.decode(source):
            frame.pict_type = 0  # let the encoder choose, as it does for frames that come from pixels
            writing.mux(stream.encode(frame))
            count += 1
        writing.mux(stream.encode(None))
    return count


def through_veil(video: Path, out: Path) -> int:
    count, source = 0, open_source(video)
    with open_sink(out, source.info) as sink:
        for window in source.windows():
            sink.write(window.frames, window.times)
            count += len(window.frames)
    source.close()
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("videos", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    ways: dict[str, Callable[[Path, Path], int]] = {"bare": bare, "veil": through_veil}
    for video in arguments.videos:
        rates: dict[str, list[float]] = {name: [] for name in ways}
        costs: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, way in ways.items():
                with tempfile.TemporaryDirectory() as folder:
                    begun, spent = time.perf_counter(), cpu()
                    frames = way(video, Path(folder) / "out.mp4")
                    rates[name].append(frames / (time.perf_counter() - begun))
                    costs[name].append((cpu() - spent) / frames)
        middle = {name: statistics.median(values) for name, values in rates.items()}
        cost = {name: statistics.median(values) for name, values in costs.items()}
        row = {
            "video": video.name,
            "cores": os.cpu_count(),
            "rounds": arguments.rounds,
            **{f"{name}_fps": round(value, 1) for name, value in middle.items()},
            "ratio": round(middle["veil"] / middle["bare"], 3),
            "cpu_ratio": round(cost["bare"] / cost["veil"], 3),
        }
        print(json.dumps(row), flush=True)


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
