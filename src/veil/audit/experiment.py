"""One trial: a fresh recognizer for one target and one seed, before raw, anonymized, restored and encoded video."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from veil.audit.recognition import Effort, Recognizer, Trained, learn, scored
from veil.audit.result import After, Knows, Role, Row
from veil.audit.videos import Footage, seen_before
from veil.metrics import Bootstrap, Score, group_accuracy, group_gap, rank1
from veil.training.fit import with_smaller_batches

RAW = "raw"


class Trial(NamedTuple):
    """One recognizer, one target, one seed."""

    role: Role
    target: str
    protocol: str
    recognizer: Recognizer
    seed: int
    effort: Effort
    knows: tuple[Knows, ...]
    weights: str | None
    device: str
    kept: Path  # where the recognizer of raw video is kept


class Seen(NamedTuple):
    """The footage of one dataset: before, after, after H.264, and restored; each by split."""

    raw: dict[str, Footage]
    anonymized: dict[str, Footage] | None
    h264: dict[str, Footage] | None
    restored: dict[str, Footage] | None


class Found(NamedTuple):
    """One number of one trial."""

    method: str  # RAW, or "" for the method under audit
    row: Row


def hold(trial: Trial, seen: Seen) -> list[Found]:
    """Hold one trial; what is found on raw video is marked so."""
    found: list[Found] = []
    raw = _trained_on_raw(trial, seen)
    found += [Found(RAW, row) for row in _rows(trial, raw, seen.raw, "adapted", "8-bit")]
    if seen.anonymized is None:
        return found
    test = seen.anonymized
    if "raw" in trial.knows:
        found += [Found("", row) for row in _rows(trial, raw, test, "raw", "8-bit")]
    if "adapted" in trial.knows:
        adapted = _learned(trial, test, raw)
        found += [Found("", row) for row in _rows(trial, adapted, test, "adapted", "8-bit")]
    if seen.h264:
        adapted = _learned(trial, seen.h264, raw)
        found += [Found("", row) for row in _rows(trial, adapted, seen.h264, "adapted", "h264")]
    if "restoring" in trial.knows and seen.restored and trial.role == "leakage":
        restoring = _learned(trial, seen.restored, raw)
        found += [Found("", row) for row in _rows(trial, restoring, seen.restored, "restoring", "8-bit")]
    return found


def _learned(trial: Trial, footage: dict[str, Footage], start: Trained | None = None) -> Trained:
    effort = trial.effort
    if start is not None:
        effort = replace(effort, steps=max(1, round(effort.adapting * effort.steps)))

    def learned(batch: int) -> Trained:
        return learn(
            trial.recognizer,
            trial.target,
            footage["train"],
            footage["val"],
            effort=replace(effort, batch=batch),
            seed=trial.seed,
            device=trial.device,
            start=start,
            weights=trial.weights if start is None else None,
        )

    return with_smaller_batches(learned, effort.batch)[0]


def _trained_on_raw(trial: Trial, seen: Seen) -> Trained:
    """The recognizer of raw video, from where it is kept if it is."""
    path = trial.kept
    if path.exists():
        try:
            tensors = load_file(path, device=trial.device)
            return Trained.from_tensors(
                trial.recognizer, trial.target, tensors, trial.effort, seen.raw["train"]
            )
        except (SafetensorError, KeyError, RuntimeError):
            path.unlink(missing_ok=True)  # half of a file, or another version's: learn again
    trained = _learned(trial, seen.raw)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.part")
    save_file(trained.tensors(), beside)
    beside.replace(path)
    return trained


def _rows(
    trial: Trial, trained: Trained, footage: dict[str, Footage], knows: Knows, after: After
) -> Iterator[Row]:
    """The rows of one recognizer on the test videos: all looks, one look, groups, retrieval."""
    test = footage["test"]
    bootstrap = Bootstrap()
    answers = trained.probabilities(test.frames)  # (N, looks, K)
    score, parts = scored(trial.target, answers.mean(1), test, bootstrap)
    weak = (
        f"weak witness: its training loss ended at {trained.loss:.3g}, a constant answer's is {trained.constant:.3g}",
    )

    def row(
        score: Score, by: str, role: Role = trial.role, parts: Any = parts, protocol: str = trial.protocol
    ) -> Row:
        return Row(
            role=role,
            target=trial.target,
            by=by,
            knows=knows,
            after=after,
            protocol=protocol,
            metric=score.metric,
            values=(score.value,),
            chance=score.chance or 0.0,
            n=score.n,
            interval=score.interval,
            train_loss=(trained.loss,),
            parts=parts,
            notes=(
                *(n for n in score.notes if not n.startswith("interval:")),
                *(weak if trained.weak else ()),
            ),
        )

    strangers = trial.target == "identity" and not seen_before(footage["train"], test, "identity")
    if not strangers:
        yield row(score, str(trial.recognizer))
    if not strangers and trial.recognizer.sees == "frames" and answers.shape[1] > 1:
        one, one_parts = scored(trial.target, answers[:, answers.shape[1] // 2], test, bootstrap)
        yield row(one, f"{trial.recognizer.net} on one frame", parts=one_parts)
    groups = [sample.groups.get("gender", "") for sample in test.samples]
    if trial.role == "utility" and len(set(groups)) > 1 and "" not in groups:
        truth = test.truth(trial.target).numpy()
        each = group_accuracy(answers.mean(1), truth, groups)
        told = {name: (s.value, s.chance or 0.0) for name, s in each.items()}
        gap = group_gap(answers.mean(1), truth, groups, bootstrap=bootstrap)
        yield row(gap, str(trial.recognizer), "bias", told)
    if trial.target == "identity" and any(s.groups.get("role") == "probe" for s in test.samples):
        probes = test.of(lambda sample: sample.groups.get("role") == "probe")
        gallery = test.of(lambda sample: sample.groups.get("role") == "gallery")
        pair = probes, gallery if len(gallery) else footage["train"]
        probe, shelf = (trained.features(part.frames) for part in pair)
        ids = [part.truth("identity").numpy() for part in pair]
        views = [np.array([s.groups.get("view", "") for s in part.samples]) for part in pair]
        for sides in (None, (views[0], views[1])):
            found = rank1(probe, ids[0], shelf, ids[1], views=sides, bootstrap=bootstrap)
            yield row(found, str(trial.recognizer), parts={}, protocol=f"gait retrieval: {test.dataset}")


def merged(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows of several seeds as one: all values, and the mean of the interval's ends."""
    same: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        same.setdefault(row.asked, []).append(row)
    out = []
    for group in same.values():
        first = group[0]
        ends = [row.interval for row in group if row.interval]
        parts = {
            name: (fmean(row.parts[name][0] for row in group), chance)
            for name, (_, chance) in first.parts.items()
        }
        out.append(
            replace(
                first,
                values=tuple(row.values[0] for row in group),
                train_loss=tuple(row.train_loss[0] for row in group),
                interval=(fmean(e[0] for e in ends), fmean(e[1] for e in ends)) if ends else None,
                parts=parts,
                notes=tuple(dict.fromkeys(note for row in group for note in row.notes)),
            )
        )
    order = {"utility": 0, "leakage": 1, "bias": 2}
    return tuple(sorted(out, key=lambda row: order[row.role]))
