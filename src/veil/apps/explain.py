"""Why a video came out as it did: heat maps of what was looked for, what was hidden of it, and how much over time.

The pictures are made of frames *after* anonymization only: `FrameExplanation` carries no other, and nothing here reads the
source. A folder holds them::

    NAME.png      for each thing that was looked for, how much of it was seen where, over sample frames
    combined.png  what was hidden, outlined
    sheet.png     all of it side by side, a row a sample frame
    coverage.csv  frame, seconds, and the share of the frame that was hidden
    coverage.png  the same as a curve
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from veil.core import FrameExplanation, VeilError, io_errors

_Bytes = npt.NDArray[np.uint8]

_FIXED = ("combined.png", "sheet.png", "coverage.csv", "coverage.png")
_MOST = 24  # samples kept while the length is unknown; half of them at least are there in the end
_SHOWN, _ROWS = 8, 6  # samples in a picture of one thing, and in the sheet
_SIDE = 320  # pixels, of a sample
_HALF = 128  # 0.5, from which on a place is hidden, in 255ths
_GAP, _LINE = 12, 20
_INK, _FAINT, _OUTLINE = (32, 32, 36), (110, 110, 118), (0, 235, 255)


class _SampledFrame(NamedTuple):
    """One frame after anonymization, made small, with its maps in 255ths."""

    seconds: float
    share: float
    frame: _Bytes  # (h, w, 3)
    hidden: _Bytes  # (h, w), on a grid of its own
    maps: dict[str, _Bytes]


class _Stretch(NamedTuple):
    """Some consecutive frames: when the first is shown, how many there are, and the shares hidden of them."""

    seconds: float
    frames: int
    total: float
    low: float
    high: float

    def with_(self, other: _Stretch) -> _Stretch:
        return _Stretch(
            self.seconds,
            self.frames + other.frames,
            self.total + other.total,
            min(self.low, other.low),
            max(self.high, other.high),
        )


class ExplanationFolder:
    """A folder of pictures that explain; it is there, or its files are in it, only when all of them are whole."""

    def __init__(self, folder: Path, *, overwrite: bool):
        self._folder, self._overwrite = folder, overwrite
        self._files: dict[str, str] = {}  # by what was looked for
        self._kept: list[_SampledFrame] = []
        self._looked, self._step = 0, 1  # frames that could be samples, and which of them are
        self._coverage = _Coverage()
        with io_errors(self._folder, "written"):
            if folder.exists() and not folder.is_dir():
                raise VeilError(
                    f"{folder} is a file: name a folder for the explanation.", code="output-is-file"
                )
            if not folder.is_dir() and not folder.parent.is_dir():
                raise VeilError(f"{folder.parent} is not a folder: make it first.", code="folder-missing")
            self._refuse(_FIXED)
            place = folder if folder.is_dir() else folder.parent
            self._draft = place / f".veil-{secrets.token_hex(6)}"
            self._draft.mkdir()
            try:
                self._table = (self._draft / "coverage.csv").open("w", encoding="utf-8")
            except OSError:
                self._draft.rmdir()
                raise
            self._table.write("frame,seconds,share\n")

    def add(self, seconds: float, explained: FrameExplanation) -> None:
        """Add the next frame, shown at this second; its picture is kept only if it is a sample."""
        share = float((~(explained.hidden < 0.5)).mean())  # NaN counts as hidden
        with io_errors(self._folder, "written"):
            self._table.write(f"{self._coverage.frames},{seconds:.6f},{share:.4f}\n")
        self._coverage.add(seconds, share)
        if explained.maps is None:
            return
        self._name(explained.maps)
        if self._looked % self._step == 0:
            frame = _resized(explained.frame, _fit(explained.frame.shape, _SIDE))
            maps = {name: _bytes(values) for name, values in explained.maps.items()}
            self._kept.append(_SampledFrame(seconds, share, frame, _bytes(explained.hidden), maps))
            if len(self._kept) > _MOST:
                self._step *= 2
                self._kept = self._kept[::2]
        self._looked += 1

    def finish(self) -> None:
        """Draw the pictures; they get their place when the context is left without an error."""
        pictures = {"coverage.png": self._coverage.draw()}
        if self._kept:
            shown = _spread(self._kept, _SHOWN)
            for name, file in self._files.items():
                pictures[file] = _page(
                    name, [_tile(s, name, _SIDE, s.seconds) for s in shown if name in s.maps]
                )
            pictures["combined.png"] = _page(
                "hidden: all that is outlined", [_tile(s, None, _SIDE, s.seconds) for s in shown]
            )
            pictures["sheet.png"] = _sheet(_spread(self._kept, _ROWS), list(self._files))
        with io_errors(self._folder, "written"):
            self._table.close()
            for file, picture in pictures.items():
                picture.save(self._draft / file, "PNG")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        try:
            if failure is None:
                self._publish()
        finally:
            try:
                self._table.close()
            except OSError:
                pass  # the disk is full, which was reported before; the draft is removed anyway
            finally:
                shutil.rmtree(self._draft, ignore_errors=True)

    def _name(self, names: Iterable[str]) -> None:
        """Give each target that is new a file, and refuse at once if that exists."""
        for name in names:
            if name in self._files:
                continue
            plain = re.sub(r"[^\w-]+", "_", name).strip("_")[:60] or "unnamed"
            taken = {file.lower() for file in (*_FIXED, *self._files.values())}
            file, number = f"{plain}.png", 2
            while file.lower() in taken:
                file, number = f"{plain}-{number}.png", number + 1
            with io_errors(self._folder, "written"):
                self._refuse([file])
            self._files[name] = file

    def _refuse(self, files: Iterable[str]) -> None:
        for path in (self._folder / file for file in files):
            if path.is_dir():
                raise VeilError(
                    f"{path} is a folder: name another folder for the explanation.", code="output-is-folder"
                )
            if path.exists() and not self._overwrite:
                raise VeilError(
                    f"{path} exists already: pass --overwrite to replace it.", code="output-exists"
                )

    def _publish(self) -> None:
        with io_errors(self._folder, "written"):
            files = sorted(self._draft.iterdir())
            self._refuse(path.name for path in files)
            for path in files:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            if not self._folder.exists():
                self._draft.rename(self._folder)
                return
            for path in files:
                path.replace(self._folder / path.name)


class _Coverage:
    """The share of the frame that was hidden, over time; its memory does not grow with the video."""

    _POINTS = 1024

    def __init__(self) -> None:
        self.frames = 0
        self._last = 0.0
        self._width = 1  # frames in a stretch
        self._stretches: list[_Stretch] = []

    def add(self, seconds: float, share: float) -> None:
        new = _Stretch(seconds, 1, share, share, share)
        if self._stretches and self._stretches[-1].frames < self._width:
            self._stretches[-1] = self._stretches[-1].with_(new)
        else:
            self._stretches.append(new)
        if len(self._stretches) > self._POINTS:
            self._width *= 2
            pairs = zip(self._stretches[::2], [*self._stretches[1::2], None], strict=False)
            self._stretches = [a.with_(b) if b else a for a, b in pairs]
        self.frames, self._last = self.frames + 1, seconds

    def draw(self, width: int = 1100, height: int = 400) -> Image.Image:
        """The curve of the means, on the range from the least to the most of each stretch."""
        picture = Image.new("RGB", (width, height), "white")
        draw = ImageDraw.Draw(picture)
        left, top, right, bottom = 72, 56, width - 28, height - 58
        first = self._stretches[0].seconds if self._stretches else 0.0
        low, high, total = (
            min((s.low for s in self._stretches), default=0.0),
            max((s.high for s in self._stretches), default=0.0),
            sum(s.total for s in self._stretches),
        )
        most = next(m for m in (0.05, 0.1, 0.2, 0.3, 0.5, 1.0) if high <= 0.98 * m or m == 1)
        unit, word = next(
            (u, w)
            for u, w in ((3600, "hours"), (60, "minutes"), (1, "seconds"))
            if self._last - first >= 3 * u or u == 1
        )
        span = max(self._last - first, 0) or 1.0
        marks = _marks(first / unit, (first + span) / unit)

        def x(seconds: float) -> float:
            return left + (right - left) * (seconds - first) / span

        def y(share: float) -> float:
            return bottom - (bottom - top) * share / most

        for k in range(6):
            share = most * k / 5
            draw.line([(left, round(y(share))), (right, round(y(share)))], fill=(228, 228, 232))
            _text(draw, (left - 10, round(y(share))), f"{100 * share:g} %", "rm")
        self._curve(picture, (left, top, right, bottom), x, y)
        draw.line([(left, top), (left, bottom), (right, bottom)], fill=_INK)
        digits = max(0, -int(np.floor(np.log10(marks[1] - marks[0]) + 1e-9))) if marks[1:] else 2
        for mark in marks:
            at = round(x(mark * unit))
            draw.line([(at, bottom), (at, bottom + 5)], fill=_INK)
            _text(draw, (at, bottom + 9), f"{mark:.{digits}f}", "ma")
        _text(draw, ((left + right) // 2, height - 10), word, "md", colour=_FAINT)
        _text(draw, (left, 14), "share of the frame that was hidden", "la", 18)
        caption = (
            f"{100 * total / max(1, self.frames):.1f} % on average, {100 * low:.1f} to {100 * high:.1f} %"
        )
        count = f"{self.frames} frame{'s' * (self.frames != 1)}"
        _text(draw, (right, 18), f"{caption}, {count}", "ra", colour=_FAINT)
        return picture

    def _curve(
        self,
        picture: Image.Image,
        box: tuple[int, int, int, int],
        x: Callable[[float], float],
        y: Callable[[float], float],
    ) -> None:
        """Drawn four times as large and made small, so that it is smooth."""
        fine, pad = 4, 6
        left, top, right, bottom = box[0] - pad, box[1] - pad, box[2] + pad, box[3] + pad
        size = (right - left) * fine, (bottom - top) * fine
        layer = picture.crop((left, top, right, bottom)).resize(size, Image.Resampling.NEAREST)
        draw = ImageDraw.Draw(layer)
        ends = [*(s.seconds for s in self._stretches[1:]), self._last]

        def place(seconds: float, share: float) -> tuple[float, float]:
            return (x(seconds) - left + 0.5) * fine, (y(share) - top + 0.5) * fine

        middles = [
            (s.seconds + e) / 2 if s.frames > 1 else s.seconds
            for s, e in zip(self._stretches, ends, strict=True)
        ]
        for (a, at), (b, to) in pairwise(zip(self._stretches, middles, strict=True)):
            corners = [place(at, a.low), place(at, a.high), place(to, b.high), place(to, b.low)]
            draw.polygon(corners, fill=(250, 214, 190))
        line = [place(at, s.total / s.frames) for s, at in zip(self._stretches, middles, strict=True)]
        draw.line(line, fill=(190, 60, 30), width=2 * fine, joint="curve")
        if len(line) <= 60:
            for px, py in line:
                draw.ellipse(
                    (px - 2.5 * fine, py - 2.5 * fine, px + 2.5 * fine, py + 2.5 * fine), (190, 60, 30)
                )
        picture.paste(layer.resize((right - left, bottom - top), Image.Resampling.BOX), (left, top))


def _marks(first: float, last: float) -> list[float]:
    """Round numbers from `first` to `last`, about eight of them."""
    rough = (last - first) / 8
    scale = 10 ** np.floor(np.log10(rough))
    step = float(next(s for s in (1, 2, 5, 10) if s * scale >= rough) * scale)
    return [step * k for k in range(int(np.ceil(first / step - 1e-6)), int(np.floor(last / step + 1e-6)) + 1)]


def _spread(samples: Sequence[_SampledFrame], most: int) -> list[_SampledFrame]:
    """At most `most` of the samples, evenly spaced, the first and the last among them."""
    at = np.linspace(0, len(samples) - 1, min(most, len(samples))).round().astype(int)
    return [samples[i] for i in at]


def _bytes(values: npt.NDArray[np.float32]) -> _Bytes:
    """A map with values from 0 to 1 in 255ths, no larger than a sample; NaN counts as hidden."""
    values = np.clip(np.nan_to_num(values, nan=1.0), 0, 1).astype(np.float32)
    if max(values.shape) > _SIDE:
        small = cv2.resize(values, _fit(values.shape, _SIDE), interpolation=cv2.INTER_AREA)
        values = small.astype(np.float32)
    return np.floor(values * 255 + 0.5).astype(np.uint8)


def _fit(shape: Sequence[int], side: int) -> tuple[int, int]:
    """Width and height of a picture of this shape ``(H, W, …)`` whose longer side is `side`."""
    scale = side / max(shape[:2])
    return max(1, round(shape[1] * scale)), max(1, round(shape[0] * scale))


def _resized(values: _Bytes, size: tuple[int, int]) -> _Bytes:
    smaller = size[0] < values.shape[1] or size[1] < values.shape[0]
    return cv2.resize(
        np.ascontiguousarray(values), size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
    ).astype(np.uint8)


def _heat(frame: _Bytes, values: _Bytes) -> _Bytes:
    """The map's colours over the frame, whose own colours are left out so that they do not mix ``(h, w, 3)``."""
    height, width = frame.shape[:2]
    colours = _inferno(_resized(values, (width, height)))
    return (0.72 * colours + 0.28 * frame.mean(-1, keepdims=True)).astype(np.uint8)


