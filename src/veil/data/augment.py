"""Sampling of clips from videos and their augmentation: in batches, on the clip's device, equal for all frames of a clip.

A preset is the augmentation of one paper. All randomness comes from the caller's ``torch.Generator``, so that a run is
reproducible. The output is in [0, 1]; networks standardize it.

Cropping, resizing and flipping are two small matrices for each clip, its rows and its columns, so that a batch
of differently cropped clips is two matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Generator, Tensor

from veil.core import Frames, VeilError


@dataclass(frozen=True)
class RandomChange:
    """The probability of a random change, and its maximum strength."""

    share: float = 0.0
    by: float = 0.0


@dataclass(frozen=True)
class Augmentation:
    """How clips are sampled from videos and augmented; the defaults change nothing."""

    length: int = 16  # frames in a clip
    skip: int | None = 1  # frames from one to the next; None: spread over the whole video
    clips: int = 10  # of a test video, equidistant
    size: int = 112  # pixels along each side
    crop: tuple[float, float] = (1.0, 1.0)  # side of the square by the shorter side, at random between these
    area: bool = False  # the two are shares of the area instead, and the shape varies from 3:4 to 4:3
    middle: float = 1.0  # side of the central square of a test clip, by the shorter side
    flip: float = 0.0
    contrast: RandomChange = RandomChange()
    hue: RandomChange = RandomChange()  # in turns
    saturation: RandomChange = RandomChange()
    brightness: RandomChange = RandomChange()
    grey: float = 0.0
    gamma: RandomChange = RandomChange()  # of the grey ones
    erase: float = 0.0
    erased: tuple[int, int] = (9, 19)  # side of the square, in pixels
    erase_flipped: bool = True
    shared_corner: bool = False  # two views of one clip are cropped from the same corner

    def starts(self, frames: int, count: int, generator: Generator) -> Tensor:
        """The random first frames of ``count`` clips of a video with that many frames."""
        room = max(1, frames - (self.length - 1) * self.step(frames))
        return torch.randint(room, (count,), generator=generator, device=generator.device).cpu()

    def step(self, frames: int) -> int:
        """Frames from one to the next; a video that is too short for the skip gets a smaller one."""
        longest = max(1, (frames - 1) // max(1, self.length - 1))
        return longest if self.skip is None else min(self.skip, longest)

    def taken(self, frames: int, start: int) -> Tensor:
        """Which frames make the clip that begins there; past the end the last is repeated."""
        return (start + self.step(frames) * torch.arange(self.length)).clamp_max(frames - 1)

    def random_clip(self, frames: Frames, generator: Generator) -> Tensor:
        """One clip ``(3, T, H, W)`` uint8 from anywhere; of a video on disk only its frames are read."""
        return _clip(frames, self.taken(len(frames), int(self.starts(len(frames), 1, generator))))

    def test_clips(self, frames: Frames, clips: int | None = None) -> list[Tensor]:
        """Clips ``(3, T, H, W)`` uint8 at equal distances, from the start of the video to its end."""
        room = max(0, len(frames) - 1 - (self.length - 1) * self.step(len(frames)))
        starts = np.linspace(0, room, clips or self.clips).round().astype(int)
        return [_clip(frames, self.taken(len(frames), int(start))) for start in starts]

    def train(self, clips: Tensor | Sequence[Tensor], generator: Generator) -> Tensor:
        """Changed clips ``(B, 3, T, size, size)`` in [0, 1] of clips ``(3, T, H, W)``, uint8 or in [0, 1]."""
        return self._change(clips, self._corner(len(clips), generator), generator)

    def views(self, clips: Tensor | Sequence[Tensor], generator: Generator) -> tuple[Tensor, Tensor]:
        """Two changed versions of the same clips, for contrast."""
        corner = self._corner(len(clips), generator)
        other = corner if self.shared_corner else self._corner(len(clips), generator)
        return self._change(clips, corner, generator), self._change(clips, other, generator)

    def test(self, clips: Tensor | Sequence[Tensor]) -> Tensor:
        """The middle of clips, not changed otherwise, ``(B, 3, T, size, size)`` in [0, 1]."""
        shapes = [(clip.shape[-2], clip.shape[-1]) for clip in clips]
        boxes = [
            _inside(shape, self.middle * min(shape), self.middle * min(shape), 0.5, 0.5) for shape in shapes
        ]
        return self._cropped(clips, boxes, torch.zeros(len(clips), dtype=torch.bool))

    def _corner(self, count: int, generator: Generator) -> Tensor:
        return _random(generator, count, 2)

    def _change(self, clips: Tensor | Sequence[Tensor], corner: Tensor, generator: Generator) -> Tensor:
        count = len(clips)
        uniform = _random(generator, count, 2)
        boxes = [
            self._box((clip.shape[-2], clip.shape[-1]), *uniform[place].tolist(), *corner[place].tolist())
            for place, clip in enumerate(clips)
        ]
        flip_draw = _random(generator, count)
        flipped = flip_draw < self.flip
        made = self._cropped(clips, boxes, flipped)
        made = self._colored(made, generator)
        erase_draw = _random(generator, count)
        # Paper (SPAct's code): one draw decides on both, so that a flipped clip is never erased.
        erased = erase_draw < self.erase if self.erase_flipped else flip_draw >= 1 - self.erase
        return self._erased(made, erased, generator)

    def _box(self, shape: tuple[int, int], share: float, form: float, top: float, left: float) -> _Box:
        low, high = self.crop
        side = low + (high - low) * share
        if not self.area:
            return _inside(shape, side * min(shape), side * min(shape), top, left)
        # torchvision tries ten times to fit a shape and then gives up; here a side that is too long is cut.
        tall = (side * shape[0] * shape[1]) ** 0.5
        stretch = (4 / 3) ** (2 * form - 1)
        return _inside(shape, tall / stretch**0.5, tall * stretch**0.5, top, left)

    def _cropped(self, clips: Tensor | Sequence[Tensor], boxes: list[_Box], flipped: Tensor) -> Tensor:
        """Each clip cut to its box, resized and mirrored; clips of one size go together."""
        if not isinstance(clips, Tensor) and len({clip.shape for clip in clips}) == 1:
            clips = torch.stack(list(clips))
        if isinstance(clips, Tensor):
            if clips.ndim != 5 or clips.shape[1] != 3:
                raise VeilError(
                    f"clips are (B, 3, T, H, W), got {tuple(clips.shape)}: check the axes.", code="clip-shape"
                )
            return self._resampled(clips, boxes, flipped)
        parts = [
            self._resampled(clip[None], [box], flipped[place : place + 1])
            for place, (clip, box) in enumerate(zip(clips, boxes, strict=True))
        ]
        return torch.cat(parts)

    def _resampled(self, clips: Tensor, boxes: list[_Box], flipped: Tensor) -> Tensor:
        count, _, length, height, width = clips.shape
        sides = torch.tensor(boxes, dtype=torch.float64).to(clips.device)  # (B, 4)
        rows = _resampling(sides[:, 0], sides[:, 1], height, self.size)  # (B, size, H)
        columns = _resampling(sides[:, 2], sides[:, 3], width, self.size)
        columns = torch.where(flipped.to(clips.device)[:, None, None], columns.flip(1), columns)
        light = clips.float() / 255 if clips.dtype == torch.uint8 else clips
        narrow = light.reshape(count, -1, width) @ columns.to(light.dtype).mT  # (B, 3TH, size)
        narrow = narrow.reshape(count, -1, height, self.size).mT.reshape(count, -1, height)
        made = narrow @ rows.to(light.dtype).mT  # (B, 3T·size, size): columns before rows
        return made.reshape(count, 3, length, self.size, self.size).mT.clamp(0, 1)

    def _colored(self, clips: Tensor, generator: Generator) -> Tensor:
        """Changes of colour, each for the clips that chance hits, in the order of SPAct's code."""
        count = len(clips)
        contrast, hue, saturation, brightness, gamma = (
            _amount(chance, count, generator)
            for chance in (self.contrast, self.hue, self.saturation, self.brightness, self.gamma)
        )
        grey = (_random(generator, count) < self.grey).float()
        _apply(clips, contrast, lambda clip, by: clip + by * (clip - _grey(clip).mean((3, 4), keepdim=True)))
        _apply(clips, hue, _turn)
        _apply(clips, saturation, lambda clip, by: clip + by * (clip - _grey(clip)))
        _apply(clips, brightness, lambda clip, by: clip + by * clip)
        _apply(clips, grey, lambda clip, _: _grey(clip).expand_as(clip))
        _apply(clips, gamma * grey, lambda clip, by: clip ** (1 + by))
        return clips

    def _erased(self, clips: Tensor, erased: Tensor, generator: Generator) -> Tensor:
        low, high = self.erased
        uniform = _random(generator, len(clips), 3)
        side = low + (uniform[:, 0] * (high - low + 1)).floor()
        start = (uniform[:, 1:] * (self.size - side + 1)[:, None]).floor()  # (B, 2)
        place = torch.arange(self.size)
        hit = (place >= start[..., None]) & (place < (start + side[:, None])[..., None])  # (B, 2, size)
        hole = hit[:, 0, :, None] & hit[:, 1, None, :] & erased[:, None, None]
        return clips.masked_fill(hole.to(clips.device)[:, None, None], 0)


