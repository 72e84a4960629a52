"""A contact sheet and a video that show what the synthetic videos look like."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from veil.core import Frames
from veil.data.synthetic.generator import VideoGenerator
from veil.data.synthetic.motion import ACTIONS

_SOFT = ImageFilter.GaussianBlur(3)


def show(folder: Path, *, seed: int = 0, size: int = 192) -> list[Path]:
    """Write a contact sheet of people and actions and a video of all actions; returns the paths of both files."""
    from veil.media.sinks import open_sink
    from veil.media.video import FrameTime, VideoInfo

    folder.mkdir(parents=True, exist_ok=True)
    sheet, video = folder / "synthetic.jpg", folder / "synthetic.mp4"
    _contact_sheet(seed, size * 3 // 4).save(sheet, quality=92)
    fps, length, rows, columns = 25, 80, 3, 4
    info = VideoInfo(columns * size, rows * size, Fraction(fps), 2 * length, Fraction(1, fps))
    with open_sink(video, info, quality=18, overwrite=True) as sink:
        for repetition in range(2):
            generator = VideoGenerator(seed, size, fps=fps)
            block = range(repetition * len(ACTIONS), (repetition + 1) * len(ACTIONS))
            order = torch.tensor(block)[generator.truth(block).action.argsort()]
            frames, truth = generator.render(order, length=length)
            for action, clip in zip(truth.action.tolist(), frames, strict=True):
                _caption(clip.numpy(), ACTIONS[action])
            wall = frames.view(rows, columns, length, size, size, 3).permute(2, 0, 3, 1, 4, 5)
            wall = wall.reshape(length, rows * size, columns * size, 3).numpy()
            sink.write(wall, [FrameTime(repetition * length + i, 1) for i in range(length)])
    return [sheet, video]


def _caption(clip: Frames, text: str) -> None:
    """Write on all frames (T, H, W, 3), in place: white, with a soft shadow."""
    label = Image.new("L", (clip.shape[2], 28))
    ImageDraw.Draw(label).text((9, 4), text, fill=255, font=ImageFont.load_default(size=15))
    ink, shadow = (np.asarray(image, np.float32)[..., None] / 255 for image in (label, label.filter(_SOFT)))
    band = clip[:, : len(ink)]
    band[:] = band * (1 - (1.6 * shadow).clip(0, 0.75)) * (1 - ink) + 255 * ink


def _contact_sheet(seed: int, size: int) -> Image.Image:
    """All identities, then every action over time, then a walk in all views."""
    generator = VideoGenerator(seed, size)
    truth = generator.truth(range(len(ACTIONS) * 64))
    alone = truth.attributes[:, -1] == 0
    first = [int(((truth.identity == i) & alone).nonzero()[0]) for i in range(generator.identities)]
    portraits, _ = generator.render(first, length=1)
    state = [int((truth.action == i).nonzero()[(5 * i) % 16]) for i in range(len(ACTIONS))]
    acts, _ = generator.render(state)
    walks = [
        generator.render([32 * 2 * i for i in range(5)], kind, length=16)[0]
        for kind in ("gait", "gait-alike")
    ]
    rows = [("people", portraits[i : i + 8, 0]) for i in range(0, generator.identities, 8)]
    rows += [(name, clip[[0, 2, 4, 6, 8, 10, 12, 15]]) for name, clip in zip(ACTIONS, acts, strict=True)]
    rows += [
        (name, torch.cat([views[:, 4], views[:3, 9]]))
        for name, views in zip(("gait", "gait alike"), walks, strict=True)
    ]
    margin, gap = 96, 4
    page = Image.new("RGB", (margin + 8 * (size + gap), len(rows) * (size + gap) + gap), (250, 248, 244))
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=17)
    for r, (name, images) in enumerate(rows):
        top = gap + r * (size + gap)
        if name != "people" or r == 0:
            draw.text((12, top + size // 2 - 10), name, fill=(60, 56, 64), font=font)
        for c, image in enumerate(images):
            page.paste(Image.fromarray(image.numpy()), (margin + c * (size + gap), top))
    return page
