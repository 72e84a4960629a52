"""SPLAVU's tables on data at hand: the synthetic dataset with all its tasks, and UTD-MHAD depth.

    python -m experiments.splavu banks -o BANKS [--data DATA] [--weights encoder.safetensors]     features, once
    python -m experiments.splavu table BANKS [--seeds 0,1,2] [--only "ours;paper"] [--jobs 8]
    python -m experiments.splavu report [-o docs/results/splavu.md]

`banks` extracts features with the built-in encoder; of UTD-MHAD, also with a network that was trained for its actions; and with
one that was trained for the actions of biased videos, features of these and of unbiased ones. A row of the table is an adapter
that is fitted on the training videos and evaluated as in `veil.audit.features`: tasks and attackers are trained anew on
anonymized features, selected on validation videos and scored on test videos. Each is a record in
docs/results/features-PROTOCOL.jsonl (`experiments.records`); records that exist are not made again.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import hashlib
import multiprocessing
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from safetensors.torch import save as serialize

from experiments import filters, records
from experiments.records import Current, Record, Status
from veil.apps import recognize
from veil.apps.train import train
from veil.audit.features.anomaly import evaluate_anomaly
from veil.audit.features.bias import evaluate_bias
from veil.audit.features.detection import evaluate_detection
from veil.audit.features.gait import evaluate_gait
from veil.audit.features.inversion import evaluate_inversion, invert_features
from veil.audit.features.probes import PROBES, ProbeBudget, train_probe
from veil.audit.provenance import source_fingerprint
from veil.data import Dataset, Sample, read
from veil.data.synthetic import rendered_on
from veil.features import encoders, matching, splavu, subspace
from veil.features.adapter import Adapter, anonymized
from veil.features.bank import Bank
from veil.features.encoders.frozen import FrozenEncoder
from veil.features.extract import extract
from veil.features.registry import ADAPTER_RECIPES, AdapterRecipe
from veil.metrics import hypervolume, rank1
from veil.training import config
from veil.training.fit import fit
from veil.training.recipe import Training

# videos, frames from clip to clip, static clips
KINDS: dict[str, tuple[int, int | None, int]] = {
    "clips": (1920, None, 10),
    "untrimmed": (240, 4, 0),
    "surveillance": (240, 8, 0),
    "bias": (1920, None, 0),
    "gait": (1600, None, 0),
}
TINY = {"clips": 160, "untrimmed": 10, "surveillance": 20, "bias": 120, "gait": 200}
PREFIX = "features-"  # of the protocols' files
WORLD = "synthetic"
UTD = ("utd-mhad", "utd-mhad-trained")  # the built-in encoder, and one trained for its actions
BIAS = "bias-trained"  # features of one that was trained for the actions of biased videos: of these, and
EVEN = "clips-trained"  # of even ones, with which the adapter is trained
SMALL = {
    "data.static_batch": 256,
    "utility.detection": {"width": 128, "hidden": 192, "levels": 4, "bins": 8},
    "utility.anomaly": {"widths": [64, 64, 128], "depths": [1, 1, 1]},
}
TRAIN_ON: dict[str, Callable[..., Training]] = {
    "splavu": splavu.train_on,
    "matching": matching.train_on,
    "subspace": subspace.train_on,
}
TASKS = ("action", "detection", "anomaly")


@dataclass(frozen=True)
class Row:
    """How an adapter is trained."""

    method: str = "subspace"
    sets: dict[str, Any] | None = None  # by dotted keys of the recipe
    tasks: tuple[str, ...] = TASKS
    preset: str | None = None
    main: bool = False  # every protocol and seed; otherwise the synthetic dataset's first seed


# The projection alone: no averaging of neighbours, all directions, and heads that are hardly trained.
FIXED = {"schedule.steps": 1, "anonymizer.neighbours": 0, "anonymizer.dims": "none"}
MOTION = {**FIXED, "anonymizer.projection": "motion"}
ROWS: dict[str, Row] = {
    "paper": Row("splavu", main=True),
    "LEACE of identity": Row(sets={**FIXED, "anonymizer.projection": "leace-identity"}, main=True),
    "motion subspace, 24": Row(sets={**MOTION, "anonymizer.dims": 24}, main=True),
    "motion subspace, 16, k-same": Row(
        sets={**MOTION, "anonymizer.dims": 16, "anonymizer.neighbours": 16}, main=True
    ),
    "motion subspace, 32, k-same": Row(
        sets={**MOTION, "anonymizer.dims": 32, "anonymizer.neighbours": 16}, main=True
    ),
    "discriminant subspace": Row(sets=FIXED, main=True),
    "discriminant subspace, 20": Row(sets={**FIXED, "anonymizer.dims": 20}, main=True),
    "discriminant subspace, 16": Row(sets={**FIXED, "anonymizer.dims": 16}, main=True),
    "ours": Row(main=True),
    "match": Row("matching", main=True),
    "discriminant subspace, k-same": Row(sets={**FIXED, "anonymizer.neighbours": 16}),
    **{f"discriminant subspace, {k}": Row(sets={**FIXED, "anonymizer.dims": k}) for k in (4, 8, 12)},
    "discriminant subspace, action only": Row(sets=FIXED, tasks=("action",)),
    "match, without budget": Row("matching", {"budget.weight": 0.0}),
    "match, without consistency": Row("matching", {"utility.consistency_weight": 0.0}),
    "match, action only": Row("matching", tasks=("action",)),
    "match, budget 10": Row("matching", {"budget.weight": 10.0}),
    "match, MLP": Row("matching", {"anonymizer.network": "mlp"}),
    "match, motion subspace": Row("matching", {"anonymizer.projection": "motion"}),
    "match, nothing erased": Row("matching", {"anonymizer.projection": "none"}),
    "match, nothing erased, budget 10": Row(
        "matching", {"anonymizer.projection": "none", "budget.weight": 10.0}
    ),
    "motion subspace, 24, k-same": Row(sets={**MOTION, "anonymizer.dims": 24, "anonymizer.neighbours": 16}),
    **{f"motion subspace, {k}": Row(sets={**MOTION, "anonymizer.dims": k}) for k in (16, 32, 64)},
    "motion subspace, 64, k-same": Row(sets={**MOTION, "anonymizer.dims": 64, "anonymizer.neighbours": 16}),
    "LEACE of static clips": Row(
        sets={**FIXED, "anonymizer.projection": "leace-static", "anonymizer.leace_rank": 64}
    ),
    "LEACE of attributes": Row(sets={**FIXED, "anonymizer.projection": "leace-attributes"}),
    "paper, without consistency": Row("splavu", {"utility.consistency_weight": 0.0}),
    "paper, without budget": Row("splavu", {"budget.weight": 0.0}),
    "paper, without tasks": Row("splavu", {"utility.weight": 0.0}),
    "paper, action only": Row("splavu", tasks=("action",)),
    "paper, action and detection": Row("splavu", tasks=("action", "detection")),
    "paper, action and anomaly": Row("splavu", tasks=("action", "anomaly")),
    "paper, action only, without consistency": Row(
        "splavu", {"utility.consistency_weight": 0.0}, tasks=("action",)
    ),
    **{
        f"paper, action only, consistency {w}": Row(
            "splavu", {"utility.consistency_weight": float(w)}, tasks=("action",)
        )
        for w in (1, 1000, 10)
    },
    **{
        f"paper, action only, {n} heads": Row("splavu", {"anonymizer.heads": n}, tasks=("action",))
        for n in (4, 16)
    },
    **{f"paper, budget {w}": Row("splavu", {"budget.weight": float(w)}) for w in (10, 100)},
    "paper, MLP": Row("splavu", {"anonymizer.network": "mlp"}),
    "paper, 1 layer": Row("splavu", {"anonymizer.layers": 1}),
    "paper, 5 layers": Row("splavu", {"anonymizer.layers": 5}),
    "as released": Row("splavu", preset="released"),
}


# Features


def world(kind: str, size: int, given: argparse.Namespace) -> Dataset:
    """The synthetic dataset, rendered on the device."""
    count, device = TINY[kind] if given.tiny else KINDS[kind][0], given.device
    return rendered_on(read("synthetic", None, kind=kind, count=count, size=size), device, size=size)


def dataset_of(name: str, given: argparse.Namespace, count: int | None = None) -> Dataset:
    """By a bank's name: what is known of its videos."""
    if name in UTD:
        return read("utd-mhad", given.data / "utd_mhad_depth")
    return read("synthetic", None, kind=name.removesuffix("-trained"), count=count, size=56)


