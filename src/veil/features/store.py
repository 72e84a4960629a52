"""Features on disk: a folder that is appended to for years, survives being killed, and is searched by similarity.

The folder is a Lance table of one row for each video: its id, its labels by their names, its clips and static clips, when each
clip begins, and the mean of its clips for search. Which encoder made the features (name, fingerprint, size) is in the
table's metadata, and nothing else can be added. An append is there as a whole or not at all; writers are serialized by a lock
that the system releases when a process dies. How clips are read at random: `veil.features.clip_map`.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args

import numpy as np
import torch
from torch import Tensor

from veil.core import VeilError, io_errors
from veil.data.sample import Split
from veil.features.bank import Bank, LabelNames, VideoFeatures, Vocabulary
from veil.features.clip_map import ClipMap
from veil.features.store_table import (
    DATA_COLUMNS,
    FORMAT,
    LABEL_COLUMNS,
    METADATA_KEY,
    DType,
    StoreInfo,
    distinct,
    groups_of,
    import_lance,
    split_batch,
    store_schema,
    to_bank,
    to_table,
)

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = (
    "2.0"  # of Lance's files: clips are not compressed and not mixed with marks, so that they can be mapped
)
_BATCH = 256  # videos that are read at once


class ClipBatch(NamedTuple):
    """Clips of some videos."""

    clips: Tensor  # (B, N, D) as stored, zeros after a video's last clip
    counts: Tensor  # (B,) int64


class SearchHit(NamedTuple):
    """A video that is similar to another."""

    id: str
    score: float  # cosine of the angle between the means of the clips
    split: str
    action: str | None
    identity: str | None
    groups: Mapping[str, str]


class Store:
    """A folder of features."""

    def __init__(self, folder: Path, dataset: Any, info: StoreInfo) -> None:
        self.folder, self.info = folder, info
        self._dataset = dataset
        self._known_fragments: dict[int, None] = {}  # fragments whose ids are known
        self._ids: dict[str, int] = {}
        self._label_names: tuple[int, LabelNames] | None = None
        self._map: tuple[int, ClipMap] | None = None

    def __reduce__(self) -> Any:  # for worker processes, which open it anew
        return type(self).open, (self.folder,)

    @classmethod
    def create(cls, folder: str | Path, info: StoreInfo) -> Self:
        """An empty store; the folder must not be there yet."""
        folder = Path(folder)
        lance, pa = import_lance()
        if info.dtype not in get_args(DType):
            raise VeilError(
                f"features cannot be kept as {info.dtype!r}: choose float16 or float32.", code="store-dtype"
            )
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise VeilError(
                f"{folder} exists already: add to it, or name another folder.", code="store-exists"
            )
        draft = folder.with_name(f".veil-{secrets.token_hex(6)}")
        try:
            with _store_errors(folder, "written"):
                folder.parent.mkdir(parents=True, exist_ok=True)
                lance.write_dataset(
                    pa.Table.from_batches([], store_schema(info)), draft, data_storage_version=_VERSION
                )
                draft.replace(folder)  # another writer may have been faster: then this fails
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """The store in a folder."""
        folder = Path(folder)
        lance, _ = import_lance()
        if not folder.is_dir():
            raise VeilError(
                f"{folder} is not a folder of features: make one with `veil features extract VIDEOS -o {folder}`.",
                code="store-missing",
            )
        try:
            dataset = lance.dataset(folder)
            metadata = json.loads((dataset.schema.metadata or {})[METADATA_KEY])
            version = metadata.pop("format")
            known = {field.name for field in fields(StoreInfo)}
            given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in metadata.items()}
            info = StoreInfo(**{name: value for name, value in given.items() if name in known})
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise VeilError(
                f"{folder} is not a store of features, or a damaged one ({_first_line(error)}): name a folder that "
                "`veil features extract` made.",
                code="store-damaged",
            ) from error
        if version != FORMAT:
            raise VeilError(
                f"{folder} is of format {version}, and this Veil reads {FORMAT}: update Veil.",
                code="store-format",
            )
        return cls(folder, dataset, info)

    def __len__(self) -> int:
        return self._dataset.count_rows()

    def __contains__(self, name: object) -> bool:
        return name in self._rows_by_id()

    @property
    def ids(self) -> list[str]:
        """The videos, in the order of their rows."""
        return list(self._rows_by_id())

    @property
    def vocabulary(self) -> LabelNames:
        """The names of labels: first those the store was made with, then later ones."""
        if self._label_names is None or self._label_names[0] != self._dataset.version:
            found: dict[str, set[str]] = {"actions": set(), "attributes": set(), "identities": set()}
            columns = ["action", "identity", "attributes", "segments"]
            for batch in self._rows(columns, 4096):
                found["actions"].update(filter(None, batch["action"].unique().to_pylist()))
                found["identities"].update(filter(None, batch["identity"].unique().to_pylist()))
                found["attributes"].update(distinct(batch["attributes"], "name"))
                found["actions"].update(distinct(batch["segments"], "action"))
            words = {
                name: (*(first := getattr(self.info, name)), *sorted(names.difference(first)))
                for name, names in found.items()
            }
            self._label_names = self._dataset.version, LabelNames(**words)
        return self._label_names[1]

    def refresh(self) -> Self:
        """Include what other processes have added since."""
        with _store_errors(self.folder, "read"):
            self._dataset.checkout_latest()
        return self

    def append(self, videos: Iterable[VideoFeatures], vocabulary: Vocabulary, *, skip: bool = False) -> int:
        """Add videos, all of them or none; how many. One that is there already is an error, or is skipped.

        Labels are numbers in ``vocabulary``, and are kept by their names.
        """
        lance, _ = import_lance()
        new = {}
        for video in videos:
            if video.sample.id in new:
                raise VeilError(
                    f"{video.sample.id} is given twice: give every video an id of its own.",
                    code="video-duplicate",
                )
            new[video.sample.id] = video
        self.check([*new.values()])
        with self._write_lock():
            known = self.refresh()._rows_by_id()
            present = [name for name in new if name in known]
            if present and not skip:
                raise VeilError(
                    f"{present[0]} is in {self.folder} already: leave it out, or pass --resume.",
                    code="video-stored",
                )
            rows = [video for name, video in new.items() if name not in known]
            if rows:
                table = to_table(rows, vocabulary, self.info)
                with _store_errors(self.folder, "written"):
                    self._dataset = lance.write_dataset(
                        table, self._dataset, mode="append", data_storage_version=_VERSION
                    )
        return len(rows)

    def read(self, indices: Sequence[int] | np.ndarray | Tensor) -> ClipBatch:
        """The clips of the videos in these rows: what training samples from, as fast as a memory map."""
        rows = np.asarray(indices, np.int64)
        if self._map is None or self._map[0] != self._dataset.version:
            with _store_errors(self.folder, "read"):
                self._map = self._dataset.version, ClipMap(self._dataset, self.folder, self.info)
        found = self._map[1]
        flat, dim = found.read(rows), self.info.dim
        if found.same is not None:
            clips = flat.reshape(len(rows), found.same, dim)
            return ClipBatch(torch.from_numpy(clips), torch.full((len(rows),), found.same))
        counts = found.counts[rows]
        clips = np.zeros((len(rows), counts.max(initial=0), dim), self.info.dtype)
        clips[np.arange(clips.shape[1]) < counts[:, None]] = flat
        return ClipBatch(torch.from_numpy(clips), torch.from_numpy(counts))

    def batches(self, size: int = _BATCH, split: Split | None = None) -> Iterator[Bank]:
        """All videos or those of a split, in order and a few at a time: memory does not grow with their number."""
        for bank, _ in self.scan(size, split):
            yield bank

    def scan(self, size: int = _BATCH, split: Split | None = None) -> Iterator[tuple[Bank, list[float]]]:
        """The same as `batches`, and of each video the seconds that a clip covers."""
        words, where = self.vocabulary, None if split is None else f"split = {_quoted(split)}"
        for batch in self._rows([*LABEL_COLUMNS, *DATA_COLUMNS], size, where):
            for part in split_batch(batch):
                yield to_bank(part, self.info, words), part["length"].to_pylist()

    def bank(self, split: Split | None = None) -> Bank:
        """All videos or those of a split, in memory."""
        banks, words = [*self.batches(split=split)], self.vocabulary
        most = max([0, *(bank.clips.shape[1] for bank in banks)])
        count, dim = sum(map(len, banks)), self.info.dim
        clips, starts = torch.zeros(count, most, dim), torch.zeros(count, most)
        at = 0
        for bank in banks:
            here = slice(at, at + len(bank))
            clips[here, : bank.clips.shape[1]], starts[here, : bank.clips.shape[1]] = bank.clips, bank.starts
            at += len(bank)
        return Bank(
            encoder=self.info.encoder,
            fingerprint=self.info.mark,
            samples=tuple(sample for bank in banks for sample in bank.samples),
            clips=clips,
            counts=torch.cat([torch.zeros(0, dtype=torch.long), *(bank.counts for bank in banks)]),
            starts=starts,
            seconds=torch.cat([torch.zeros(0), *(bank.seconds for bank in banks)]),
            length=banks[0].length if banks else 0.0,
            stills=torch.cat([torch.zeros(0, self.info.stills, dim), *(bank.stills for bank in banks)]),
            actions=words.actions,
            attributes=words.attributes,
            identities=words.identities,
        )

    def mean(self, name: str) -> Tensor:
        """The mean of a video's clips ``(D,)``, by which it is found."""
        with _store_errors(self.folder, "read"):
            found = self._dataset.to_table(columns=["mean"], filter=f"id = {_quoted(name)}")
        if not found.num_rows:
            raise VeilError(f"{self.folder} has no video {name!r}: check its id.", code="video-unknown")
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
    ) -> list[SearchHit]:
        """The videos whose mean is most similar to a vector ``(D,)`` by cosine, of those with these labels."""
        if tuple(vector.shape) != (self.info.dim,):
            raise VeilError(
                f"{self.folder} holds features of {self.info.dim} numbers, and these are {len(vector)}: use its encoder.",
                code="features-shape",
            )
        for name, value in (("action", action), ("identity", identity)):
            words = self.vocabulary.actions if name == "action" else self.vocabulary.identities
            if value is not None and value not in words:
                raise VeilError(
                    f"no video in {self.folder} has the {name} {value!r}: choose one of {_some(words)}.",
                    code="label-unknown",
                )
        wanted = {"split": split, "action": action, "identity": identity}
        where = [f"{name} = {_quoted(value)}" for name, value in wanted.items() if value is not None]
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
            SearchHit(
                row["id"],
                1 - row["_distance"],
                row["split"],
                row["action"],
                row["identity"],
                groups_of(row["groups"]),
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

    def _rows_by_id(self) -> dict[str, int]:
        """The row of every id; only what is new since the last time is read."""
        fragments = self._dataset.get_fragments()
        new = [fragment for fragment in fragments if fragment.fragment_id not in self._known_fragments]
        for fragment in new:
            with _store_errors(self.folder, "read"):
                names = fragment.to_table(columns=["id"])["id"].to_pylist()
            for name in names:
                self._ids[name] = len(self._ids)
            self._known_fragments[fragment.fragment_id] = None
        return self._ids

    def check(self, videos: Sequence[VideoFeatures]) -> None:
        """Refuse features that cannot be kept here, by the first video that has some."""
        dim, stills = self.info.dim, (self.info.stills, self.info.dim)
        for video in videos:
            if video.clips.ndim != 2 or video.clips.shape[1] != dim or not len(video.clips):
                raise VeilError(
                    f"the features of {video.sample.id} are {tuple(video.clips.shape)}, and {self.folder} holds "
                    f"(clips, {dim}): use its encoder.",
                    code="features-shape",
                )
            if tuple(video.stills.shape) != stills:
                raise VeilError(
                    f"{video.sample.id} has static clips of {tuple(video.stills.shape)}, and {self.folder} holds "
                    f"{stills}: extract the same number.",
                    code="features-shape",
                )
        if not videos or self._finite(videos):
            return
        worst = next(video for video in videos if not self._finite([video]))
        if bool(torch.cat([worst.clips, worst.stills]).isfinite().all()):
            raise VeilError(
                f"a feature of {worst.sample.id} is {float(worst.clips.abs().max()):.3g}, more than float16 holds: "
                "make the store with float32.",
                code="store-dtype",
            )
        raise VeilError(
            f"the features of {worst.sample.id} are not finite: extract them again.",
            code="features-not-finite",
        )

    def _finite(self, videos: Sequence[VideoFeatures]) -> bool:
        kept = torch.cat([part for video in videos for part in (video.clips, video.stills)])
        return bool(kept.to(getattr(torch, self.info.dtype)).isfinite().all())

    @contextmanager
    def _write_lock(self) -> Iterator[None]:
        """Wait until no other process adds anything; the system releases the lock of one that dies."""
        with _store_errors(self.folder, "written"):
            lock = (self.folder / "veil.lock").open("wb")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "none"


def _first_line(error: Exception) -> str:
    message = (str(error).splitlines() or [type(error).__name__])[0]
    return message.split(", /")[0][:200]  # Lance adds where in its own source


def _store_errors(folder: Path, action: str) -> AbstractContextManager[None]:
    """Turn what Lance and the system raise into one sentence."""
    advice = "check the disk, and that the folder is complete"
    return io_errors(
        folder, action, advice=advice, code="store-io", errors=(OSError, ValueError, RuntimeError)
    )
