"""The runner of an audit: every method against the same recognizers, on the same data, beside raw video.

For each seed, target and recognizer there is one experiment (`veil.audit.experiment`), and every evaluator of
`veil.audit.evaluators` is applied to it. Experiments are independent, so that several can run at once. Results are
cached by the fingerprints of their inputs: the same method on the same data under the same suite is not audited twice.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from veil.audit import evaluators
from veil.audit.audit_data import SPLITS, AuditData, are_stills, limited
from veil.audit.cache import AuditCache
from veil.audit.evaluator import MethodVideos
from veil.audit.experiment import Experiment, SplitVideos, merge_seeds
from veil.audit.novelty import not_novel, trained_labels
from veil.audit.provenance import (
    EVALUATION,
    data_fingerprint,
    file_digest,
    method_fingerprint,
    source_fingerprint,
    suite_fingerprint,
)
from veil.audit.recognition import RecognizerSpec
from veil.audit.result import Encoding, Picture, Result, Row
from veil.audit.scheduling import Measured, PreparedVideos, Scheduled, run_experiments
from veil.audit.suites import ALWAYS, Suite
from veil.audit.videos import Videos, gather, held_in_memory, seen_in_training
from veil.core import Anonymizer, Progress, VeilError, __version__
from veil.data import Sample
from veil.methods.learned import Learned

RAW = "raw"
PICTURES = 4  # of each dataset
NO_RECONSTRUCTION = "Frames of the reconstruction attacker: they are not cached, and this result is; `--fresh` measures it again."


def run_audit(
    methods: Mapping[str, Anonymizer | None],
    data: AuditData,
    suite: Suite,
    *,
    seeds: Sequence[int] | None = None,
    device: str = "cpu",
    jobs: int = 1,
    cache: Path | None = None,
    fresh: bool = False,
    command: str = "",
    progress: Progress | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Audit methods by name; raw video is measured once, beside all of them ("raw": None lists it as a method).

    ``cache``: the folder of results and of recognizers of raw video; with ``fresh`` the entries of this audit are
    computed again, others are left alone. ``on_result`` gets each result as soon as it is there.
    """
    chosen = tuple(range(suite.seeds)) if seeds is None else tuple(seeds)
    with tempfile.TemporaryDirectory(prefix="veil-audit-") as folder:
        store = AuditCache(Path(folder) if cache is None else cache)
        runner = _Runner(data, suite, chosen, device, jobs, store, command, progress or _silent)
        if fresh:
            store.discard(runner.entries(methods.values()))
        out = []
        for name, anonymizer in methods.items():
            out.append(runner.result(name, anonymizer))
            if on_result:
                on_result(out[-1])
    return out


