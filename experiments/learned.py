"""The table of learned anonymizers: each is trained by its recipe, and then attacked by the audit's recognizers.

    python -m experiments.learned table DATA [--only "SPAct;BDQ"] [--seeds 0,1,2] [--seconds 500]
    python -m experiments.learned list
    python -m experiments.learned length DATA      the identity from the action and the length of a video, without any pixel

A protocol is `utd-mhad`, `ucf-sports-utkface`, either with -novel (half of the actions, or of the attributes, train the
method, the other half is evaluated), and the first with -unseen (utility and attackers learn from videos that the method was
not trained with), -often (each training video is anonymized several times for them, each time from a frame later) or -others
(other networks than the table's). DATA is as in `experiments.filters`, whose records these stand beside: one JSON Lines file
for each protocol in docs/results, one record for each row and seed (`experiments.records`). Records that exist are not made
again, so that the table can be made in several sittings. The seed is that of the training and of the attackers.
`python -m experiments.learned_report` makes the tables and the plots, `python -m experiments.filters merge` one page of all.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from experiments import filters, records
from experiments.records import Current
from veil.apps.train import train
from veil.audit import videos
from veil.audit.audit_data import AuditData
from veil.audit.provenance import source_fingerprint, suite_fingerprint
from veil.audit.recognition import RecognizerSpec
from veil.audit.runner import run_audit
from veil.audit.suites import Suite
from veil.core import Anonymizer, Frames, Veiled
from veil.data import Dataset, Sample
from veil.data.attributes import UTK_RACES
from veil.methods.learned import Learned
from veil.methods.recipes import RECIPES as PIXEL_RECIPES
from veil.training import config, data_config

RECIPES = Path(__file__).parent.parent / "recipes"


@dataclass(frozen=True)
class Row:
    """A recipe and what is changed in it."""

    recipe: str
    sets: tuple[str, ...] = ()
    main: bool = False  # every seed and both protocols; otherwise one seed of UTD-MHAD


ROWS: dict[str, Row] = {
    "SPAct": Row("spact", main=True),
    "penalty B 0.5": Row("penalty", main=True),
    "adversarial": Row("adversarial", main=True),
    "TeD-SPAD": Row("tedspad", main=True),
    "BDQ": Row("bdq", main=True),
    "ELR 16": Row("elr", main=True),
    "STPrivacy": Row("stprivacy", main=True),
    "noisy features": Row("noisy", main=True),
    "action prototypes": Row("prototypes", main=True),
    "action prototypes, phase temperature 0": Row("prototypes", ("anonymizer.phase_temperature=0",)),
    **{
        f"action prototypes, phase temperature {w}": Row("prototypes", (f"anonymizer.phase_temperature={w}",))
        for w in (0.003, 0.005, 0.02, 0.03)
    },
    "action prototypes, not quantized": Row("prototypes", ("anonymizer.quantize=false",)),
    "action prototypes, class weight 0": Row("prototypes", ("utility.class_weight=0",)),
    "action prototypes, cells of 16": Row("prototypes", ("anonymizer.cell=16",)),
    **{f"penalty B {b}": Row("penalty", (f"penalty.bound={b}",)) for b in (0.3, 0.7, 0.9)},
    **{
        f"penalty B 0.1 lambda {w}": Row("penalty", ("penalty.bound=0.1", f"penalty.weight={w}"))
        for w in (0, 0.25, 0.5, 1)
    },
    "penalty as released": Row(
        "penalty", ("penalty.bound=0.3", "penalty.detached=true", 'budget.cap="none"')
    ),
    **{f"SPAct omega {w}": Row("spact", (f"budget.weight={w}",)) for w in (0.1, 0.3, 3, 10)},
    "SPAct without cap": Row("spact", ('budget.cap="none"',)),
    "SPAct frozen": Row("spact", ('budget.branch="frozen"',)),
    "SPAct spatio-temporal": Row("spact", ('budget.branch="spatiotemporal"', 'budget.networks=["small3d"]')),
    "SPAct views": Row("spact", ('data.pairs="views"',)),
    "SPAct near": Row("spact", ('data.pairs="near"',)),
    "SPAct far": Row("spact", ('data.pairs="far"',)),
    "SPAct MoCo": Row("spact", ('budget.contrast="moco"',)),
    "SPAct RotNet": Row("spact", ('budget.contrast="rotnet"',)),
    "SPAct MobileNet": Row("spact", ('budget.networks=["mobilenet_v1"]',)),
    "SPAct ensemble": Row("spact", ('budget.networks=["resnet18", "mobilenet_v1"]',)),
    "SPAct UNet++": Row("spact", ('anonymizer.net="unet++"',)),
    "SPAct stronger": Row("spact", ("budget.weight=3", "schedule.repeats=3", "budget.batch_stats=true")),
    "SPAct, the paper's networks": Row(
        "spact",
        (
            "anonymizer.width=64",
            'utility.network="r3d_18_spact"',
            'budget.networks=["resnet50"]',
            "schedule.adversarial_steps=800",
        ),
    ),
    "adversarial, ours": Row("adversarial-ours"),
}
# After a protocol's name:
UNSEEN = "-unseen"  # use and attackers learn from videos that the method was not trained with
NOVEL = "-novel"  # the method learns from half of the actions or attributes, use and attackers from the other
OFTEN = "-often"  # use and attackers learn from each training video several times, begun a frame later
OTHERS = "-others"  # other networks than those of the table
KINDS = (UNSEEN, NOVEL, OFTEN, OTHERS)
BEGUN = 6  # times


class Difference(Anonymizer):
    """What learns nothing: each frame less the one four before it, in cells of 16 pixels."""

    def __init__(self, apart: int = 4, cell: int = 16, gain: float = 2.0):
        self.apart, self.cell, self.gain = apart, cell, gain

    def params(self) -> dict[str, Any]:
        return {"apart": self.apart, "cell": self.cell, "gain": self.gain}

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        frames = np.concatenate(list(windows))
        height, width = frames.shape[1:3]
        small = (width // self.cell, height // self.cell)
        cells = np.stack([cv2.resize(f.mean(-1), small, interpolation=cv2.INTER_AREA) for f in frames])
        before = cells[np.maximum(0, np.arange(len(cells)) - self.apart)]
        grey = np.rint((127.5 + self.gain * (cells - before)).clip(0, 255)).astype(np.uint8)
        large = [cv2.resize(f, (width, height), interpolation=cv2.INTER_NEAREST) for f in grey]
        yield Veiled(np.repeat(np.stack(large)[..., None], 3, -1), None)


FIXED: dict[str, Anonymizer] = {"difference and downsample 16x": Difference()}
SUITE: Suite = replace(filters.SUITE, utility=(filters.SUITE.utility[0], RecognizerSpec("kernel", "clips")))
OTHER_UTILITY = tuple(RecognizerSpec(net, "clips") for net in ("r2plus1d_18", "x3d_s", "mvit_v2_s"))
OTHER_ATTACKERS = (
    *(RecognizerSpec(net, "frames") for net in ("resnet50", "resnet101", "vit_b_16")),
    RecognizerSpec("r3d_18", "clips"),
)
OTHER_BUDGETS = {  # large networks, from the beginning: slower, and once
    "frames": replace(SUITE.budgets["frames"], steps=400, rounds=1, lr=3e-4),
    "clips": replace(SUITE.budgets["r3d_18 on clips"], steps=500, adaptation=0.4),
}
Task = tuple[str, str, int]  # protocol, row, seed


def run_name(protocol: str, name: str, seed: int) -> str:
    """The folder of a run."""
    return f"{protocol}.{filters.slug(name)}.{seed}"


def base_of(protocol: str) -> str:
    """The protocol under which a method is trained; that of novel actions is trained by itself."""
    return next(
        (protocol.removesuffix(kind) for kind in KINDS if kind != NOVEL and protocol.endswith(kind)), protocol
    )


def half(data: AuditData, audited: bool) -> tuple[str, ...]:
    """The labels that train the method in the novel protocol, or those that are audited: the other half.

    Of actions the first half trains. Of attributes, gender and age train, and race is audited.
    """
    if data.private is None:
        middle = len(data.utility.actions) // 2
        return data.utility.actions[middle:] if audited else data.utility.actions[:middle]
    return tuple(name for name in data.private.attributes if (name in UTK_RACES) == audited)


def changed(row: Row, protocol: str, seed: int, data: AuditData) -> list[str]:
    """What is set in a recipe for one protocol and seed."""
    sets = [*row.sets, f"seed={seed}", 'data.root="."']
    novel = json.dumps(half(data, audited=False)) if protocol.endswith(NOVEL) else None
    if data.private is not None:
        attributes = f", attributes={novel}" if novel else ""
        sets += [
            'data.name="ucf-sports"',
            f'data.private={{name="utkface", root="."{attributes}}}',
            'data.pairs="views"',
            "data.image_pairs=32",
        ]
    elif novel:
        sets.append(f"data.actions={novel}")
    return sets


def work(
    worker: int, tasks: list[Task], taken: Any, data: dict[str, AuditData], given: argparse.Namespace
) -> None:
    """Take tasks until there are none, or no time for another."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    known: dict[str, Dataset] = {}
    for one in data.values():
        known |= {dataset.name: dataset for dataset in (one.utility, one.private) if dataset}
    videos.cpu_count = lambda: 2  # threads of one worker
    data_config.read_data = lambda name, root, **_: known[name]  # decoded once, for all
    longest = 0.0
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(tasks):
            return
        protocol, name, seed = tasks[number]
        if (name, seed) in records.done(given.output, protocol):
            continue
        start = time.monotonic()
        if start + longest - given.begun > given.seconds:
            return
        try:
            evaluate(protocol, name, seed, data[protocol], given)
        except Exception as error:
            print(f"FAILED {protocol} {name} {seed}: {type(error).__name__}: {error}", flush=True)
            continue
        longest = max(longest, time.monotonic() - start) if name != "raw" else longest
        print(
            f"{start - given.begun:5.0f} s +{time.monotonic() - start:4.0f} s [{worker}] {protocol} {name} {seed}",
            flush=True,
        )


