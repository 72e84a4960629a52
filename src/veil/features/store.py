"""Features on disk: a folder that is appended to for years, survives being killed, and is searched by likeness.

The folder is a Lance table of one row a video: its id, its labels by their names, its clips and static clips, when each
clip begins, and the mean of its clips for search. Whose features they are (encoder, fingerprint, size) stands in the
table's metadata, and nothing else can be added. An append is there as a whole or not at all; writers take turns by a lock
that the system lets go when a process dies.

Random reads do not go through Lance, which takes a call for each of them, but straight to where Lance has put the clips: in
a file of format 2.0 they lie one after the other as plain numbers. That is proved at the edges of every page when a store
is first read; where it is not so, Lance reads.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from torch import Tensor

from veil.core import VeilError, io_errors
from veil.data.sample import Sample, Segment, Split
from veil.features.bank import Bank, Features, Vocabulary, Words

if TYPE_CHECKING:
    import pyarrow as pa

DType = Literal["float16", "float32"]
_FORMAT = 1  # of the metadata
_KEY = b"veil.features"
_VERSION = (
    "2.0"  # of Lance's files: clips are not compressed and not mixed with marks, so that they can be mapped
)
_BATCH = 256  # videos that are read at once
_ROOM = 16384  # clips in memory at once, padded; more only where one video has more
_LABELS = ("id", "split", "action", "identity", "attributes", "groups", "segments")
_REST = ("starts", "seconds", "length", "clips", "stills")


@dataclass(frozen=True)
class About:
    """Whose features a store holds."""

    encoder: str  # its name
    fingerprint: str  # of its weights
    dim: int
    dtype: DType = "float16"
    stills: int = 0  # static clips of a video
    stride: int | None = None  # frames from one clip to the next
    actions: tuple[str, ...] = ()  # the order of labels; names that come later follow in alphabetical order
    attributes: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    anonymized: str | None = None  # the fingerprint of the adapter's weights; None: as the encoder made them

    @property
    def mark(self) -> str:
        """The fingerprint of what made the features: the encoder, and the adapter after it."""
        return self.fingerprint if self.anonymized is None else f"{self.fingerprint}+{self.anonymized}"

    def refuse(self, other: About, folder: Path) -> None:
        """Refuse features that are made otherwise than those in a folder."""
        for name in ("encoder", "fingerprint", "dim", "anonymized", "stills", "stride"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                what = {
                    "dim": "numbers a feature",
                    "stills": "static clips a video",
                    "stride": "frames a step",
                }
                raise VeilError(
                    f"{folder} holds features of {self.encoder} with {what.get(name, name)} {_short(mine)}, and these "
                    f"have {_short(theirs)} ({other.encoder}); they do not mix: use the same, or another folder"
                )


class Read(NamedTuple):
    """Clips of some videos."""

    clips: Tensor  # (B, N, D) as stored, zeros after a video's last clip
    counts: Tensor  # (B,) int64


class Hit(NamedTuple):
    """A video that is like another."""

    id: str
    score: float  # cosine of the angle between the means of the clips
    split: str
    action: str | None
    identity: str | None
    groups: Mapping[str, str]


class Store:
    """A folder of features."""

    def __init__(self, folder: Path, dataset: Any, about: About) -> None:
        self.folder, self.about = folder, about
        self._dataset = dataset
        self._seen: dict[int, None] = {}  # fragments whose ids are known
        self._ids: dict[str, int] = {}
        self._words: tuple[int, Words] | None = None
        self._map: tuple[int, _Map] | None = None

    def __reduce__(self) -> Any:  # for worker processes, which open it anew
        return type(self).open, (self.folder,)

    @classmethod
    def create(cls, folder: str | Path, about: About) -> Self:
        """An empty store; the folder must not be there yet."""
        folder = Path(folder)
        lance, pa = _lance()
        if about.dtype not in get_args(DType):
            raise VeilError(f"features cannot be kept as {about.dtype!r}; choose float16 or float32")
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise VeilError(f"{folder} exists already; add to it, or name another folder")
        draft = folder.with_name(f".veil-{secrets.token_hex(6)}")
        try:
            with _store_errors(folder, "written"):
                folder.parent.mkdir(parents=True, exist_ok=True)
                lance.write_dataset(
                    pa.Table.from_batches([], _schema(about)), draft, data_storage_version=_VERSION
                )
                draft.replace(folder)  # another writer may have been faster: then this fails
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """The store in a folder."""
        folder = Path(folder)
        lance, _ = _lance()
        if not folder.is_dir():
            raise VeilError(
                f"{folder} is no folder of features; `veil features extract VIDEOS -o {folder}` makes one"
            )
        try:
            dataset = lance.dataset(folder)
            told = json.loads((dataset.schema.metadata or {})[_KEY])
            version = told.pop("format")
            known = {field.name for field in fields(About)}
            given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in told.items()}
            about = About(**{name: value for name, value in given.items() if name in known})
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise VeilError(
                f"{folder} is no store of features, or a damaged one ({_first_line(error)}); name a folder that "
                "`veil features extract` made"
            ) from error
        if version != _FORMAT:
            raise VeilError(f"{folder} is of format {version}, and this Veil reads {_FORMAT}; update Veil")
        return cls(folder, dataset, about)

    def __len__(self) -> int:
        return self._dataset.count_rows()

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    @property
    def ids(self) -> list[str]:
        """The videos, in the order of their rows."""
        return list(self._names())

    @property
    def vocabulary(self) -> Words:
        """What the numbers in labels mean: first what the store was made with, then what came later."""
        if self._words is None or self._words[0] != self._dataset.version:
            found: dict[str, set[str]] = {"actions": set(), "attributes": set(), "identities": set()}
            columns = ["action", "identity", "attributes", "segments"]
            for batch in self._rows(columns, 4096):
                found["actions"].update(filter(None, batch["action"].unique().to_pylist()))
                found["identities"].update(filter(None, batch["identity"].unique().to_pylist()))
                found["attributes"].update(_distinct(batch["attributes"], "name"))
                found["actions"].update(_distinct(batch["segments"], "action"))
            words = {
                name: (*(first := getattr(self.about, name)), *sorted(names.difference(first)))
                for name, names in found.items()
            }
            self._words = self._dataset.version, Words(**words)
        return self._words[1]

    def refresh(self) -> Self:
        """See what others have added since."""
        with _store_errors(self.folder, "read"):
            self._dataset.checkout_latest()
        return self

    def append(self, videos: Iterable[Features], vocabulary: Vocabulary, *, skip: bool = False) -> int:
        """Add videos, all of them or none; how many. One that is there already is an error, or is skipped.

        Labels are numbers in ``vocabulary``, and are kept by their names.
        """
        lance, _ = _lance()
        new = {}
        for video in videos:
            if video.sample.id in new:
                raise VeilError(f"{video.sample.id} is given twice; every video has an id of its own")
            new[video.sample.id] = video
        self.check([*new.values()])
        with self._turn():
            known = self.refresh()._names()
            there = [name for name in new if name in known]
            if there and not skip:
                raise VeilError(f"{there[0]} is in {self.folder} already; leave it out, or pass --resume")
            rows = [video for name, video in new.items() if name not in known]
            if rows:
                table = _table(rows, vocabulary, self.about)
                with _store_errors(self.folder, "written"):
                    self._dataset = lance.write_dataset(
                        table, self._dataset, mode="append", data_storage_version=_VERSION
                    )
        return len(rows)

    def read(self, indices: Sequence[int] | np.ndarray | Tensor) -> Read:
        """The clips of the videos in these rows: what training draws from, as fast as a memory map."""
        rows = np.asarray(indices, np.int64)
        if self._map is None or self._map[0] != self._dataset.version:
            with _store_errors(self.folder, "read"):
                self._map = self._dataset.version, _Map(self._dataset, self.folder, self.about)
        found = self._map[1]
        flat, dim = found.read(rows), self.about.dim
        if found.same is not None:
            clips = flat.reshape(len(rows), found.same, dim)
            return Read(torch.from_numpy(clips), torch.full((len(rows),), found.same))
        counts = found.counts[rows]
        clips = np.zeros((len(rows), counts.max(initial=0), dim), self.about.dtype)
        clips[np.arange(clips.shape[1]) < counts[:, None]] = flat
        return Read(torch.from_numpy(clips), torch.from_numpy(counts))

    def batches(self, size: int = _BATCH, split: Split | None = None) -> Iterator[Bank]:
        """All videos or those of a split, in order and a few at a time: memory does not grow with their number."""
        for bank, _ in self.scan(size, split):
            yield bank

    def scan(self, size: int = _BATCH, split: Split | None = None) -> Iterator[tuple[Bank, list[float]]]:
        """The same as `batches`, and of each video the seconds that a clip covers."""
        words, where = self.vocabulary, None if split is None else f"split = {_quoted(split)}"
        for batch in self._rows([*_LABELS, *_REST], size, where):
            for part in _parts(batch):
                yield _bank(part, self.about, words), part["length"].to_pylist()

    def bank(self, split: Split | None = None) -> Bank:
        """All videos or those of a split, in memory."""
        banks, words = [*self.batches(split=split)], self.vocabulary
        most = max([0, *(bank.clips.shape[1] for bank in banks)])
        count, dim = sum(map(len, banks)), self.about.dim
        clips, starts = torch.zeros(count, most, dim), torch.zeros(count, most)
        at = 0
        for bank in banks:
            here = slice(at, at + len(bank))
            clips[here, : bank.clips.shape[1]], starts[here, : bank.clips.shape[1]] = bank.clips, bank.starts
            at += len(bank)
        return Bank(
            encoder=self.about.encoder,
            fingerprint=self.about.mark,
            samples=tuple(sample for bank in banks for sample in bank.samples),
            clips=clips,
            counts=torch.cat([torch.zeros(0, dtype=torch.long), *(bank.counts for bank in banks)]),
            starts=starts,
            seconds=torch.cat([torch.zeros(0), *(bank.seconds for bank in banks)]),
            length=banks[0].length if banks else 0.0,
            stills=torch.cat([torch.zeros(0, self.about.stills, dim), *(bank.stills for bank in banks)]),
            actions=words.actions,
            attributes=words.attributes,
            identities=words.identities,
        )

    def mean(self, name: str) -> Tensor:
        """The mean of a video's clips ``(D,)``, by which it is found."""
        with _store_errors(self.folder, "read"):
            found = self._dataset.to_table(columns=["mean"], filter=f"id = {_quoted(name)}")
        if not found.num_rows:
            raise VeilError(f"{self.folder} has no video {name!r}; `veil features info` counts those it has")
        return torch.tensor(found["mean"][0].values.to_numpy())

    def nearest(
        self,
        vector: Tensor,
        top: int = 10,
        *,
        split: str | None = None,
        action: str | None = None,
        identity: str | None = None,
        groups: Mapping[str, str] | None = None,
        leave_out: str | None = None,
    ) -> list[Hit]:
        """The videos whose mean points the way of a vector ``(D,)`` most, of those that have these labels."""
        if tuple(vector.shape) != (self.about.dim,):
            raise VeilError(
                f"{self.folder} holds features of {self.about.dim} numbers, and these are {len(vector)}; use its encoder"
            )
        for name, value in (("action", action), ("identity", identity)):
            words = self.vocabulary.actions if name == "action" else self.vocabulary.identities
            if value is not None and value not in words:
                raise VeilError(f"no video in {self.folder} has the {name} {value!r}; it has {_some(words)}")
        told = {"split": split, "action": action, "identity": identity}
        where = [f"{name} = {_quoted(value)}" for name, value in told.items() if value is not None]
        where += [f"array_has(groups, {_quoted(f'{k}={v}')})" for k, v in (groups or {}).items()]
        where += [] if leave_out is None else [f"id != {_quoted(leave_out)}"]
        query = {"column": "mean", "q": vector.float().numpy(), "k": top, "metric": "cosine"}
        with _store_errors(self.folder, "searched"):
            found = self._dataset.to_table(
                columns=["id", "split", "action", "identity", "groups", "_distance"],
                nearest=query,
                filter=" AND ".join(where) or None,
                prefilter=True,
            )
        return [
            Hit(
                row["id"],
                1 - row["_distance"],
                row["split"],
                row["action"],
                row["identity"],
                _pairs(row["groups"]),
            )
            for row in found.to_pylist()
        ]

    def totals(self) -> dict[str, Any]:
        """How much there is: videos, clips, seconds, bytes, and how often each split, action and person."""
        counts: dict[str, dict[str, int]] = {"split": {}, "action": {}, "identity": {}}
        clips, seconds = 0, 0.0
        for batch in self._rows([*counts, "count", "seconds"], 4096):
            clips += int(np.sum(batch["count"].to_numpy()))
            seconds += float(np.sum(batch["seconds"].to_numpy()))
            for name, tally in counts.items():
                for entry in batch[name].value_counts().to_pylist():
                    if entry["values"] is not None:
                        tally[entry["values"]] = tally.get(entry["values"], 0) + entry["counts"]
        size = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        return {"videos": len(self), "clips": clips, "seconds": seconds, "bytes": size, **counts}

    def _rows(self, columns: list[str], size: int, where: str | None = None) -> Iterator[pa.RecordBatch]:
        """Rows in order and a few at a time, with no more read ahead than needed to keep on."""
        with _store_errors(self.folder, "read"):
            scan = iter(
                self._dataset.to_batches(
                    columns=columns,
                    filter=where,
                    batch_size=size,
                    batch_readahead=2,
                    fragment_readahead=1,
                    io_buffer_size=64 << 20,  # bytes
                )
            )
        while True:
            with _store_errors(self.folder, "read"):
                batch = next(scan, None)
            if batch is None:
                return
            yield batch

    def _names(self) -> dict[str, int]:
        """The row of every id; only what is new since the last time is read."""
        fragments = self._dataset.get_fragments()
        new = [fragment for fragment in fragments if fragment.fragment_id not in self._seen]
        for fragment in new:
            with _store_errors(self.folder, "read"):
                names = fragment.to_table(columns=["id"])["id"].to_pylist()
            for name in names:
                self._ids[name] = len(self._ids)
            self._seen[fragment.fragment_id] = None
        return self._ids

    def check(self, videos: Sequence[Features]) -> None:
        """Refuse features that cannot be kept here, by the first video that has some."""
        dim, stills = self.about.dim, (self.about.stills, self.about.dim)
        for video in videos:
            if video.clips.ndim != 2 or video.clips.shape[1] != dim or not len(video.clips):
                raise VeilError(
                    f"the features of {video.sample.id} are {tuple(video.clips.shape)}, and {self.folder} holds "
                    f"(clips, {dim}); use its encoder"
                )
            if tuple(video.stills.shape) != stills:
                raise VeilError(
                    f"{video.sample.id} has static clips of {tuple(video.stills.shape)}, and {self.folder} holds "
                    f"{stills}; extract the same number"
                )
        if not videos or self._finite(videos):
            return
        worst = next(video for video in videos if not self._finite([video]))
        if bool(torch.cat([worst.clips, worst.stills]).isfinite().all()):
            raise VeilError(
                f"a feature of {worst.sample.id} is {float(worst.clips.abs().max()):.3g}, more than float16 holds; "
                "make the store with float32"
            )
        raise VeilError(
            f"the features of {worst.sample.id} are not all numbers (NaN or infinite); extract them again"
        )

    def _finite(self, videos: Sequence[Features]) -> bool:
        kept = torch.cat([part for video in videos for part in (video.clips, video.stills)])
        return bool(kept.to(getattr(torch, self.about.dtype)).isfinite().all())

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other process adds anything; the system ends the turn of one that dies."""
        with _store_errors(self.folder, "written"):
            lock = (self.folder / "veil.lock").open("wb")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class _Map:
    """Where the clips of every row lie in the files."""

    def __init__(self, dataset: Any, folder: Path, about: About) -> None:
        self._dataset, self._dim, self._dtype = dataset, about.dim, np.dtype(about.dtype)
        self._files = [memoryview(b"")]  # so that there is a file where none can be mapped
        counted = (_ints(batch["count"]) for batch in dataset.to_batches(columns=["count"]))
        self.counts = np.concatenate([np.zeros(0, np.int64), *counted])
        most = int(self.counts.max(initial=0))
        self.same = (
            most if len(self.counts) and int(self.counts.min()) == most else None
        )  # clips of every video
        # In which file each row lies, and its bytes there; file -1: on two pages, or Lance reads it.
        self._file = np.full(len(self.counts), -1)
        self._begin, self._end = np.zeros((2, len(self.counts)), np.int64)
        self._two: dict[int, list[memoryview]] = {}  # the rows that lie on two pages or more
        at, proofs = 0, []
        for fragment in dataset.get_fragments():
            rows = slice(at, at + fragment.count_rows())
            proofs += self._add(fragment, folder, rows)
            at = rows.stop
        self._prove(proofs)

    def _add(self, fragment: Any, folder: Path, rows: slice) -> list[int]:
        """Learn where the rows of a fragment lie; those by which that can be proved."""
        from lance.file import LanceFileReader

        files = fragment.data_files()
        if fragment.num_deletions or len(files) != 1:
            return []
        path = folder / "data" / files[0].path
        fields = self._dataset.lance_schema.fields()
        clips = next(field for field in fields if field.name() == "clips").children()[0].id()
        columns = dict(zip(files[0].fields, files[0].column_indices, strict=True))
        if clips not in columns:
            return []
        pages = LanceFileReader(str(path)).metadata().columns[columns[clips]].pages
        width = self._dim * self._dtype.itemsize
        buffers = [page.buffers[0] for page in pages if len(page.buffers) == 1]
        sizes = np.array([buffer.size for buffer in buffers], np.int64)
        spans = self.counts[rows] * width
        if len(buffers) != len(pages) or (sizes % width).any() or sizes.sum() != spans.sum():
            return []
        with path.open("rb") as opened:
            file = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        if any(buffer.position + buffer.size > len(file) for buffer in buffers):
            raise ValueError(f"{path.name} is cut off")
        places = np.array([buffer.position for buffer in buffers], np.int64)
        ends = np.cumsum(sizes)
        begins = np.cumsum(spans) - spans  # as if the pages followed each other
        first, last = (np.searchsorted(ends, at, side="right") for at in (begins, begins + spans - 1))
        self._begin[rows] = places[first] + begins - (ends - sizes)[first]
        self._end[rows] = self._begin[rows] + spans
        self._file[rows] = np.where(first == last, len(self._files), -1)
        self._files.append(file)
        crossing = np.flatnonzero(first != last).tolist()
        for row in crossing:
            pieces = []
            for page in range(first[row], last[row] + 1):
                start = int(ends[page] - sizes[page])
                begin = max(int(begins[row]) - start, 0)
                end = min(int(begins[row] + spans[row]) - start, int(sizes[page]))
                pieces.append(file[int(places[page]) + begin : int(places[page]) + end])
            self._two[rows.start + row] = pieces
        edges = np.flatnonzero(np.diff(first, prepend=-1)).tolist()  # the first rows of pages
        return [
            rows.start + row
            for row in sorted({*edges, *(e - 1 for e in edges if e), *crossing, len(spans) - 1})
        ]

    def _prove(self, rows: list[int]) -> None:
        """What the map finds at the edges of every page must be what Lance reads there; else Lance reads everything."""
        for at in range(0, len(rows), 512):
            some = np.array(rows[at : at + 512])
            if self.read(some).tobytes() != self._taken(some).tobytes():
                self._file[:] = -1
                self._two.clear()
                return

    def read(self, rows: np.ndarray) -> np.ndarray:
        """The clips of rows one after the other, ``(clips, D)``."""
        files, which = self._files, self._file[rows]
        places = zip(which.tolist(), self._begin[rows].tolist(), self._end[rows].tolist(), strict=True)
        parts: list[memoryview | bytes] = [files[file][begin:end] for file, begin, end in places]
        if int(which.min(initial=0)) < 0:
            self._complete(parts, rows)
        # A join copies bytes and nothing else: it takes as long as numpy's own look-up in a memory map.
        return np.frombuffer(bytearray().join(parts), self._dtype).reshape(-1, self._dim)

    def _complete(self, parts: list[memoryview | bytes], rows: np.ndarray) -> None:
        """Put in the rows that do not lie in one piece."""
        rows = rows % len(self.counts)
        apart = [(place, int(rows[place])) for place in np.flatnonzero(self._file[rows] < 0).tolist()]
        stray = [(place, row) for place, row in apart if row not in self._two]
        if stray:
            taken = self._taken(np.array([row for _, row in stray]))
            ends = np.cumsum([self.counts[row] for _, row in stray])
            for (place, _), vectors in zip(stray, np.split(taken, ends[:-1]), strict=True):
                parts[place] = vectors.tobytes()
        for place, row in apart:
            if row in self._two:
                parts[place] = b"".join(self._two[row])

    def _taken(self, rows: np.ndarray) -> np.ndarray:
        column = self._dataset.take(rows.tolist(), columns=["clips"])["clips"]
        return np.concatenate([_vectors(chunk, self._dim) for chunk in column.chunks])


def _schema(about: About) -> pa.Schema:
    _, pa = _lance()
    number = pa.float16() if about.dtype == "float16" else pa.float32()
    vectors = pa.list_(pa.field("item", pa.list_(pa.field("item", number), about.dim), nullable=False))
    value = pa.struct([pa.field("name", pa.string()), pa.field("value", pa.float32())])
    part = pa.struct(
        [pa.field("start", pa.float32()), pa.field("end", pa.float32()), pa.field("action", pa.string())]
    )
    columns = {
        "id": pa.string(),
        "split": pa.string(),
        "action": pa.string(),
        "identity": pa.string(),
        "attributes": pa.list_(value),
        "groups": pa.list_(pa.string()),  # name=value
        "segments": pa.list_(part),
        "seconds": pa.float32(),
        "length": pa.float32(),
        "count": pa.int32(),
        "starts": pa.list_(pa.float32()),
        "clips": vectors,
        "stills": vectors,
        "mean": pa.list_(pa.float32(), about.dim),
    }
    names = {"action", "identity"}  # may be unknown
    told = json.dumps({"format": _FORMAT, **asdict(about)}).encode()
    return pa.schema(
        [pa.field(name, kind, nullable=name in names) for name, kind in columns.items()], {_KEY: told}
    )


def _table(videos: Sequence[Features], words: Vocabulary, about: About) -> pa.Table:
    """Videos as rows."""
    _, pa = _lance()
    schema = _schema(about)
    samples = [video.sample for video in videos]
    counts = [len(video.clips) for video in videos]

    def vectors(kind: str, parts: Sequence[Tensor]) -> pa.Array:
        flat = torch.cat([*parts]).to(getattr(torch, about.dtype)).numpy().reshape(-1)
        ends = np.cumsum([0, *map(len, parts)]).astype(np.int32)
        return pa.ListArray.from_arrays(
            ends,
            pa.FixedSizeListArray.from_arrays(pa.array(flat), type=schema.field(kind).type.value_type),
            type=schema.field(kind).type,
        )

    means = torch.stack([video.clips.float().mean(0) for video in videos]).numpy()
    columns: dict[str, Any] = {
        "id": [sample.id for sample in samples],
        "split": [sample.split for sample in samples],
        "action": [None if s.action is None else words.actions[s.action] for s in samples],
        "identity": [None if s.identity is None else words.identities[s.identity] for s in samples],
        "attributes": [
            [
                {"name": name, "value": value}
                for name, value in zip(words.attributes, s.attributes, strict=False)
                if not math.isnan(value)
            ]
            for s in samples
        ],
        "groups": [[f"{name}={value}" for name, value in s.groups.items()] for s in samples],
        "segments": [
            [{"start": p.start, "end": p.end, "action": words.actions[p.label]} for p in s.segments]
            for s in samples
        ],
        "seconds": [video.seconds for video in videos],
        "length": [video.length for video in videos],
        "count": counts,
        "starts": [video.starts.tolist() for video in videos],
        "clips": vectors("clips", [video.clips for video in videos]),
        "stills": vectors("stills", [video.stills for video in videos]),
        "mean": pa.FixedSizeListArray.from_arrays(pa.array(means.reshape(-1)), about.dim),
    }
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, schema.field(name).type)
        for name, values in columns.items()
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows in parts that stay small when they are padded to the longest video."""
    counts = batch["clips"].value_lengths().to_pylist()
    begin, most = 0, 0
    for row, count in enumerate(counts):
        most = max(most, count)
        if row > begin and (row + 1 - begin) * most > _ROOM:
            yield batch.slice(begin, row - begin)
            begin, most = row, count
    if counts:
        yield batch.slice(begin)


