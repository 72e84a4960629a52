"""The audit as a command: names of methods and datasets in, a report and a few sentences out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from veil.audit import report
from veil.audit.audit_data import AuditData
from veil.audit.cache import cache_folder
from veil.audit.evaluators.reidentification import GalleryData, evaluate
from veil.audit.result import Picture, Result
from veil.audit.runner import RAW, run_audit
from veil.audit.suites import ALWAYS, SUITES
from veil.audit.video_pairs import find_pairs
from veil.core import Anonymizer, Progress, VeilError, __version__
from veil.data import Dataset, read
from veil.media.sources import open_source
from veil.methods import make
from veil.nn import image, video
from veil.training.memory import torch_device

BY_DEFINITION = "1 by definition: the probes are the people who are recognized in raw video"


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
    warn: Callable[[str], None] = lambda message: None,
) -> tuple[Path, list[str]]:
    """Audit methods by their names and write the report; its HTML file, and the verdicts.

    With ``fresh``, cached results of this audit are measured again; other audits' stay.
    """
    if not methods:
        raise VeilError(
            "there is nothing to audit: name a method, or several after --compare.", code="audit-no-method"
        )
    anonymizers = {name: _anonymizer(name) for name in dict.fromkeys(methods)}
    chosen = SUITES[suite]
    if weights:
        _check_weights(weights)
        chosen = replace(chosen, weights=dict(weights))
    if seeds is not None and seeds < 1:
        raise VeilError(f"--seeds {seeds} trains nothing: use 1 or more.", code="audit-seeds-invalid")
    where = torch_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    cores = os.cpu_count() or 1
    utility = _dataset(data, root, options or {}, chosen.size, chosen.videos)
    other = _dataset(private, private_root, {}, chosen.size, chosen.videos) if private else None
    audited = AuditData(utility, other, tuple(actions), tuple(attributes))
    audited.questions()  # fails before anything is read, where labels are missing
    if where.type == "cpu" and suite != "quick":
        warn(f"no GPU is used: the suite '{suite}' takes hours or days here; --quick takes minutes.")
    output.mkdir(parents=True, exist_ok=True)
    results = run_audit(
        anonymizers,
        audited,
        chosen,
        seeds=None if seeds is None else range(seeds),
        device=str(where),
        jobs=jobs or (1 if where.type == "cuda" else cores),
        cache=cache_folder(),
        fresh=fresh,
        command=command,
        progress=progress,
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
    """Audit videos that any tool anonymized, by the raw ones and stills of the people in them."""
    begun = time.monotonic()
    data = GalleryData(raw, anonymized, gallery, by, progress)
    rows, comparison = evaluate(data), data.comparison
    before, after = comparison.raw, comparison.anonymized
    counts = (
        f"A {by} is detected in {before.frames_with_detection} of {before.frames} raw frames and in "
        f"{after.frames_with_detection} anonymized ones; of {after.probes} recognized in raw video, {after.recognized} "
        f"are still recognized. {comparison.unchanged} of {comparison.frames} frames were left unchanged; "
        f"{comparison.changed:.1%} of pixels changed."
    )
    result = Result(
        method=anonymized.name,
        params={},
        data=f"{len(comparison.pairs)} videos, {comparison.frames} frames; gallery: {', '.join(comparison.names)}",
        rows=tuple(rows),
        raw=tuple(replace(row, values=(1.0,), interval=None, notes=(BY_DEFINITION,)) for row in rows),
        settings={"every": comparison.every, "threshold": comparison.threshold},
        untested=(
            "Utility: the videos have no labels.",
            "Attackers that are trained on this tool's output: they need labelled videos (`veil audit METHOD`).",
            "Gait, clothes and places, and " + ("bodies." if by == "face" else "faces."),
            *ALWAYS,
        ),
        command=command,
        seconds=time.monotonic() - begun,
        device="cpu",
        version=__version__,
        pictures=tuple(_pictures(raw, anonymized, {pair.name: pair.frames for pair in comparison.pairs})),
    )
    output.mkdir(parents=True, exist_ok=True)
    return report.write([result], output).html, [result.verdict(), counts]


def _pictures(raw: Path, anonymized: Path, frames: Mapping[str, int]) -> Iterator[Picture]:
    """The middle frame of some pairs."""
    for name, *pair in find_pairs(raw, anonymized)[:4]:
        both = []
        for path in pair:
            with closing(open_source(path)) as source:
                each = (frame for window in source.windows() for frame in window.frames)
                both.append(next(islice(each, frames[name] // 2, None)))
        yield Picture(name, both[0], both[1])


def _anonymizer(name: str) -> Anonymizer | None:
    return None if name == RAW else make(name)


def _dataset(
    name: str, root: str | Path | None, options: Mapping[str, Any], size: int, videos: int | None
) -> Dataset:
    if name == "synthetic":
        options = {"size": size, **({"count": videos} if videos else {}), **options}
    return read(name, root, **options)


def _check_weights(weights: Mapping[str, str]) -> None:
    networks = [*image.IMAGE_NETS, *video.VIDEO_NETS]
    for net, path in weights.items():
        if net not in networks:
            raise VeilError(
                f"there is no network '{net}': choose one of {', '.join(networks)}.", code="network-unknown"
            )
        if not Path(path).is_file():
            raise VeilError(
                f"the weights {path} do not exist: --weights {net}=FILE takes a file of published weights.",
                code="weights-missing",
            )
