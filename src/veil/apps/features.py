"""Features kept for years: extract them from videos, anonymize what is stored, search by likeness.

`extract_videos` adds to a store what a frozen encoder makes of videos; `anonymize_store` passes a store through a latent
anonymizer; `search_store` finds what is like a video. Each keeps what is whole when it is killed, and none needs more
memory for more videos.
"""

from __future__ import annotations

import glob
import hashlib
import multiprocessing
import os
import re
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, get_args

import numpy as np
import torch
from torch import Tensor

from veil.apps.cluster import GivenUp, check_workers, run_on_cluster
from veil.core import VeilError, io_errors
from veil.data import read as read_data
from veil.data.frames import read_frames
from veil.data.labels import read_table
from veil.data.listing import video_id, walk
from veil.data.sample import Dataset, Sample, Segment, Split
from veil.data.splits import deal
from veil.features.bank import STILLS, Bank, Encoder, Failed, Features, Vocabulary, collected, each
from veil.features.store import About, DType, Hit, Store, features_of
from veil.media.inputs import is_image, is_video
from veil.media.processes import end_with_parent

Progress = Callable[[int, int], Any]  # is told how many videos are done, of how many
_CHUNK = 8  # videos that a worker takes at once
_OPEN = 48 << 20  # bytes of features that wait to be written: what a kill may lose,
_PATIENCE = 20.0  # and for how many seconds
_NAMED = 10  # how many videos that failed are named on the terminal


class Latent(Protocol):
    """A latent anonymizer, such as `veil.features.adapter.Adapter`."""

    dim: int

    @property
    def encoder(self) -> str:
        """The name of the encoder whose features it takes."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of that encoder's weights."""
        ...

    def __call__(self, clips: Tensor, mask: Tensor | None = None, /) -> Tensor:
        """Clips ``(B, N, D)`` of B videos to other clips; ``mask (B, N)`` tells which are there."""
        ...


@dataclass(frozen=True)
class Extracted:
    """What came of an extraction."""

    store: Path
    written: int  # videos
    there: int  # videos that the store had already
    failed: tuple[tuple[str, str], ...]  # ids, and why
    seconds: float

    def sentences(self) -> list[str]:
        """What to tell the user."""
        rate = f" ({self.written / self.seconds:.1f} a second)" if self.seconds > 0 and self.written else ""
        had = f", {self.there:,} were there already" if self.there else ""
        said = [f"{self.store}: {self.written:,} videos added{rate}{had}."]
        if self.failed:
            said.append(f"{len(self.failed):,} videos failed and are not in the store:")
            said += [f"  {name}: {why}" for name, why in self.failed[:_NAMED]]
            said += [f"  and {len(self.failed) - _NAMED:,} more"] if len(self.failed) > _NAMED else []
        return said


# Extraction


def extract_videos(
    inputs: Sequence[str],
    output: str | Path,
    *,
    data: str | None = None,
    root: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    encoder: str | Encoder = "veil",
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
        raise VeilError(f"--data {data} has videos and labels of its own; give it, or videos, and not both")
    began, folder = time.monotonic(), Path(output)
    made = _encoder(encoder, weights, device)
    about = About(
        made.name, made.fingerprint, made.dim, dtype, stills, made.length if stride is None else stride
    )
    store = Store.open(folder) if _used(folder) else None
    if store is not None:
        store.about.refuse(about, folder)
    if data is not None:
        sized = {"size": made.size} if data == "synthetic" else {}
        dataset = read_data(data, root, **{**sized, **(options or {})})
    else:
        known = frozenset(store.ids) if store is not None else frozenset()
        dataset = videos(inputs, labels, known)
    if store is None:
        words = {name: getattr(dataset, name) for name in ("actions", "attributes", "identities")}
        store = _created(folder, replace(about, **words))
    todo = [sample for sample in dataset.samples if sample.id not in store]
    there = len(dataset.samples) - len(todo)
    if there and not resume:
        name = next(sample.id for sample in dataset.samples if sample.id in store)
        raise VeilError(
            f"{name} is in {folder} already; pass --resume to go on with the others, or leave it out"
        )
    asked = {"stride": stride, "stills": stills, "batch": batch, "device": device}
    load = encoder if isinstance(encoder, str) else made, weights, device
    if ray is not None:
        results = _in_cluster(dataset, todo, load, made.fingerprint, asked, ray, workers, gpus_per_worker)
    elif workers is None or workers == 1:
        results = cast(Generator[Features | Failed], each(dataset, todo, made, **asked))
    else:
        results = _shared_out(dataset, todo, load, asked, workers)
    failed: list[tuple[str, str]] = []
    # What is under way ends before what is open is written, also where an error ended it.
    with _Writer(store, dataset, skip=True) as writer, closing(results):
        for done, result in enumerate(results, 1):
            why = result.why if isinstance(result, Failed) else writer.add(result)
            if why is not None:
                failed.append((result.sample.id, str(why)))
            if progress is not None:
                progress(there + done, len(dataset.samples))
    return Extracted(folder, writer.written, there, tuple(failed), time.monotonic() - began)


def _used(folder: Path) -> bool:
    return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))