def suite_of(protocol: str, name: str, seed: int) -> Suite:
    """The recognizers of a protocol; further seeds and rows that are no main rows have no reconstruction attacker."""
    if name in filters.METHODS and name != "raw":
        return filters.suite_of(protocol, seed)
    suite = SUITE
    if protocol.startswith("ucf-sports"):
        suite = filters.fewer_steps(suite)
    if protocol.endswith(OTHERS):
        suite = replace(suite, utility=OTHER_UTILITY, attackers=OTHER_ATTACKERS, budgets=OTHER_BUDGETS)
    if seed > 0 or protocol.endswith(KINDS) or (name in ROWS and not ROWS[name].main):
        suite = replace(suite, knowledge=("oblivious", "adaptive"))
    return suite


@cache
def code_of(name: str) -> str:
    """The fingerprint of a method's code, and of its recipe where it is trained."""
    if name in FIXED:
        return records.digest(FIXED[name].params(), source_fingerprint(type(FIXED[name])))
    if name not in ROWS:
        return filters.code_of(name)
    path = RECIPES / f"{ROWS[name].recipe}.toml"
    kind = PIXEL_RECIPES[config.kind_of(path)]
    recipe = config.as_dict(config.read(path, kind, ROWS[name].sets))
    return records.digest(recipe, source_fingerprint(kind, train))


