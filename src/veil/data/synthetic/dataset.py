"""The synthetic videos as a `Dataset`, with exact labels.

*clips*         one action each, by one of 32 identities, alone or in company
*stills*        one frame each, of unseen people: images with private attributes, as in VISPR
*untrimmed*     several actions with pauses between them, as in THUMOS14
*surveillance*  passers-by, and in half of the videos a fall, a fight or a run, as in UCF-Crime
*bias*          clips in which, for training, action and gender are correlated in 19 of 20 cases, as in NTU-Bias
*gait*          walks of all identities in five views, plain, with a bag and in a coat, as in CASIA-B
*gait-alike*    the same walks with equal appearance: only the motion identifies the person
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from veil.core import Frames, VeilError
from veil.data.sample import Dataset, Sample, Segment, Split
from veil.data.synthetic.backgrounds import BACKGROUNDS
from veil.data.synthetic.generator import VideoGenerator
from veil.data.synthetic.motion import ACTIONS
from veil.data.synthetic.people import HAIRS, SKINS, people
from veil.data.synthetic.scenarios import (
    ANOMALIES,
    ATTRIBUTES,
    COUNTS,
    FPS,
    KINDS,
    LENGTHS,
    VIEWS,
    WALKS,
    Kind,
    Scenario,
    block_size,
    gait_of,
    split_of,
)

# The ranges of the options of `read`; in smaller frames nobody is visible.
RANGES = {"count": (1, 1_000_000), "seed": (0, 2**63 - 1), "size": (16, 2048)}


@functools.lru_cache(maxsize=8)
def _generator(seed: int, size: int, device: str) -> VideoGenerator:
    return VideoGenerator(seed, size, device=device)


def read(
    root: Path | None = None,
    *,
    kind: str = "clips",
    count: int | None = None,
    seed: int = 0,
    size: int = 112,
) -> Dataset:
    """The first ``count`` videos of a kind; they are generated, so there is no ``root`` to read from."""
    if root is not None:
        raise VeilError(
            f"the synthetic dataset is generated, not read from {root}: leave the folder out.",
            code="synthetic-has-no-folder",
        )
    if kind not in KINDS:
        raise VeilError(
            f"the synthetic dataset has no kind {kind!r}: use one of {', '.join(KINDS)}.",
            code="synthetic-kind-unknown",
        )
    count = COUNTS[kind] if count is None else count
    for (option, (least, most)), value in zip(RANGES.items(), (count, seed, size), strict=True):
        if not least <= value <= most:
            raise VeilError(
                f"option {option} of the synthetic dataset is {value}: use {least} to {most}.",
                code="option-out-of-range",
            )
    generator, index = _generator(seed, size, "cpu"), torch.arange(count)
    truth, scenario = generator.truth(index, kind), generator.scenario(index, kind)
    actions, identities = truth.action.tolist(), truth.identity.tolist()
    # With equal appearance, no private attribute is visible.
    attributes = (
        [()] * len(index) if kind == "gait-alike" else [tuple(row) for row in truth.attributes.tolist()]
    )
    samples = []
    for i, groups in enumerate(_groups(generator, kind, index, scenario)):
        split: Split = split_of(i // block_size(kind))
        if "role" in groups:
            split = "test" if groups["role"] == "probe" else "val" if groups["walk"] == "nm-04" else "train"
        # Anomalies are learned from whole videos; their times are known only where they are scored.
        has_segments = kind == "untrimmed" or (kind == "surveillance" and split != "train")
        sample = Sample(
            id=f"{kind}-{seed}-{i:06d}",
            split=split,
            action=None if actions[i] < 0 else actions[i],
            attributes=attributes[i],
            identity=None if kind == "stills" else identities[i],
            groups=groups,
            segments=_segments(truth.labels[i], nothing=0 if kind == "surveillance" else -1)
            if has_segments
            else (),
        )
        samples.append(sample)
    return Dataset(
        name="synthetic" if kind == "clips" else f"synthetic-{kind}",
        samples=samples,
        frames=functools.partial(_frames, size=size),
        batch=functools.partial(_batch, size=size),
        actions=ANOMALIES if kind == "surveillance" else ACTIONS,
        attributes=() if kind == "gait-alike" else ATTRIBUTES,
        identities=() if kind == "stills" else tuple(f"person {i:02d}" for i in range(generator.identities)),
    )


def _groups(
    generator: VideoGenerator, kind: Kind, index: Tensor, scenario: Scenario
) -> Iterator[dict[str, str]]:
    """Further labels of each video, by name."""
    persons = people(generator.seed, scenario.number[:, 0], generator.identities)
    female, senior = persons.trait("female").tolist(), persons.trait("senior").tolist()
    skin, hair, place = persons.skin.tolist(), persons.hair.tolist(), scenario.background.tolist()
    _, walk, view = (value.tolist() for value in gait_of(index, generator.identities))
    for i in range(len(index)):
        groups = {"scene": tuple(BACKGROUNDS)[place[i]]}
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


def rendered_on(dataset: Dataset, device: torch.device | str, *, size: int) -> Dataset:
    """The same synthetic videos, rendered on a device where they are read in batches."""
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
        raise ValueError(f"samples of one batch must have equal lengths, got {lengths} frames")
    out = torch.empty(len(samples), lengths[0], size, size, 3, dtype=torch.uint8, device=device)
    for (kind, seed, (first, past)), members in groups.items():
        generator = _generator(seed, size, str(device))
        frames, _ = generator.render([index for _, index in members], kind, first=first, length=past - first)
        out[[place for place, _ in members]] = frames
    return out


def _parse(name: str) -> tuple[Kind, int, int]:
    """The kind, seed and index in the name of a sample."""
    for kind in KINDS:
        match name.split("#")[0].removeprefix(f"{kind}-").split("-"):
            case [seed, index] if name.startswith(f"{kind}-") and seed.isdecimal() and index.isdecimal():
                return kind, int(seed), int(index)
    raise VeilError(
        f"{name!r} is not a sample of the synthetic dataset: use samples of synthetic.read.",
        code="not-a-synthetic-sample",
    )
