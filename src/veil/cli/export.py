"""`veil export`: write a trained anonymizer as one ONNX file."""

from __future__ import annotations

from veil.cli.arguments import Flag, Output, Several
from veil.cli.terminal import print_result


def export(
    method: str,
    /,
    *,
    output: Output,
    int8: Flag = False,
    calibrate: Several = (),
    overwrite: Flag = False,
) -> int:
    """Write a trained anonymizer as one ONNX file, which runs without torch: `veil anonymize --with model.onnx`.

    Its output is compared with that of torch on real frames, and it is not written where they differ.

    Parameters
    ----------
    method
        The folder of a run of `veil train`, or prototypes.
    output
        The file, with the suffix .onnx.
    int8
        Quantize to 8 bits: smaller, and mostly faster. The output changes: audit it (`veil audit --compare RUN model.onnx`).
    calibrate
        Videos to compare on, and to measure the ranges of 8 bits [the demo's, and some of the synthetic dataset].
    overwrite
        Replace a file that exists.
    """
    from veil.apps.export.write import export as write

    for line in write(method, output, int8=int8, calibrate=calibrate, overwrite=overwrite).lines():
        print_result(line)
    return 0
