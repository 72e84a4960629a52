"""ONNX models on the CPU; the one place that loads onnxruntime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from veil.core import VeilError

if TYPE_CHECKING:
    import onnxruntime


def session(model: Path | bytes) -> onnxruntime.InferenceSession:
    """A model, from its file or its bytes, ready to run."""
    # From 1.29 on, the published builds of onnxruntime report to their maker, also which model is loaded.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # where somebody loaded it before
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Waiting threads sleep: the encoder and the decoder need the cores in the meantime.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    source = model if isinstance(model, bytes) else str(model)
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes derive from Exception alone
        name = "the model" if isinstance(model, bytes) else str(model)
        raise VeilError(f"{name} could not be read as an ONNX model: {str(error).splitlines()[0]}") from error


def any_size(path: Path) -> bytes:
    """A model whose inputs and outputs ``(N, C, H, W)`` were published with fixed sizes, with N, H and W set free."""
    import onnx

    model = onnx.load(str(path))
    for value in [model.graph.input[0], *model.graph.output]:
        dims = value.type.tensor_type.shape.dim
        for index, axis in ((0, "batch"), (2, f"{value.name}_height"), (3, f"{value.name}_width")):
            dims[index].dim_param = axis
    return model.SerializeToString()
