"""The table of filters on real data: the utility and the leakage of each, by the audit's recognizers.

    python -m experiments.filters regions DATA -o regions.npz     where people are, found once (needs the YOLOX weights)
    python -m experiments.filters parts DATA -o parts.npz --weights parts.safetensors      the part network's output for each frame
    python -m experiments.filters table DATA --regions regions.npz --parts parts.npz [--seconds 500]
    python -m experiments.filters merge -o PAGES                  the audit's pages of all records in docs/results

DATA holds `utd_mhad_depth` (actions against the identity of 8 people) and `ucf_sports` with `utkface` (actions of the
one against gender, race and age of the other). Every method and seed is a task; several are done at once, raw video
first; each finished task is one record (`experiments.records`), and tasks that have a record are not done again. So the table
can be made in several sittings, and on a GPU machine without onnxruntime: people are where `regions` found them, and the part
network's outputs are those of `parts`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import re
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from experiments import records
from experiments.records import Current, Record
from veil.audit.audit_data import AuditData
from veil.audit.experiment import merge_seeds
from veil.audit.provenance import data_fingerprint, source_fingerprint, suite_fingerprint, weights_fingerprint
from veil.audit.recognition import RecognizerSpec, TrainingBudget
from veil.audit.reconstruction import ReconstructionBudget
from veil.audit.report import write
from veil.audit.result import Result
from veil.audit.runner import run_audit
from veil.audit.suites import Suite
from veil.core import Anonymizer, Frames, Image, Region, Veiled
from veil.data import Dataset, Sample, read
from veil.data.frames import square
from veil.methods import ANONYMIZERS, make
from veil.methods.filters import Filter
from veil.people import parts as part_network
from veil.people.parts import Parts, network_input

SIZE = 112
METHODS = {
    "raw": None,
    "downsample 2x": "downsample:factor=2",
    "downsample 4x": "downsample:factor=4",
    "downsample 8x": "downsample:factor=8",
    "downsample 16x": "downsample:factor=16",
    "blur weak": "blur:weak,region=frame",
    "blur strong": "blur:strong,region=frame",
    "pixelate 4": "pixelate:4,region=frame",
    "pixelate 16": "pixelate:16,region=frame",
    "blacken people": "blacken:region=person",
    "mask people": "mask:region=person",
    "noise 0.3": "noise:amount=0.3,seed=0",
    "selective person": "selective:hide=person,also=none,levels=video,seed=0",
    "selective head": "selective:hide=face+hair,also=none,levels=video,seed=0",
    "selective person, iid": "selective:hide=person,also=none,levels=video,carry=iid,seed=0",
    "selective person, hidden levels": "selective:hide=person,also=none,levels=hidden,seed=0",
}
SUITE = Suite(
    about="112 x 112 pixels; clips of 8 frames spread over the video",
    size=SIZE,
    frames=16,
    videos=None,
    seeds=3,
    utility=(RecognizerSpec("small3d", "clips"), RecognizerSpec("r3d_18", "clips")),
    attackers=(
        RecognizerSpec("resnet18", "frames"),
        RecognizerSpec("small3d", "clips"),
        RecognizerSpec("kernel", "frames"),
        RecognizerSpec("kernel", "clips"),
    ),
    budgets={
        "frames": TrainingBudget(steps=1000, rounds=2, batch=64, clip_length=8),
        "clips": TrainingBudget(steps=1300, rounds=2, batch=32, lr=3e-3, clip_length=8),
        "r3d_18 on clips": TrainingBudget(
            steps=1300, adaptation=0.3, rounds=1, batch=32, lr=3e-4, clip_length=8
        ),
    },
    reconstruction=ReconstructionBudget(steps=400, batch=64, width=24),
    encodings=("8-bit",),
    untested=("What H.264 leaves of it: see `veil audit`.",),
)


class Recorded(Anonymizer):
    """A filter that hides people where they were found before."""

    def __init__(self, spec: str, regions: Regions):
        made = make(spec)
        assert isinstance(made, Filter)
        self._filter, self._regions = made, regions

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        frames = np.concatenate(list(windows))
        for image, boxes in zip(frames, self._regions.of(frames), strict=True):
            regions = tuple(Region("person", tuple(box), 1.0, "detected", 0) for box in boxes.tolist())
            yield Veiled(self._filter._hide(image, regions, "box")[None], [regions])

    def params(self) -> dict:
        return {**self._filter.params(), "regions": "recorded"}


class Stored(Anonymizer):
    """A method whose results are kept in a folder, so that every seed meets the same video and it is made once."""

    def __init__(self, spec: str, folder: Path):
        self._method, self._folder = make(spec), folder

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        frames = np.concatenate(list(windows))
        path = self._folder / f"{zlib.crc32(frames.tobytes()):08x}.npy"
        if not path.exists():
            made = np.concatenate([part.frames for part in self._method.stream([frames])])
            draft = path.with_suffix(f".{os.getpid()}")
            with draft.open("wb") as file:
                np.save(file, made)
            draft.replace(path)
        yield Veiled(np.load(path), None)

    def params(self) -> dict:
        return self._method.params()


class Regions:
    """Boxes of people by video; a video is known by what it looks like, for decoders differ by a grey level."""

    def __init__(self, path: Path):
        with np.load(path, allow_pickle=False) as stored:
            self._looks, self._lengths = stored["looks"], stored["lengths"]  # (N, 192), (N,)
            self._boxes, self._at = stored["boxes"], stored["at"]  # (M, 4), (M, 2) video and frame

    def of(self, frames: Frames) -> list[np.ndarray]:
        distance = np.abs(self._looks - look(frames)).mean(1) + 1e6 * (self._lengths != len(frames))
        video = int(distance.argmin())
        if distance[video] > 3:
            raise SystemExit(f"no regions are recorded for a video of {len(frames)} frames")
        mine = self._at[:, 0] == video
        at, boxes = self._at[mine, 1], self._boxes[mine]
        return [boxes[at == index] for index in range(len(frames))]


def look(frames: Frames) -> np.ndarray:
    """What a video looks like: three frames of it, very small."""
    chosen = (cv2.resize(frames[i], (8, 8), interpolation=cv2.INTER_AREA) for i in (0, len(frames) // 2, -1))
    return np.concatenate([picture.mean(-1).ravel() for picture in chosen])


class Known(Parts):
    """The part network's answers, as they were written before; an image is known by its bytes."""

    def __init__(self, path: Path):
        with np.load(path, allow_pickle=False) as stored:
            self.thresholds = json.loads(str(stored["thresholds"]))
            self._rows = {int(image): row for row, image in enumerate(stored["images"])}
            self._answers = stored["answers"]  # (N, 8, h, w), in steps of 1 / 255

    def __call__(self, image: Image) -> npt.NDArray[np.float32]:
        return self._answers[self._rows[zlib.crc32(image.tobytes())]] / np.float32(255)