def _created(folder: Path, about: About) -> Store:
    try:
        return Store.create(folder, about)
    except VeilError:
        if not _used(folder):
            raise
    store = Store.open(folder)  # another process was faster
    store.about.refuse(about, folder)
    return store


def _encoder(encoder: str | Encoder, weights: str | Path | None, device: str) -> Encoder:
    if not isinstance(encoder, str):
        return encoder
    from veil.features import encoders

    return encoders.make(encoder, weights, device)


class _Writer:
    """Adds videos to a store, many at a time; what is open is written when it ends, also by an error."""

    def __init__(self, store: Store, vocabulary: Vocabulary, *, skip: bool = False) -> None:
        self._store, self._vocabulary, self._skip = store, vocabulary, skip
        self._open: list[Features] = []
        self._bytes, self._since = 0, time.monotonic()
        self.written = 0

    def add(self, video: Features) -> VeilError | None:
        """Take a video, or say why not."""
        try:
            self._store.check([video])
        except VeilError as error:
            return error
        self._open.append(video)
        self._bytes += 4 * (video.clips.numel() + video.stills.numel())
        if self._bytes > _OPEN or time.monotonic() - self._since > _PATIENCE:
            self.flush()
        return None

    def flush(self) -> None:
        """Write what is open."""
        waiting, self._open = self._open, []
        if waiting:
            self.written += self._store.append(waiting, self._vocabulary, skip=self._skip)
        self._bytes, self._since = 0, time.monotonic()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()


# Which videos, and what is known of them


def videos(
    inputs: Sequence[str], labels: str | Path | None = None, known: frozenset[str] = frozenset()
) -> Dataset:
    """Files, folders and patterns as a dataset; the labels must be of these videos, or of ``known`` ones.

    A video in a folder is called by its path there, any other by its file name. Without labels that say so, videos are
    dealt to the splits by their names.
    """
    found: dict[str, Path] = {}
    for name, path in _found(inputs):
        if name in found and found[name].resolve() != path.resolve():
            raise VeilError(
                f"{found[name]} and {path} would both be called {name}; rename one, or give a folder that holds both"
            )
        found.setdefault(name, path)
    samples = [Sample(name, deal(name), path) for name, path in found.items()]
    return (
        Dataset("videos", samples, read_frames) if labels is None else _labelled(samples, Path(labels), known)
    )


def _found(inputs: Sequence[str]) -> Iterator[tuple[str, Path]]:
    if not inputs:
        raise VeilError("there is nothing to extract; name videos, a folder, or a dataset with --data")
    for given in inputs:
        path = Path(given)
        if path.is_dir():
            inside = [here / name for here, names in walk(path) for name in names if is_video(name)]
            if not inside:
                raise VeilError(f"the folder {path} holds no videos; name one that does")
            yield from ((video_id(file.relative_to(path).as_posix()), file) for file in inside)
        elif path.exists() or not re.search(r"[*?[]", given):
            yield video_id(path.name), path  # one that is not there fails alone, as any that cannot be read
        else:
            matches = sorted(glob.glob(given, recursive=True))  # noqa: PTH207 (Path.glob takes no absolute ones)
            if not matches:
                raise VeilError(f"nothing fits the pattern {given}; check it")
            yield from (
                (video_id(Path(match).name), Path(match))
                for match in matches
                if is_video(match) or is_image(match)
            )


_NAMES = ("id", "path", "video")  # what the column that names the video may be called
_PEOPLE = ("identity", "person")


