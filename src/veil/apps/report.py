"""What was hidden in a video: a summary, and a file with every frame."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np

from veil.core import Frames, Region, RegionSource, Target, __version__, io_errors
from veil.media.draft import Draft
from veil.media.video import VideoInfo

Regions = list[tuple[Region, ...]] | None


@dataclass(frozen=True)
class Report:
    """The summary of one anonymized video."""

    output: str  # its file name
    method: str
    params: dict[str, Any]
    width: int
    height: int
    fps: float
    frames: int
    undecodable: int  # frames that could not be decoded (only with salvage)
    seconds: float  # how long it took
    hidden: float  # mean share of a frame that was changed, 0 to 1
    tracks: int | None  # how many faces or people were followed, if any were; None: whole frames were changed
    regions: dict[str, int] = field(default_factory=dict)  # how many of each `RegionSource`
    targets: list[str] = field(default_factory=list)  # what the method looked for
    chosen: bool = False  # some of them by name
    missing: list[str] = field(default_factory=list)  # those chosen by name that were never detected
    nothing_found: list[tuple[int, int]] = field(
        default_factory=list
    )  # frames, as first and last of each stretch
    bytes: int = 0  # size of the file

    @property
    def frames_without(self) -> int:
        """In how many frames nothing was found, and so nothing was hidden."""
        return sum(last - first + 1 for first, last in self.nothing_found)

    def sentence(self) -> str:
        """The summary for people."""
        thing = either(self.targets) or "region"
        pictures = f"{self.frames} frame{'s' * (self.frames != 1)}"
        gone = f" ({self.undecodable} more could not be decoded)" if self.undecodable else ""
        if self.tracks is None:
            return f"{self.output}: {pictures}{gone}, each changed as a whole by {self.method}."
        bare = self.frames_without
        if bare == self.frames:
            any_of_them = "any of them" if self.frames != 1 else "it"
            none = f"NOTHING that looks like {thing} was" if self.chosen else f"NO {thing}"
            return f"{self.output}: {pictures}{gone}, {none} found in {any_of_them}: nothing was hidden. Look at it."
        seen = f"{self.frames - bare} of them" if bare else "every one of them" if self.frames > 1 else "it"
        note = (
            f"; in the other {bare} nothing was found, which does not mean that nothing is there"
            if bare
            else ""
        )
        what = thing if self.chosen else f"one {thing} or more"
        never = f"; {' and '.join(self.missing)} was NEVER found" if self.missing else ""
        average = " on average" if self.frames > 1 else ""
        share = f" ({100 * self.hidden:.{0 if self.hidden > 0.01 else 2}f} % of the picture{average})"
        return (
            f"{self.output}: {pictures}{gone}, {what} hidden in {seen} by {self.method}"
            f"{share if self.chosen else ''}{note}{never}."
        )


def either(names: Sequence[str]) -> str:
    """Names as a sentence has them: ``face``; ``hair or face``; ``hair, hand or face``."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


class ReportBuilder:
    """Counts what happens to a video while it happens; its memory does not grow with the video."""

    def __init__(self, info: VideoInfo, targets: Sequence[Target] = ()):
        self.info, self.targets = info, targets
        self.frames = 0
        self._whole = False
        self._how: Counter[str] = Counter()
        self._first_track = self._tracks = 0
        self._seen: set[int] = set()
        self._share = 0.0
        self._bare: list[list[int]] = []
        self._detected: set[str] = set()  # names of targets

    @property
    def matched(self) -> bool:
        """Whether anything at all was hidden so far."""
        return self._whole or sum(last - first + 1 for first, last in self._bare) < self.frames

    @property
    def missing(self) -> list[str]:
        """The targets chosen by name that were not detected so far."""
        return [name for name, expected in self.targets if expected and name not in self._detected]

    def add(self, frames: Frames, regions: Regions, shares: Sequence[float] | None = None) -> None:
        """Count frames that come next; `shares` is what was changed of each, if it is not its regions' boxes."""
        for i in range(len(frames)):
            at, found = self.frames + i, None if regions is None else regions[i]
            if found is None:
                self._whole = True
                self._share += 1 if shares is None else shares[i]
                continue
            size = self.info.width, self.info.height
            self._share += _share(found, *size) if shares is None else shares[i]
            self._how.update(region.how for region in found)
            now = {region.track for region in found if region.track >= 0}  # -1: not followed
            self._detected.update(*(region.targets for region in found))
            self._tracks += len(now - self._seen)
            self._seen = {t for t in self._seen | now if t > max(now, default=0) - 10_000}
            if not found and self._bare and self._bare[-1][1] == at - 1:
                self._bare[-1][1] = at
            elif not found:
                self._bare.append([at, at])
        self.frames += len(frames)

    def report(
        self,
        *,
        output: str,
        method: str,
        params: dict,
        undecodable: int,
        seconds: float,
        size: tuple[int, int],
    ) -> Report:
        """The summary of all that was counted."""
        return Report(
            output=output,
            method=method,
            params=params,
            width=size[0],
            height=size[1],
            fps=float(self.info.fps),
            frames=self.frames,
            undecodable=undecodable,
            seconds=round(seconds, 3),
            hidden=round(self._share / max(1, self.frames), 4),
            tracks=None if self._whole else self._tracks,
            targets=[target.name for target in self.targets],
            chosen=any(target.expected for target in self.targets),
            missing=self.missing,
            regions={how: self._how[how] for how in get_args(RegionSource)},
            nothing_found=[(first, last) for first, last in self._bare],
        )


class ReportFile:
    """A JSON file written frame by frame: ``{"veil": …, "frames": [{…}, …], "summary": {…}}``."""

    def __init__(self, path: Path, *, overwrite: bool):
        self._draft = Draft(path, overwrite=overwrite)
        self._file = self._draft.path.open("w", encoding="utf-8")
        self._first = True
        self._file.write(f'{{"veil": {json.dumps(__version__)}, "frames": [')

    def add(self, at: int, seconds: Sequence[float], regions: Regions) -> None:
        """Add the frames from number `at` on, shown at these seconds."""
        for i, second in enumerate(seconds):
            entry: dict[str, Any] = {"frame": at + i, "time": round(second, 6)}
            if regions is None:
                entry["whole"] = True
            else:
                entry["regions"] = [
                    {
                        "kind": region.kind,
                        "box": [round(v, 1) for v in region.box],
                        "score": round(region.score, 3),
                        "how": region.how,
                        "track": region.track,
                    }
                    for region in regions[i]
                ]
            with io_errors(self._draft.place, "written"):
                self._file.write(("" if self._first else ",") + "\n" + json.dumps(entry))
            self._first = False

    def finish(self, report: Report) -> None:
        """Add the summary; the file gets its name when the context is left without an error."""
        summary = {k: v for k, v in asdict(report).items() if k != "bytes"}
        with io_errors(self._draft.place, "written"):
            self._file.write(f'\n], "summary": {json.dumps(summary)}}}\n')
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        try:
            if failure is None:
                self._draft.publish()
        finally:
            self._file.close()
            self._draft.discard()


def _share(regions: Sequence[Region], width: int, height: int) -> float:
    """The share of the frame that lies in the regions' boxes, to about a percent."""
    if not regions:
        return 0.0
    grid = np.zeros((90, 160), bool)
    for region in regions:
        x0, x1 = (round(v / width * 160) for v in region.box[0::2])
        y0, y1 = (round(v / height * 90) for v in region.box[1::2])
        grid[max(0, y0) : max(0, y1), max(0, x0) : max(0, x1)] = True
    return float(grid.mean())