def _inferno(values: _Bytes) -> _Bytes:
    return cv2.applyColorMap(values, cv2.COLORMAP_INFERNO)[..., ::-1].astype(np.uint8)


def _tile(sample: _SampledFrame, name: str | None, side: int, seconds: float | None = None) -> Image.Image:
    """One heat map of a sample (None: of what was hidden, outlined) with a caption below it."""
    frame = _resized(sample.frame, _fit(sample.frame.shape, side))
    if name is None:
        picture = np.ascontiguousarray(_heat(frame, sample.hidden))
        inside = (_resized(sample.hidden, (frame.shape[1], frame.shape[0])) >= _HALF).astype(np.uint8)
        lines, _ = cv2.findContours(inside, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(picture, lines, -1, (0, 0, 0), 3, cv2.LINE_AA)
        cv2.drawContours(picture, lines, -1, _OUTLINE, 1)
        caption = f"{100 * sample.share:.1f} % hidden"
    else:
        picture = _heat(frame, sample.maps[name])
        caption = f"highest {sample.maps[name].max() / 255:.2f}"
    return _captioned(picture, caption if seconds is None else f"{seconds:.2f} s, {caption}", side)


def _captioned(picture: _Bytes, caption: str, side: int) -> Image.Image:
    """A picture with a caption below it."""
    height, width = picture.shape[:2]
    room = max(width, min(side, 170))
    tile = Image.new("RGB", (room, height + _LINE), "white")
    tile.paste(Image.fromarray(picture), ((room - width) // 2, 0))
    _text(ImageDraw.Draw(tile), (room // 2, height + 4), caption, "ma", 13, room)
    return tile


def _page(title: str, tiles: Sequence[Image.Image], columns: int = 4) -> Image.Image:
    """Tiles of one size in rows, under a title and a legend."""
    width, height = tiles[0].size
    columns = min(columns, len(tiles))
    rows = -(-len(tiles) // columns)
    head = 52
    whole = max(_GAP + columns * (width + _GAP), 520)
    page = Image.new("RGB", (whole, head + rows * (height + _GAP)), "white")
    _head(page, title)
    for i, tile in enumerate(tiles):
        page.paste(tile, (_GAP + i % columns * (width + _GAP), head + i // columns * (height + _GAP)))
    return page


def _sheet(samples: Sequence[_SampledFrame], names: Sequence[str]) -> Image.Image:
    """A row a sample: the frame after anonymization, the heat map of each thing, and what was hidden."""
    side = 260 if len(names) <= 3 else 200
    rows = []
    for sample in samples:
        frame = _resized(sample.frame, _fit(sample.frame.shape, side))
        blank = np.full_like(frame, 235)
        row = [_captioned(frame, f"{sample.seconds:.2f} s", side)]
        for name in names:
            row.append(_tile(sample, name, side) if name in sample.maps else _captioned(blank, "", side))
        rows.append([*row, _tile(sample, None, side)])
    width, height = rows[0][0].size
    head = 84
    whole = max(_GAP + (len(names) + 2) * (width + _GAP), 520)
    sheet = Image.new("RGB", (whole, head + len(rows) * (height + _GAP)), "white")
    _head(sheet, "what was looked for, and what was hidden")
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(("anonymized", *names, "hidden")):
        left = _GAP + column * (width + _GAP)
        _text(draw, (left + width // 2, head - 10), title, "md", 16, width)
        for i, row in enumerate(rows):
            sheet.paste(row[column], (left, head + i * (height + _GAP)))
    return sheet


def _head(page: Image.Image, title: str) -> None:
    """The title, and what the colours mean."""
    draw = ImageDraw.Draw(page)
    length = 160
    left = page.width - _GAP - length - 16
    bar = np.broadcast_to(np.linspace(0, 255, length).round().astype(np.uint8), (14, length))
    page.paste(Image.fromarray(_inferno(np.ascontiguousarray(bar))), (left, 14))
    for share in (0, 0.5, 1):
        at = left + round(share * (length - 1))
        draw.line([(at, 28), (at, 31)], fill=_INK)
        _text(draw, (at, 33), f"{share:g}", "ma", 12)
    _text(draw, (_GAP, 14), title, "la", 20, left - 2 * _GAP)


def _text(
    draw: ImageDraw.ImageDraw,
    at: tuple[int, int],
    caption: str,
    anchor: str,
    size: int = 14,
    room: int | None = None,
    colour: tuple[int, int, int] = _INK,
) -> None:
    """Words at a place, cut off where they do not fit into `room` pixels."""
    font = ImageFont.load_default(size)
    if room and draw.textlength(caption, font) > room:
        while caption and draw.textlength(caption + "...", font) > room:
            caption = caption[:-1]
        caption += "..."
    draw.text(at, caption, fill=colour, font=font, anchor=anchor)