def _labelled(samples: Sequence[Sample], path: Path, known: frozenset[str]) -> Dataset:
    """Videos with the labels of a table.

    Its columns are ``id,split,action,identity,attribute:NAME,…,segments``, all but the first at will; others are groups.
    """
    rows = read_table(path)
    columns = list(rows[0]) if rows else []
    key = next((name for name in _NAMES if name in columns), None)
    if key is None:
        raise VeilError(
            f"{path} has no column {' or '.join(_NAMES)} that names the videos; add one as its first"
        )
    told: dict[str, dict[str, str]] = {}
    for row in rows:
        name = video_id(row[key].strip())
        if name in told:
            raise VeilError(f"{path} tells of {name} twice; leave one line")
        told[name] = {column: value.strip() for column, value in row.items()}
    matched = _matched(samples, told, path, known)
    people = next((name for name in _PEOPLE if name in columns), None)
    marks = [name for name in columns if name.startswith("attribute:")]
    plain = {key, "split", "action", people, "segments", *marks}
    parts = {name: _segments(row.get("segments", ""), path, name) for name, row in told.items()}
    actions = {row.get("action", "") for row in told.values()} | {
        p[2] for some in parts.values() for p in some
    }
    actions, identities = (
        tuple(sorted(filter(None, names)))
        for names in (actions, {row[people] for row in told.values()} if people else set())
    )
    made = []
    for sample, name in zip(samples, matched, strict=True):
        row = told[name]
        split = row.get("split") or sample.split
        if split not in get_args(Split):
            raise VeilError(
                f"{path} puts {name} into the split {split!r}; choose from {', '.join(get_args(Split))}"
            )
        values = [_mark(row[mark], path, name, mark) for mark in marks]
        made.append(
            replace(
                sample,
                split=cast(Split, split),
                action=actions.index(row["action"]) if row.get("action") else None,
                identity=identities.index(row[people]) if people and row[people] else None,
                attributes=tuple(values) if any(value == value for value in values) else (),
                groups={name: value for name, value in row.items() if name not in plain and value},
                segments=tuple(
                    Segment(start, end, actions.index(label)) for start, end, label in parts[name]
                ),
            )
        )
    names = tuple(mark.removeprefix("attribute:") for mark in marks)
    return Dataset("videos", made, read_frames, actions, names, identities)


def _matched(
    samples: Sequence[Sample], told: Mapping[str, Any], path: Path, known: frozenset[str]
) -> list[str]:
    """The line of every video: by its id, its id without ending, or its file name; every line must be of a video."""
    matched: list[str] = []
    for sample in samples:
        assert sample.path is not None
        names = (sample.id, str(Path(sample.id).with_suffix("")), sample.path.name, sample.path.stem)
        name = next((name for name in (str(sample.path), *names) if name in told), None)
        if name is None:
            raise VeilError(
                f"{path} does not tell of the video {sample.id}; add a line for it, or leave it out"
            )
        matched.append(name)
    if len(set(matched)) < len(matched):
        name = next(name for name in matched if matched.count(name) > 1)
        raise VeilError(f"{path} has one line {name} for several videos; name each by its path in the folder")
    extra = set(told) - set(matched) - known - {str(Path(name).with_suffix("")) for name in known}
    if extra:
        name = next(name for name in told if name in extra)
        raise VeilError(
            f"{path} tells of {name}, and there is no such video; check the name, or take the line out"
        )
    return matched


def _mark(text: str, path: Path, name: str, column: str) -> float:
    if text in ("", "0", "1"):
        return float(text or "nan")
    raise VeilError(f"{path} says {text!r} in the column {column} for {name}; write 0, 1 or nothing")


def _segments(text: str, path: Path, name: str) -> list[tuple[float, float, str]]:
    """``1.5-4 wave; 6-7.25 run`` as seconds and actions."""
    found = []
    for part in filter(None, map(str.strip, text.split(";"))):
        match = re.fullmatch(r"([\d.]+)\s*-\s*([\d.]+)\s+(.+)", part)
        if not match or not float(match[1]) < float(match[2]):
            raise VeilError(
                f"{path} says {part!r} in the segments of {name}; write START-END ACTION; …, in seconds"
            )
        found.append((float(match[1]), float(match[2]), match[3]))
    return sorted(found)


