"""The audit as a user asks for it: names of methods and datasets in, a report and a few sentences out."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from veil.audit import report
from veil.audit.reidentification import compare_folders, paired
from veil.audit.result import Picture, Result, Row
from veil.audit.runner import Data, judge
from veil.audit.suites import ALWAYS, SUITES
from veil.core import Anonymizer, VeilError, __version__
from veil.data import Dataset, read
from veil.media.sources import open_source
from veil.methods import make
from veil.nn import image, video
from veil.people.bodies import BodyEmbedder
from veil.people.faces import FaceEmbedder
from veil.training.fit import torch_device

RAW = "raw"


class Progress(Protocol):
    """How far it is: so much done, of so much, of what."""

    def __call__(self, done: int, total: int | None, words: str | None = None) -> None:
        """Tell it."""
        ...


def kept_folder() -> Path:
    """Where audits are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "veil" / "audit"


def audit_methods(
    methods: Sequence[str],
    output: Path,
    *,
    data: str = "synthetic",
    root: str | Path | None = None,
    private: str | None = None,
    private_root: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    suite: str = "standard",
    seeds: int | None = None,
    actions: Sequence[str] = (),
    attributes: Sequence[str] = (),
    weights: Mapping[str, str] | None = None,
    device: str | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    command: str = "",
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> tuple[Path, list[str]]:
    """Audit methods by their names and write the report; the page, and the verdicts."""
    if not methods:
        raise VeilError("there is nothing to audit: name a method, or several after --compare.")
    anonymizers = {name: _anonymizer(name) for name in dict.fromkeys(methods)}
    chosen = SUITES[suite]
    if weights:
        _check_weights(weights)
        chosen = replace(chosen, weights=dict(weights))
    if seeds is not None and seeds < 1:
        raise VeilError(f"--seeds {seeds} trains nothing; at least 1 is needed.")
    where = torch_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    cores = os.cpu_count() or 1
    use = _dataset(data, root, options or {}, chosen.size, chosen.videos)
    other = _dataset(private, private_root, {}, chosen.size, chosen.videos) if private else None
    asked = Data(use, other, tuple(actions), tuple(attributes))
    asked.questions()  # what cannot be asked is said before anything is read
    if where.type == "cpu" and suite != "quick":
        say(f"there is no GPU in use: the suite '{suite}' takes hours or days here; --quick takes minutes.")
    output.mkdir(parents=True, exist_ok=True)
    keep = kept_folder()
    if fresh:
        shutil.rmtree(keep, ignore_errors=True)
    results = judge(
        anonymizers,
        asked,
        chosen,
        seeds=None if seeds is None else range(seeds),
        device=str(where),
        jobs=jobs or (1 if where.type == "cuda" else cores),
        keep=keep,
        command=command,
        progress=(lambda words, done, total: progress(done, total, words)) if progress else None,
    )
    written = report.write(results, output)
    return written.html, [f"{result.method}: {result.verdict()}" for result in results]


def audit_videos(
    raw: Path,
    anonymized: Path,
    gallery: Path,
    output: Path,
    *,
    by: Literal["face", "body"] = "face",
    command: str = "",
    progress: Progress | None = None,
) -> tuple[Path, list[str]]:
    """Judge videos that some other tool anonymized, by the raw ones and stills of the people in them."""
    begun = time.monotonic()
    embedder = FaceEmbedder() if by == "face" else BodyEmbedder()
    comparison = compare_folders(raw, anonymized, gallery, embedder, progress=progress)
    before, after = comparison.raw, comparison.anonymized
    asked = Row(
        role="leakage",
        target=by,
        by=f"{by} embedding",
        knows="embedding",
        after="8-bit",
        protocol="gallery of stills",
        metric="recognised",
        values=(after.recognised / after.probes if after.probes else math.nan,),
        chance=0.0,
        n=after.probes,
        notes=comparison.notes,
    )
    rows = [asked]
    if after.rank1 is not None and len(comparison.names) > 1:
        score = after.rank1
        rows.append(
            replace(
                asked,
                metric=score.metric,
                values=(score.value,),
                chance=score.chance or 0.0,
                n=score.n,
                interval=score.interval,
            )
        )
    sums = (
        f"In {before.frames_with_detection} of {before.frames} raw frames looked at and in {after.frames_with_detection} "
        f"anonymized ones a {by} is detected; of {after.probes} that raw video tells, {after.recognised} are still "
        f"recognised. {comparison.unchanged} of {comparison.frames} frames were left unchanged; "
        f"{comparison.changed:.1%} of pixels changed."
    )
    result = Result(
        method=anonymized.name,
        params={},
        data=f"{len(comparison.pairs)} videos, {comparison.frames} frames; gallery: {', '.join(comparison.names)}",
        rows=tuple(rows),
        raw=tuple(
            replace(row, values=(1.0,), interval=None, notes=()) for row in rows
        ),  # it says who is asked for
        settings={"every": comparison.every, "threshold": comparison.threshold},
        untested=(
            "Whether the video is still of use: it has no labels.",
            "Attackers that learn from this tool's output: they need labelled videos (`veil audit METHOD`).",
            "Gait, clothes and places, and " + ("bodies." if by == "face" else "faces."),
            *ALWAYS,
        ),
        command=command,
        seconds=time.monotonic() - begun,
        device="cpu",
        version=__version__,
        pictures=tuple(_moments(raw, anonymized, {pair.name: pair.frames for pair in comparison.pairs})),
    )
    output.mkdir(parents=True, exist_ok=True)
    return report.write([result], output).html, [result.verdict(), sums]


def _moments(raw: Path, anonymized: Path, frames: Mapping[str, int]) -> Iterator[Picture]:
    """The middle frame of some pairs."""
    for name, *pair in paired(raw, anonymized)[:4]:
        both = []
        for path in pair:
            with closing(open_source(path)) as source:
                each = (frame for window in source.windows() for frame in window.frames)
                both.append(next(islice(each, frames[name] // 2, None)))
        yield Picture(name, both[0], both[1])


def _anonymizer(name: str) -> Anonymizer | None:
    if name == RAW:
        return None
    return make(name)


def _dataset(
    name: str, root: str | Path | None, options: Mapping[str, Any], size: int, videos: int | None
) -> Dataset:
    if name == "synthetic":
        options = {"size": size, **({"count": videos} if videos else {}), **options}
    return read(name, root, **options)


def _check_weights(weights: Mapping[str, str]) -> None:
    for net, path in weights.items():
        if net not in {*image.IMAGE_NETS, *video.VIDEO_NETS}:
            raise VeilError(
                f"there is no network '{net}'; there are {', '.join([*image.IMAGE_NETS, *video.VIDEO_NETS])}."
            )
        if not Path(path).is_file():
            raise VeilError(f"{path} is not there: --weights {net}=FILE names a file of published weights.")
