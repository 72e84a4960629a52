"""Many videos: `anonymize_video` for each, on the processes of this machine or of a Ray cluster.

What happens to one video never touches another (`veil.apps.worker`). A video whose worker died is given to another one.
The outcome of every video is in the manifest (`veil.apps.manifest`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from veil.apps.cluster import check_workers
from veil.apps.manifest import Manifest
from veil.apps.pool import run_in_cluster, run_in_processes
from veil.apps.worker import WORK_FOLDER, BatchOptions, VideoOutcome, VideoTask
from veil.core import Progress, VeilError
from veil.media import processes, storage
from veil.media.inputs import find_inputs
from veil.media.outputs import output_name
from veil.media.storage import is_url
from veil.media.video import Codec

_NAMED = 20  # how many videos that failed are named on the terminal; the manifest names all


@dataclass(frozen=True)
class BatchResult:
    """The result of a batch."""

    manifest: Path
    done: int
    kept: int  # were done before
    failed: tuple[tuple[str, str], ...]  # sources, and why
    seconds: float

    def sentences(self) -> list[str]:
        """What the command line prints."""
        rate = f" in {self.seconds:.0f} s" if self.done else ""
        before = f", {self.kept:,} were done before" if self.kept else ""
        sentences = [
            f"{self.done:,} video{'s' * (self.done != 1)} done{rate}{before}; the outcome of each is in {self.manifest}."
        ]
        if self.failed:
            sentences.append(
                f"{len(self.failed):,} of {self.done + self.kept + len(self.failed):,} videos failed:"
            )
            sentences += [
                f"  {why}" if source in why else f"  {source}: {why}" for source, why in self.failed[:_NAMED]
            ]
            sentences += [f"  and {len(self.failed) - _NAMED:,} more"] if len(self.failed) > _NAMED else []
        return sentences


def anonymize_videos(
    inputs: Sequence[str],
    output: str | Path,
    options: BatchOptions = BatchOptions(),
    *,
    workers: int | None = None,
    ray: str | None = None,
    gpus_per_worker: float = 0,
    manifest: str | Path | None = None,
    overwrite: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> BatchResult:
    """Anonymize many videos into a folder, as far as possible: a video that fails, fails alone.

    inputs    files, folders, patterns such as ``in/**/*.mp4``, or URLs of these; what is in a folder is mirrored
    output    a folder, or the URL of one; then ``manifest`` must name a file
    workers   processes [one for each core]
    ray       the address of a Ray cluster (``auto``: the one this machine is part of; ``local``: one of this machine alone)
    gpus_per_worker  of a Ray cluster: 0.25 lets four workers share a GPU
    overwrite replace files that another program, or this one with other options, has written
    verify    read finished outputs and compare their checksums, instead of trusting size and time

    What is done by the manifest is skipped, as long as the input is the same and the output is there. Raises `VeilError`
    where nothing can be begun.
    """
    folder = storage.absolute(str(output))
    check_workers(ray, workers, gpus_per_worker)
    if is_url(folder) and manifest is None:
        raise VeilError(
            f"{folder} is a URL, to which no manifest can be appended: name a local file with --manifest.",
            code="manifest-missing",
        )
    if not is_url(folder) and Path(folder).exists() and not Path(folder).is_dir():
        raise VeilError(
            f"{folder} is a file, and a batch needs a folder: name a folder with -o.", code="output-is-file"
        )
    if options.learned:
        options = replace(options, method=str(options.learned.absolute()))
    options.make()  # what is wrong with the method is wrong for every video
    tasks = tasks_of(inputs, folder, options.codec)
    begun = time.monotonic()
    with Manifest(Path(manifest) if manifest else Path(folder) / "manifest.jsonl") as outcomes:
        work = storage.join(folder, Path(WORK_FOLDER))
        storage.remove(work)  # of a batch that was killed
        try:
            return _run(
                tasks, outcomes, options, begun, workers, ray, gpus_per_worker, overwrite, verify, progress
            )
        finally:
            storage.remove(work)


def tasks_of(inputs: Sequence[str], output: str, codec: Codec = "h264") -> list[VideoTask]:
    """Every video once, with the place of its output; two for one place are refused."""
    if not inputs:
        raise VeilError(
            "no input is named: name videos, folders, or a pattern such as 'in/**/*.mp4'.", code="no-inputs"
        )
    found = find_inputs(inputs, exclude=None if is_url(output) else Path(output), stored=True)
    tasks: dict[str, VideoTask] = {}
    for name, place in found:
        task = VideoTask(storage.absolute(name), output_name(place, codec).as_posix(), output)
        other = tasks.setdefault(task.target, task)
        if other.source != task.source:
            raise VeilError(
                f"{other.source} and {task.source} would both be written to {task.place}: rename one, or give each "
                "a batch of its own.",
                code="output-twice",
            )
        if task.place == task.source:
            raise VeilError(
                f"{task.source} would be written over itself: name another folder with -o.",
                code="output-is-input",
            )
    return list(tasks.values())


def _run(
    tasks: list[VideoTask],
    manifest: Manifest,
    options: BatchOptions,
    begun: float,
    workers: int | None,
    ray: str | None,
    gpus: float,
    overwrite: bool,
    verify: bool,
    progress: Progress | None,
) -> BatchResult:
    recorded = options.recorded()
    if not overwrite:
        _refuse_other(manifest, tasks, recorded)
    todo: list[tuple[int, VideoTask]] = []  # with its size
    failed: dict[str, VideoOutcome] = {}
    kept = 0
    for task in tasks:
        try:
            state = _state(task, manifest.last.get(task.target), recorded, overwrite, verify)
            size = storage.stamp(task.source) if state == "to do" else None
        except (VeilError, OSError) as error:
            failed[task.target] = VideoOutcome("refused", task.target, task.source, str(error))
            continue
        if state == "done":
            kept += 1
        else:
            todo.append((size.bytes if size else 0, task))
    # From here on the targets are this batch's, and a restart may write over them; a refused one is not.
    manifest.add([*failed.values(), *(VideoOutcome("begun", task.target, task.source) for _, task in todo)])
    # The longest first: else one of them may be begun last, and all other cores wait for it.
    todo.sort(key=lambda sized: -sized[0])
    weights = {task.target: max(1, size >> 20) for size, task in todo}
    total, passed, done = sum(weights.values()), 0, 0
    if progress:
        progress(passed, total)
    work = [task for _, task in todo]
    if ray is None:
        outcomes = run_in_processes(options, work, min(workers or processes.cores(), len(work)))
    else:
        outcomes = run_in_cluster(options, work, ray, workers, gpus)
    try:
        for outcome in outcomes:
            outcome = replace(outcome, options=recorded)
            manifest.add([outcome])
            if outcome.state == "failed":
                failed[outcome.target] = outcome
            else:
                done += 1
            passed += weights[outcome.target]
            if progress:
                progress(passed, total)
    finally:
        outcomes.close()
    named = tuple((outcome.source, str(outcome.why)) for outcome in failed.values())
    return BatchResult(manifest.path, done, kept, named, time.monotonic() - begun)


def _refuse_other(manifest: Manifest, tasks: Sequence[VideoTask], recorded: Mapping[str, Any]) -> None:
    """Refuse to mix outputs of different options in a folder; else it would be unknown how each is protected."""
    for task in tasks:
        last = manifest.last.get(task.target)
        if last and last.state == "done" and last.options is not None and last.options != recorded:
            key = next(
                key for key in {**last.options, **recorded} if last.options.get(key) != recorded.get(key)
            )
            raise VeilError(
                f"{task.place} was made with {key} {last.options.get(key)}, and {key} is now {recorded.get(key)}: name "
                "another folder, or pass --overwrite.",
                code="other-options",
            )


def _state(
    task: VideoTask, last: VideoOutcome | None, recorded: dict[str, Any], overwrite: bool, verify: bool
) -> Literal["done", "to do"]:
    """Whether a video is done already, by the last outcome of its target; `VeilError`: the target belongs to something else."""
    if last is None:
        if not overwrite and storage.stamp(task.place) is not None:
            raise VeilError(
                f"{task.place} exists already and does not belong to this batch: pass --overwrite to replace it.",
                code="output-exists",
            )
        return "to do"
    if last.state != "done" or last.input is None or last.output is None:
        return "to do"
    same = last.input.same(task.source, verify=verify)
    if last.source != task.source and not same and not overwrite:
        raise VeilError(
            f"{task.place} was made of {last.source}: name another folder, or pass --overwrite.",
            code="other-source",
        )
    if last.options != recorded and same:
        return "to do"  # which `_refuse_other` has allowed
    return "done" if same and last.output.same(task.place, verify=verify) else "to do"
