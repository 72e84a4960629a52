"""Runs experiments one after the other, or several at once in processes that share the videos."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import torch

from veil.audit import evaluators
from veil.audit.experiment import Experiment, ExperimentData, SplitVideos
from veil.audit.result import Row
from veil.core import VeilError
from veil.media.processes import end_with_parent


class PreparedVideos(NamedTuple):
    """The videos of one dataset for all experiments on one method."""

    raw: SplitVideos
    anonymized: SplitVideos | None  # None: raw video is audited
    prepared: dict[str, SplitVideos]  # by evaluator


class Measured(NamedTuple):
    """The rows of one experiment."""

    raw: list[Row]
    method: list[Row]


Scheduled = tuple[Experiment, str]  # with the name of its dataset


def run_experiment(experiment: Experiment, videos: PreparedVideos) -> Measured:
    """Put every evaluator's question, and the same to raw video."""
    data = ExperimentData(experiment, videos.raw)
    raw = data.rows(data.on_raw, videos.raw.__getitem__, "adaptive")
    rows: list[Row] = []
    for evaluator in evaluators.EVALUATORS:
        if (prepared := videos.prepared.get(evaluator.name)) is not None:
            rows += evaluator.evaluate(prepared.__getitem__, data)
    return Measured(raw, rows)


def run_experiments(
    experiments: Sequence[Scheduled], videos: dict[str, PreparedVideos], jobs: int
) -> Iterator[Measured]:
    """The rows of all experiments, each as soon as it has ended; ``jobs`` at once."""
    if jobs == 1:
        for experiment, dataset in experiments:
            yield run_experiment(experiment, videos[dataset])
        return
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_receive, initargs=(videos,))
    try:
        futures = [pool.submit(_run_received, *scheduled) for scheduled in experiments]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise VeilError(
            f"a process that trained a recognizer was killed, perhaps for lack of memory: use fewer than {jobs} jobs.",
            code="audit-process-killed",
        ) from error
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()  # on an interrupt nobody waits for what is being trained
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_received: dict[str, PreparedVideos] = {}


def _receive(videos: dict[str, PreparedVideos]) -> None:
    end_with_parent()
    _received.update(videos)
    torch.set_num_threads(1)


def _run_received(experiment: Experiment, dataset: str) -> Measured:
    return run_experiment(experiment, _received[dataset])
