"""Check of a dataset on disk: counts beside the published ones, prevalences, and a contact sheet."""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from veil import data
from veil.core import Frames, VeilError
from veil.data.sample import Dataset, Sample, Split
from veil.media.inputs import is_image

SPLITS: tuple[Split, ...] = ("train", "val", "test")
SHOWN = 100  # attributes that are printed; thousands of tags are in the JSON only

# As published; "training" is train and val together, as most datasets have no validation split.
PUBLISHED: dict[str, dict[str, int]] = {
    "ucf101": {"videos": 13_320, "training": 9_537, "test": 3_783, "actions": 101},
    "hmdb51": {"training": 3_570, "test": 1_530, "actions": 51},
    "kinetics400": {"actions": 400},
    "kth": {"videos": 599, "actions": 6, "identities": 25},
    "ipn": {"videos": 200, "samples": 4_218, "actions": 13, "identities": 50},
    "sbu": {"actions": 8, "identities": 13},
    "ntu60": {"videos": 56_880, "actions": 60, "identities": 40},
    "toyota-smarthome": {"videos": 16_115, "actions": 31, "identities": 18},
    "casia-b": {"videos": 13_640, "identities": 124},
    "utd-mhad": {"videos": 861, "actions": 27, "identities": 8},
    "ucf-sports": {"videos": 150, "actions": 13},
    "vispr": {"samples": 22_167, "train": 10_000, "val": 4_167, "test": 8_000},
    "pa-hmdb51": {"test videos": 515, "actions": 51},
    "vp-ucf101": {"videos": 13_320, "training": 9_537, "test": 3_783, "attributes": 5},
    "vp-hmdb51": {"training": 3_570, "test": 1_530, "attributes": 5},
    "p-hvu": {"training": 245_212, "test": 16_012, "attributes": 739 + 1_678 + 248},
    "utkface": {"samples": 23_708},
    "thumos14": {"training": 200, "test": 213, "actions": 20},
    "ucf-crime": {"videos": 1_900, "training": 1_610, "test": 290, "actions": 14},
}


class Count(NamedTuple):
    """A number of samples, actions, … and the published number."""

    what: str
    found: int
    published: int | None

    def verdict(self) -> str:
        """The comparison of both, printed after the number."""
        if self.published is None:
            return ""
        return "  as published" if self.found == self.published else f"  (published: {self.published:,})"


@dataclass(frozen=True)
class DatasetCheck:
    """The result of a check; ``problem`` is the reason why the dataset cannot be used, if there is one."""

    name: str
    root: str
    problem: str | None = None
    counts: tuple[Count, ...] = ()
    prevalences: dict[str, dict[str, float]] = field(default_factory=dict)  # by split, then attribute
    actions: dict[str, int] = field(default_factory=dict)  # every name, and its number of samples
    attributes: tuple[str, ...] = ()  # every name
    notes: tuple[str, ...] = ()
    sheet: Image.Image | None = field(default=None, repr=False)

    @property
    def usable(self) -> bool:
        """Whether there are samples, and they can be read."""
        return self.problem is None

    @property
    def exit_code(self) -> int:
        """0 when usable, 2 when not."""
        return 0 if self.usable else 2

    def as_dict(self) -> dict[str, Any]:
        """All but the contact sheet, for JSON."""
        values = {
            part.name: getattr(self, part.name) for part in dataclasses.fields(self) if part.name != "sheet"
        }
        counts = [count._asdict() for count in self.counts]
        return {**values, "usable": self.usable, "counts": counts, "notes": list(self.notes)}

    def lines(self, width: int = 80) -> list[str]:
        """The same as text; lists of names are wrapped to the width."""
        place = f" in {self.root}" if self.root else ""
        lines = [f"{self.name}{place}: {'usable' if self.usable else 'not usable'}"]
        lines += [f"  {count.what:<12} {count.found:>9,}{count.verdict()}" for count in self.counts]
        if any(self.actions.values()):
            ranked = sorted(self.actions.items(), key=lambda item: item[1])
            (few, least), (many, most) = ranked[0], ranked[-1]
            lines.append(f"  samples per action: from {least:,} ({few}) to {most:,} ({many})")
        if self.actions:
            lines += _listed("actions", self.actions, width)
        if len(self.attributes) > SHOWN:
            lines.append(f"  attributes: the {SHOWN} most frequent ones follow; --json names all")
        elif self.attributes:
            lines += _listed("attributes", self.attributes, width)
        for split, shares in self.prevalences.items():
            shown = Counter(shares).most_common(SHOWN) if len(shares) > SHOWN else shares.items()
            lines += _listed(f"{split}, share with", (f"{name} {share:.3f}" for name, share in shown), width)
        return lines + [f"  note: {note}" for note in self.notes]


def _listed(title: str, names: Iterable[str], width: int) -> list[str]:
    """Lines of names with commas between them; no name is broken."""
    whole = ", ".join(name.replace(" ", "\xa0") for name in names)
    lines = textwrap.wrap(
        whole,
        width,
        initial_indent=f"  {title}: ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\xa0", " ") for line in lines]