@cache
def current(protocol: str, name: str, seed: int) -> Current:
    """The fingerprints that a record would have if it were made now."""
    return Current(code_of(name), suite_fingerprint(suite_of(protocol, name, seed)))


def evaluate(protocol: str, name: str, seed: int, data: AuditData, given: argparse.Namespace) -> None:
    """Train a row, evaluate it, and add the record."""
    anonymizer, command, spent = None, "python -m experiments.learned table DATA", 0.0
    if name in FIXED:
        anonymizer = FIXED[name]
    elif name != "raw":
        row = ROWS[name]
        base = base_of(protocol)
        run = given.runs / run_name(base, name, seed)
        sets = changed(row, base, seed, data)
        began = time.monotonic()
        mine = run.with_name(f"{run.name}.mine")  # one for each seed
        try:
            mine.mkdir(parents=True)
        except FileExistsError:  # another worker trains it
            while not (run / "weights.safetensors").exists():
                if not mine.exists():
                    raise RuntimeError("its training failed") from None
                time.sleep(0.5)
        else:
            if given.tiny:
                sets += tiny(row)
            try:
                train(RECIPES / f"{row.recipe}.toml", run, sets=tuple(sets), device=given.device, every=10**9)
            except BaseException:
                shutil.rmtree(run, ignore_errors=True)
                mine.rmdir()
                raise
            spent = time.monotonic() - began
            shutil.rmtree(run / "checkpoints", ignore_errors=True)
        anonymizer = Learned(str(run / "weights.safetensors"), given.device)
        shown = [
            text.replace('root="."', 'root="DATA/utkface"')
            for text in sets
            if not text.startswith("data.root=")
        ]
        command = f"veil train recipes/{row.recipe}.toml -o RUN " + " ".join(f"--set '{t}'" for t in shown)
    if name != "raw":
        while ("raw", seed) not in records.done(given.output, protocol):
            time.sleep(2)
    suite = suite_of(protocol, name, seed)
    began = time.monotonic()
    if given.tiny:
        suite = filters.tiny(suite)
    (result,) = run_audit(
        {name: anonymizer},
        data,
        suite,
        seeds=[seed],
        device=given.device,
        jobs=len(suite.utility + suite.attackers)
        if protocol.endswith(OTHERS)
        else 1,  # each is slow by itself
        cache=given.keep,
        command=command,
    )
    print(f"    {name}: trained in {spent:.0f} s, evaluated in {time.monotonic() - began:.0f} s", flush=True)
    if "weights" in result.params:  # no folder of this machine
        result = replace(result, params={**result.params, "weights": "RUN/weights.safetensors"})
    record = filters.record_of(result, protocol, seed, data, anonymizer, current(protocol, name, seed))
    records.append(given.output, replace(record, training_seconds=round(spent, 1)))