_Box = tuple[float, float, float, float]  # first and last row, first and last column, in pixels

_SPACT = Augmentation(
    skip=2,
    clips=5,
    crop=(0.6, 1.0),
    middle=0.8,
    flip=0.5,
    contrast=RandomChange(0.125, 0.1),
    hue=RandomChange(0.15, 0.05),
    saturation=RandomChange(0.15, 0.1),
    brightness=RandomChange(0.15, 0.1),
    grey=0.1,
    gamma=RandomChange(0.75, 0.15),
    erase=0.25,
    erase_flipped=False,
    shared_corner=True,
)

# As the released code does, and with "-paper" as in the paper, where the two differ.
PRESETS: dict[str, Augmentation] = {
    "none": Augmentation(),
    "spact": _SPACT,
    "spact-paper": replace(_SPACT, clips=10, erase_flipped=True, shared_corner=False),
    "penalty": replace(_SPACT, size=224),
    "penalty-paper": replace(_SPACT, size=224, skip=4, crop=(0.8, 0.8)),
    "tedspad": replace(_SPACT, size=224),
    "splavu": Augmentation(clips=5, size=224, crop=(0.8, 1.0), area=True, middle=0.875, flip=0.5),
    "selective": Augmentation(size=224, skip=None, clips=1),
}