def answer(root: Path, weights: Path, path: Path, device: str) -> None:
    """Show every frame of all videos to the part network, and store its output."""
    from veil.people.part_network import load_net

    net, metadata = load_net(weights)
    net = net.to(device).eval()
    seen: dict[int, Image] = {}
    for data in datasets(root).values():
        for dataset in filter(None, (data.utility, data.private)):
            for sample in (small := in_memory(dataset)).samples:
                seen |= {zlib.crc32(image.tobytes()): image for image in small.frames(sample)}
    images, answers = list(seen), []
    for first in range(0, len(images), 256):
        batch = np.concatenate([network_input(seen[image]) for image in images[first : first + 256]])
        with torch.inference_mode():
            likely = net.coarse(torch.from_numpy(batch).to(device)).float().softmax(1)
        answers.append(likely.mul(255).round().byte().cpu().numpy())
    np.savez(
        path,
        images=np.array(images),
        answers=np.concatenate(answers),
        thresholds=json.dumps(metadata["thresholds"]),
    )
    print(f"{len(images)} frames", flush=True)


def datasets(root: Path) -> dict[str, AuditData]:
    """The two protocols that the data at hand allows."""
    out = {}
    if (root / "utd_mhad_depth").exists():
        out["utd-mhad"] = AuditData(read("utd-mhad", root / "utd_mhad_depth"))
    if (root / "ucf_sports").exists():
        out["ucf-sports-utkface"] = AuditData(
            read("ucf-sports", root / "ucf_sports"), read("utkface", root / "utkface")
        )
    return out