class _Runner:
    """One choice of data, suite and seeds, for one method after the other."""

    def __init__(
        self,
        data: AuditData,
        suite: Suite,
        seeds: tuple[int, ...],
        device: str,
        jobs: int,
        cache: AuditCache,
        command: str,
        progress: Progress,
    ):
        self.data, self.suite, self.seeds, self.device, self.jobs = data, suite, seeds, device, jobs
        self.cache, self.command, self.progress = cache, command, progress
        self.questions = data.questions()
        given = {question.dataset.name: question.dataset for question in self.questions}
        self.samples = {name: limited(dataset, suite.videos) for name, dataset in given.items()}
        self.datasets = {name: held_in_memory(dataset, suite.size) for name, dataset in given.items()}
        self.key = {
            "data": [
                data_fingerprint(dataset, self.samples[name], modified=True)
                for name, dataset in given.items()
            ],
            "device": torch.device(device).type,
            "torch": torch.__version__,
        }
        self._raw: dict[str, SplitVideos] = {}
        self._stills: dict[str, bool] = {}
        self._raw_rows: tuple[Row, ...] | None = None

    def entries(self, methods: Iterable[Anonymizer | None]) -> Iterator[Path]:
        """The cache entries of this audit."""
        yield from map(self._result_entry, methods)
        for experiment, _ in self._experiments():
            yield experiment.cached

    def result(self, name: str, anonymizer: Anonymizer | None) -> Result:
        """The result of a method: cached, or measured now."""
        entry = self._result_entry(anonymizer)
        result = self.cache.load(entry)
        if result is None:
            result = self._measure(name, anonymizer)
            self.cache.save(entry, result)
        else:
            if self._raw_rows is None and result.raw:
                self._raw_rows = result.raw
            pictures = tuple(self._pictures_again(anonymizer))
            reconstructed = any(row.knowledge == "reconstruction" for row in result.rows)
            silent = (*result.untested, NO_RECONSTRUCTION) if reconstructed else result.untested
            result = replace(result, pictures=pictures, untested=silent)
        result = replace(result, method=name, command=self.command)
        if not isinstance(anonymizer, Learned):
            return result
        config = anonymizer.made[1]
        labels = {kind: names for kind, names in trained_labels(config).items() if names}
        return replace(
            result,
            settings={**result.settings, **({"trained with": labels} if labels else {})},
            untested=(*not_novel(config, self.data), *result.untested),
        )

    def _measure(self, name: str, anonymizer: Anonymizer | None) -> Result:
        begun = time.monotonic()
        pictures: list[Picture] = []
        videos = {}
        for dataset in self.datasets:
            videos[dataset] = self._prepare(name, dataset, anonymizer)
            pictures += _pictures(videos[dataset])
        measured = list(self._run(name, videos))
        raw = merge_seeds(row for one in measured for row in one.raw)
        if anonymizer is None:
            rows = self._raw_rows = raw
        else:
            rows = merge_seeds(row for one in measured for row in one.method)
            self._raw_rows = self._raw_rows or raw
        params = {} if anonymizer is None else anonymizer.params()
        return Result(
            method=name,
            params={key: value for key, value in params.items() if value is not None},
            data="; ".join(self._described(dataset) for dataset in self.datasets),
            rows=rows,
            raw=self._raw_rows,
            settings={"suite": self.suite.plain(), "seeds": list(self.seeds)},
            untested=(*self.suite.untested, *self._not_labelled(), *ALWAYS),
            command=self.command,
            seconds=time.monotonic() - begun,
            device=_device_name(self.device),
            version=__version__,
            pictures=tuple(pictures),
        )

    def _prepare(self, name: str, dataset: str, anonymizer: Anonymizer | None) -> PreparedVideos:
        if dataset not in self._raw:
            self._raw[dataset] = self._gather(f"reading {dataset}", dataset, None, "8-bit")
        raw = self._raw[dataset]
        if anonymizer is None:
            return PreparedVideos(raw, None, {})
        videos = MethodVideos(
            raw,
            self._gather(f"{name}: anonymizing {dataset}", dataset, anonymizer, "8-bit"),
            self.suite,
            self.device,
            lambda encoding: self._gather(f"{name}: through {encoding}", dataset, anonymizer, encoding),
            lambda message: self.progress(0, 1, f"{name}: {message} ({dataset})"),
        )
        prepared = {evaluator.name: evaluator.prepare(videos) for evaluator in evaluators.EVALUATORS}
        used = {key: value for key, value in prepared.items() if value is not None}
        return PreparedVideos(raw, videos.anonymized, used)

    def _gather(
        self, message: str, dataset: str, anonymizer: Anonymizer | None, encoding: Encoding
    ) -> SplitVideos:
        def report(done: int, total: int | None, message: str | None = message) -> None:
            self.progress(done, total, message)

        videos = gather(
            self.datasets[dataset],
            anonymizer,
            size=self.suite.size,
            frames=self._frames(dataset),
            encoding=encoding,
            samples=self.samples[dataset],
            progress=report,
        )
        split = {name: videos.split(name) for name in SPLITS}
        people = any(q.dataset.name == dataset and q.target == "identity" for q in self.questions)
        if people and not seen_in_training(split["train"], split["val"], "identity"):
            # Unseen identities cannot choose the best weights: every tenth video of those seen does.
            tenth = {sample.id for sample in split["train"].samples[::10]}
            split["val"] = split["train"].of(lambda sample: sample.id in tenth)
            split["train"] = split["train"].of(lambda sample: sample.id not in tenth)
        if empty := [name for name in SPLITS if not len(split[name])]:
            raise VeilError(
                f"{dataset} has no {empty[0]} videos: choose data with training, validation and test videos.",
                code="audit-split-empty",
            )
        if self.jobs > 1:
            for part in split.values():
                part.frames.share_memory_()
        return split

    def _frames(self, dataset: str) -> int:
        """Frames of each video; one of stills."""
        if dataset not in self._stills:
            self._stills[dataset] = are_stills(self.datasets[dataset], self.samples[dataset])
        return 1 if self._stills[dataset] else self.suite.frames

    def _run(self, name: str, videos: dict[str, PreparedVideos]) -> Iterator[Measured]:
        experiments = list(self._experiments())
        message = f"{name}: training recognizers"
        self.progress(0, len(experiments), message)
        for done, measured in enumerate(run_experiments(experiments, videos, self.jobs), 1):
            self.progress(done, len(experiments), message)
            yield measured

    def _experiments(self) -> list[Scheduled]:
        """Every experiment with the name of its dataset, the long ones first."""
        found: list[Scheduled] = []
        for seed in self.seeds:
            for dataset, role, target, protocol in self.questions:
                still = self._frames(dataset.name) == 1
                for recognizer in self.suite.utility if role == "utility" else self.suite.attackers:
                    if recognizer.input != "frames" and (still or target in self.suite.frames_only):
                        continue
                    experiment = Experiment(
                        role,
                        target,
                        protocol,
                        recognizer,
                        seed,
                        self.suite.budget(recognizer),
                        self.suite.weights.get(recognizer.net),
                        self.device,
                        self._recognizer_entry(target, protocol, recognizer, seed),
                    )
                    found.append((experiment, dataset.name))
        return sorted(found, key=lambda scheduled: scheduled[0].recognizer.input == "frames")

    def _result_entry(self, anonymizer: Anonymizer | None) -> Path:
        questions = [question[1:] for question in self.questions]
        suite = suite_fingerprint(self.suite)
        method = method_fingerprint(anonymizer)
        return self.cache.place("result", self.key, questions, suite, self.seeds, method)

    def _recognizer_entry(self, target: str, protocol: str, recognizer: RecognizerSpec, seed: int) -> Path:
        # Other questions, seeds and attackers of the suite do not matter to one recognizer.
        suite = {key: self.suite.plain()[key] for key in ("size", "frames", "budgets")}
        weights = {net: file_digest(path) for net, path in self.suite.weights.items()}
        source = source_fingerprint(*EVALUATION)
        what = [target, protocol, str(recognizer), seed]
        return self.cache.place("recognizer", self.key, suite, weights, source, what)

    def _pictures_again(self, anonymizer: Anonymizer | None) -> Iterator[Picture]:
        """The pictures of a cached result: frames are never cached, so they are anonymized again."""
        for name, dataset in self.datasets.items():
            test = [sample for sample in self.samples[name] if sample.split == "test"]
            some: list[Sample] = [test[row] for row in _picture_rows(len(test))]
            how = {"size": self.suite.size, "frames": self._frames(name), "samples": some}
            raw = gather(dataset, None, **how)
            out = raw if anonymizer is None else gather(dataset, anonymizer, **how)
            yield from _paired_pictures(raw, out, None, range(len(raw)))

    def _described(self, dataset: str) -> str:
        samples = self.samples[dataset]
        counts = ", ".join(f"{sum(s.split == name for s in samples)} {name}" for name in SPLITS)
        return f"{dataset} ({counts}) at {self.suite.size} x {self.suite.size}"

    def _not_labelled(self) -> list[str]:
        covered = {question.target for question in self.questions}
        missing = [target for target in ("action", "identity", "attributes") if target not in covered]
        return [
            f"Anything about {target}: the data has no labels of it, or none that training and test videos share."
            for target in missing
        ]


