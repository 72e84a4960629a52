"""ONNX models on the CPU: writing networks as ONNX, and loading them with onnxruntime."""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from veil.core import VeilError
from veil.media.draft import Draft

if TYPE_CHECKING:
    import onnx
    import onnxruntime
    from torch import Tensor, nn


def session(model: Path | bytes) -> onnxruntime.InferenceSession:
    """A model, from its file or its bytes, ready to run."""
    # Since 1.29 the published builds of onnxruntime report usage, including which model is loaded.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # where it was imported before
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Waiting threads sleep: the encoder and the decoder need the cores in the meantime.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    source = model if isinstance(model, bytes) else str(model)
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes derive from Exception alone
        name = "the model" if isinstance(model, bytes) else str(model)
        raise VeilError(
            f"{name} could not be read as an ONNX model: {str(error).splitlines()[0]}",
            code="model-unreadable",
        ) from error


def write(
    path: Path,
    net: nn.Module,
    forward: Callable[[Tensor], Tensor],
    example: Tensor,
    *,
    output: str,
    axes: Mapping[int, str],
    metadata: Mapping[str, Any],
    half: bool,
) -> None:
    """Write a function of a network on images as ONNX.

    `example` is the input of the trace, `output` the name of the result, and `axes` the names of the axes of any length,
    in both. With `half`, weights are stored in 16 bits and used in 32. Metadata is stored as JSON.
    """
    from onnx import TensorProto, helper, numpy_helper

    free = {name: {axis: f"{name}_{label}" for axis, label in axes.items()} for name in ("images", output)}
    model = traced(net, forward, {"images": example}, output, free)
    casts = []
    for weight in model.graph.initializer if half else ():
        values = numpy_helper.to_array(weight)
        if values.dtype == np.float32 and values.size >= 256:
            name = weight.name
            weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_16"))
            casts.append(helper.make_node("Cast", [weight.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    save(model, path, metadata, overwrite=True)


def traced(
    net: nn.Module,
    forward: Callable[..., Tensor],
    examples: Mapping[str, Tensor],
    output: str,
    free: Mapping[str, Mapping[int, str]],
    opset: int = 17,
) -> onnx.ModelProto:
    """A function of a network on named inputs, as an ONNX model; `free` names the axes of any length."""
    import onnx
    import torch

    class Traced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, *inputs: Tensor) -> Tensor:
            return forward(*inputs)

    buffer: Any = io.BytesIO()  # accepted, though not declared
    training = net.training
    net.eval()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # Of the older exporter, and of traced sizes.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Traced().eval(),
                tuple(examples.values()),
                buffer,
                dynamo=False,
                opset_version=opset,
                input_names=list(examples),
                output_names=[output],
                dynamic_axes={name: dict(axes) for name, axes in free.items()},
            )
    finally:
        net.train(training)
    return onnx.load_from_string(buffer.getvalue())


def save(model: onnx.ModelProto, path: Path, metadata: Mapping[str, Any], *, overwrite: bool) -> None:
    """Write a model with metadata as JSON, completely or not at all."""
    import onnx
    from onnx import helper

    helper.set_model_props(model, {key: json.dumps(value) for key, value in metadata.items()})
    onnx.checker.check_model(model, full_check=True)
    with Draft(path, overwrite=overwrite) as draft:
        draft.path.write_bytes(model.SerializeToString())
