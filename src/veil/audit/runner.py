"""The audit: every method before the same recognizers, on the same data, beside raw video.

For each seed, target and recognizer one *trial* is held::

    raw         trained on raw video;                    scored on raw video (what could be had at all)
                                                         and on anonymized video   (knows: raw)
    adapted     trained on raw, then anonymized video;   scored on anonymized video
    restoring   trained on raw, then on restored video;  scored on restored video
    h264        adapted, all video after an H.264 round trip

Trials do not depend on each other, so that several can be held at once. What was found is kept by content: the
same method on the same data under the same suite is not judged twice, nor are its recognizers of raw video.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from veil.audit.cache import file_digest, fingerprint, keep_at, kept_at, plain, told
from veil.audit.experiment import RAW, Found, Seen, Trial, hold, merged
from veil.audit.recognition import Recognizer
from veil.audit.reconstruction import Restorer, learn_restorer
from veil.audit.result import After, Picture, Result, Role, Row
from veil.audit.suites import ALWAYS, Suite
from veil.audit.videos import Footage, gather, remembering, seen_before
from veil.core import Anonymizer, VeilError, __version__
from veil.data import Dataset, Sample
from veil.data.sample import narrowed
from veil.methods.learned import Learned
from veil.training.data import DataConfig
from veil.training.fit import with_smaller_batches

LAYOUT = 1  # of what is kept; another number judges everything anew
SPLITS = ("train", "val", "test")
Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much


@dataclass(frozen=True)
class Data:
    """Which videos are used and attacked."""

    use: Dataset  # has the actions; and the people, where there is no other
    private: Dataset | None = None  # whose people are attacked instead: cross-dataset
    actions: tuple[str, ...] = ()  # only these; none: all
    attributes: tuple[str, ...] = ()

    def questions(self) -> list[tuple[Dataset, Role, str, str]]:
        """What is asked of which dataset: dataset, role, target, protocol."""
        actions, attributes = tuple(dict.fromkeys(self.actions)), tuple(dict.fromkeys(self.attributes))
        use = narrowed(self.use, actions, attributes if self.private is None else ())
        private = use if self.private is None else narrowed(self.private, (), attributes)
        if len(actions) == 1:
            raise VeilError(
                f"one action has nothing that it could be told from: name at least two, {actions[0]} and others."
            )
        narrow = " of chosen labels" if self.actions or self.attributes else ""
        across = "same dataset" if self.private is None else "cross-dataset"
        asked: list[tuple[Dataset, Role, str, str]] = []
        for target in _targets(use):
            if target == "action":
                asked.append((use, "utility", target, f"{across}: {use.name}{narrow}"))
        for target in _targets(private):
            if target != "action":
                asked.append((private, "leakage", target, f"{across}: {private.name}{narrow}"))
        targets = {target for _, _, target, _ in asked}
        for chosen, target, dataset in ((actions, "action", use), (attributes, "attributes", private)):
            if chosen and target not in targets:  # nobody names labels for them to be left out
                raise VeilError(
                    f"the training, validation and test videos of {dataset.name} do not all say more than one "
                    f"thing about {', '.join(chosen)}: choose other labels."
                )
        if not asked:
            raise VeilError(
                f"{use.name} and {private.name} say neither actions nor identities nor attributes in their training, "
                "validation and test videos: an audit needs at least one of them."
            )
        return asked


def judge(
    methods: Mapping[str, Anonymizer | None],
    data: Data,
    suite: Suite,
    *,
    seeds: Sequence[int] | None = None,
    device: str = "cpu",
    jobs: int = 1,
    keep: Path | None = None,
    command: str = "",
    progress: Progress | None = None,
    found: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Audit methods by name; raw video is judged once and stands beside each (name one "raw": None to have it listed).

    ``keep``: a folder in which results and recognizers of raw video are kept by content; ``found`` gets each result
    as soon as there is one.
    """
    chosen = tuple(range(suite.seeds)) if seeds is None else tuple(seeds)
    with tempfile.TemporaryDirectory(prefix="veil-audit-") as folder:
        place = Path(folder) if keep is None else keep
        audit = _Audit(data, suite, chosen, device, jobs, place, command, progress or (lambda *_: None))
        out = []
        for name, anonymizer in methods.items():
            out.append(audit.result(name, anonymizer))
            if found:
                found(out[-1])
    return out


