"""Static quantization of an ONNX model to int8."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veil.apps.export.exportable import Exportable, Inputs
from veil.core import VeilError

if TYPE_CHECKING:
    from onnx import ModelProto


def quantize(subject: Exportable, model: ModelProto, inputs: Sequence[Inputs]) -> ModelProto:
    """The model with layers in int8, in ranges that are measured on the inputs."""
    import logging

    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    weights = {weight.name for weight in model.graph.initializer}
    layers = [
        node.name
        for node in model.graph.node
        if (node.op_type == "Conv" or (node.op_type in ("Gemm", "MatMul") and node.input[1] in weights))
        and subject.may_quantize(node.name)
    ]
    if not layers:
        raise VeilError(
            f"{subject.name} has no layer that int8 makes smaller: leave out --int8.", code="int8-no-layer"
        )

    class InputReader(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter(inputs)

        def get_next(self) -> dict[str, Any]:
            return next(self._left, None)  # type: ignore[return-value]

    before = logging.root.level
    logging.root.setLevel(logging.ERROR)  # its advice to prepare the model changes nothing here
    try:
        with tempfile.TemporaryDirectory(prefix="veil-") as folder:
            path = Path(folder) / "model.onnx"
            quantize_static(
                model,
                path,
                InputReader(),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=["Conv", "Gemm", "MatMul"],
                nodes_to_quantize=layers,
                per_channel=True,
                # Seven bits for weights: without them, sums overflow on processors that have no VNNI.
                reduce_range=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
            return onnx.load(str(path))
    finally:
        logging.root.setLevel(before)
