"""The questions of an audit, one file each; `EVALUATORS` lists them."""

from veil.audit.evaluator import Evaluator
from veil.audit.evaluators import adaptive, codec, oblivious, reconstruction

EVALUATORS: tuple[Evaluator, ...] = (
    oblivious.EVALUATOR,
    adaptive.EVALUATOR,
    codec.EVALUATOR,
    reconstruction.EVALUATOR,
)