def tiny(row: Row) -> list[str]:
    """To see that everything runs, on a processor."""
    kind = PIXEL_RECIPES[config.kind_of(RECIPES / f"{row.recipe}.toml")]
    sets = ["data.batch=2", "data.image_pairs=2"]
    fields = json.dumps(config.schema(kind))
    counts = {"reconstruction_steps": 1, "warmup_steps": 1, "adversarial_steps": 2, "steps": 2}
    sets += [f"schedule.{key}={value}" for key, value in counts.items() if f'"{key}"' in fields]
    return sets


def swapped(dataset: Dataset) -> Dataset:
    """The dataset with validation videos in place of training videos."""
    other = {"train": "val", "val": "train", "test": "test"}
    samples = [replace(sample, split=other[sample.split]) for sample in dataset.samples]
    return replace(dataset, samples=samples)


def often(dataset: Dataset) -> Dataset:
    """The dataset with each training video several times: whole, without its first frame, without two, and so on."""
    begun = {
        f"{sample.id} from {at}": (sample, at) for sample in dataset.split("train") for at in range(BEGUN)
    }
    samples = [replace(sample, id=name) for name, (sample, _) in begun.items()]

    def frames(sample: Sample) -> Frames:
        one, at = begun.get(sample.id, (sample, 0))
        return dataset.frames(one)[at:]

    return replace(dataset, samples=[*samples, *dataset.split("val"), *dataset.split("test")], frames=frames)


