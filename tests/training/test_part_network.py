"""Training the part network: its losses, its pictures, its measures, and what training leaves."""

import csv
import io
import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from errors import refuses
from veil.people.part_network import PartNet, export, load_net
from veil.people.parts import GROUPS, Parts
from veil.training.part_network.augmentation import (
    PartAugmentation,
    Placement,
    compress_jpeg,
    degrade,
    place,
    random_placement,
    upright,
)
from veil.training.part_network.counts import PixelCounts
from veil.training.part_network.dataset import (
    ANY,
    CANVAS,
    IGNORE,
    PEOPLE,
    LabelledImages,
    read_labelled_images,
)
from veil.training.part_network.losses import part_loss, part_terms
from veil.training.part_network.recipe import PartRecipe
from veil.training.part_network.trainer import train_parts

SOME_COLOURS = np.array(
    [
        *([40, 90, 160], [60, 30, 10], [250, 190, 150], [230, 170, 120], [200, 20, 30]),
        *([20, 30, 120], [20, 160, 40], [240, 240, 40], [180, 60, 200]),
    ],
    np.uint8,
)


def figure(seed: int, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A synthetic person whose parts have each their own colour, and the labels."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    top, left, tall = rng.uniform(0.05, 0.2) * height, rng.uniform(0.35, 0.65) * width, 0.75 * height
    across, down = np.abs(x - left) / (0.3 * width), (y - top) / tall
    label = np.zeros((height, width), np.uint8)
    for part, begin, end, wide in ((1, 0, 0.1, 0.4), (2, 0.1, 0.25, 0.3), (3, 0.25, 0.3, 0.3)):
        label[(down >= begin) & (down < end) & (across < wide)] = part
    for part, begin, end, wide in ((4, 0.3, 0.6, 0.8), (5, 0.6, 0.9, 0.6), (6, 0.9, 1.0, 0.8)):
        label[(down >= begin) & (down < end) & (across < wide)] = part
    image = SOME_COLOURS[label].astype(int) + rng.integers(-12, 13, (height, width, 3))
    return image.clip(0, 255).astype(np.uint8), label


def labelled_images(
    count: int = 4, sizes: tuple[tuple[int, int], ...] = ((200, 150), (120, 256))
) -> LabelledImages:
    images = np.zeros((count, 3, CANVAS, CANVAS), np.uint8)
    labels = np.full((count, CANVAS, CANVAS), IGNORE, np.uint8)
    extents = [sizes[index % len(sizes)] for index in range(count)]
    for index, (height, width) in enumerate(extents):
        image, label = figure(index, height, width)
        images[index, :, :height, :width], labels[index, :height, :width] = image.transpose(2, 0, 1), label
    tensors = torch.from_numpy(images), torch.from_numpy(labels), torch.tensor(extents)
    return LabelledImages(*tensors, ["ccp"] * count)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data as it comes: an archive and a manifest."""
    rows = [(f"made_{n}", "ccp", 1, ("train", "train", "val", "test")[n % 4]) for n in range(12)]
    with zipfile.ZipFile(tmp_path / "parts.zip", "w") as archive:
        for number, (file, *_) in enumerate(rows):
            image, label = figure(number, 128, 96)
            for name, array, form in (
                (f"images/{file}.jpg", image, "JPEG"),
                (f"labels/{file}.png", label, "PNG"),
            ):
                opened = Image.fromarray(array)
                if form == "PNG":
                    opened.putpalette(SOME_COLOURS.tobytes())
                buffer = io.BytesIO()
                opened.save(buffer, form)
                archive.writestr(name, buffer.getvalue())
    with (tmp_path / "manifest.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file", "source", "has_parts", "split"), *rows])
    return tmp_path


def labels_and_logits() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    choice = torch.tensor([*range(9), IGNORE])
    return choice[torch.randint(0, 10, (2, 5, 6))], 3 * torch.randn(2, 8, 5, 6)


def test_part_loss_is_the_naive_one():
    labels, logits = labels_and_logits()
    weights = (1, 2, 3, 1, 1, 0.5, 2, 4, 1.5)
    total = norm = 0.0
    for b in range(2):
        for y in range(5):
            for x in range(6):
                label = int(labels[b, y, x])
                if label == IGNORE:
                    continue
                p = [math.exp(v) for v in logits[b, :, y, x].tolist()]
                likely = sum(p[1:]) / sum(p) if label == ANY else p[label] / sum(p)
                total -= weights[label] * math.log(likely)
                norm += weights[label]
    assert part_loss(logits, labels, weights).item() == pytest.approx(total / norm, rel=1e-5)


def test_person_and_overlap_terms_are_the_naive_ones():
    labels, logits = labels_and_logits()
    p = logits.softmax(1)
    known = labels != IGNORE
    person = (labels > 0) & known
    nobody = [-math.log(v) for v in p[:, 0][known & ~person].tolist()]
    somebody = [-math.log(v) for v in (1 - p[:, 0])[person].tolist()]
    terms = part_terms(logits, labels, PartRecipe(overlap=1))
    mean = sum(nobody + somebody) / len(nobody + somebody)
    assert terms["person"].item() == pytest.approx(mean, rel=1e-4)
    dices = []
    for part in range(1, 8):
        counted, true = known & (labels != ANY), labels == part
        both = p[:, part][true].sum()
        dices.append(1 - 2 * both / (p[:, part][counted].sum() + true.sum()))
    anyone = 1 - p[:, 0]
    dices.append(1 - 2 * anyone[person].sum() / (anyone[known].sum() + person.sum()))
    assert terms["overlap"].item() == pytest.approx(float(sum(dices)) / 8, rel=1e-4)


def test_nothing_known_is_no_loss():
    terms = part_terms(torch.randn(1, 8, 4, 4), torch.full((1, 4, 4), IGNORE))
    assert [term.item() for term in terms.values()] == [0, 0, 0]


def test_whole_image_is_laid_as_it_is():
    made = labelled_images(1, ((CANVAS, 160),))
    found = place(made, torch.tensor([0]), upright(1, torch.device("cpu")), CANVAS, CANVAS)
    assert (found.labels[0, :, 48:208] == made.labels[0, :, :160].long()).all()
    assert (found.labels[0, :, :48] == IGNORE).all() and (found.labels[0, :, 208:] == IGNORE).all()
    assert (found.inside == (torch.arange(CANVAS) >= 48) & (torch.arange(CANVAS) < 208)).all()


def test_mirrored_and_shifted():
    made, one = labelled_images(1, ((128, 256),)), torch.ones(1)
    how = Placement(
        2 * one, one, 0 * one, -one, torch.tensor([[-1.0, 1.0]])
    )  # twice as large, upper right corner
    found = place(made, torch.tensor([0]), how, 128, CANVAS)
    corner = F.interpolate(made.labels[:, None, :64, 192:].float(), scale_factor=2)[0, 0].flip(1)
    assert (found.labels[0] == corner).float().mean() > 0.99


def test_image_and_label_stay_together():
    """However they are laid, a pixel with a label has the colour of that label."""
    torch.manual_seed(0)
    made, colours = labelled_images(), torch.from_numpy(SOME_COLOURS).float() / 255
    for least, most in ((0.75, 2.2), (0.25, 1.2)):
        found = place(made, torch.arange(4), random_placement(4, torch.device("cpu"), least, most), 96)
        assert (found.inside | (found.labels == IGNORE)).all()
        known = found.labels != IGNORE
        # Away from borders, where colours mix.
        known &= ~F.max_pool2d(_edges(found.labels), 5, 1, 2).bool()[:, 0]
        far = (found.images.permute(0, 2, 3, 1)[known] - colours[found.labels[known]]).abs().amax(1)
        assert known.sum() > 1000 and (far < 0.12).float().mean() > 0.998


def _edges(labels: torch.Tensor) -> torch.Tensor:
    value = labels[:, None].float()
    return (F.max_pool2d(value, 3, 1, 1) != -F.max_pool2d(-value, 3, 1, 1)).float()


def test_batches_for_training():
    torch.manual_seed(0)
    made = labelled_images(6)
    made.labels[5][made.labels[5] != IGNORE] = 0  # an image of no one
    augmentation = PartAugmentation(made, PartRecipe(crop=64))
    batch = augmentation(32)
    assert batch.images.shape == (32, 3, 64, 64) and batch.labels.shape == (32, 64, 64)
    assert batch.images.min() >= 0 and batch.images.max() <= 1
    assert {*batch.labels.unique().tolist()} <= {*range(9), IGNORE}
    assert (batch.labels[~batch.inside] == IGNORE).all()
    assert {*augmentation._sample(augmentation.empty, 50).tolist()} == {5}
    torch.manual_seed(0)
    assert (augmentation(32).labels == batch.labels).all()


def test_a_person_without_known_surroundings_is_not_cut_out():
    made = labelled_images(2)
    made.labels[made.labels == 0] = IGNORE
    augmentation = PartAugmentation(made, PartRecipe(crop=64, plain=0, framed=0))
    torch.manual_seed(0)
    assert not augmentation.cuttable.any() and augmentation(8).labels.shape == (8, 64, 64)


def test_compression_loses_more_at_lower_quality_and_keeps_flat_colour():
    torch.manual_seed(0)
    images = F.interpolate(torch.rand(1, 3, 16, 16), scale_factor=4, mode="bilinear").expand(3, -1, -1, -1)
    quality = torch.tensor([99.0, 60.0, 10.0])[:, None, None, None]
    errors = (compress_jpeg(images, quality) - images).abs().mean((1, 2, 3)).tolist()
    assert errors[0] < 0.005 < errors[1] < errors[2] < 0.1
    flat = torch.tensor([0.2, 0.5, 0.7])[:, None, None].expand(1, 3, 16, 16)
    assert (compress_jpeg(flat, torch.full((1, 1, 1, 1), 95.0)) - flat).abs().max() < 0.01


def test_degraded_pictures_are_pictures():
    torch.manual_seed(0)
    images = torch.rand(16, 3, 32, 32)
    found = degrade(images)
    assert found.shape == images.shape and found.isfinite().all() and found.min() >= 0 and found.max() <= 1


def test_pixel_counts_of_a_case_made_by_hand():
    """Four pixels of a person, three of the background, one of which is taken for clothes; one nobody knows."""
    labels = torch.tensor([[[1, 2, 4], [ANY, 0, 0], [0, IGNORE, IGNORE]]])
    p = torch.zeros(1, 8, 3, 3)
    p[0, :, 0, 0] = torch.tensor([0.1, 0.8, 0.1, 0, 0, 0, 0, 0])  # hair as hair
    p[0, :, 0, 1] = torch.tensor([0.35, 0.2, 0.45, 0, 0, 0, 0, 0])  # face as face
    p[0, :, 0, 2] = torch.tensor([0.05, 0, 0, 0.5, 0.45, 0, 0, 0])  # upper as skin
    p[0, :, 1, 0] = torch.tensor([0.75, 0, 0, 0.25, 0, 0, 0, 0])  # a person missed
    p[0, :, 1, 1] = torch.tensor([0.45, 0, 0, 0, 0.55, 0, 0, 0])  # background as upper
    p[0, 0, 1, 2] = p[0, 0, 2, 0] = 1
    p[0, 4, 2, 1:] = 1
    counts = PixelCounts()
    counts.add(p, labels)
    assert counts.hidden("person", PEOPLE, 0.5) == 0.75 and counts.hidden("person", PEOPLE, 0.2) == 1
    assert counts.hidden("person", (0,), 0.5) == pytest.approx(1 / 3)
    assert counts.hidden("face", (2,), 0.4) == 1 and counts.hidden("face", (2,), 0.5) == 0
    assert counts.hidden("clothes", (4,), 0.4) == 1 and math.isnan(counts.hidden("clothes", (5,), 0.4))
    overlaps = counts.overlaps()
    assert overlaps["hair"] == overlaps["face"] == 1 and overlaps["upper"] == overlaps["skin"] == 0
    assert overlaps["background"] == pytest.approx(2 / 4)  # the missed person counts against it
    assert counts.thresholds()["person"] == pytest.approx(0.24, abs=0.011)
    summary = counts.summary({**dict.fromkeys(GROUPS, 0.5)})
    assert summary["person"] == 0.75 and summary["groups"]["clothes"]["recall"] == 0
    json.dumps(summary, allow_nan=False)


def test_reading_the_archive(folder: Path):
    data = read_labelled_images(folder)
    assert {name: len(made.sources) for name, made in data.items()} == {"train": 6, "val": 3, "test": 3}
    image, label = figure(2, 128, 96)  # the first of val
    assert (data["val"].labels[0, :128, :96].numpy() == label).all()
    assert (data["val"].labels[0, 128:] == IGNORE).all()
    assert (
        np.abs(data["val"].images[0, :, :128, :96].numpy().transpose(1, 2, 0).astype(int) - image).mean() < 12
    )
    (folder / "parts.zip").unlink()
    with refuses("input-missing"):
        read_labelled_images(folder)


@pytest.mark.slow
def test_training_learns_and_leaves_what_can_be_exported(folder: Path, tmp_path: Path):
    torch.manual_seed(0)
    recipe = PartRecipe(crop=64, batch=4, lr=5e-3, warmup=3)
    out = tmp_path / "out"
    net = PartNet(width=16, shrink=8)
    records = [*train_parts(folder, out, steps=80, recipe=recipe, net=net, device="cpu")]
    losses = [record["parts"] for record in records if "parts" in record]
    assert np.mean(losses[-8:]) < 0.9 * np.mean(losses[:8])
    assert {*records[-1]["test"]} == {"ccp", "all"}
    kept, metadata = load_net(out / "parts.safetensors")
    assert metadata["net"] == {"width": 16, "shrink": 8} and metadata["thresholds"].keys() == GROUPS.keys()
    assert json.loads((out / "parts.json").read_text())["test"] == records[-1]["test"]
    export(kept, tmp_path / "small.onnx", {"thresholds": metadata["thresholds"]})
    assert Parts(tmp_path / "small.onnx").thresholds == metadata["thresholds"]


def test_the_length_of_training_is_required(folder: Path, tmp_path: Path):
    with refuses("training-length"):
        next(train_parts(folder, tmp_path, device="cpu"))