def _pictures(videos: PreparedVideos) -> Iterator[Picture]:
    """Frames of some test videos, as the attackers got them."""
    raw = videos.raw["test"]
    out = videos.anonymized["test"] if videos.anonymized else raw
    back = videos.prepared.get("reconstruction")
    yield from _paired_pictures(raw, out, back["test"] if back else None, _picture_rows(len(raw)))


def _paired_pictures(
    raw: Videos, out: Videos, reconstructed: Videos | None, rows: Sequence[int]
) -> Iterator[Picture]:
    at = raw.frames.shape[1] // 2
    for row in rows:
        sample = raw.samples[row]
        caption = raw.actions[sample.action] if sample.action is not None else raw.dataset
        before, after = (part.frames[row, at].cpu().numpy() for part in (raw, out))
        back = None if reconstructed is None else reconstructed.frames[row, at].cpu().numpy()
        yield Picture(caption, before, after, back)


def _picture_rows(count: int) -> list[int]:
    return np.linspace(0, count - 1, min(PICTURES, count)).round().astype(int).tolist()


def _silent(done: int, total: int | None, message: str | None = None) -> None:
    pass


def _device_name(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(torch.device(device))
    threads = torch.get_num_threads()
    return f"{device}, {threads} thread{'s' * (threads != 1)}"
