"""Search of a store by similarity to a video file or to one of its own videos."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from veil.core import VeilError, VideoEncoder
from veil.data.frames import read_frames
from veil.data.sample import Dataset, Sample
from veil.features import encoders
from veil.features.adapter import Adapter, anonymized
from veil.features.anonymize import adapter_for
from veil.features.bank import FailedVideo, collected
from veil.features.extract import encode_samples
from veil.features.store import SearchHit, Store


def search_store(
    store: str | Path,
    like: str,
    *,
    top: int = 10,
    with_: str | Path | Adapter | None = None,
    encoder: str | VideoEncoder | None = None,
    weights: str | Path | None = None,
    split: str | None = None,
    action: str | None = None,
    person: str | None = None,
    groups: Mapping[str, str] | None = None,
    device: str = "cpu",
) -> list[SearchHit]:
    """The videos of a store that are most similar to a video file or to one of its own, nearest first.

    A file is encoded as the store's were; where those are anonymized, it goes through the same adapter, whose run is
    ``with_``.
    """
    if top < 1:
        raise VeilError(f"top = {top} is too few: give 1 or more.", code="top")
    found = Store.open(store)
    own = None
    if Path(like).is_file():
        vector = _mean_features(found, Path(like), with_, encoder, weights, device)
    elif like in found:
        own, vector = like, found.mean(like)
    else:
        raise VeilError(
            f"{like} is neither a file nor a video in {found.folder}: check the name.", code="video-unknown"
        )
    return found.nearest(
        vector, top, split=split, action=action, identity=person, groups=groups, leave_out=own
    )


def _mean_features(
    store: Store,
    path: Path,
    run: str | Path | Adapter | None,
    encoder: str | VideoEncoder | None,
    weights: str | Path | None,
    device: str,
) -> Tensor:
    """The mean of the clips of a file, made as the store's features were."""
    info = store.info
    if (info.anonymized is None) != (run is None):
        why = "is not anonymized: leave out --with." if run else "is anonymized: name its run with --with."
        raise VeilError(f"{store.folder} {why}", code="search-with")
    adapter, mark = (None, None) if run is None else adapter_for(run, store)
    if mark != info.anonymized:
        raise VeilError(
            f"{store.folder} was anonymized by weights {str(info.anonymized)[:12]}, and --with has {str(mark)[:12]}: "
            "name its run.",
            code="search-with",
        )
    name = encoder or info.encoder
    network = encoders.make(name, weights, device) if isinstance(name, str) else name
    if (network.fingerprint, network.dim) != (info.fingerprint, info.dim):
        raise VeilError(
            f"{store.folder} holds features of {info.encoder} ({info.fingerprint[:12]}), and this encoder is "
            f"{network.name} ({network.fingerprint[:12]}): give its weights.",
            code="features-of-another-encoder",
        )
    dataset = Dataset("videos", [Sample(path.name, "test", path)], read_frames)
    (result,) = encode_samples(dataset, dataset.samples, network, stride=info.stride, stills=0, device=device)
    if isinstance(result, FailedVideo):
        raise result.error
    if adapter is None:
        return result.clips.mean(0)
    bank = collected([result], network.name, network.fingerprint, network.dim)
    return anonymized(adapter, bank).clips[0].mean(0)