_received: dict[str, Seen] = {}


def _receive(seen: dict[str, Seen]) -> None:
    _received.update(seen)
    torch.set_num_threads(1)


def _hold_received(trial: Trial, dataset: str) -> list[Found]:
    return hold(trial, _received[dataset])


class _Audit:
    """One choice of data, suite and seeds, before which methods come one after the other."""

    def __init__(
        self,
        data: Data,
        suite: Suite,
        seeds: tuple[int, ...],
        device: str,
        jobs: int,
        keep: Path,
        command: str,
        progress: Progress,
    ):
        self.data, self.suite, self.seeds, self.device, self.jobs = data, suite, seeds, device, jobs
        self.keep, self.command, self.progress = keep, command, progress
        self.questions = data.questions()
        self.datasets = {dataset.name: remembering(dataset, suite.size) for dataset, *_ in self.questions}
        self.samples = {name: _limited(dataset, suite.videos) for name, dataset in self.datasets.items()}
        told = [fingerprint(dataset, self.samples[name]) for name, dataset in self.datasets.items()]
        self.base = {
            "layout": LAYOUT,
            "data": told,
            "asked": [q[1:] for q in self.questions],
            "suite": suite.plain(),
            "seeds": seeds,
            "device": torch.device(device).type,
            "weights": {net: file_digest(path) for net, path in suite.weights.items()},
        }
        self._raw: dict[str, dict[str, Footage]] = {}
        self._raw_rows: tuple[Row, ...] | None = None

    def result(self, name: str, anonymizer: Anonymizer | None) -> Result:
        """What is found about a method: kept, or found now."""
        entry = self._entry("result", RAW if anonymizer is None else told(anonymizer))
        made = self._kept(entry)
        if made is None:
            made = self._found(name, anonymizer)
            keep_at(entry, made)
        made = replace(made, method=name, command=self.command)
        if not isinstance(anonymizer, Learned):
            return made
        chosen = {what: names for what, names in _chosen(anonymizer.made[1]).items() if names}
        return replace(
            made,
            settings={**made.settings, **({"trained with": chosen} if chosen else {})},
            untested=(*_not_novel(anonymizer.made[1], self.data), *made.untested),
        )

    def _found(self, name: str, anonymizer: Anonymizer | None) -> Result:
        begun = time.monotonic()
        pictures: list[Picture] = []
        seen = {}
        for dataset in self.datasets:
            seen[dataset] = self._seen(name, dataset, anonymizer, pictures)
        found = list(self._trials(name, seen))
        if anonymizer is None:
            self._raw_rows = merged(f.row for f in found if f.method == RAW)
            rows = self._raw_rows
        else:
            rows = merged(f.row for f in found if f.method != RAW)
            if self._raw_rows is None:
                self._raw_rows = merged(f.row for f in found if f.method == RAW)
        return Result(
            method=name,
            params={} if anonymizer is None else dict(plain(anonymizer.params())),
            data="; ".join(self._described(dataset) for dataset in self.datasets),
            rows=rows,
            raw=self._raw_rows or (),
            settings={"suite": self.suite.plain(), "seeds": list(self.seeds)},
            untested=(*self.suite.untested, *self._unasked(), *ALWAYS),
            command=self.command,
            seconds=time.monotonic() - begun,
            device=_device_name(self.device),
            version=__version__,
            pictures=tuple(pictures),
        )

    def _seen(self, name: str, dataset: str, anonymizer: Anonymizer | None, pictures: list[Picture]) -> Seen:
        if dataset not in self._raw:
            self._raw[dataset] = self._gathered(f"reading {dataset}", dataset, None, "8-bit")
        raw = self._raw[dataset]
        if anonymizer is None:
            _picture(pictures, raw["test"], raw["test"], None)
            return Seen(raw, None, None, None)
        out = self._gathered(f"{name}: anonymizing {dataset}", dataset, anonymizer, "8-bit")
        moving = out["train"].frames.shape[1] > 1
        h264 = None
        if "h264" in self.suite.after and moving:
            h264 = self._gathered(f"{name}: through H.264", dataset, anonymizer, "h264")
        restored = None
        if "restoring" in self.suite.knows:
            self.progress(f"{name}: learning to restore {dataset}", 0, 1)
            restorer = self._restorer(raw, out)
            restored = {split: restorer(footage) for split, footage in out.items()}
        _picture(pictures, raw["test"], out["test"], restored["test"] if restored else None)
        return Seen(raw, out, h264, restored)

    def _restorer(self, raw: dict[str, Footage], out: dict[str, Footage]) -> Restorer:
        def learned(batch: int) -> Restorer:
            return learn_restorer(
                (raw["train"], raw["val"]),
                (out["train"], out["val"]),
                replace(self.suite.restoring, batch=batch),
                device=self.device,
            )

        return with_smaller_batches(learned, self.suite.restoring.batch)[0]

    def _gathered(
        self, words: str, dataset: str, anonymizer: Anonymizer | None, after: After
    ) -> dict[str, Footage]:
        still = not any(sample.action is not None or sample.segments for sample in self.samples[dataset])
        footage = gather(
            self.datasets[dataset],
            anonymizer,
            size=self.suite.size,
            frames=1
            if still and _are_stills(self.datasets[dataset], self.samples[dataset])
            else self.suite.frames,
            after=after,
            samples=self.samples[dataset],
            progress=lambda done, total: self.progress(words, done, total),
        )
        split = {name: footage.split(name) for name in SPLITS}
        people = any(one.name == dataset and target == "identity" for one, _, target, _ in self.questions)
        if people and not seen_before(split["train"], split["val"], "identity"):
            # People who are not learned cannot choose what was learned best: every tenth video of those who are.
            tenth = {sample.id for sample in split["train"].samples[::10]}
            split["val"] = split["train"].of(lambda sample: sample.id in tenth)
            split["train"] = split["train"].of(lambda sample: sample.id not in tenth)
        if empty := [name for name in SPLITS if not len(split[name])]:
            raise VeilError(
                f"{dataset} has no {empty[0]} videos; an audit trains, chooses and tests on videos apart."
            )
        if self.jobs > 1:
            for part in split.values():
                part.frames.share_memory_()
        return split

    def _trials(self, name: str, seen: dict[str, Seen]) -> Iterator[Found]:
        trials: list[tuple[Trial, str]] = []
        for seed in self.seeds:
            for dataset, role, target, protocol in self.questions:
                for recognizer in self.suite.uses if role == "utility" else self.suite.attackers:
                    still = seen[dataset.name].raw["train"].frames.shape[1] == 1
                    if recognizer.sees != "frames" and (still or target in self.suite.frames_only):
                        continue
                    trials.append((self._trial(role, target, protocol, recognizer, seed), dataset.name))
        trials.sort(key=lambda trial: trial[0].recognizer.sees == "frames")  # the long ones first
        self.progress(f"{name}: training recognizers", 0, len(trials))
        for done, found in enumerate(self._held(trials, seen), 1):
            self.progress(f"{name}: training recognizers", done, len(trials))
            yield from found

    def _trial(self, role: Role, target: str, protocol: str, recognizer: Recognizer, seed: int) -> Trial:
        what = f"{target} by {recognizer} seed {seed} of {protocol}"
        entry = self._entry("recognizer", what)
        return Trial(
            role,
            target,
            protocol,
            recognizer,
            seed,
            self.suite.effort(recognizer),
            self.suite.knows,
            self.suite.weights.get(recognizer.net),
            self.device,
            entry.with_suffix(".safetensors"),
        )

    def _held(self, trials: list[tuple[Trial, str]], seen: dict[str, Seen]) -> Iterator[list[Found]]:
        if self.jobs == 1:
            for trial, dataset in trials:
                yield hold(trial, seen[dataset])
            return
        context = multiprocessing.get_context("spawn")
        others = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(self.jobs, mp_context=context, initializer=_receive, initargs=(seen,))
        try:
            futures = [pool.submit(_hold_received, trial, dataset) for trial, dataset in trials]
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise VeilError(
                f"a process that trained a recognizer was killed, perhaps for want of memory: use fewer than {self.jobs} jobs."
            ) from error
        except BaseException:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()  # whoever interrupts does not want to wait for what is being trained
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _entry(self, kind: str, what: str) -> Path:
        base = dict(self.base)
        if kind == "recognizer":  # what other questions, seeds and attackers there are does not matter to one
            base = {key: base[key] for key in ("layout", "data", "device", "weights")}
            base["how"] = {key: self.suite.plain()[key] for key in ("size", "frames", "efforts", "weights")}
        key = hashlib.sha256(json.dumps([base, what], sort_keys=True, default=str).encode()).hexdigest()[:32]
        return self.keep / f"{kind}-{key}"

    def _kept(self, entry: Path) -> Result | None:
        kept = kept_at(entry) if entry.with_suffix(".json").exists() else None
        if kept and self._raw_rows is None and kept.raw:
            self._raw_rows = kept.raw
        return kept

    def _described(self, dataset: str) -> str:
        samples = self.samples[dataset]
        counts = ", ".join(f"{sum(s.split == name for s in samples)} {name}" for name in SPLITS)
        return f"{dataset} ({counts}) at {self.suite.size} x {self.suite.size}"

    def _unasked(self) -> list[str]:
        asked = {target for _, _, target, _ in self.questions}
        unasked = [target for target in ("action", "identity", "attributes") if target not in asked]
        return [
            f"Anything about {target}: the data does not say it, or no answer of the test videos is in the training videos."
            for target in unasked
        ]


