"""How fast the built-in action prototypes are: frames per second, against the video's own rate.

python bench/prototypes.py VIDEO…
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import veil
from veil.media.sources import open_source


def speed(paths: list[Path]) -> None:
    for path in paths:
        source = open_source(path)
        frames = np.concatenate([window.frames for window in source.windows()])[:300]
        anonymizer = veil.make("prototypes")
        list(anonymizer.stream([frames[:48]]))
        begun = time.perf_counter()
        count = sum(len(part.frames) for part in anonymizer.stream([frames]))
        rate = count / (time.perf_counter() - begun)
        record = {"video": path.name, "size": frames.shape[1:3], "frames a second": round(rate, 1)}
        print(json.dumps({**record, "times the video's rate": round(rate / float(source.info.fps or 25), 1)}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("videos", type=Path, nargs="+")
    speed(parser.parse_args().videos)


if __name__ == "__main__":
    main()
