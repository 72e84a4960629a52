"""Made-up people whose action, segments, identity, gait and private attributes are known exactly.

A `World` is a seed. Whatever happens in it follows from the seed, the kind of video and an index, so that
nothing has to be stored: `World.truth` tells what video number i is, `World.render` paints it, alone or
among others, on a CPU or a GPU, and it is always the same video.

*clips*         one action each, by one of 32 identities, alone or in company
*stills*        one frame each, of strangers: private attributes to be learned, as VISPR has them
*untrimmed*     several actions with pauses between them, as in THUMOS14
*surveillance*  passers-by, and in half of the videos a fall, a fight or a run, as in UCF-Crime
*bias*          clips where, in training, an action goes with a gender in 19 of 20 cases, as in NTU-Bias
*gait*          walks of all identities from five sides, plain, with a bag and in a coat, as in CASIA-B
*gait-alike*    the same walks where all look the same: only motion tells who it is

The parts: `synthetic_scripts` says what happens, `synthetic_motion` moves skeletons, `synthetic_people`
clothes them, `synthetic_scenes` furnishes the `synthetic_places`, `synthetic_render` paints,
`synthetic_world` directs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from veil.core import Frames, VeilError
from veil.data.sample import Dataset, Sample, Segment, Split
from veil.data.synthetic.motion import ACTIONS
from veil.data.synthetic.people import HAIRS, SKINS, people
from veil.data.synthetic.places import PLACES
from veil.data.synthetic.scripts import (
    ANOMALIES,
    ATTRIBUTES,
    COUNTS,
    FPS,
    IDENTITIES,
    KINDS,
    LENGTHS,
    VIEWS,
    WALKS,
    Kind,
    Script,
    block_size,
    gait_of,
    split_of,
)
from veil.data.synthetic.world import POINTS, Truth, World

__all__ = [
    "ACTIONS",
    "ANOMALIES",
    "ATTRIBUTES",
    "COUNTS",
    "FPS",
    "IDENTITIES",
    "KINDS",
    "LENGTHS",
    "POINTS",
    "Kind",
    "Truth",
    "World",
    "painted_on",
    "read",
    "render_samples",
    "show",
]


# What the options of `read` may be: the first and the last; frames of fewer pixels show nobody.
RANGES = {"count": (1, 1_000_000), "seed": (0, 2**63 - 1), "size": (16, 2048)}
_SOFT = ImageFilter.GaussianBlur(3)


@functools.lru_cache(maxsize=8)
def _world(seed: int, size: int, device: str) -> World:
    return World(seed, size, device=device)


def read(
    root: Path | None = None,
    *,
    kind: str = "clips",
    count: int | None = None,
    seed: int = 0,
    size: int = 112,
) -> Dataset:
    """The first ``count`` videos of a `Kind`; they are made, so that there is no ``root`` to read from."""
    if root is not None:
        raise VeilError(f"the synthetic world is made, not read from {root}; leave the folder out")
    if kind not in KINDS:
        raise VeilError(f"the synthetic world has no {kind!r}; choose one of {', '.join(KINDS)}")
    count = COUNTS[kind] if count is None else count
    for (option, (least, most)), value in zip(RANGES.items(), (count, seed, size), strict=True):
        if not least <= value <= most:
            raise VeilError(f"the option {option} of synthetic is {value}; it must be from {least} to {most}")
    world, index = _world(seed, size, "cpu"), torch.arange(count)
    truth, script = world.truth(index, kind), world.script(index, kind)
    actions, identities = truth.action.tolist(), truth.identity.tolist()
    # Where all look alike, there is nothing private to be seen.
    attributes = (
        [()] * len(index) if kind == "gait-alike" else [tuple(row) for row in truth.attributes.tolist()]
    )
    samples = []
    for i, groups in enumerate(_groups(world, kind, index, script)):
        split: Split = split_of(i // block_size(kind))
        if "role" in groups:
            split = "test" if groups["role"] == "probe" else "val" if groups["walk"] == "nm-04" else "train"
        # Anomalies are to be learned from whole videos; when they happen is told only where it is scored.
        told = kind == "untrimmed" or (kind == "surveillance" and split != "train")
        sample = Sample(
            id=f"{kind}-{seed}-{i:06d}",
            split=split,
            action=None if actions[i] < 0 else actions[i],
            attributes=attributes[i],
            identity=None if kind == "stills" else identities[i],
            groups=groups,
            segments=_segments(truth.labels[i], nothing=0 if kind == "surveillance" else -1) if told else (),
        )
        samples.append(sample)
    return Dataset(
        name="synthetic" if kind == "clips" else f"synthetic-{kind}",
        samples=samples,
        frames=functools.partial(_frames, size=size),
        batch=functools.partial(_batch, size=size),
        actions=ANOMALIES if kind == "surveillance" else ACTIONS,
        attributes=() if kind == "gait-alike" else ATTRIBUTES,
        identities=() if kind == "stills" else tuple(f"person {i:02d}" for i in range(world.identities)),
    )


def _groups(world: World, kind: Kind, index: Tensor, script: Script) -> Iterator[dict[str, str]]:
    """What else is known of each video, by name."""
    persons = people(world.seed, script.number[:, 0], world.identities)
    female, senior = persons.trait("female").tolist(), persons.trait("senior").tolist()
    skin, hair, place = persons.skin.tolist(), persons.hair.tolist(), script.place.tolist()
    _, walk, view = (value.tolist() for value in gait_of(index, world.identities))
    for i in range(len(index)):
        groups = {"scene": tuple(PLACES)[place[i]]}
        if kind != "gait-alike":
            groups |= {"gender": "female" if female[i] else "male", "age": "senior" if senior[i] else "adult"}
            groups |= {"skin": SKINS[skin[i]], "hair": HAIRS[hair[i]]}
        if kind in ("gait", "gait-alike"):
            role = "gallery" if WALKS[walk[i]] in ("nm-01", "nm-02", "nm-03", "nm-04") else "probe"
            groups |= {"view": f"{VIEWS[view[i]]:03d}", "walk": WALKS[walk[i]], "role": role}
        yield groups


def _segments(labels: Tensor, nothing: int) -> tuple[Segment, ...]:
    """Runs of the same label in the labels (T,) of frames."""
    segments, begin = [], 0
    for label, run in itertools.groupby(labels.tolist()):
        end = begin + len(list(run))
        if label != nothing:
            segments.append(Segment(begin / FPS, end / FPS, label))
        begin = end
    return tuple(segments)


def _frames(sample: Sample, *, size: int) -> Frames:
    return render_samples([sample], size=size)[0].numpy()


def _batch(samples: Sequence[Sample], *, size: int, device: torch.device | str = "cpu") -> Iterator[Frames]:
    yield from render_samples(samples, device, size=size).cpu().numpy()


def painted_on(dataset: Dataset, device: torch.device | str, *, size: int) -> Dataset:
    """The same videos of this world, painted on a device where many are asked for at once."""
    return replace(dataset, batch=functools.partial(_batch, size=size, device=device))


def render_samples(
    samples: Sequence[Sample], device: torch.device | str = "cpu", *, size: int = 112
) -> Tensor:
    """Frames ``(B, T, size, size, 3)`` uint8 of samples; of their spans, where they have spans."""
    groups: dict[tuple[Kind, int, tuple[int, int]], list[tuple[int, int]]] = {}
    for place, sample in enumerate(samples):
        name, seed, index = _parse(sample.id)
        groups.setdefault((name, seed, sample.span or (0, LENGTHS[name])), []).append((place, index))
    lengths = sorted({past - first for _, _, (first, past) in groups})
    if len(lengths) != 1:
        raise ValueError(f"samples of one batch are equally long, got lengths of {lengths} frames")
    out = torch.empty(len(samples), lengths[0], size, size, 3, dtype=torch.uint8, device=device)
    for (kind, seed, (first, past)), members in groups.items():
        world = _world(seed, size, str(device))
        frames, _ = world.render([index for _, index in members], kind, first=first, length=past - first)
        out[[place for place, _ in members]] = frames
    return out


def _parse(name: str) -> tuple[Kind, int, int]:
    """The kind, seed and index in the name of a sample."""
    for kind in KINDS:
        match name.split("#")[0].removeprefix(f"{kind}-").split("-"):
            case [seed, index] if name.startswith(f"{kind}-") and seed.isdecimal() and index.isdecimal():
                return kind, int(seed), int(index)
    raise VeilError(f"{name!r} is no sample of the synthetic world; its samples come from synthetic.read")


def show(folder: Path, *, seed: int = 0, size: int = 192) -> list[Path]:
    """Write a contact sheet of the people and what they do, and a video of all actions; the files' paths."""
    from veil.media.sinks import open_sink
    from veil.media.video import FrameTime, VideoInfo

    folder.mkdir(parents=True, exist_ok=True)
    sheet, video = folder / "synthetic.jpg", folder / "synthetic.mp4"
    _contact_sheet(seed, size * 3 // 4).save(sheet, quality=92)
    fps, length, rows, columns = 25, 80, 3, 4
    info = VideoInfo(columns * size, rows * size, Fraction(fps), 2 * length, Fraction(1, fps))
    with open_sink(video, info, quality=18, overwrite=True) as sink:
        for take_ in range(2):
            world = World(seed, size, fps=fps)
            block = range(take_ * len(ACTIONS), (take_ + 1) * len(ACTIONS))
            order = torch.tensor(block)[world.truth(block).action.argsort()]
            frames, truth = world.render(order, length=length)
            for action, clip in zip(truth.action.tolist(), frames, strict=True):
                _caption(clip.numpy(), ACTIONS[action])
            wall = frames.view(rows, columns, length, size, size, 3).permute(2, 0, 3, 1, 4, 5)
            wall = wall.reshape(length, rows * size, columns * size, 3).numpy()
            sink.write(wall, [FrameTime(take_ * length + i, 1) for i in range(length)])
    return [sheet, video]


def _caption(clip: Frames, text: str) -> None:
    """Write on all frames (T, H, W, 3), in place: white, with a soft shadow."""
    label = Image.new("L", (clip.shape[2], 28))
    ImageDraw.Draw(label).text((9, 4), text, fill=255, font=ImageFont.load_default(size=15))
    ink, shadow = (np.asarray(image, np.float32)[..., None] / 255 for image in (label, label.filter(_SOFT)))
    band = clip[:, : len(ink)]
    band[:] = band * (1 - (1.6 * shadow).clip(0, 0.75)) * (1 - ink) + 255 * ink


def _contact_sheet(seed: int, size: int) -> Image.Image:
    """All identities, then every action over time, then a walk seen from all sides."""
    world = World(seed, size)
    truth = world.truth(range(len(ACTIONS) * 64))
    alone = truth.attributes[:, -1] == 0
    first = [int(((truth.identity == i) & alone).nonzero()[0]) for i in range(world.identities)]
    portraits, _ = world.render(first, length=1)
    doing = [int((truth.action == i).nonzero()[(5 * i) % 16]) for i in range(len(ACTIONS))]
    acts, _ = world.render(doing)
    walks = [
        world.render([32 * 2 * i for i in range(5)], kind, length=16)[0] for kind in ("gait", "gait-alike")
    ]
    rows = [("people", portraits[i : i + 8, 0]) for i in range(0, world.identities, 8)]
    rows += [(name, clip[[0, 2, 4, 6, 8, 10, 12, 15]]) for name, clip in zip(ACTIONS, acts, strict=True)]
    rows += [
        (name, torch.cat([views[:, 4], views[:3, 9]]))
        for name, views in zip(("gait", "gait alike"), walks, strict=True)
    ]
    margin, gap = 96, 4
    page = Image.new("RGB", (margin + 8 * (size + gap), len(rows) * (size + gap) + gap), (250, 248, 244))
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=17)
    for r, (name, pictures) in enumerate(rows):
        top = gap + r * (size + gap)
        if name != "people" or r == 0:
            draw.text((12, top + size // 2 - 10), name, fill=(60, 56, 64), font=font)
        for c, picture in enumerate(pictures):
            page.paste(Image.fromarray(picture.numpy()), (margin + c * (size + gap), top))
    return page