def _bank(batch: pa.RecordBatch, about: About, words: Vocabulary) -> Bank:
    """Rows as a bank."""
    lengths = _ints(batch["clips"].value_lengths())
    kept = np.arange(lengths.max(initial=0)) < lengths[:, None]  # (V, N)
    clips = np.zeros((*kept.shape, about.dim), np.float32)
    clips[kept] = _vectors(batch["clips"], about.dim)
    starts = np.zeros(kept.shape, np.float32)
    starts[kept] = batch["starts"].flatten().to_numpy()
    stills = _vectors(batch["stills"], about.dim).astype(np.float32)
    actions, people = (
        {name: place for place, name in enumerate(names)} for names in (words.actions, words.identities)
    )
    samples = []
    for row in batch.select(list(_LABELS)).to_pylist():
        values = {pair["name"]: pair["value"] for pair in row["attributes"]}
        samples.append(
            Sample(
                row["id"],
                row["split"],
                action=actions.get(row["action"]),
                attributes=tuple(values.get(name, math.nan) for name in words.attributes) if values else (),
                identity=people.get(row["identity"]),
                groups=_pairs(row["groups"]),
                segments=tuple(Segment(p["start"], p["end"], actions[p["action"]]) for p in row["segments"]),
            )
        )
    return Bank(
        encoder=about.encoder,
        fingerprint=about.mark,
        samples=tuple(samples),
        clips=torch.from_numpy(clips),
        counts=torch.from_numpy(lengths),
        starts=torch.from_numpy(starts),
        seconds=torch.tensor(batch["seconds"].to_numpy()),
        length=float(batch["length"][0].as_py()),
        stills=torch.from_numpy(stills).reshape(len(samples), about.stills, about.dim),
        actions=words.actions,
        attributes=words.attributes,
        identities=words.identities,
    )