# Many processes


def _shared_out(
    dataset: Dataset,
    todo: Sequence[Sample],
    load: tuple[str | Encoder, str | Path | None, str],
    asked: dict[str, Any],
    workers: int,
) -> Generator[Features | Failed]:
    """The features of samples, made by several processes; in the order in which they come."""
    size = max(1, min(_CHUNK, -(-len(todo) // (4 * workers))))
    chunks = iter([todo[at : at + size] for at in range(0, len(todo), size)])
    pool = ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),  # neither torch nor Lance survive a fork
        _begin,
        (replace(dataset, samples=()), *load, asked, max(1, (os.cpu_count() or 1) // workers)),
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
            "a worker process ended of itself, perhaps for want of memory; what was done is kept: go on with --resume "
            "and fewer workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_job: tuple[Dataset, Encoder, dict[str, Any]] | None = None  # of a worker process, which has one all its life


def _begin(
    dataset: Dataset,
    encoder: str | Encoder,
    weights: str | Path | None,
    device: str,
    asked: dict[str, Any],
    threads: int,
) -> None:
    global _job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    end_with_parent()
    torch.set_num_threads(threads)
    _job = dataset, _encoder(encoder, weights, device), asked


def _work(samples: Sequence[Sample]) -> list[Any]:
    assert _job is not None
    dataset, encoder, asked = _job
    return [_packed(result) for result in each(dataset, samples, encoder, **asked)]


def _packed(result: Features | Failed) -> Any:
    """Without tensors, each of which would take a file descriptor on its way to another process."""
    if isinstance(result, Failed):
        return result.sample, str(result.why)
    return tuple(value.numpy() if isinstance(value, Tensor) else value for value in result)


def _unpacked(packed: Any) -> Features | Failed:
    if len(packed) == 2:
        return Failed(packed[0], VeilError(packed[1]))
    # Copied, since what a cluster hands over cannot be written to.
    values: list[Any] = [torch.tensor(part) if isinstance(part, np.ndarray) else part for part in packed]
    return Features(*values)


# A cluster


class FeatureWorker:
    """Makes the features of one video after the other, by an encoder that it loads once."""

    def __init__(
        self,
        dataset: Dataset,
        load: tuple[str | Encoder, str | Path | None, str],
        fingerprint: str,
        asked: Mapping[str, Any],
        threads: int | None,
    ) -> None:
        """``fingerprint``: of the weights that it must find; ``threads``: how many it may start [as many as it likes]."""
        if threads:
            torch.set_num_threads(threads)
        self._dataset, self._asked, self._encoder = dataset, asked, _encoder(*load)
        if self._encoder.fingerprint != fingerprint:
            raise VeilError(
                f"{load[1] or load[0]} holds other weights on {socket.gethostname()} than here "
                f"({self._encoder.fingerprint[:12]} and {fingerprint[:12]}): put the same file on all machines."
            )

    def __call__(self, sample: Sample) -> Any:
        """The features of a video, or why there are none, without tensors."""
        (result,) = each(self._dataset, [sample], self._encoder, **self._asked)
        return _packed(result)


def _in_cluster(
    dataset: Dataset,
    todo: Sequence[Sample],
    load: tuple[str | Encoder, str | Path | None, str],
    fingerprint: str,
    asked: Mapping[str, Any],
    address: str,
    workers: int | None,
    gpus: float,
) -> Generator[Features | Failed]:
    """The features of samples, made by the workers of a Ray cluster; in the order in which they come."""
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
        {**asked, "device": device},
        None if gpus else 1,
    )
    with closing(run_on_cluster(make, todo, address, workers, gpus)) as answers:
        for sample, answer in answers:
            if isinstance(answer, GivenUp):
                yield Failed(sample, VeilError(f"{sample.path or sample.id} was given up: {answer.why}"))
            else:
                yield _unpacked(answer)


# Anonymization


@dataclass(frozen=True)
class Anonymized:
    """What came of anonymizing a store."""

    store: Path
    videos: int
    clips: int
    seconds: float
    private: bool  # whether labels of people were kept

    def sentences(self) -> list[str]:
        """What to tell the user."""
        rate = f" ({self.clips / self.seconds:,.0f} clips a second)" if self.seconds > 0 else ""
        said = [f"{self.store}: {self.videos:,} videos, {self.clips:,} clips anonymized{rate}."]
        if not self.private:
            said.append(
                "Who the people are and what they look like was left out of the labels (--keep-private keeps it)."
            )
        return said


def anonymize_store(
    store: str | Path,
    run: str | Path | Latent,
    output: str | Path,
    *,
    device: str = "cpu",
    batch: int = 256,
    keep_private: bool = False,
    progress: Progress | None = None,
) -> Anonymized:
    """Write another store with the features of one after a latent anonymizer: the whole of it, or nothing.

    ``run`` is the folder of a training, or what it has learned. Identities, attributes and groups are left out of the new
    store unless they are to be kept, as an audit needs. A feature that comes out as no number is an error.
    """
    from veil.features.adapter import anonymized

    began, source, place = time.monotonic(), Store.open(store), Path(output)
    if place.exists():
        raise VeilError(f"{place} exists already; name another folder for the anonymized features")
    if source.about.anonymized is not None:
        raise VeilError(
            f"{source.folder} is anonymized already; give the store that `veil features extract` made"
        )
    adapter, mark = _adapter(run, source)
    if isinstance(adapter, torch.nn.Module):
        adapter = adapter.to(device)
    words = source.vocabulary
    about = replace(
        source.about,
        anonymized=mark,
        actions=words.actions,
        attributes=words.attributes if keep_private else (),
        identities=words.identities if keep_private else (),
    )
    draft = place.with_name(f".veil-{secrets.token_hex(6)}")
    done, clips = 0, 0
    try:
        target = Store.create(draft, about)
        with _Writer(target, words) as writer:
            for bank, lengths in source.scan(batch):
                veiled = anonymized(cast(Any, adapter), bank.to(device)).to("cpu")
                _refuse(bank, veiled, getattr(torch, about.dtype))
                for video in features_of(veiled, lengths):
                    sample = video.sample if keep_private else _unnamed(video.sample)
                    if (why := writer.add(video._replace(sample=sample))) is not None:
                        raise why
                done, clips = done + len(bank), clips + int(bank.counts.sum())
                if progress is not None:
                    progress(done, len(source))
        with io_errors(place, "written", advice="name another folder"):
            draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Anonymized(place, done, clips, time.monotonic() - began, keep_private)


def _adapter(run: str | Path | Latent, store: Store) -> tuple[Latent, str]:
    """A latent anonymizer for the features of a store, and the fingerprint of its weights."""
    from veil.features import splavu

    adapter = cast(Latent, splavu.load(run)) if isinstance(run, str | Path) else run
    about = store.about
    if (adapter.fingerprint, adapter.dim) != (about.fingerprint, about.dim):
        raise VeilError(
            f"the adapter was trained on features of {adapter.encoder} ({adapter.fingerprint[:12]}, {adapter.dim} numbers), "
            f"and {store.folder} holds those of {about.encoder} ({about.fingerprint[:12]}, {about.dim}); extract with its "
            "encoder"
        )
    if not isinstance(adapter, torch.nn.Module):
        raise TypeError(f"a latent anonymizer is a torch module, got {type(adapter).__name__}")
    told = hashlib.sha256()
    for name, value in sorted(adapter.state_dict().items()):
        told.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        told.update(value.cpu().contiguous().numpy().tobytes())
    return adapter, told.hexdigest()


def _refuse(raw: Bank, veiled: Bank, kept: torch.dtype) -> None:
    """Fail closed: features that are no numbers, or most of which are as they were, must not leave."""
    for before, after, there in (
        (raw.clips, veiled.clips, raw.mask),
        (raw.stills, veiled.stills, torch.ones(raw.stills.shape[:2], dtype=torch.bool)),
    ):
        finite = after.isfinite().flatten(1).all(1)
        if not bool(finite.all()):
            name = raw.samples[int((~finite).nonzero()[0])].id
            raise VeilError(
                f"the adapter makes features of {name} that are no numbers; nothing was written: train it again"
            )
        # A few may stay as they are: where a map takes one direction away, some have nothing in it.
        same = (before == after.to(kept).float()).all(2) & there
        if 2 * int(same.sum()) > int(there.sum()):
            name = raw.samples[int(same.any(1).nonzero()[0])].id
            raise VeilError(
                f"the adapter leaves most features as they are, such as those of {name}; nothing was written: train it"
            )


def _unnamed(sample: Sample) -> Sample:
    return replace(sample, identity=None, attributes=(), groups={})


# Search


def search_store(
    store: str | Path,
    like: str,
    *,
    top: int = 10,
    with_: str | Path | Latent | None = None,
    encoder: str | Encoder | None = None,
    weights: str | Path | None = None,
    split: str | None = None,
    action: str | None = None,
    person: str | None = None,
    groups: Mapping[str, str] | None = None,
    device: str = "cpu",
) -> list[Hit]:
    """The videos of a store that are like a video file or like one of its own, nearest first.

    A file is encoded as the store's were; where those are anonymized, it goes through the same adapter, whose run is
    ``with_``.
    """
    if top < 1:
        raise VeilError(f"the first {top} are none; ask for 1 or more")
    found = Store.open(store)
    own = None
    if Path(like).is_file():
        vector = _like(found, Path(like), with_, encoder, weights, device)
    elif like in found:
        own, vector = like, found.mean(like)
    else:
        raise VeilError(f"{like} is neither a file nor a video in {found.folder}; check the name")
    return found.nearest(
        vector, top, split=split, action=action, identity=person, groups=groups, leave_out=own
    )


def _like(
    store: Store,
    path: Path,
    run: str | Path | Latent | None,
    encoder: str | Encoder | None,
    weights: str | Path | None,
    device: str,
) -> Tensor:
    """The mean of the clips of a file, made as the store's features were."""
    about = store.about
    if (about.anonymized is None) != (run is None):
        why = (
            "is not anonymized; leave out --with"
            if run
            else "is anonymized; name the run that did it with --with"
        )
        raise VeilError(f"{store.folder} {why}")
    adapter, mark = (None, None) if run is None else _adapter(run, store)
    if mark != about.anonymized:
        raise VeilError(
            f"{store.folder} was anonymized by weights {str(about.anonymized)[:12]}, and --with has {str(mark)[:12]}; "
            "name the run that did it"
        )
    made = _encoder(encoder or about.encoder, weights, device)
    if (made.fingerprint, made.dim) != (about.fingerprint, about.dim):
        raise VeilError(
            f"{store.folder} holds features of {about.encoder} ({about.fingerprint[:12]}), and this encoder is "
            f"{made.name} ({made.fingerprint[:12]}); give its weights"
        )
    dataset = Dataset("videos", [Sample(path.name, "test", path)], read_frames)
    (result,) = each(dataset, dataset.samples, made, stride=about.stride, stills=0, device=device)
    if isinstance(result, Failed):
        raise result.why
    if adapter is None:
        return result.clips.mean(0)
    from veil.features.adapter import anonymized

    bank = collected([result], made.name, made.fingerprint, made.dim)
    return anonymized(cast(Any, adapter), bank).clips[0].mean(0)


# What is in a store


class Told(NamedTuple):
    """What there is to say of a store, for people and for programs."""

    lines: list[str]
    values: dict[str, Any]


def describe_store(store: str | Path) -> Told:
    """Whose features a store holds, how many, and what is known of the videos."""
    found = Store.open(store)
    about, totals = found.about, found.totals()
    whose = f"{about.encoder} ({about.fingerprint[:12]}), {about.dim} numbers as {about.dtype}"
    veiled = (
        "as the encoder made them" if about.anonymized is None else f"anonymized by {about.anonymized[:12]}"
    )
    lines = [
        f"videos      {totals['videos']:,} of {totals['seconds'] / 3600:,.2f} hours, {totals['clips']:,} clips, "
        f"{about.stills} static clips each",
        f"encoder     {whose}",
        f"features    {veiled}",
        f"on disk     {totals['bytes'] / 1e6:,.1f} MB",
    ]
    for name, plural in (("split", "splits"), ("action", "actions"), ("identity", "people")):
        most = sorted(totals[name].items(), key=lambda pair: (-pair[1], pair[0]))
        if most:
            shown = ", ".join(f"{label} {count:,}" for label, count in most[:8])
            lines.append(f"{plural:<11} {shown}{', …' if len(most) > 8 else ''}")
    return Told(lines, {**{k: getattr(about, k) for k in _ABOUT}, **totals})


_ABOUT = ("encoder", "fingerprint", "dim", "dtype", "stills", "stride", "anonymized")
