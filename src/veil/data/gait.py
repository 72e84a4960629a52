"""Gait: CASIA-B."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from veil.core import VeilError
from veil.data.frames import read_frames
from veil.data.listing import dataset_folder, media_files
from veil.data.sample import Dataset, Sample, Split
from veil.media.inputs import is_image, walk


def casia_b(root: Path, *, protocol: Literal["large", "all"] = "large") -> Dataset:
    """CASIA-B: 124 people walking in 11 views, normally (nm), with a bag (bg) and in a coat (cl).

    ::

        root/001-nm-01-090.avi      person, condition, repetition, view
        root/001/nm-01/090/001-nm-01-090-001.png      (the same as frames or silhouettes)

    ``large`` trains on the people 1 to 74, of whom 65 to 74 validate, and tests on the rest; ``all`` tests on all
    people, as SPLAVU does. ``groups["role"]`` is gallery for nm-01 to nm-04, else probe.
    """
    root = dataset_folder(root, "CASIA-B")
    found = media_files(root)
    for here, names in walk(root):
        place = re.search(r"(\d{3})[/\\]((?:nm|bg|cl)-\d\d)[/\\](\d{3})$", str(here))
        if place and any(is_image(name) for name in names):
            found[f"{place[1]}-{place[2]}-{place[3]}"] = here
    samples: list[Sample] = []
    for stem, path in sorted(found.items()):
        code = re.fullmatch(r"(\d{3})-(nm|bg|cl)-(\d\d)-(\d{3})", stem)
        if not code or not 1 <= int(code[1]) <= 124:
            continue
        person = int(code[1])
        split: Split = "test" if protocol == "all" or person > 74 else "val" if person > 64 else "train"
        role = "gallery" if code[2] == "nm" and int(code[3]) <= 4 else "probe"
        groups = {"condition": code[2], "repetition": code[3], "view": code[4], "role": role}
        samples.append(Sample(stem, split, path, identity=person - 1, groups=groups))
    if not samples:
        raise VeilError(
            f"{root} has no video like 001-nm-01-090.avi: unpack CASIA-B there.", code="no-samples"
        )
    people = tuple(f"{person:03d}" for person in range(1, 125))
    return Dataset("casia-b", samples, read_frames, identities=people)
