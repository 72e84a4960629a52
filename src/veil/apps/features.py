"""Extraction of features into a store: in this process, in several, or on a Ray cluster.

What is complete is kept when the process is killed, and memory does not grow with the number of videos. This process alone writes
the store. What happens to stored features: `veil.features.anonymize`, `veil.features.search`, `veil.features.describe`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from veil.apps.cluster import GivenUp, check_workers, run_on_cluster
from veil.core import Progress, VeilError, VideoEncoder
from veil.data import read as read_data
from veil.data.sample import Dataset, Sample
from veil.features import encoders
from veil.features.bank import FailedVideo, VideoFeatures
from veil.features.extract import STILLS, encode_samples
from veil.features.inputs import read_videos
from veil.features.store import Store
from veil.features.store_table import DType, StoreInfo
from veil.features.writer import StoreWriter
from veil.media.processes import end_with_parent

_CHUNK = 8  # videos that a worker takes at once
_NAMED = 10  # how many videos that failed are named on the terminal

LoadArguments = tuple[str | VideoEncoder, str | Path | None, str]  # encoder, weights, device


@dataclass(frozen=True)
class Extracted:
    """The result of an extraction."""

    store: Path
    written: int  # videos
    stored_before: int  # videos that the store had already
    failed: tuple[tuple[str, str], ...]  # ids, and why
    seconds: float

    def sentences(self) -> list[str]:
        """The messages for the user."""
        rate = f" ({self.written / self.seconds:.1f} a second)" if self.seconds > 0 and self.written else ""
        had = f", {self.stored_before:,} were there already" if self.stored_before else ""
        lines = [f"{self.store}: {self.written:,} video{'s' * (self.written != 1)} added{rate}{had}."]
        if self.failed:
            lost = (
                "1 video failed and is"
                if len(self.failed) == 1
                else f"{len(self.failed):,} videos failed and are"
            )
            lines.append(f"{lost} not in the store:")
            lines += [f"  {name}: {why}" for name, why in self.failed[:_NAMED]]
            lines += [f"  and {len(self.failed) - _NAMED:,} more"] if len(self.failed) > _NAMED else []
        return lines


def extract_videos(
    inputs: Sequence[str],
    output: str | Path,
    *,
    data: str | None = None,
    root: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    encoder: str | VideoEncoder = "veil",
    weights: str | Path | None = None,
    labels: str | Path | None = None,
    stride: int | None = None,
    stills: int = STILLS,
    dtype: DType = "float16",
    batch: int = 32,
    workers: int | None = None,
    device: str = "cpu",
    ray: str | None = None,
    gpus_per_worker: float = 0,
    resume: bool = False,
    progress: Progress | None = None,
) -> Extracted:
    """Add the features of videos to a store, which is made where there is none.

    Videos are ``inputs`` (files, folders, patterns), with ``labels`` from a table; or they are the dataset ``data`` in the
    folder ``root``.
    A video that cannot be read fails alone. ``resume`` skips those that the store has; else they are an error.
    ``workers`` are processes of this machine [1], or of the Ray cluster at the address ``ray`` [one for each core]; there a
    worker may have a share of a GPU. This process alone writes the store.
    """
    check_workers(ray, workers, gpus_per_worker)
    if data is not None and (inputs or labels):
        raise VeilError(
            f"--data {data} has videos and labels of its own: give it or videos, not both.",
            code="data-conflict",
        )
    began, folder = time.monotonic(), Path(output)
    network = _encoder(encoder, weights, device)
    info = StoreInfo(
        network.name,
        network.fingerprint,
        network.dim,
        dtype,
        stills,
        network.length if stride is None else stride,
    )
    store = Store.open(folder) if _used(folder) else None
    if store is not None:
        store.info.refuse(info, folder)
    if data is not None:
        sized = {"size": network.size} if data == "synthetic" else {}
        dataset = read_data(data, root, **{**sized, **(options or {})})
    else:
        known = frozenset(store.ids) if store is not None else frozenset()
        dataset = read_videos(inputs, labels, known)
    if store is None:
        names = {name: getattr(dataset, name) for name in ("actions", "attributes", "identities")}
        store = _created(folder, replace(info, **names))
    todo = [sample for sample in dataset.samples if sample.id not in store]
    there = len(dataset.samples) - len(todo)
    if there and not resume:
        name = next(sample.id for sample in dataset.samples if sample.id in store)
        raise VeilError(
            f"{name} is in {folder} already: pass --resume to continue with the others, or leave it out.",
            code="video-stored",
        )
    encode_options = {"stride": stride, "stills": stills, "batch": batch, "device": device}
    load = encoder if isinstance(encoder, str) else network, weights, device
    if ray is not None:
        results = _in_cluster(
            dataset, todo, load, network.fingerprint, encode_options, ray, workers, gpus_per_worker
        )
    elif workers is None or workers == 1:
        results = cast(
            Generator[VideoFeatures | FailedVideo], encode_samples(dataset, todo, network, **encode_options)
        )
    else:
        results = _in_processes(dataset, todo, load, encode_options, workers)
    failed: list[tuple[str, str]] = []
    # What is under way ends before what is open is written, also where an error ended it.
    with StoreWriter(store, dataset, skip=True) as writer, closing(results):
        for done, result in enumerate(results, 1):
            error = result.error if isinstance(result, FailedVideo) else writer.add(result)
            if error is not None:
                failed.append((result.sample.id, str(error)))
            if progress is not None:
                progress(there + done, len(dataset.samples))
    return Extracted(folder, writer.written, there, tuple(failed), time.monotonic() - began)


def _used(folder: Path) -> bool:
    return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))


def _created(folder: Path, info: StoreInfo) -> Store:
    try:
        return Store.create(folder, info)
    except VeilError:
        if not _used(folder):
            raise
    store = Store.open(folder)  # another process was faster
    store.info.refuse(info, folder)
    return store


def _encoder(encoder: str | VideoEncoder, weights: str | Path | None, device: str) -> VideoEncoder:
    if not isinstance(encoder, str):
        return encoder
    return encoders.make(encoder, weights, device)


def _in_processes(
    dataset: Dataset,
    todo: Sequence[Sample],
    load: LoadArguments,
    encode_options: dict[str, Any],
    workers: int,
) -> Generator[VideoFeatures | FailedVideo]:
    """The features of samples, network by several processes; in the order in which they come."""
    size = max(1, min(_CHUNK, -(-len(todo) // (4 * workers))))
    chunks = iter([todo[at : at + size] for at in range(0, len(todo), size)])
    pool = ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),  # neither torch nor Lance survive a fork
        _begin,
        (replace(dataset, samples=()), *load, encode_options, max(1, (os.cpu_count() or 1) // workers)),
    )
    waiting: set[Future[list[Any]]] = set()
    try:
        while True:
            while len(waiting) < 2 * workers and (chunk := next(chunks, None)):
                waiting.add(pool.submit(_work, chunk))
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield from map(_unpacked, future.result())
    except BrokenProcessPool as error:
        raise VeilError(
            "a worker process ended, perhaps because memory was short (finished videos are kept): continue with --resume "
            "and fewer workers.",
            code="worker-ended",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_job: tuple[Dataset, VideoEncoder, dict[str, Any]] | None = (
    None  # of a worker process, which has one all its life
)


def _begin(
    dataset: Dataset,
    encoder: str | VideoEncoder,
    weights: str | Path | None,
    device: str,
    encode_options: dict[str, Any],
    threads: int,
) -> None:
    global _job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    end_with_parent()
    torch.set_num_threads(threads)
    _job = dataset, _encoder(encoder, weights, device), encode_options


def _work(samples: Sequence[Sample]) -> list[Any]:
    assert _job is not None
    dataset, encoder, encode_options = _job
    return [_packed(result) for result in encode_samples(dataset, samples, encoder, **encode_options)]


def _packed(result: VideoFeatures | FailedVideo) -> Any:
    """Without tensors, each of which would take a file descriptor on its way to another process."""
    if isinstance(result, FailedVideo):
        return result.sample, str(result.error)
    return tuple(value.numpy() if isinstance(value, Tensor) else value for value in result)


def _unpacked(packed: Any) -> VideoFeatures | FailedVideo:
    if len(packed) == 2:
        return FailedVideo(packed[0], VeilError(packed[1]))
    # Copied, since what a cluster hands over cannot be written to.
    values: list[Any] = [torch.tensor(part) if isinstance(part, np.ndarray) else part for part in packed]
    return VideoFeatures(*values)


class FeatureWorker:
    """Makes the features of one video after the other, by an encoder that it loads once."""

    def __init__(
        self,
        dataset: Dataset,
        load: LoadArguments,
        fingerprint: str,
        encode_options: Mapping[str, Any],
        threads: int | None,
    ) -> None:
        """``fingerprint``: of the weights that it must find; ``threads``: how many it may start [no limit]."""
        if threads:
            torch.set_num_threads(threads)
        self._dataset, self._encode_options, self._encoder = dataset, encode_options, _encoder(*load)
        if self._encoder.fingerprint != fingerprint:
            raise VeilError(
                f"{load[1] or load[0]} holds other weights on {socket.gethostname()} than here "
                f"({self._encoder.fingerprint[:12]} and {fingerprint[:12]}): put the same file on all machines.",
                code="weights-differ",
            )

    def __call__(self, sample: Sample) -> Any:
        """The features of a video, or why there are none, without tensors."""
        (result,) = encode_samples(self._dataset, [sample], self._encoder, **self._encode_options)
        return _packed(result)


def _in_cluster(
    dataset: Dataset,
    todo: Sequence[Sample],
    load: LoadArguments,
    fingerprint: str,
    encode_options: Mapping[str, Any],
    address: str,
    workers: int | None,
    gpus: float,
) -> Generator[VideoFeatures | FailedVideo]:
    """The features of samples, network by the workers of a Ray cluster; in the order in which they come."""
    encoder, weights, device = load
    device = "cuda" if gpus and device == "cpu" else device
    # Workers are in other folders than this process.
    if weights is not None and Path(weights).exists():
        weights = Path(weights).absolute()
    if isinstance(encoder, str) and (Path(encoder) / "run.json").is_file():
        encoder = str(Path(encoder).absolute())
    todo = [replace(sample, path=sample.path and sample.path.absolute()) for sample in todo]
    make = partial(
        FeatureWorker,
        replace(dataset, samples=()),
        (encoder, weights, device),
        fingerprint,
        {**encode_options, "device": device},
        None if gpus else 1,
    )
    with closing(run_on_cluster(make, todo, address, workers, gpus)) as answers:
        for sample, answer in answers:
            if isinstance(answer, GivenUp):
                yield FailedVideo(sample, VeilError(f"{sample.path or sample.id} was given up: {answer.why}"))
            else:
                yield _unpacked(answer)