def in_memory(dataset: Dataset) -> Dataset:
    """The dataset with its frames in memory, already small and square."""
    store: dict[str, Frames] = {}

    def fetch(sample: Sample) -> None:
        assert sample.path is not None
        if sample.path.suffix == ".mp4":
            capture = cv2.VideoCapture(str(sample.path))
            frames = []
            while (got := capture.read())[0]:
                frames.append(cv2.cvtColor(got[1], cv2.COLOR_BGR2RGB))
            store[sample.id] = square(np.stack(frames), SIZE)
        else:
            store[sample.id] = square(dataset.frames(sample), SIZE)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fetch, dataset.samples))
    return replace(dataset, frames=lambda sample: store[sample.id])


def record(root: Path, path: Path) -> None:
    """Find people in all videos and keep where they were."""
    finder = make("blacken:region=person")
    looks, lengths, boxes, at = [], [], [], []
    for data in datasets(root).values():
        samples = [
            (one, sample) for one in filter(None, (data.utility, data.private)) for sample in one.samples
        ]
        for number, (one, sample) in enumerate(samples):
            frames = square(one.frames(sample), SIZE)
            found = [regions for part in finder.stream([frames]) for regions in part.regions or ()]
            for frame, regions in enumerate(found):
                boxes += [region.box for region in regions]
                at += [(len(looks), frame)] * len(regions)
            looks.append(look(frames))
            lengths.append(len(frames))
            if number % 50 == 0:
                print(f"{one.name}: {number} of {len(samples)}", flush=True)
    np.savez_compressed(
        path,
        looks=np.array(looks, np.float32),
        lengths=np.array(lengths),
        boxes=np.array(boxes, np.float32),
        at=np.array(at, np.int32),
    )


Task = tuple[str, str, int]  # protocol, method, seed


def slug(name: str) -> str:
    """A name as it stands in a file's."""
    return re.sub(r"[^A-Za-z0-9.+]+", "-", name)


def work(
    worker: int, tasks: list[Task], taken, data: dict[str, AuditData], given: argparse.Namespace
) -> None:
    """Take tasks until there are none, or no time for another."""
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    begun, longest = given.begun, 0.0
    if given.known:
        part_network.parts = lambda: given.known  # its file needs onnxruntime
    regions = Regions(given.regions) if given.regions else None
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(tasks):
            return
        protocol, name, seed = tasks[number]
        if (name, seed) in records.done(given.output, protocol):
            continue
        while name != "raw" and ("raw", seed) not in records.done(given.output, protocol):
            time.sleep(2)
        start = time.monotonic()
        if start + longest - begun > given.seconds:
            return
        spec = METHODS[name]
        anonymizer = None
        if spec is not None:
            hides_people = "region=person" in spec
            if (hides_people and regions is None) or ("selective" in spec and given.known is None):
                continue
            if "selective" in spec:
                (folder := given.keep / "anonymized" / name).mkdir(parents=True, exist_ok=True)
                anonymizer = Stored(spec, folder)
            else:
                anonymizer = Recorded(spec, regions) if hides_people and regions else make(spec)
        suite = suite_of(protocol, seed)
        if given.tiny:
            suite = tiny(suite)
        (result,) = run_audit(
            {name: anonymizer},
            data[protocol],
            suite,
            seeds=[seed],
            device=given.device,
            cache=given.keep,
            command="python -m experiments.filters table DATA --regions regions.npz --parts parts.npz",
        )
        now = Current(code_of(name), suite_fingerprint(suite_of(protocol, seed)))
        records.append(given.output, record_of(result, protocol, seed, data[protocol], anonymizer, now))
        longest = time.monotonic() - start
        print(
            f"{start - begun:5.0f} s +{time.monotonic() - start:4.0f} s [{worker}] {protocol} {name} {seed}",
            flush=True,
        )


