"""The one training loop: it trains every method and every attacker.

A `Step` states which modules update on which loss; a plain supervised training has one step. `fit` trains on one batch
after the other and yields the result of each, so that the caller logs, saves, plots and stops::

    for result in fit([Step("task", (net,), loss, lr=1e-3)], batches):
        ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from veil.training.phase import Phase
from veil.training.sequence import PhaseSequence
from veil.training.steps import BatchT, Setup, Step, StepResult


def fit(
    steps: Sequence[Step[BatchT]] | Phase[BatchT] | PhaseSequence[BatchT],
    batches: Iterable[BatchT],
    setup: Setup = Setup(),
) -> Iterator[StepResult]:
    """Train on the batches in order, and yield the result of each."""
    if isinstance(steps, Phase | PhaseSequence):
        if setup != Setup():
            raise ValueError("a phase has its setup already: give it to Phase, not to fit")
        phase = steps
    else:
        phase = Phase(steps, setup)
    for batch in batches:
        yield phase.train_step(batch)
