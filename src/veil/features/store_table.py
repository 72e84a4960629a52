"""The table of a store: its schema, and how videos become rows and rows become a bank."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from veil.core import VeilError, missing_extra
from veil.data.sample import Sample, Segment
from veil.features.bank import Bank, VideoFeatures, Vocabulary

if TYPE_CHECKING:
    import pyarrow as pa

DType = Literal["float16", "float32"]
FORMAT = 1  # of the metadata
METADATA_KEY = b"veil.features"
_MAX_CLIPS = 16384  # clips in memory at once, padded; more only where one video has more
LABEL_COLUMNS = ("id", "split", "action", "identity", "attributes", "groups", "segments")
DATA_COLUMNS = ("starts", "seconds", "length", "clips", "stills")


@dataclass(frozen=True)
class StoreInfo:
    """Which features a store holds."""

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

    def refuse(self, other: StoreInfo, folder: Path) -> None:
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
                    f"have {_short(theirs)} ({other.encoder}); they do not mix: use the same, or another folder.",
                    code="features-do-not-mix",
                )


def store_schema(info: StoreInfo) -> pa.Schema:
    """The columns of a store's table."""
    _, pa = import_lance()
    number = pa.float16() if info.dtype == "float16" else pa.float32()
    vectors = pa.list_(pa.field("item", pa.list_(pa.field("item", number), info.dim), nullable=False))
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
        "mean": pa.list_(pa.float32(), info.dim),
    }
    names = {"action", "identity"}  # may be unknown
    metadata = json.dumps({"format": FORMAT, **asdict(info)}).encode()
    return pa.schema(
        [pa.field(name, kind, nullable=name in names) for name, kind in columns.items()],
        {METADATA_KEY: metadata},
    )


def to_table(videos: Sequence[VideoFeatures], words: Vocabulary, info: StoreInfo) -> pa.Table:
    """Videos as rows."""
    _, pa = import_lance()
    schema = store_schema(info)
    samples = [video.sample for video in videos]
    counts = [len(video.clips) for video in videos]

    def vectors(kind: str, parts: Sequence[Tensor]) -> pa.Array:
        flat = torch.cat([*parts]).to(getattr(torch, info.dtype)).numpy().reshape(-1)
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
        "mean": pa.FixedSizeListArray.from_arrays(pa.array(means.reshape(-1)), info.dim),
    }
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, schema.field(name).type)
        for name, values in columns.items()
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows in parts that stay small when they are padded to the longest video."""
    counts = batch["clips"].value_lengths().to_pylist()
    begin, most = 0, 0
    for row, count in enumerate(counts):
        most = max(most, count)
        if row > begin and (row + 1 - begin) * most > _MAX_CLIPS:
            yield batch.slice(begin, row - begin)
            begin, most = row, count
    if counts:
        yield batch.slice(begin)


def to_bank(batch: pa.RecordBatch, info: StoreInfo, words: Vocabulary) -> Bank:
    """Rows as a bank."""
    lengths = integers(batch["clips"].value_lengths())
    kept = np.arange(lengths.max(initial=0)) < lengths[:, None]  # (V, N)
    clips = np.zeros((*kept.shape, info.dim), np.float32)
    clips[kept] = flat_vectors(batch["clips"], info.dim)
    starts = np.zeros(kept.shape, np.float32)
    starts[kept] = batch["starts"].flatten().to_numpy()
    stills = flat_vectors(batch["stills"], info.dim).astype(np.float32)
    actions, people = (
        {name: place for place, name in enumerate(names)} for names in (words.actions, words.identities)
    )
    samples = []
    for row in batch.select(list(LABEL_COLUMNS)).to_pylist():
        values = {pair["name"]: pair["value"] for pair in row["attributes"]}
        samples.append(
            Sample(
                row["id"],
                row["split"],
                action=actions.get(row["action"]),
                attributes=tuple(values.get(name, math.nan) for name in words.attributes) if values else (),
                identity=people.get(row["identity"]),
                groups=groups_of(row["groups"]),
                segments=tuple(Segment(p["start"], p["end"], actions[p["action"]]) for p in row["segments"]),
            )
        )
    return Bank(
        encoder=info.encoder,
        fingerprint=info.mark,
        samples=tuple(samples),
        clips=torch.from_numpy(clips),
        counts=torch.from_numpy(lengths),
        starts=torch.from_numpy(starts),
        seconds=torch.tensor(batch["seconds"].to_numpy()),
        length=float(batch["length"][0].as_py()),
        stills=torch.from_numpy(stills).reshape(len(samples), info.stills, info.dim),
        actions=words.actions,
        attributes=words.attributes,
        identities=words.identities,
    )


def features_of(bank: Bank, lengths: Sequence[float] | None = None) -> Iterator[VideoFeatures]:
    """The videos of a bank one by one, as a store takes them; ``lengths`` are seconds of a clip, where they differ."""
    for place, sample in enumerate(bank.samples):
        count = int(bank.counts[place])
        yield VideoFeatures(
            sample,
            bank.clips[place, :count],
            bank.starts[place, :count],
            float(bank.seconds[place]),
            bank.length if lengths is None else lengths[place],
            bank.stills[place],
        )


def flat_vectors(column: Any, dim: int) -> np.ndarray:
    """Lists of vectors as one array ``(clips, D)``."""
    return column.flatten().flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)


def integers(column: Any) -> np.ndarray:
    """A column of whole numbers."""
    return column.to_numpy(zero_copy_only=False).astype(np.int64)


def distinct(column: Any, field: str) -> list[str]:
    """The distinct values of a field of a column of lists."""
    return column.flatten().field(field).unique().to_pylist()


def groups_of(texts: Sequence[str]) -> dict[str, str]:
    """Groups from texts name=value, in which form they can be searched for."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _short(value: object) -> str:
    return value[:16] if isinstance(value, str) else str(value)


def import_lance() -> tuple[Any, Any]:
    """Lance and Arrow, which come with an extra."""
    try:
        import lance
        import pyarrow as pa
    except ImportError as error:
        raise missing_extra("a store of features needs Lance", "features") from error
    return lance, pa
