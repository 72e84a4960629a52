"""A store of features passed through an adapter into another store: all of it, or nothing."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from veil.core import Progress, VeilError, io_errors
from veil.data.sample import Sample
from veil.features.adapter import Adapter, anonymized
from veil.features.bank import Bank
from veil.features.store import Store
from veil.features.store_table import features_of
from veil.features.writer import StoreWriter


@dataclass(frozen=True)
class AnonymizedStore:
    """The result of anonymizing a store."""

    store: Path
    videos: int
    clips: int
    seconds: float
    private: bool  # whether labels of people were kept

    def sentences(self) -> list[str]:
        """The messages for the user."""
        rate = f" ({self.clips / self.seconds:,.0f} clips a second)" if self.seconds > 0 else ""
        lines = [f"{self.store}: {self.videos:,} videos, {self.clips:,} clips anonymized{rate}."]
        if not self.private:
            lines.append(
                "Identities, attributes and groups were left out of the labels (--keep-private keeps them)."
            )
        return lines


def anonymize_store(
    store: str | Path,
    run: str | Path | Adapter,
    output: str | Path,
    *,
    device: str = "cpu",
    batch: int = 256,
    keep_private: bool = False,
    progress: Progress | None = None,
) -> AnonymizedStore:
    """Write another store with the features of one after an adapter: all of it, or nothing.

    ``run`` is the folder of a training, or its adapter. Identities, attributes and groups are left out of the new
    store unless they are to be kept, as an audit needs. A feature that is not finite is an error.
    """
    began, source, place = time.monotonic(), Store.open(store), Path(output)
    if place.exists():
        raise VeilError(
            f"{place} exists already: name another folder for the anonymized features.", code="store-exists"
        )
    if source.info.anonymized is not None:
        raise VeilError(
            f"{source.folder} is anonymized already: give the store that `veil features extract` made.",
            code="store-anonymized",
        )
    adapter, mark = adapter_for(run, source)
    adapter = adapter.to(device)
    names = source.vocabulary
    info = replace(
        source.info,
        anonymized=mark,
        actions=names.actions,
        attributes=names.attributes if keep_private else (),
        identities=names.identities if keep_private else (),
    )
    draft = place.with_name(f".veil-{secrets.token_hex(6)}")
    done, clips = 0, 0
    try:
        target = Store.create(draft, info)
        with StoreWriter(target, names) as writer:
            for bank, lengths in source.scan(batch):
                changed = anonymized(adapter, bank.to(device)).to("cpu")
                _refuse(bank, changed, getattr(torch, info.dtype))
                for video in features_of(changed, lengths):
                    sample = video.sample if keep_private else _without_private_labels(video.sample)
                    if (error := writer.add(video._replace(sample=sample))) is not None:
                        raise error
                done, clips = done + len(bank), clips + int(bank.counts.sum())
                if progress is not None:
                    progress(done, len(source))
        with io_errors(place, "written", advice="name another folder", code="store-io"):
            draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return AnonymizedStore(place, done, clips, time.monotonic() - began, keep_private)


def adapter_for(run: str | Path | Adapter, store: Store) -> tuple[Adapter, str]:
    """The adapter for the features of a store, and the fingerprint of its weights."""
    from veil.features.registry import load

    adapter = load(run) if isinstance(run, str | Path) else run
    info = store.info
    if (adapter.fingerprint, adapter.dim) != (info.fingerprint, info.dim):
        raise VeilError(
            f"the adapter was trained on features of {adapter.encoder} ({adapter.fingerprint[:12]}, {adapter.dim} numbers), "
            f"and {store.folder} holds those of {info.encoder} ({info.fingerprint[:12]}, {info.dim}): extract with its "
            "encoder.",
            code="features-of-another-encoder",
        )
    digest = hashlib.sha256()
    for name, value in sorted(adapter.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.cpu().contiguous().numpy().tobytes())
    return adapter, digest.hexdigest()


def _refuse(raw: Bank, changed: Bank, kept: torch.dtype) -> None:
    """Fail closed: refuse features that are not finite, or most of which are unchanged."""
    for before, after, mask in (
        (raw.clips, changed.clips, raw.mask),
        (raw.stills, changed.stills, torch.ones(raw.stills.shape[:2], dtype=torch.bool)),
    ):
        finite = after.isfinite().flatten(1).all(1)
        if not bool(finite.all()):
            name = raw.samples[int((~finite).nonzero()[0])].id
            raise VeilError(
                f"the adapter makes features of {name} that are not finite, so nothing was written: train it again.",
                code="features-not-finite",
            )
        # A few may stay as they are: where a map takes one direction away, some have nothing in it.
        same = (before == after.to(kept).float()).all(2) & mask
        if 2 * int(same.sum()) > int(mask.sum()):
            name = raw.samples[int(same.any(1).nonzero()[0])].id
            raise VeilError(
                f"the adapter leaves most features unchanged, such as those of {name}, so nothing was written: train it.",
                code="nothing-anonymized",
            )


def _without_private_labels(sample: Sample) -> Sample:
    return replace(sample, identity=None, attributes=(), groups={})
