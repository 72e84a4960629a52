"""What the part network finds: the table of docs/parts.md.

    python -m experiments.parts DATA [--weights FILE]     .safetensors (torch) or .onnx (as shipped)

DATA is the folder with manifest.csv and parts.zip. Thresholds are chosen on the validation split; all numbers are of the
test split.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from veil.people.part_network import load_net
from veil.people.parts import GROUPS, SHIPPED, Parts
from veil.training.part_network.counts import PixelCounts, count_pixels
from veil.training.part_network.dataset import PEOPLE, LabelledImages, read_labelled_images


def number(value: float | None) -> str:
    return "  –  " if value is None else f"{value:.3f}"


def line(numbers: dict[str, Any]) -> str:
    shares = (f"{key} {number(numbers[key])}" for key in ("person", "face", "background_hidden"))
    overlaps = " ".join(f"{part} {value:.2f}" for part, value in numbers["iou"].items())
    return f"{', '.join(shares)}; threshold {numbers['groups']['person']['threshold']}; IoU {overlaps}"


def print_summary(sources: dict[str, dict[str, Any]]) -> None:
    """A line for each source, and one for each group of parts."""
    for source, numbers in sources.items():
        shares = "  ".join(f"{key} {number(numbers[key])}" for key in ("person", "face", "background_hidden"))
        print(f"{source:12s} {shares}")
    for group, numbers in sources["all"]["groups"].items():
        values = "  ".join(f"{key} {number(value)}" for key, value in numbers.items())
        print(f"map of {group:8s} {values}")
    print(line(sources["all"]), flush=True)


def count_as_shipped(parts: Parts, labelled: LabelledImages) -> dict[str, PixelCounts]:
    """The same as `count_pixels`, image by image on the path that a video takes, at the images' own size."""
    found = {source: PixelCounts() for source in (*sorted({*labelled.sources}), "all")}
    for index, source in enumerate(labelled.sources):
        height, width = labelled.sizes[index].tolist()
        image = np.ascontiguousarray(labelled.images[index, :, :height, :width].permute(1, 2, 0).numpy())
        probabilities = torch.from_numpy(parts(image))[None]
        probabilities = F.interpolate(probabilities, (height, width), mode="bilinear")
        for name in (source, "all"):
            found[name].add(probabilities, labelled.labels[index, :height, :width][None])
    return found


def measure(data: Path, weights: Path, out: Path | None, device: str) -> None:
    images = read_labelled_images(data, ("val", "test"))
    if weights.suffix == ".onnx":
        parts = Parts(weights)
        val, test = (count_as_shipped(parts, images[split]) for split in ("val", "test"))
        thresholds = parts.thresholds
    else:
        net, _ = load_net(weights)
        net = net.to(device)
        val, test = (count_pixels(net, images[split].to(device)) for split in ("val", "test"))
        thresholds = val["all"].thresholds()
    print(f"thresholds {thresholds}; the validation split would choose {val['all'].thresholds()}")
    found = {name: counts.summary(thresholds) for name, counts in test.items()}
    print("person threshold   person   face   background hidden (test)")
    for at in (*(level / 10 for level in range(1, 10)), thresholds["person"]):
        shares = [test["all"].hidden("person", rows, at) for rows in (PEOPLE, GROUPS["face"], (0,))]
        print(f"{at:16.2f}   {'   '.join(f'{share:.3f}' for share in shares)}")
    print_summary(found)
    if out:
        record = {"weights": weights.name, "thresholds": thresholds, "test": found}
        out.write_text(json.dumps(record, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("-o", "--out", type=Path, help="a JSON file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    measure(given.data, given.weights, given.out, given.device)


if __name__ == "__main__":
    main()
