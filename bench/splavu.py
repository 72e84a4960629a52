"""SPLAVU's tables on data that runs here: the synthetic world with all its tasks, and UTD-MHAD depth.

    python bench/splavu.py banks -o BANKS [--data DATA] [--weights encoder.safetensors]     features, once
    python bench/splavu.py table BANKS -o docs/results/latents [--seeds 0,1,2] [--only "ours;paper"] [--jobs 8]
    python bench/splavu.py report docs/results/latents -o docs/results/splavu.md
    python bench/splavu.py cost                          training and anonymizing at the paper's sizes

`banks` makes features with the built-in encoder and, of UTD-MHAD, also with a network that was trained for its actions. A row of the table
is an adapter that is trained on the training videos, judged as `veil.audit.latents` says: what is useful and what is private is
learned anew from what it leaves, chosen on validation videos and scored on test videos. Files that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import audit  # before the others: it does without PyAV where there is none
from veil import config
from veil.audit import latents
from veil.core import Frames
from veil.data import Dataset, Sample, read
from veil.data.features import Bank, extract
from veil.data.synthetic import render_samples
from veil.fit import fit
from veil.methods import splavu
from veil.methods.splavu import SPLAVU, anonymized, trained_on
from veil.nn import encoders
from veil.train import train

# videos, frames from clip to clip, static clips
KINDS: dict[str, tuple[int, int | None, int]] = {
    "clips": (1920, None, 10),
    "untrimmed": (240, 4, 0),
    "surveillance": (240, 8, 0),
    "bias": (1920, None, 0),
    "gait": (1600, None, 0),
}
TINY = {"clips": 160, "untrimmed": 10, "surveillance": 20, "bias": 120, "gait": 200}
WORLD = "synthetic"
UTD = ("utd-mhad", "utd-mhad-trained")  # the built-in encoder, and one trained for its actions
SMALL = {
    "detector": {"width": 128, "hidden": 192, "levels": 4, "bins": 8},
    "watcher": {"widths": [64, 64, 128], "depths": [1, 1, 1]},
    "detection_batch": 4,
    "pairs": 256,
}
TASKS = ("action", "detection", "anomaly")


@dataclass(frozen=True)
class Row:
    """How an adapter is trained."""

    preset: str = "ours"
    sets: dict[str, Any] | None = None
    tasks: tuple[str, ...] = TASKS
    main: bool = False  # every protocol and seed; otherwise the synthetic world's first seed


FIXED = {"net": "none", "playing": 1, "warming": 0}
ROWS: dict[str, Row] = {
    "paper": Row("paper", main=True),
    "what moves, 16, k-same": Row(sets={**FIXED, "keep": 16}, main=True),
    "what moves, 32, k-same": Row(sets={**FIXED, "keep": 32}, main=True),
    "LEACE of identity": Row(sets={**FIXED, "erase": "identity", "neighbours": 0}, main=True),
    "what moves, 24": Row(sets={**FIXED, "keep": 24, "neighbours": 0}, main=True),
    "what moves, 32, trained": Row(sets={"keep": 32, "neighbours": 0, "playing": 1000, "lr": 3e-4}),
    "what moves, 24, k-same": Row(sets={**FIXED, "keep": 24}),
    "what moves, 16": Row(sets={**FIXED, "keep": 16, "neighbours": 0}),
    "what moves, 32": Row(sets={**FIXED, "keep": 32, "neighbours": 0}),
    "what moves, 64": Row(sets={**FIXED, "keep": 64, "neighbours": 0}),
    "what moves, 64, k-same": Row(sets={**FIXED, "keep": 64}),
    "LEACE of stills": Row(sets={**FIXED, "erase": "stills", "rank": 64, "neighbours": 0}),
    "LEACE of attributes": Row(sets={**FIXED, "erase": "attributes", "neighbours": 0}),
    "paper, without consistency": Row("paper", {"consistency": 0.0}),
    "paper, without budget": Row("paper", {"budget": "none"}),
    "paper, without tasks": Row("paper", {"task_weight": 0.0}),
    "paper, action only": Row("paper", tasks=("action",)),
    "paper, action and detection": Row("paper", tasks=("action", "detection")),
    "paper, action only, without consistency": Row("paper", {"consistency": 0.0}, tasks=("action",)),
    "paper, MLP": Row("paper", {"net": "mlp"}),
    "paper, 1 layer": Row("paper", {"layers": 1}),
    "as released": Row("released"),
    "matcher": Row(sets={"erase": "none", "neighbours": 0, "playing": 1000, "lr": 3e-4}),
    "matcher, stronger": Row(
        sets={"erase": "none", "neighbours": 0, "playing": 1000, "lr": 3e-4, "budget_weight": 10.0}
    ),
    "k-same": Row(sets={**FIXED, "erase": "looks", "keep": 256}),
    "paper, 5 layers": Row("paper", {"layers": 5}),
    "paper, action and anomaly": Row("paper", tasks=("action", "anomaly")),
    "what moves, 32, trained, k-same": Row(sets={"keep": 32, "playing": 1000, "lr": 3e-4}),
}


# Features


def world(kind: str, count: int, size: int, device: str) -> Dataset:
    """The synthetic world, painted on the device."""
    made = read("synthetic", None, kind=kind, count=count, size=size)

    def batch(samples: Sequence[Sample]) -> Sequence[Frames]:
        return list(render_samples(samples, device, size=size).cpu().numpy())

    return replace(made, batch=batch)


def dataset_of(name: str, given: argparse.Namespace, count: int | None = None) -> Dataset:
    """By a bank's name: what is known of its videos."""
    if name in UTD:
        return read("utd-mhad", given.data / "utd_mhad_depth")
    return read("synthetic", None, kind=name, count=count, size=56)


