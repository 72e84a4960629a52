"""The interface of everything that can be exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

Inputs = dict[str, np.ndarray]  # of one run, by name


class Exportable(Protocol):
    """What is exported: an anonymizer or an adapter."""

    name: str
    kind: str  # frames, features
    output: str  # name of the ONNX output
    unit: str  # of differences
    tolerance: float  # in this unit, the largest difference that rounding explains
    net: nn.Module

    def forward(self, *inputs: Tensor) -> Tensor:
        """The function that is traced into the file."""
        ...

    def reference(self, inputs: Inputs) -> np.ndarray:
        """The output of torch for the inputs of one run, as the method itself runs it."""
        ...

    def test_inputs(self, videos: Sequence[str]) -> tuple[list[Inputs], str]:
        """Real inputs, and a description of them."""
        ...

    def example(self) -> tuple[dict[str, Tensor], dict[str, dict[int, str]], str]:
        """Inputs to trace with, the dynamic axes of inputs and output, and a description of the shape."""
        ...

    def distance(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """The difference of two outputs, value by value."""
        ...

    def metadata(self) -> dict[str, Any]:
        """What is written into the file besides the network."""
        ...

    def may_quantize(self, node: str) -> bool:
        """Whether a layer, by its name, may be quantized to int8."""
        ...