def _chosen(stage: DataConfig) -> dict[str, list[str]]:
    """The labels that a run was trained with, where it was not with all."""
    return {"actions": [*stage.use.actions], "attributes": [*stage.chosen]}


def _not_novel(stage: DataConfig, data: Data) -> Iterator[str]:
    """Where labels were chosen, for a run or for its audit: which of those that are asked for it was trained with."""
    private = data.private or data.use
    asked = {
        "actions": data.actions or data.use.actions,
        "attributes": data.attributes or private.attributes,
    }
    trained = _chosen(stage)
    if data.actions and not trained["actions"] and stage.use.name == data.use.name:
        trained["actions"] = [*data.use.actions]
    for what, names in trained.items():
        if both := [name for name in asked[what] if name in names]:
            yield f"Novel {what} alone: the run was trained with {', '.join(both)}."


def _targets(dataset: Dataset) -> list[str]:
    """What each of the dataset's splits can be asked, and what can be learned from the first for the last."""
    empty = torch.empty(0)
    parts = [Footage(empty, tuple(dataset.split(name)), dataset.name) for name in SPLITS]  # type: ignore[arg-type]
    known = [t for t in ("action", "identity", "attributes") if all(t in part.targets() for part in parts)]
    train, test = parts[0], parts[2]
    return [
        t
        for t in known
        if t == "attributes" or seen_before(train, test, t) or (t == "identity" and _has_gallery(test))
    ]