def banks(given: argparse.Namespace) -> None:
    given.output.mkdir(parents=True, exist_ok=True)
    encoder = encoders.make("veil", given.weights, given.device)
    begun = time.monotonic()
    for kind, (_, stride, stills) in KINDS.items():
        path = given.output / f"{kind}.safetensors"
        if not path.exists():
            dataset = world(kind, TINY[kind] if given.tiny else KINDS[kind][0], encoder.size, given.device)
            save_bank(
                extract(dataset, encoder, stride=stride, stills=stills, batch=512, device=given.device), path
            )
            if kind == "clips":
                middle = [
                    frames[len(frames) // 2] for s in _chunks(dataset.samples) for frames in dataset.batch(s)
                ]  # type: ignore[misc]
                save_pictures(np.stack(middle), given.output / "clips.pictures.safetensors")
        print(f"{time.monotonic() - begun:5.0f} s {kind}", flush=True)
    if given.data is None:
        return
    dataset = audit.held(read("utd-mhad", given.data / "utd_mhad_depth"))
    for name in UTD:
        path = given.output / f"{name}.safetensors"
        if path.exists():
            continue
        made = encoder if name == UTD[0] else action_encoder(dataset, given)
        save_bank(extract(dataset, made, stride=8, stills=10, batch=256, device=given.device), path)
        print(f"{time.monotonic() - begun:5.0f} s {name}", flush=True)


def _chunks(samples: Sequence[Sample], size: int = 64) -> list[Sequence[Sample]]:
    return [samples[place : place + size] for place in range(0, len(samples), size)]


def action_encoder(dataset: Dataset, given: argparse.Namespace) -> encoders.Encoder:
    """A network that was trained for the actions of raw UTD-MHAD videos."""
    from veil import train as training

    training.read_data = lambda *_, **__: dataset  # decoded once
    run = given.output / "recognizer"
    if not (run / "weights.safetensors").exists():
        steps = 4 if given.tiny else 900
        sets = ('data="utd-mhad"', "size=112", "frames=16", "length=16", f"steps={steps}")
        recipe = given.output / "recognize.toml"
        recipe.write_text('method = "recognize"\nnet = "small3d"\n')
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


def recipe_of(row: Row, protocol: str, seed: int, tiny: bool) -> SPLAVU:
    """The recipe of a row; its sources are banks that are at hand."""
    here = (
        {name: {"data": "synthetic"} for name in row.tasks}
        if protocol == WORLD
        else {"action": {"data": "synthetic"}}
    )
    plain = {**SMALL, **SPLAVU.PRESETS[row.preset], **here, "seed": seed, **(row.sets or {})}
    if tiny:
        plain |= {key: min(plain.get(key, 4), 4) for key in ("drawing", "warming", "playing")}
    return config.checked(plain, SPLAVU)


def made(
    row: Row, protocol: str, seed: int, bank: dict[str, Bank], given: argparse.Namespace
) -> splavu.Adapter:
    """Train the adapter of a row."""
    recipe = recipe_of(row, protocol, seed, given.tiny)
    names = {"action": "clips", "detection": "untrimmed", "anomaly": "surveillance"}
    use = {name: bank[names[name] if protocol == WORLD else protocol] for name in recipe.sources()}
    device = torch.device(given.device)
    training = trained_on(recipe, {name: one.to("cpu") for name, one in use.items()}, device)
    for _ in fit(training.game, map(training.batch, range(recipe.steps))):
        pass
    weights = {name: value.detach().clone() for name, value in training.weights().items()}
    adapter = recipe.adapter(len(weights["mean"])).to(device)
    adapter.fill(weights)
    return adapter.eval().requires_grad_(False)


def judge(
    protocol: str, bank: dict[str, Bank], raw: dict[str, Bank] | None, seed: int, given: argparse.Namespace
) -> dict[str, Any]:
    """All that is asked of features; ``raw``: those before anonymization."""
    effort = latents.Effort(steps=20, turns=4) if given.tiny else latents.Effort(turns=300)
    out: dict[str, Any] = {}

    def put(name: str, score: Any) -> None:
        out[name] = {"value": round(float(score.value), 4), "n": score.n, "chance": score.chance}

    main = bank["clips" if protocol == WORLD else protocol]
    parts = [main.split(name) for name in ("train", "val", "test")]
    put("use action", latents.probed("linear", "action", *parts, seed=seed, effort=effort).score)
    if protocol == WORLD:
        for name, task in (("untrimmed", latents.detected), ("surveillance", latents.watched)):
            told = "detection" if name == "untrimmed" else "anomaly"
            split = [bank[name].split(part) for part in ("train", "val", "test")]
            put(f"use {told}", task(*split, seed=seed, effort=effort).score)
    targets = ("identity", "attributes") if protocol == WORLD else ("identity",)
    for target in targets:
        for probe in latents.PROBES:
            put(
                f"leak {target} {probe}",
                latents.probed(probe, target, *parts, seed=seed, effort=effort).score,
            )
        if raw is not None:
            before = raw["clips" if protocol == WORLD else protocol]
            known = [before.split("train"), before.split("val"), parts[2]]
            put(
                f"leak {target} raw-trained",
                latents.probed("mlp", target, *known, seed=seed, effort=effort).score,
            )
    if protocol != WORLD:
        return out
    put("leak gait rank-1", latents.walked(bank["gait"]))
    put("leak gait rank-1 across views", latents.walked(bank["gait"], across_views=True))
    split = [bank["bias"].split(part) for part in ("train", "val", "test")]
    accuracy, gap, groups = latents.gap(*split, "gender", seed=seed, effort=effort)
    put("bias accuracy", accuracy)
    put("bias gap", gap)
    for name, score in groups.items():
        put(f"bias {name}", score)
    for target in ("action", "identity"):
        put(f"search {target}", nearest(main, target))
    pictures = load_file(given.banks / "clips.pictures.safetensors")["pictures"].float().div(255)
    rows = {
        name: [i for i, s in enumerate(main.samples) if s.split == name] for name in ("train", "val", "test")
    }
    drawn, own = latents.inverted(
        parts[0], pictures[rows["train"]], parts[1:], seed=seed, steps=20 if given.tiny else 500
    )
    truths = [part.truth("identity") for part in parts]
    put("leak identity inversion", latents.seen_in([own, *drawn], truths, parts).score)
    return out


def nearest(bank: Bank, target: str) -> Any:
    """Search: whether the most alike training video has the same label as a test video."""
    from veil.metrics import rank1

    vectors = ((bank.clips * bank.mask[..., None]).sum(1) / bank.counts[:, None]).double().cpu().numpy()
    split = np.array([sample.split for sample in bank.samples])
    truth = bank.truth(target).cpu().numpy()
    probe, shelf = split == "test", split == "train"
    return rank1(vectors[probe], truth[probe], vectors[shelf], truth[shelf])


def work(worker: int, tasks: list[tuple[str, str, int]], taken: Any, given: argparse.Namespace) -> None:
    torch.set_num_threads(1 if given.jobs > 1 else torch.get_num_threads())
    held: dict[str, dict[str, Bank]] = {}
    longest = 0.0
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(tasks) or time.monotonic() + longest - given.begun > given.seconds:
            return
        protocol, name, seed = tasks[number]
        path = given.output / f"{protocol}.{audit.slug(name)}.{seed}.json"
        if path.exists():
            continue
        begun = time.monotonic()
        if protocol not in held:
            names = list(KINDS) if protocol == WORLD else [protocol]
            held[protocol] = {one: load_bank(one, given).to(given.device) for one in names}
        bank = held[protocol]
        try:
            if name == "raw":
                found = judge(protocol, bank, None, seed, given)
                spent = 0.0
            else:
                adapter = made(ROWS[name], protocol, seed, bank, given)
                spent = time.monotonic() - begun
                after = {one: anonymized(adapter, held_bank) for one, held_bank in bank.items()}
                found = judge(protocol, after, bank, seed, given)
                moved = [
                    (after[one].clips - bank[one].clips).square().mean() / bank[one].clips.var()
                    for one in bank
                ]
                found["moved"] = {"value": round(float(torch.stack(moved).mean()), 4)}
        except Exception as error:
            print(f"FAILED {protocol} {name} {seed}: {type(error).__name__}: {error}", flush=True)
            continue
        about = {
            "protocol": protocol,
            "name": name,
            "seed": seed,
            "training seconds": round(spent, 1),
            "found": found,
        }
        path.with_suffix(".part").write_text(json.dumps(about, indent=1))
        path.with_suffix(".part").replace(path)
        longest = max(longest, time.monotonic() - begun)
        brief = {key: value["value"] for key, value in found.items() if key.startswith(("use", "leak i"))}
        print(
            f"{begun - given.begun:5.0f} s +{time.monotonic() - begun:4.0f} s [{worker}] {path.stem} {brief}",
            flush=True,
        )


def table(given: argparse.Namespace) -> None:
    given.output.mkdir(parents=True, exist_ok=True)
    given.begun = time.monotonic()
    only = given.only.split(";") if given.only else None
    seeds = [int(seed) for seed in given.seeds.split(",")]
    there = [WORLD, *(name for name in UTD if (given.banks / f"{name}.safetensors").exists())]
    wanted: list[tuple[str, str, int]] = []
    for side in (False, True):
        for seed in seeds:
            for protocol in there:
                for name in ("raw", *ROWS):
                    main = name == "raw" or ROWS[name].main
                    if (
                        (only is None or name in only)
                        and main != side
                        and (main or (seed == seeds[0] and protocol == WORLD))
                    ):
                        wanted.append((protocol, name, seed))
    wanted = [t for t in wanted if not (given.output / f"{t[0]}.{audit.slug(t[1])}.{t[2]}.json").exists()]
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
    two.add_argument("-o", "--output", type=Path, required=True)
    two.add_argument("--only", help="rows, with ; between")
    two.add_argument("--seeds", default="0,1,2")
    two.add_argument("--jobs", type=int, default=8)
    two.add_argument("--seconds", type=float, default=1e9, help="take no task that may end later")
    for verb in (one, two):
        verb.add_argument("--data", type=Path, help="folder that holds utd_mhad_depth")
        verb.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        verb.add_argument("--tiny", action="store_true", help="to see that it runs")
    given = parser.parse_args()
    {"banks": banks, "table": table}[given.verb](given)


if __name__ == "__main__":
    main()
