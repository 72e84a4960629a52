"""A trained `PrototypeNet` as an ONNX file, as it comes with Veil."""

from __future__ import annotations

from pathlib import Path

import torch

from veil.methods.prototypes.network import BLOCK, CONTEXT, FUTURE, PAST, PrototypeNet
from veil.nn import onnx
from veil.training.data_config import DataConfig


def to_onnx(net: PrototypeNet, path: Path, data: DataConfig) -> None:
    """Write a network as ONNX: half-cells ``(N, T, 2h, 2w)`` to ``cells`` ``(N, T, h, w)`` in [0, 1], in 16 bits.

    T is any multiple of `CONTEXT`.
    """
    side = 2 * data.size // net.cell
    metadata = {
        "side": data.size,
        "cell": net.cell,
        "phase_temperature": net.phase_temperature,
        "past": PAST,
        "block": BLOCK,
        "future": FUTURE,
    }
    axes = {0: "batch", 1: "time"}
    example = torch.rand(2, 3 * CONTEXT, side, side)
    onnx.write(path, net, net.cells, example, output="cells", axes=axes, metadata=metadata, half=True)
