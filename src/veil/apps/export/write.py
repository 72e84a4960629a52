"""Write a model: trace it, compare it with torch, quantize it where wanted, and save it.

The file is compared with torch on real frames: the largest difference is printed and stored in the file, and a file that differs is
not written. With ``int8``, weights and activations are rounded to 8 bits in ranges that are measured on real frames, and compared
again on other frames. A quantized network has other outputs: audit it before use (`veil audit --compare RUN model.onnx`).

How a video goes through the file is stored in it (`side`, `skip`, `past`, `block`, `future`, `square`): see `veil.methods.streaming`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from veil.apps.export.adapters import ExportableAdapter
from veil.apps.export.anonymizers import ExportableAnonymizer, builtin_prototypes
from veil.apps.export.exportable import Exportable, Inputs
from veil.apps.export.quantize import quantize
from veil.core import VeilError, __version__
from veil.features import registry
from veil.methods import builtin, learned, make
from veil.nn import onnx

OPSET = 20  # the first with the sampling of `elr`
MAX_OUTLIERS = 1e-3  # share of the values that may differ from torch by more than rounding explains
MAX_INT8_MEAN = 16.0  # tolerances by which int8 may differ in the mean


@dataclass(frozen=True)
class ModelDifference:
    """How far a model is from torch: in levels of 255, or for features in standard deviations."""

    largest: float
    mean: float
    off: float  # share of the values that differ by more than rounding explains
    n: int  # values that were compared

    def describe(self, unit: str) -> str:
        """For the screen."""
        return f"at most {self.largest:.3g} {unit}, {self.mean:.2g} in the mean"


@dataclass(frozen=True)
class Int8Summary:
    """What int8 changed: before and after."""

    difference: ModelDifference
    bytes: tuple[int, int]
    milliseconds: tuple[float, float]  # of one run


@dataclass(frozen=True)
class ExportSummary:
    """What `export` wrote."""

    path: Path
    method: str
    unit: str
    compared_on: str
    shape: str  # of the input
    difference: ModelDifference
    bytes: int
    int8: Int8Summary | None

    def lines(self) -> list[str]:
        """For the screen."""
        lines = [
            f"{self.path}: {self.method}, {self.bytes / 1e6:.2f} MB, {self.shape}.",
            f"against torch on {self.compared_on}: {self.difference.describe(self.unit)} ({self.difference.n} values).",
        ]
        if self.int8:
            (large, small), (slow, quick) = self.int8.bytes, self.int8.milliseconds
            lines += [
                f"{'':10}{'before':>12}{'int8':>12}",
                f"{'size':10}{large / 1e6:>9.2f} MB{small / 1e6:>9.2f} MB",
                f"{'a run':10}{slow:>9.1f} ms{quick:>9.1f} ms",
                f"{'mean off':10}{self.difference.mean:>12.3g}{self.int8.difference.mean:>12.3g} {self.unit}",
                f"{'at most':10}{self.difference.largest:>12.3g}{self.int8.difference.largest:>12.3g} {self.unit}",
                "the int8 model has other outputs than the one that was audited: audit it before use.",
            ]
        return lines


def export(
    method: str,
    output: str | Path,
    *,
    int8: bool = False,
    calibrate: Sequence[str] = (),
    overwrite: bool = False,
) -> ExportSummary:
    """Write a method, the folder of a run or a built-in one such as ``prototypes``, to a file that ends in .onnx.

    `calibrate` are videos to compare (and measure ranges) on; by default the demo's, and some of the synthetic dataset.
    Raises `VeilError`, and writes nothing, where the file would differ from torch.
    """
    output = Path(output)
    if output.suffix.lower() != ".onnx":
        raise VeilError(f"{output} does not end in .onnx: rename it.", code="output-not-onnx")
    if output.exists() and not overwrite:
        raise VeilError(f"{output} exists already: pass --overwrite to replace it.", code="output-exists")
    subject = find_exportable(method)
    inputs, compared_on = subject.test_inputs(calibrate)
    examples, free, shape = subject.example()
    try:
        model = onnx.traced(subject.net, subject.forward, examples, subject.output, free, OPSET)
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise VeilError(
            f"{subject.name} cannot be written as ONNX ({why}): run it with torch.", code="not-exportable"
        ) from error
    expected = [subject.reference(run) for run in inputs]
    plain = model.SerializeToString()
    difference, slow = _compare(subject, plain, inputs, expected)
    if not difference.off <= MAX_OUTLIERS:
        raise VeilError(
            f"{output} was not written, because the model of {subject.name} differs from torch by "
            f"{difference.describe(subject.unit)} on {compared_on}: run it with torch.",
            code="export-differs",
        )
    int8_summary: Int8Summary | None = None
    if int8:
        ranges, tested = (inputs[::2], slice(1, None, 2)) if len(inputs) > 1 else (inputs, slice(None))
        model = quantize(subject, model, ranges)
        small = model.SerializeToString()
        after, quick = _compare(subject, small, inputs[tested], expected[tested])
        if not after.mean <= MAX_INT8_MEAN * subject.tolerance:
            raise VeilError(
                f"{output} was not written, because in int8 {subject.name} differs from torch by "
                f"{after.describe(subject.unit)}: export it without --int8, or calibrate on videos like yours.",
                code="int8-differs",
            )
        int8_summary = Int8Summary(after, (len(plain), len(small)), (slow, quick))
    metadata = {
        "veil": __version__,
        "kind": subject.kind,
        "method": subject.name,
        "int8": None if int8_summary is None else asdict(int8_summary.difference),
        "torch": {**asdict(difference), "unit": subject.unit, "on": compared_on},
        **subject.metadata(),
    }
    onnx.save(model, output, metadata, overwrite=overwrite)
    return ExportSummary(
        output,
        subject.name,
        subject.unit,
        compared_on,
        shape,
        difference,
        output.stat().st_size,
        int8_summary,
    )


def _compare(
    subject: Exportable, model: bytes, inputs: Sequence[Inputs], expected: Sequence[np.ndarray]
) -> tuple[ModelDifference, float]:
    """How far a model is from torch, and the milliseconds of the fastest run."""
    session = onnx.session(model)
    distances, least = [], float("inf")
    for run, reference in zip(inputs, expected, strict=True):
        started = time.perf_counter()
        try:
            (made,) = session.run(None, run)
        except Exception as error:  # onnxruntime's own classes derive from Exception alone
            why = str(error).splitlines()[0]
            raise VeilError(
                f"the model of {subject.name} does not run ({why}): run it with torch.", code="not-exportable"
            ) from error
        least = min(least, time.perf_counter() - started)
        distances.append(subject.distance(np.asarray(made), reference).ravel())
    every = np.concatenate(distances)
    off = float((every > subject.tolerance).mean())
    return ModelDifference(float(every.max()), float(every.mean()), off, len(every)), 1e3 * least


def find_exportable(method: str) -> Exportable:
    """What a method's name or the folder of a run means."""
    folder = Path(method)
    if folder.is_dir():
        if _kind(folder) in registry.ADAPTER_RECIPES:
            return ExportableAdapter(registry.load(folder))
        run = learned.load(folder)
        return ExportableAnonymizer(_kind(folder), run.made[0], run.context)
    anonymizer = make(method)
    if isinstance(anonymizer, builtin.Prototypes):
        return ExportableAnonymizer("prototypes", builtin_prototypes(), anonymizer.shape)
    raise VeilError(
        f"{method} is not a learned method: name the folder of a run of `veil train`, or prototypes.",
        code="not-learned",
    )


def _kind(folder: Path) -> str:
    try:
        return str(json.loads((folder / "run.json").read_text())["kind"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # loading the run reports what is wrong