def features_of(bank: Bank, lengths: Sequence[float] | None = None) -> Iterator[Features]:
    """The videos of a bank one by one, as a store takes them; ``lengths`` are seconds of a clip, where they differ."""
    for place, sample in enumerate(bank.samples):
        count = int(bank.counts[place])
        yield Features(
            sample,
            bank.clips[place, :count],
            bank.starts[place, :count],
            float(bank.seconds[place]),
            bank.length if lengths is None else lengths[place],
            bank.stills[place],
        )


def _vectors(column: Any, dim: int) -> np.ndarray:
    """Lists of vectors as one array ``(clips, D)``."""
    return column.flatten().flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)


def _ints(column: Any) -> np.ndarray:
    return column.to_numpy(zero_copy_only=False).astype(np.int64)


def _distinct(column: Any, field: str) -> list[str]:
    return column.flatten().field(field).unique().to_pylist()


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    """name=value, as groups are kept, so that they can be searched for."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "none"


def _short(value: object) -> str:
    return value[:16] if isinstance(value, str) else str(value)


def _first_line(error: Exception) -> str:
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return said.split(", /")[0][:200]  # Lance adds where in its own source


def _store_errors(folder: Path, action: str) -> AbstractContextManager[None]:
    """Turn what Lance and the system raise into one sentence."""
    advice = "check the disk, and that the folder is whole"
    return io_errors(folder, action, advice=advice, errors=(OSError, ValueError, RuntimeError))


def _lance() -> tuple[Any, Any]:
    """Lance and Arrow, which come with an extra."""
    try:
        import lance
        import pyarrow as pa
    except ImportError as error:
        raise VeilError(
            "features on disk need Lance, which is not installed; pip install 'veil-video[features]'"
        ) from error
    return lance, pa
