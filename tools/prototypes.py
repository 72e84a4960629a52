"""Export the action prototypes that come with Veil: from a run to the file in the package.

veil train recipes/prototypes-synthetic.toml -o RUN
python -m tools.prototypes RUN              writes src/veil/methods/prototypes.onnx
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from veil.methods.builtin import BUILTIN_PROTOTYPES


def export(run: Path) -> None:
    import torch

    from veil.methods.learned import load
    from veil.methods.prototypes.export import to_onnx
    from veil.methods.prototypes.network import CONTEXT, PrototypeNet, to_half_cells
    from veil.nn.onnx import session

    net, data = load(run).made
    assert isinstance(net, PrototypeNet)
    to_onnx(net, BUILTIN_PROTOTYPES, data)
    half_cells = to_half_cells(torch.rand(8, 3, 3 * CONTEXT, data.size, data.size), net.cell)
    with torch.inference_mode():
        expected = net.cells(half_cells).numpy()
    (found,) = session(BUILTIN_PROTOTYPES).run(None, {"images": half_cells.numpy()})
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    export(parser.parse_args().run)


if __name__ == "__main__":
    main()