def fewer_steps(suite: Suite) -> Suite:
    """For 75 clips, which networks fit in far fewer steps."""
    fewer = {key: replace(budget, steps=400) for key, budget in suite.budgets.items() if "clips" in key}
    return replace(suite, budgets=suite.budgets | fewer)


def suite_of(protocol: str, seed: int) -> Suite:
    """The recognizers of a protocol; the larger networks, which seldom are the strongest here, for the first seed only."""
    suite = fewer_steps(SUITE) if protocol == "ucf-sports-utkface" else SUITE
    if seed > 0:
        suite = replace(
            suite,
            utility=suite.utility[:1],
            attackers=suite.attackers[:1],
            knowledge=("oblivious", "adaptive"),
        )
    return suite


@cache
def code_of(name: str) -> str:
    """The fingerprint of a method's specification and code."""
    spec = METHODS[name]
    return records.digest(spec, source_fingerprint(ANONYMIZERS[spec.split(":")[0]]) if spec else "raw")


def record_of(
    result: Result, protocol: str, seed: int, data: AuditData, anonymizer: Anonymizer | None, now: Current
) -> Record:
    """The record of an audit's result."""
    plain = result.to_json()
    scores = []
    for row in plain["rows"]:
        (value,), losses = row.pop("values"), row.pop("train_loss")
        scores.append({**row, "value": value, "train_loss": losses[0] if losses else None})
    settings = {key: value for key, value in plain["settings"].items() if key != "seeds"}
    details = {key: plain[key] for key in ("params", "data", "untested", "version")}
    return Record(
        protocol,
        result.method,
        seed,
        scores,
        commit=records.commit(),
        code=now.code,
        weights=weights_fingerprint(anonymizer),
        data=records.digest(*(data_fingerprint(one) for one in (data.utility, data.private) if one)),
        suite=now.suite,
        time=records.now(),
        hardware=result.device,
        command=result.command,
        evaluation_seconds=result.seconds,
        details={**details, **settings},
    )


def result_of(record: Record, raw: Sequence[Record]) -> Result:
    """The audit's result of a record, beside those of raw video."""
    plain = {
        "method": record.method,
        "rows": [_row(score) for score in record.scores],
        "raw": [_row(score) for one in raw for score in one.scores],
        "settings": {"suite": record.details["suite"], "seeds": [record.seed]},
        "command": record.command or "",
        "seconds": record.evaluation_seconds or 0.0,
        "device": record.hardware or "",
        **{key: record.details[key] for key in ("params", "data", "untested", "version")},
    }
    return Result.from_json(plain)


def _row(score: Mapping[str, Any]) -> dict[str, Any]:
    """A score as `Result.from_json` reads it."""
    loss = score["train_loss"]
    row = {**score, "values": [score["value"]], "train_loss": [] if loss is None else [loss]}
    del row["value"]
    return row


def tiny(suite: Suite) -> Suite:
    """To see that everything runs, on a processor."""
    nets = {"clips": RecognizerSpec("small3d", "clips"), "frames": RecognizerSpec("small2d", "frames")}
    return replace(
        suite,
        size=SIZE,
        videos=60,
        utility=(nets["clips"],),
        attackers=tuple(nets.values()),
        budgets={key: replace(budget, steps=4, batch=8, rounds=1) for key, budget in suite.budgets.items()},
        reconstruction=ReconstructionBudget(steps=2, batch=4, width=4),
    )


