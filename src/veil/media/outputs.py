"""Where outputs are written: every input paired with a file, folders mirrored."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from veil.core import VeilError, io_errors
from veil.media.inputs import find_inputs, is_image, is_pattern, is_video
from veil.media.video import OUTPUT_SUFFIXES, Codec


class PlannedOutput(NamedTuple):
    """One input, and the file to write; `root` is the output folder, None where the file itself was named."""

    source: str
    target: Path
    root: Path | None = None

    def beside(self, place: str | None, suffix: str) -> Path | None:
        """Where the report, preview or explanation goes: as named, or the target's mirror in the named folder."""
        if place is None:
            return None
        if self.root is None:
            return Path(place)
        mirror = Path(place) / self.target.relative_to(self.root)
        return mirror.with_name(mirror.name + suffix)

    def make_folders(self, *places: Path | None) -> None:
        """Make the folders of mirrored outputs."""
        if self.root is not None:
            for place in (self.target, *places):
                if place is not None:
                    with io_errors(place.parent, "written"):
                        place.parent.mkdir(parents=True, exist_ok=True)


def plan_outputs(inputs: list[str], output: str, codec: Codec = "h264") -> list[PlannedOutput]:
    """Pair every input with its output; folders are mirrored in the output folder.

    One input that is not a folder and not a pattern may name its output file; else an output folder is needed, which
    need not exist.
    """
    out = Path(output)
    several = any(Path(name).is_dir() or is_pattern(name) for name in inputs)
    into = output.endswith(("/", os.sep)) or out.is_dir()
    if len(inputs) == 1 and not several and not into:
        return [PlannedOutput(inputs[0], out)]
    if out.exists() and not out.is_dir():
        raise VeilError(
            f"{out} is a file, and several outputs need a folder: name a folder with -o.",
            code="output-is-file",
        )
    if not into and (is_video(output) or is_image(output)):
        raise VeilError(
            f"{out} has the name of a file, and several outputs need a folder: name a folder with -o, or end "
            "the name with /.",
            code="output-is-file",
        )
    found = find_inputs(inputs, exclude=out)
    places = [output_name(one.place, codec) for one in found]
    count = Counter(places)
    # a.avi and a.mov would both become a.mp4; then both keep their whole name.
    planned = [
        PlannedOutput(
            one.name,
            out / (place if count[place] == 1 else place.with_name(one.place.name + place.suffix)),
            out,
        )
        for one, place in zip(found, places, strict=True)
    ]
    twice = [target for target, n in Counter(one.target for one in planned).items() if n > 1]
    if twice:
        raise VeilError(
            f"two inputs would both be written to {twice[0]}: rename one, or anonymize them separately.",
            code="output-twice",
        )
    return planned


def output_name(place: Path, codec: Codec) -> Path:
    """The name of the output for an input of this name: its suffix is one that holds the codec."""
    if is_image(place):
        return place
    suffixes = OUTPUT_SUFFIXES[codec]
    return place if place.suffix.lower() in suffixes else place.with_suffix(suffixes[0])