def table(given: argparse.Namespace) -> None:
    given.output.mkdir(parents=True, exist_ok=True)
    given.begun = time.monotonic()
    found = filters.datasets(given.data)
    data = {
        name: AuditData(
            filters.in_memory(one.utility), filters.in_memory(one.private) if one.private else None
        )
        for name, one in found.items()
        if name in given.protocols.split(",")
    }
    for name in [name for name in given.protocols.split(",") if name.endswith(KINDS)]:
        base = data[name.rpartition("-")[0]]
        if name.endswith(NOVEL):
            labels = half(base, audited=True)
            data[name] = replace(base, **{"attributes" if base.private else "actions": labels})
        else:
            change = {"unseen": swapped, "often": often}.get(name.rpartition("-")[2], lambda use: use)
            data[name] = AuditData(change(base.utility))
    print(f"decoded in {time.monotonic() - given.begun:.1f} s", flush=True)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    only = given.only.split(";") if given.only else None
    tasks: list[Task] = [(protocol, "raw", seed) for seed in seeds for protocol in data]
    for seed in seeds:
        for protocol in data:
            for name, row in ROWS.items():
                side = seed > 0 or protocol != "utd-mhad"
                if (only is None and (row.main or not side)) or (only is not None and name in only):
                    tasks.append((protocol, name, seed))
            tasks += [(protocol, name, seed) for name in FIXED if only is None or name in only]
    if given.tasks:  # in the order in which they stand there
        lines = given.tasks.read_text().splitlines()
        tasks = [(p, n, int(s)) for p, n, s in (line.split("|") for line in lines if line)]
    tasks = [(p, n, s) for p, n, s in tasks if (n, s) not in records.done(given.output, p)]
    context = multiprocessing.get_context("fork")  # the frames are shared; CUDA begins after it
    taken = context.Value("i", 0)
    workers = [context.Process(target=work, args=(i, tasks, taken, data, given)) for i in range(given.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    done = sum((n, s) in records.done(given.output, p) for p, n, s in tasks)
    print(f"{done} of {len(tasks)} tasks are done", flush=True)
    if any(worker.exitcode for worker in workers):
        sys.exit("a worker failed")


def length(root: Path) -> None:
    """What no change of pictures hides: identities found by trees from a video's action and its length."""
    from sklearn.ensemble import ExtraTreesClassifier

    dataset = filters.in_memory(filters.datasets(root)["utd-mhad"].utility)
    known = {split: dataset.split(split) for split in ("train", "test")}
    features = {
        split: np.array([[*np.eye(len(dataset.actions))[s.action], len(dataset.frames(s))] for s in samples])
        for split, samples in known.items()
    }
    identities = {split: np.array([s.identity for s in samples]) for split, samples in known.items()}
    for name, columns in (("action", slice(-1)), ("action and length", slice(None))):
        found = []
        for seed in range(3):
            trees = ExtraTreesClassifier(500, random_state=seed).fit(
                features["train"][:, columns], identities["train"]
            )
            found.append(float(trees.score(features["test"][:, columns], identities["test"])))
        print(
            f"{name:18s} {np.mean(found):.3f} [{min(found):.3f}-{max(found):.3f}] of {len(identities['test'])}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list")
    verbs.add_parser("length").add_argument("data", type=Path)
    one = verbs.add_parser("table")
    one.add_argument("data", type=Path)
    one.add_argument("-o", "--output", type=Path, default=records.RESULTS, help="folder of the records")
    one.add_argument("--only", help="rows, with ; between; every seed and protocol that is named")
    one.add_argument("--tasks", type=Path, help="file of lines PROTOCOL|ROW|SEED, instead")
    one.add_argument("--seeds", default="0,1,2")
    one.add_argument("--protocols", default="utd-mhad,ucf-sports-utkface")
    one.add_argument("--seconds", type=float, default=1e9, help="take no task that may end later")
    one.add_argument("--jobs", type=int, default=8, help="tasks done at once")
    one.add_argument("--keep", type=Path, help="folder for recognizers of raw video")
    one.add_argument("--runs", type=Path, help="folder for the trained runs")
    one.add_argument("--device", default="cuda")
    one.add_argument("--tiny", action="store_true", help="to see that it runs")
    given = parser.parse_args()
    if given.verb == "list":
        for name, row in ROWS.items():
            print(f"{name:32s} recipes/{row.recipe}.toml {' '.join(row.sets)}")
        return
    if given.verb == "length":
        length(given.data)
        return
    given.keep = given.keep or Path("runs") / "keep"
    given.runs = given.runs or Path("runs") / "learned"
    table(given)


if __name__ == "__main__":
    main()