def check(
    name: str, root: Path | str | None, options: Mapping[str, Any] | None = None, *, sheet: int = 24
) -> DatasetCheck:
    """Read and check a dataset; ``sheet`` is the number of samples that are decoded for the contact sheet."""
    place = str(root or "")
    try:
        dataset = data.read(name, root, **(options or {}))
    except VeilError as error:
        return DatasetCheck(name, place, str(error))
    notes = list(dataset.notes)
    counts = _counts(dataset)
    notes += [f"there is no {split} split" for split in SPLITS if not dataset.split(split)]
    problem = None if len(dataset.samples) else f"{place} has no sample of {name}: check the folder."
    picture = None
    first = next(iter(dataset.samples), None)
    if first is not None and first.path is not None and first.path.suffix == ".npy":
        notes.append("the samples are features, so there is no contact sheet")
    elif first is not None and sheet:
        tiles, broken = _tiles(dataset, sheet)
        notes += broken
        if tiles:
            picture = contact_sheet(tiles)
        else:
            problem = f"none of {len(broken)} samples could be decoded: {broken[0]}"
    labels = Counter(label for sample in dataset.samples for label in _labels(sample))
    actions = {action: labels[place] for place, action in enumerate(dataset.actions)}
    empty = [action for action, count in actions.items() if labels and not count]
    notes += [f"{len(empty)} of {len(actions)} actions have no sample, such as {empty[0]}"] if empty else []
    return DatasetCheck(
        name,
        place,
        problem,
        counts,
        _prevalences(dataset),
        actions,
        dataset.attributes,
        tuple(notes),
        picture,
    )


def _labels(sample: Sample) -> set[int]:
    """The actions in a sample, one or several in sequence."""
    alone = set() if sample.action is None else {sample.action}
    return alone | {segment.label for segment in sample.segments}


def _counts(dataset: Dataset) -> tuple[Count, ...]:
    splits = Counter(sample.split for sample in dataset.samples)
    videos = {sample.id.partition("#")[0]: sample.split for sample in dataset.samples}
    found = {
        "samples": len(dataset.samples),
        "videos": len(videos),
        "train": splits["train"],
        "val": splits["val"],
        "training": splits["train"] + splits["val"],
        "test": splits["test"],
        "test videos": sum(split == "test" for split in videos.values()),
        "actions": len(dataset.actions),
        "identities": len(dataset.identities),
        "attributes": len(dataset.attributes),
    }
    published = PUBLISHED.get(dataset.name, {})
    shown = [
        what
        for what in found
        if what in published or (found[what] and what not in ("training", "test videos"))
    ]
    return tuple(Count(what, found[what], published.get(what)) for what in shown)


def _prevalences(dataset: Dataset) -> dict[str, dict[str, float]]:
    """The prevalence of each attribute by split; a part of a video is weighted by its frames."""
    shares: dict[str, dict[str, float]] = {}
    for split in SPLITS:
        total, sums = 0, np.zeros(len(dataset.attributes))
        for sample in dataset.split(split):
            if marks := sample.attributes:
                weight = sample.span[1] - sample.span[0] if sample.span else 1
                total += weight
                sums += weight * np.asarray(marks)
        if total:
            shares[split] = dict(zip(dataset.attributes, (sums / total).tolist(), strict=True))
    return shares


def _tiles(dataset: Dataset, count: int) -> tuple[list[tuple[Frames, str]], list[str]]:
    """An image and a title of samples spread over the dataset, and the errors of the undecodable ones."""
    ordered = sorted(range(len(dataset.samples)), key=lambda place: dataset.samples[place].action or 0)
    places = np.unique(np.linspace(0, len(ordered) - 1, count).round().astype(int))
    tiles: list[tuple[Frames, str]] = []
    broken: list[str] = []
    for place in places:
        sample = dataset.samples[ordered[place]]
        try:
            tiles.append((_early_frame(dataset, sample), _title(dataset, sample)))
        except VeilError as error:
            broken.append(str(error))
    return tiles, broken


def _early_frame(dataset: Dataset, sample: Sample) -> Frames:
    """An early frame of a sample ``(H, W, 3)``, without decoding the rest."""
    if sample.path is not None and not is_image(sample.path):
        start, end = sample.span or (0, 16)
        sample = dataclasses.replace(sample, span=(start, min(end, start + 16)))
    return np.asarray(dataset.frames(sample)[-1])


def _title(dataset: Dataset, sample: Sample) -> str:
    if sample.action is not None:
        return dataset.actions[sample.action]
    if sample.identity is not None:
        return dataset.identities[sample.identity]
    names = [name for name, mark in zip(dataset.attributes, sample.attributes, strict=False) if mark]
    return ", ".join(names) or sample.id


def contact_sheet(tiles: Sequence[tuple[Frames, str]], *, columns: int = 6, side: int = 160) -> Image.Image:
    """Images with titles in rows."""
    line = 16
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * side, rows * (side + line)), "white")
    pen = ImageDraw.Draw(sheet)
    for place, (frame, title) in enumerate(tiles):
        x, y = place % columns * side, place // columns * (side + line)
        picture = Image.fromarray(frame)
        picture.thumbnail((side - 4, side - 4))
        sheet.paste(picture, (x + (side - picture.width) // 2, y + (side - picture.height) // 2))
        pen.text((x + 4, y + side), title[:26], fill="black")
    return sheet