def banks(given: argparse.Namespace) -> None:
    given.output.mkdir(parents=True, exist_ok=True)
    encoder = encoders.make("veil", given.weights, given.device)
    begun = time.monotonic()
    for kind, (_, stride, stills) in KINDS.items():
        path = given.output / f"{kind}.safetensors"
        if not path.exists():
            dataset = world(kind, encoder.size, given)
            save_bank(
                extract(dataset, encoder, stride=stride, stills=stills, batch=512, device=given.device), path
            )
            if kind == "clips":
                assert dataset.batch is not None
                middle = [f[len(f) // 2] for some in _chunks(dataset.samples) for f in dataset.batch(some)]
                save_pictures(np.stack(middle), given.output / "clips.pictures.safetensors")
        print(f"{time.monotonic() - begun:5.0f} s {kind}", flush=True)
    if not (given.output / f"{BIAS}.safetensors").exists():
        made = action_encoder("bias", world("bias", 56, given), 56, given)
        for name, stills in ((EVEN, 10), (BIAS, 0)):
            dataset = world(name.removesuffix("-trained"), 56, given)
            bank = extract(dataset, made, stills=stills, batch=512, device=given.device)
            save_bank(bank, given.output / f"{name}.safetensors")
    print(f"{time.monotonic() - begun:5.0f} s {BIAS}", flush=True)
    if given.data is None:
        return
    dataset = filters.in_memory(read("utd-mhad", given.data / "utd_mhad_depth"))
    for name in UTD:
        path = given.output / f"{name}.safetensors"
        if path.exists():
            continue
        made = encoder if name == UTD[0] else action_encoder("utd-mhad", dataset, 112, given)
        save_bank(extract(dataset, made, stride=8, stills=10, batch=256, device=given.device), path)
        print(f"{time.monotonic() - begun:5.0f} s {name}", flush=True)


def _chunks(samples: Sequence[Sample], size: int = 64) -> list[Sequence[Sample]]:
    return [samples[place : place + size] for place in range(0, len(samples), size)]


def action_encoder(name: str, dataset: Dataset, size: int, given: argparse.Namespace) -> FrozenEncoder:
    """A network that was trained for the actions of raw videos."""
    recognize.read_data = lambda *_, **__: dataset  # decoded once
    run = given.output / f"recognizer-{name}"
    if not (run / "weights.safetensors").exists():
        steps = 4 if given.tiny else 900
        sets = (f"data.size={size}", "data.max_frames=16", "data.length=16", f"schedule.steps={steps}")
        recipe = given.output / "recognize.toml"
        recipe.write_text('method = "recognize"\n')
        train(recipe, run, sets=sets, device=given.device)
    return encoders.make(run, device=given.device)


def save_bank(bank: Bank, path: Path) -> None:
    tensors = {
        "clips": bank.clips.half(),
        "counts": bank.counts,
        "starts": bank.starts,
        "seconds": bank.seconds,
        "stills": bank.stills.half(),
    }
    about = {"encoder": bank.encoder, "fingerprint": bank.fingerprint, "length": str(bank.length)}
    part = path.with_suffix(".part")
    save_file({name: value.contiguous() for name, value in tensors.items()}, part, metadata=about)
    part.replace(path)


def save_pictures(frames: np.ndarray, path: Path) -> None:
    small = torch.nn.functional.interpolate(
        torch.from_numpy(frames).permute(0, 3, 1, 2).float(), (32, 32), mode="area"
    )
    save_file({"pictures": small.round().byte().contiguous()}, path)


def load_bank(name: str, given: argparse.Namespace) -> Bank:
    path = given.banks / f"{name}.safetensors"
    tensors = {
        key: value.float() if value.dtype == torch.half else value for key, value in load_file(path).items()
    }
    with safe_open(path, "pt") as file:
        about = file.metadata()
    dataset = dataset_of(name, given, len(tensors["counts"]))
    return Bank(
        encoder=about["encoder"],
        fingerprint=about["fingerprint"],
        length=float(about["length"]),
        samples=tuple(dataset.samples),
        actions=dataset.actions,
        attributes=dataset.attributes,
        identities=dataset.identities,
        **tensors,
    )


# The table


def recipe_of(row: Row, protocol: str, seed: int, tiny: bool) -> AdapterRecipe:
    """The recipe of a row; its data are banks in memory."""
    kind: Any = ADAPTER_RECIPES[row.method]
    tasks = [task for task in row.tasks if task != "action"] if protocol == WORLD else []
    sets: dict[str, Any] = {"data.name": "synthetic", "seed": seed, **SMALL}
    sets |= {f"data.{task}.name": "synthetic" for task in tasks}
    sets |= {"data.detection.batch": 4} if "detection" in tasks else {}
    sets |= row.sets or {}
    if tiny:
        steps = (
            ("schedule.steps",)
            if row.method == "subspace"
            else ("schedule.warmup_steps", "schedule.adversarial_steps")
        )
        sets |= dict.fromkeys(
            (*steps, *(("schedule.reconstruction_steps",) if row.method == "splavu" else ())), 4
        )
    plain: dict[str, Any] = copy.deepcopy(kind.PRESETS[row.preset]) if row.preset else {}
    for key, value in sets.items():
        *tables, last = key.split(".")
        table = plain
        for name in tables:
            table = table.setdefault(name, {})
        table[last] = value
    return config.checked(plain, kind)


def made(row: Row, protocol: str, seed: int, bank: dict[str, Bank], given: argparse.Namespace) -> Adapter:
    """Train the adapter of a row."""
    recipe = recipe_of(row, protocol, seed, given.tiny)
    names = {"action": main_bank(protocol), "detection": "untrimmed", "anomaly": "surveillance"}
    use = {name: bank[names[name]] for name in recipe.data.sources()}  # type: ignore[attr-defined]
    device = torch.device(given.device)
    training = TRAIN_ON[row.method](recipe, {name: one.to("cpu") for name, one in use.items()}, device)
    for _ in fit(training.phases, map(training.batch, range(recipe.steps))):
        pass
    weights = {name: value.detach().clone() for name, value in training.weights().items()}
    adapter = recipe.adapter(len(weights["mean"])).to(device)
    adapter.load_weights(weights)
    return adapter.eval().requires_grad_(False)


def main_bank(protocol: str) -> str:
    """The bank whose videos show one action each."""
    return {WORLD: "clips", BIAS: EVEN}.get(protocol, protocol)


def evaluate(
    protocol: str, bank: dict[str, Bank], raw: dict[str, Bank] | None, seed: int, given: argparse.Namespace
) -> dict[str, Any]:
    """Utility, leakage and bias of features; ``raw``: those before anonymization."""
    budget = ProbeBudget(steps=20, head_steps=4) if given.tiny else ProbeBudget(head_steps=300)
    out: dict[str, Any] = {}

    def put(name: str, score: Any) -> None:
        out[name] = {"value": round(float(score.value), 4), "n": score.n, "chance": score.chance}

    main = bank[main_bank(protocol)]
    parts = [main.split(name) for name in ("train", "val", "test")]
    action = train_probe("linear", "action", *parts, seed=seed, budget=budget)
    put("utility action", action.score)
    out["utility action"]["validation"] = round(action.val, 4)  # by which `keep` is chosen
    if protocol == WORLD:
        for name, task in (("untrimmed", evaluate_detection), ("surveillance", evaluate_anomaly)):
            use = "detection" if name == "untrimmed" else "anomaly"
            split = [bank[name].split(part) for part in ("train", "val", "test")]
            put(f"utility {use}", task(*split, seed=seed, budget=budget).score)
    targets = ("identity",) if protocol in UTD else ("identity", "attributes")
    for target in targets:
        for probe in PROBES:
            put(
                f"leakage {target} {probe}",
                train_probe(probe, target, *parts, seed=seed, budget=budget).score,
            )
        if raw is not None:
            before = raw[main_bank(protocol)]
            known = [before.split("train"), before.split("val"), parts[2]]
            put(
                f"leakage {target} oblivious",
                train_probe("mlp", target, *known, seed=seed, budget=budget).score,
            )
    if protocol in UTD:
        return out
    split = [bank["bias" if protocol == WORLD else BIAS].split(part) for part in ("train", "val", "test")]
    accuracy, gap, groups = evaluate_bias(split[0], split[1], split[2], "gender", seed=seed, budget=budget)
    put("bias accuracy", accuracy)
    put("bias gap", gap)
    for name, score in groups.items():
        put(f"bias {name}", score)
    if protocol == BIAS:
        return out
    put("leakage gait rank-1", evaluate_gait(bank["gait"]))
    put("leakage gait rank-1 across views", evaluate_gait(bank["gait"], across_views=True))
    for target in ("action", "identity"):
        put(f"search {target}", nearest(main, target))
    pictures = load_file(given.banks / "clips.pictures.safetensors")["pictures"].float().div(255)
    rows = {
        name: [i for i, s in enumerate(main.samples) if s.split == name] for name in ("train", "val", "test")
    }
    reconstructed, own = invert_features(
        parts[0], pictures[rows["train"]], parts[1:], seed=seed, steps=20 if given.tiny else 500
    )
    truths = [part.truth("identity") for part in parts]
    put("leakage identity inversion", evaluate_inversion([own, *reconstructed], truths, parts).score)
    return out


def nearest(bank: Bank, target: str) -> Any:
    """Search: whether the most alike training video has the same label as a test video."""
    vectors = ((bank.clips * bank.mask[..., None]).sum(1) / bank.counts[:, None]).double().cpu().numpy()
    split = np.array([sample.split for sample in bank.samples])
    truth = bank.truth(target).cpu().numpy()
    probe, shelf = split == "test", split == "train"
    return rank1(vectors[probe], truth[probe], vectors[shelf], truth[shelf])


def work(worker: int, tasks: list[tuple[str, str, int]], taken: Any, given: argparse.Namespace) -> None:
    torch.set_num_threads(1 if given.jobs > 1 else torch.get_num_threads())
    loaded: dict[str, dict[str, Bank]] = {}
    longest = 0.0
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(tasks) or time.monotonic() + longest - given.begun > given.seconds:
            return
        protocol, name, seed = tasks[number]
        if (name, seed) in records.done(given.output, PREFIX + protocol):
            continue
        begun = time.monotonic()
        if protocol not in loaded:
            names = {WORLD: list(KINDS), BIAS: [EVEN, BIAS]}.get(protocol, [protocol])
            loaded[protocol] = {one: load_bank(one, given).to(given.device) for one in names}
        bank = loaded[protocol]
        try:
            weights = None
            if name == "raw":
                found = evaluate(protocol, bank, None, seed, given)
                spent = 0.0
            else:
                adapter = made(ROWS[name], protocol, seed, bank, given)
                spent = time.monotonic() - begun
                tensors = {key: value.cpu().contiguous() for key, value in adapter.state_dict().items()}
                weights = hashlib.sha256(serialize(tensors)).hexdigest()
                after = {one: anonymized(adapter, held_bank) for one, held_bank in bank.items()}
                found = evaluate(protocol, after, bank, seed, given)
                moved = [
                    (after[one].clips - bank[one].clips).square().mean() / bank[one].clips.var()
                    for one in bank
                ]
                found["relative change"] = {"value": round(float(torch.stack(moved).mean()), 4)}
        except Exception as error:
            print(f"FAILED {protocol} {name} {seed}: {type(error).__name__}: {error}", flush=True)
            continue
        device = torch.device(given.device)
        record = Record(
            PREFIX + protocol,
            name,
            seed,
            found,
            commit=records.commit(),
            code=current(name).code,
            weights=weights,
            data=records.digest(
                *(one.fingerprint for one in bank.values()), *(len(b.samples) for b in bank.values())
            ),
            suite=current(name).suite,
            time=records.now(),
            hardware=torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
            command="python -m experiments.splavu table BANKS",
            training_seconds=round(spent, 1),
            evaluation_seconds=round(time.monotonic() - begun - spent, 1),
        )
        records.append(given.output, record)
        longest = max(longest, time.monotonic() - begun)
        brief = {
            key: value["value"] for key, value in found.items() if key.startswith(("utility", "leakage i"))
        }
        print(
            f"{begun - given.begun:5.0f} s +{time.monotonic() - begun:4.0f} s [{worker}] {protocol} {name} {seed} {brief}",
            flush=True,
        )


def table(given: argparse.Namespace) -> None:
    given.output.mkdir(parents=True, exist_ok=True)
    given.begun = time.monotonic()
    only = given.only.split(";") if given.only else None
    seeds = [int(seed) for seed in given.seeds.split(",")]
    every = (WORLD, BIAS, *UTD)
    present = [name for name in every if (given.banks / f"{main_bank(name)}.safetensors").exists()]
    if given.protocols:
        present = [name for name in present if name in given.protocols.split(",")]
    wanted: list[tuple[str, str, int]] = []
    for side in (False, True):
        for seed in seeds:
            for protocol in present:
                for name in ("raw", *ROWS):
                    main = name == "raw" or ROWS[name].main
                    if (
                        (only is None or name in only)
                        and main != side
                        and (main or (seed == seeds[0] and protocol == WORLD))
                    ):
                        wanted.append((protocol, name, seed))
    wanted = [(p, n, s) for p, n, s in wanted if (n, s) not in records.done(given.output, PREFIX + p)]
    if given.jobs == 1:
        work(0, wanted, multiprocessing.Value("i", 0), given)
        return
    context = multiprocessing.get_context("spawn")
    taken = context.Value("i", 0)
    workers = [context.Process(target=work, args=(i, wanted, taken, given)) for i in range(given.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


# The report


MARK = "<!-- {} -->"
UTILITIES = {"utility action": "action", "utility detection": "detection", "utility anomaly": "anomaly"}
Rows = dict[tuple[str, str], list[Record]]  # by protocol and method; one a seed


@cache
def current(name: str) -> Current:
    """The fingerprints that a record would have if it were made now."""
    code = "raw"
    if name != "raw":
        recipe = config.as_dict(recipe_of(ROWS[name], WORLD, 0, tiny=False))
        code = records.digest(recipe, source_fingerprint(ADAPTER_RECIPES[ROWS[name].method], anonymized))
    budget = dataclasses.asdict(ProbeBudget(head_steps=300))
    return Current(records.digest(code), records.digest(budget, source_fingerprint(train_probe)))


def read_rows(folder: Path) -> Rows:
    """All records of features; protocols without their prefix."""
    rows: Rows = {}
    for protocol in records.protocols(folder):
        if protocol.startswith(PREFIX):
            for record in records.read(folder, protocol):
                rows.setdefault((protocol.removeprefix(PREFIX), record.method), []).append(record)
    return {key: sorted(found, key=lambda record: record.seed) for key, found in rows.items()}


def strongest(found: dict[str, Any], target: str) -> float:
    return max(value["value"] for key, value in found.items() if key.startswith(f"leakage {target}"))


def spread(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.3f}".removeprefix("0")
    if len(values) == 1:
        return mean
    least, most = (f"{value:.3f}".removeprefix("0") for value in (min(values), max(values)))
    return f"{mean} [{least}–{most}]"


def once(key: str) -> str:
    """The name of an earlier measure of a utility: one network instead of the best of three on validation videos."""
    return f"{key} once"


def used(found: Sequence[dict[str, Any]], key: str) -> tuple[list[float], bool]:
    """A utility in each seed, and whether it is the earlier measure."""
    early = not all(key in one for one in found)
    return [one[once(key) if early else key]["value"] for one in found], early


def change(found: Sequence[dict[str, Any]], raw: Sequence[dict[str, Any]], key: str) -> float:
    """The relative change of a utility, both by the same measure."""
    values, early = used(found, key)
    before = [one[once(key) if early else key]["value"] for one in raw]
    return float(np.mean(values) / np.mean(before) - 1)


def gone(found: Sequence[dict[str, Any]], raw: Sequence[dict[str, Any]], target: str) -> float:
    """The share of the leakage of raw features above chance that is gone."""
    before = float(np.mean([strongest(one, target) for one in raw]))
    chance = next(value["chance"] for key, value in raw[0].items() if key.startswith(f"leakage {target}"))
    return float(1 - (np.mean([strongest(one, target) for one in found]) - chance) / (before - chance))


def columns(raw: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The utilities and the targets of a protocol."""
    uses = [key for key in UTILITIES if key in raw or once(key) in raw]
    return uses, [t for t in ("identity", "attributes") if any(k.startswith(f"leakage {t}") for k in raw)]


def table_of(rows: Rows, protocol: str, names: Sequence[str]) -> str:
    """One line a row: each utility, each leakage, and how much of the excess leakage is gone."""
    raw = [one.scores for one in rows[protocol, "raw"]]
    uses, targets = columns(raw[0])
    extra = {
        "leakage gait rank-1": "gait", "search action": "search action", "search identity": "search identity",
    } if protocol == WORLD else {"bias accuracy": "biased action", "bias gap": "gap"} if protocol == BIAS else {}  # fmt: skip
    head = ["features", *(UTILITIES[key] for key in uses)]
    for target in targets:
        head += [f"{target}, strongest", "excess gone"]
    head += [*extra.values(), "worst utility", "seeds", "trained in", "measured at"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for name in names:
        found = [one.scores for one in rows.get((protocol, name), [])]
        if not found:
            continue
        cells = [name]
        for key in uses:
            values, early = used(found, key)
            cells.append(f"({spread(values)})" if early else spread(values))
        for target in targets:
            left = [strongest(one, target) for one in found]
            cells += [spread(left), "" if name == "raw" else f"{100 * gone(found, raw, target):.0f} %"]
        cells += [spread([one[key]["value"] for one in found]) for key in extra]
        seconds = [one.training_seconds or 0.0 for one in rows[protocol, name]]
        took = f"{min(seconds):.0f}–{max(seconds):.0f} s" if len(seconds) > 1 else f"{seconds[0]:.0f} s"
        worst = min(change(found, raw, key) for key in uses)
        cells += [
            "" if name == "raw" else f"{100 * worst:+.1f} %",
            str(len(found)),
            "" if name == "raw" else took,
            records.measured_at(rows[protocol, name], status_of(rows[protocol, name])),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    shown = (rows[protocol, name] for name in names if (protocol, name) in rows)
    return "\n".join(lines) + records.legend(map(status_of, shown))


def status_of(found: Sequence[Record]) -> Status:
    """Whether code and suite of all seeds are those of this checkout."""
    return records.worst(records.status(one, lambda record: current(record.method)) for one in found)


FAMILIES = ("paper", "motion subspace", "discriminant subspace", "match")


def curves(rows: Rows) -> str:
    """For each family of rows the hypervolume of its trade-offs, between raw features and a perfect adapter."""
    raw = [one.scores for one in rows[WORLD, "raw"]]
    uses, _ = columns(raw[0])
    lines = ["| family | rows | hypervolume, identity | hypervolume, attributes |", "|---|---:|---:|---:|"]
    for family in FAMILIES:
        names = [n for p, n in rows if p == WORLD and (n == family or n.startswith(f"{family},"))]
        names += ["ours"] if family == "discriminant subspace" else []
        found = {name: [one.scores for one in rows[WORLD, name]] for name in names}
        cells = []
        for target in ("identity", "attributes"):
            chance = next(v["chance"] for key, v in raw[0].items() if key.startswith(f"leakage {target}"))
            kept = [min(1.0, 1 + min(change(f, raw, key) for key in uses)) for f in found.values()]
            left = [float(np.mean([strongest(one, target) for one in f])) for f in found.values()]
            whole = float(np.mean([strongest(one, target) for one in raw]))
            volume = hypervolume(kept, left, leakage_range=(chance, whole))
            cells.append(f"{volume.value:.3f}".removeprefix("0"))
        lines.append("| " + " | ".join([family, str(len(names)), *cells]) + " |")
    return "\n".join(lines)


def report(given: argparse.Namespace) -> None:
    """Fill the marked blocks of a page from the records."""
    rows, text = read_rows(given.results), given.output.read_text()
    for protocol in sorted({protocol for protocol, _ in rows}):
        names = ["raw", *(name for name, row in ROWS.items() if row.main or protocol == WORLD)]
        begin, end = MARK.format(protocol), MARK.format("end")
        if begin not in text:
            continue
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        missing = [name for name in names if (protocol, name) not in rows]
        note = f"\n\nNot run yet: {'; '.join(missing)}." if missing else ""
        text = f"{before}{begin}\n{table_of(rows, protocol, names)}{note}\n{end}{after}"
    before, _, rest = text.partition(MARK.format("curves"))
    if rest:
        _, _, after = rest.partition(MARK.format("end"))
        text = f"{before}{MARK.format('curves')}\n{curves(rows)}\n{MARK.format('end')}{after}"
    given.output.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("banks")
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--weights", type=Path, help="of the built-in encoder, if not those in the package")
    two = verbs.add_parser("table")
    two.add_argument("banks", type=Path)
    two.add_argument("-o", "--output", type=Path, default=records.RESULTS, help="folder of the records")
    two.add_argument("--only", help="rows, with ; between")
    two.add_argument("--seeds", default="0,1,2")
    two.add_argument(
        "--protocols",
        help="of synthetic, bias-trained, utd-mhad, utd-mhad-trained; all whose features are there",
    )
    two.add_argument("--jobs", type=int, default=8)
    two.add_argument("--seconds", type=float, default=1e9, help="take no task that may end later")
    three = verbs.add_parser("report")
    three.add_argument("--results", type=Path, default=records.RESULTS, help="folder of the records")
    three.add_argument(
        "-o", "--output", type=Path, default=records.RESULTS / "splavu.md", help="a page with marked blocks"
    )
    for verb in (one, two):
        verb.add_argument("--data", type=Path, help="folder that holds utd_mhad_depth")
        verb.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        verb.add_argument("--tiny", action="store_true", help="to see that it runs")
    given = parser.parse_args()
    {"banks": banks, "table": table, "report": report}[given.verb](given)


if __name__ == "__main__":
    main()
