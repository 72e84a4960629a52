"""The model that comes with Veil: from a run to the file in the package, and how fast it is.

veil train recipes/prototypes-synthetic.toml -o RUN
python bench/prototypes.py export RUN              writes src/veil/methods/prototypes.onnx
python bench/prototypes.py speed VIDEO…            frames a second, against the video's own rate
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import veil
from veil.media.video import open_source
from veil.methods.builtin import BUILTIN_PROTOTYPES


def export(run: Path) -> None:
    import torch

    from veil.methods import prototypes
    from veil.methods.learned import load
    from veil.nn.onnx import session

    net, stage = load(run).made
    assert isinstance(net, prototypes.Prototypes)
    prototypes.to_onnx(net, BUILTIN_PROTOTYPES, stage)
    light = prototypes.halves(torch.rand(8, 3, 3 * prototypes.SEEN, stage.size, stage.size), net.cell)
    with torch.inference_mode():
        expected = net.shown(light).numpy()
    (found,) = session(BUILTIN_PROTOTYPES).run(None, {"images": light.numpy()})
    apart = float(np.abs(expected - np.asarray(found)).max())
    print(
        json.dumps(
            {
                "file": str(BUILTIN_PROTOTYPES.name),
                "bytes": BUILTIN_PROTOTYPES.stat().st_size,
                "max difference": apart,
            }
        )
    )


def speed(paths: list[Path]) -> None:
    for path in paths:
        source = open_source(path)
        frames = np.concatenate([window.frames for window in source.windows()])[:300]
        anonymizer = veil.make("prototypes")
        list(anonymizer.stream([frames[:48]]))
        begun = time.perf_counter()
        count = sum(len(part.frames) for part in anonymizer.stream([frames]))
        rate = count / (time.perf_counter() - begun)
        told = {"video": path.name, "size": frames.shape[1:3], "frames a second": round(rate, 1)}
        print(json.dumps({**told, "times the video's rate": round(rate / float(source.info.fps or 25), 1)}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("export").add_argument("run", type=Path)
    verbs.add_parser("speed").add_argument("videos", type=Path, nargs="+")
    given = parser.parse_args()
    if given.verb == "export":
        export(given.run)
    else:
        speed(given.videos)


if __name__ == "__main__":
    main()