def _has_gallery(test: Footage) -> bool:
    """Whether strangers can be found again among the test videos themselves."""
    return {"gallery", "probe"} <= {sample.groups.get("role") for sample in test.samples}


def _limited(dataset: Dataset, videos: int | None) -> list[Sample]:
    """At most so many samples, evenly from all of them."""
    samples = list(dataset.samples)
    if videos is None or len(samples) <= videos:
        return samples
    return [samples[i] for i in np.linspace(0, len(samples) - 1, videos).round().astype(int)]


def _are_stills(dataset: Dataset, samples: Sequence[Sample]) -> bool:
    return len(dataset.frames(samples[0])) == 1


def _picture(
    pictures: list[Picture], raw: Footage, out: Footage, restored: Footage | None, count: int = 4
) -> None:
    for row in np.linspace(0, len(raw) - 1, min(count, len(raw))).round().astype(int):
        at = raw.frames.shape[1] // 2
        sample = raw.samples[row]
        words = raw.actions[sample.action] if sample.action is not None else raw.dataset
        back = restored.frames[row, at].cpu().numpy() if restored is not None else None
        pictures.append(
            Picture(words, raw.frames[row, at].cpu().numpy(), out.frames[row, at].cpu().numpy(), back)
        )


def _device_name(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(torch.device(device))
    return f"{device}, {torch.get_num_threads()} threads"