def _clip(frames: Frames, taken: Tensor) -> Tensor:
    chosen = np.ascontiguousarray(frames[taken.numpy()])  # of a file on disk, reads these alone
    return torch.from_numpy(chosen).permute(3, 0, 1, 2)


def _random(generator: Generator, *shape: int) -> Tensor:
    """Numbers in [0, 1), on the CPU, where the few of them are turned into boxes and matrices."""
    return torch.rand(shape, generator=generator, device=generator.device).cpu()


def _amount(chance: RandomChange, count: int, generator: Generator) -> Tensor:
    """Between -by and by for those whom chance hits, else 0."""
    uniform = _random(generator, count, 2)
    return torch.where(uniform[:, 0] < chance.share, (2 * uniform[:, 1] - 1) * chance.by, 0.0)


def _inside(shape: tuple[int, int], tall: float, wide: float, top: float, left: float) -> _Box:
    """A box of whole pixels; ``top`` and ``left`` are its place in the free room, from 0 to 1."""
    height, width = (max(1, min(side, round(long))) for side, long in zip(shape, (tall, wide), strict=True))
    row, column = round(top * (shape[0] - height)), round(left * (shape[1] - width))
    return row, row + height, column, column + width


def _resampling(start: Tensor, end: Tensor, pixels: int, size: int) -> Tensor:
    """Weights ``(B, size, pixels)`` that resize what lies from start to end, smoothing as they shrink."""
    scale = ((end - start) / size)[:, None, None]
    center = start[:, None, None] + (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    pixel = torch.arange(pixels, device=start.device)
    weight = (1 - (pixel + 0.5 - center).abs() / scale.clamp_min(1)).clamp_min(0)
    weight = weight * ((pixel >= start[:, None, None]) & (pixel < end[:, None, None]))
    return weight / weight.sum(-1, keepdim=True)


def _apply(clips: Tensor, amounts: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Change the clips whose amount is not 0, in place, by their amounts."""
    hit = amounts.nonzero()[:, 0]
    if len(hit):
        by = amounts[hit].to(clips)[:, None, None, None, None]
        hit = hit.to(clips.device)
        clips[hit] = change(clips[hit], by).clamp(0, 1)


def _grey(clips: Tensor) -> Tensor:
    """``(B, 1, T, H, W)``."""
    red, green, blue = clips.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue)[:, None]


def _turn(clips: Tensor, by: Tensor) -> Tensor:
    """Turn the hue by a share of the colour circle, in HSV."""
    red, green, blue = clips.unbind(1)
    value = clips.amax(1)
    chroma = value - clips.amin(1)
    scale = torch.where(chroma == 0, 1, chroma)
    sector = torch.where(
        value == red,
        (green - blue) / scale,
        torch.where(value == green, (blue - red) / scale + 2, (red - green) / scale + 4),
    )
    sector = sector + 6 * by[:, 0]
    # Each channel is the value, less the chroma on the far side of the circle.
    sides = [(sector + offset) % 6 for offset in (5, 3, 1)]
    return torch.stack([value - chroma * torch.minimum(side, 4 - side).clamp(0, 1) for side in sides], 1)