def table(given: argparse.Namespace) -> None:
    given.output.mkdir(parents=True, exist_ok=True)
    given.begun = time.monotonic()
    given.known = Known(given.parts) if given.parts else None
    data = {
        name: AuditData(in_memory(one.utility), in_memory(one.private) if one.private else None)
        for name, one in datasets(given.data).items()
    }
    print(f"decoded in {time.monotonic() - given.begun:.1f} s", flush=True)
    tasks: list[Task] = [
        (protocol, name, seed)
        for seed in range(given.seeds)
        for raw_first in (True, False)
        for name in METHODS
        for protocol in data
        if (name == "raw") == raw_first
    ]
    context = multiprocessing.get_context("fork")  # the frames are shared; CUDA begins after it
    taken = context.Value("i", 0)
    workers = [context.Process(target=work, args=(i, tasks, taken, data, given)) for i in range(given.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    done = sum((name, seed) in records.done(given.output, protocol) for protocol, name, seed in tasks)
    print(f"{done} of {len(tasks)} tasks are done", flush=True)
    if any(worker.exitcode for worker in workers):
        sys.exit("a worker failed")


def merge(folder: Path, output: Path) -> None:
    """One comparison for each protocol, of all methods and seeds that have a record."""
    output.mkdir(parents=True, exist_ok=True)
    order = list(METHODS)
    for protocol in records.protocols(folder):
        if protocol.startswith("features-"):
            continue
        methods: dict[str, list[Record]] = {}
        for record in records.read(folder, protocol):
            methods.setdefault(record.method, []).append(record)
        raw = methods.get("raw", [])
        joined: list[Result] = []
        for name in sorted(
            methods, key=lambda name: (order.index(name) if name in order else len(order), name)
        ):
            parts = [result_of(record, raw) for record in methods[name]]
            joined.append(
                dataclasses.replace(
                    parts[0],
                    rows=merge_seeds(row for part in parts for row in part.rows),
                    raw=merge_seeds(parts[0].raw),
                    seconds=sum(part.seconds for part in parts),
                    settings={**parts[0].settings, "seeds": [record.seed for record in methods[name]]},
                )
            )
        print(f"{protocol}\n\n{summary(joined)}\n")
        written = write(joined, output / protocol)
        print(json.dumps({"protocol": protocol, "methods": len(joined), "page": str(written.html)}))


def summary(results: list[Result]) -> str:
    """A line for each method: its utility, adaptive and oblivious, and the strongest and the oblivious attacker."""
    lines = [
        "| method | utility, adaptive | utility, oblivious | leakage, strongest | leakage, oblivious | seeds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        cells = []
        for role in ("utility", "leakage"):
            rows = [row for row in result.rows if row.role == role]
            oblivious = [row for row in rows if row.knowledge == "oblivious"]
            adaptive = [row for row in rows if row.knowledge == "adaptive"]
            for some in (rows if role == "leakage" else adaptive, oblivious):
                best = max(some, key=lambda row: row.value, default=None)
                low, high = (best.interval or best.spread) if best else (0, 0)
                cells.append(f"{best.value:.3f} [{low:.3f}–{high:.3f}]" if best else "–")
        lines.append(f"| {result.method} | {' | '.join(cells)} | {len(result.settings['seeds'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("regions", "parts", "table", "merge"):
        one = verbs.add_parser(verb)
        if verb != "merge":
            one.add_argument("data", type=Path)
        one.add_argument(
            "-o",
            "--output",
            type=Path,
            required=verb != "table",
            default=records.RESULTS,
            help="file or folder",
        )
        if verb == "table":
            one.add_argument("--regions", type=Path)
            one.add_argument("--parts", type=Path)
            one.add_argument("--seconds", type=float, default=1e9, help="take no task that may end later")
            one.add_argument("--seeds", type=int, default=3)
            one.add_argument("--jobs", type=int, default=4, help="tasks done at once")
            one.add_argument("--keep", type=Path, help="folder for recognizers of raw video")
            one.add_argument("--tiny", action="store_true", help="to see that it runs")
        if verb == "parts":
            one.add_argument("--weights", type=Path, required=True)
        if verb in ("parts", "table"):
            one.add_argument("--device", default="cuda")
    given = parser.parse_args()
    if given.verb == "regions":
        record(given.data, given.output)
    elif given.verb == "parts":
        answer(given.data, given.weights, given.output, given.device)
    elif given.verb == "table":
        given.keep = given.keep or Path("runs") / "keep"
        table(given)
    else:
        merge(records.RESULTS, given.output)


if __name__ == "__main__":
    main()
