"""Templates: what is to be hidden, pointed at in a picture (Ilic et al. 2024, "Selective, interpretable and motion
consistent privacy attribute obfuscation", Sec. 3.1 and 3.2).

With K(I_j) the descriptor of patch j of a frame and K(τ) that of a template, both of length 1, a patch is as salient as

    s_j = 1/|T| Σ_{τ ∈ T} max(0, ⟨K(I_j), K(τ)⟩)          (1)
    S   = R(s_1, …, s_m)                                  (2)    R is `veil.people.descriptors.spread`

A template is one or more clicks in one or more pictures; of its clicks the best match counts. A mean lets a template
that is not in the frame weaken one that is; `max` and `noisy-or`, 1 − Π (1 − s), do not. From
`veil.people.descriptors.DescriptorKind.alike` on a place counts as a match.

A few templates are built in: clicks in `veil.people.pictures.PICTURES`, of which vectors are made with whatever descriptor is used. A user's
own are files in `folder()`: the vectors, and beside them where they are from, but no picture.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from veil.core import Image, VeilError, io_errors
from veil.media.draft import Draft
from veil.media.folders import data_folder
from veil.people import descriptors, parts, pictures
from veil.people.descriptors import Descriptor

Array = npt.NDArray[np.float32]
Click = tuple[float, float]  # x, y in pixels
Aggregate = Literal["mean", "max", "noisy-or"]

GROUPS: dict[str, tuple[str, ...]] = {
    "face": ("cheek", "eyes", "forehead", "lips"),
    "skin": ("arm", "cheek", "forehead", "hand", "leg"),
    "body": ("arm", "hand", "leg", "torso"),
    "person": ("arm", "cheek", "eyes", "forehead", "hair", "hand", "leg", "lips", "torso"),
}
"""Names that stand for several templates; the names are the paper's."""

BUILT_IN: dict[str, dict[str, tuple[Click, ...]]] = {
    "arm": {"astronaut": ((330, 290), (70, 400), (120, 440)), "people": ((325, 56),)},
    "cheek": {"astronaut": ((195, 125), (205, 130), (258, 125))},
    "eyes": {"astronaut": ((202, 101), (242, 103))},
    "forehead": {"astronaut": ((225, 82), (225, 90)), "camera": ((240, 130),)},
    "hair": {"astronaut": ((165, 75), (225, 40)), "camera": ((218, 95), (170, 110))},
    "hand": {"people": ((70, 110), (155, 100), (584, 113), (782, 93)), "camera": ((210, 228),)},
    "leg": {"people": ((129, 185), (291, 180), (403, 180), (786, 112)), "camera": ((140, 480),)},
    "lips": {"astronaut": ((223, 145), (232, 146))},
    "torso": {"astronaut": ((100, 380), (130, 310)), "camera": ((60, 300), (100, 290), (110, 350))},
}
"""For each template that comes with Veil, where it is in which of `pictures.PICTURES`."""

SOURCE = "built in"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Origin:
    """Where a vector of a template is from."""

    image: str  # the name of the picture's file, or SOURCE and one of pictures.PICTURES
    checksum: str  # of its pixels
    size: tuple[int, int]  # its width and height
    point: Click


@dataclass(frozen=True, eq=False)
class Template:
    """What a few clicks point at."""

    name: str
    descriptor: str
    fingerprint: str  # of the descriptor's weights
    vectors: Array  # (clicks, D), each of length 1
    origins: tuple[Origin, ...]  # one a click


def folder() -> Path:
    """Where this user's templates are kept."""
    return data_folder("templates")


def add(
    name: str,
    image: Path | str | Image,
    points: Sequence[Click],
    descriptor: Descriptor | None = None,
    *,
    extend: bool = False,
    overwrite: bool = False,
) -> Template:
    """Make a template of clicks (x, y) in a picture, and keep it under that name.

    With `extend` the clicks are added to those that it has.
    """
    if not NAME.fullmatch(name):
        raise VeilError(
            f"'{name}' is not a name for a template: use up to 40 small letters, digits, '-' and '_', such as 'left-hand'.",
            code="template-name",
        )
    if name in parts.GROUPS:
        raise VeilError(
            f"'{name}' is what the part network finds without a template: choose another name, such as 'my-{name}'.",
            code="template-name-of-part",
        )
    if extend and overwrite:
        raise VeilError(
            f"the template '{name}' can be extended or replaced, not both: choose one of the two.",
            code="options-conflict",
        )
    if name in _own() and not (extend or overwrite):
        raise VeilError(
            f"the template '{name}' exists already: pass --extend to add to it, or --overwrite to replace it.",
            code="template-exists",
        )
    descriptor = descriptor or descriptors.descriptor()
    before = None
    if extend:
        if name not in _own():
            hint = _suggestion(name, _own()) if _own() else ": make it first, without --extend."
            raise VeilError(
                f"there is no template '{name}' of yours to extend{hint}", code="template-unknown"
            )
        check(before := _read(name), descriptor)
    pixels = pictures.read(image)
    _checked(pixels, points)
    file = "pixels" if isinstance(image, np.ndarray) else Path(image).name
    made = _made(name, pixels, descriptor(pixels), points, descriptor, file)
    if before:
        made = _joined([before, made])
    _write(made, overwrite=extend or overwrite)
    return made


def remove(name: str) -> None:
    """Forget one of the user's templates."""
    place = folder() / f"{name}{SUFFIX}"
    if not NAME.fullmatch(name) or not place.is_file():
        raise VeilError(
            f"there is no template '{name}' of yours to remove{_suggestion(name, _own())}",
            code="template-unknown",
        )
    with io_errors(place, "removed", advice="check the permissions of its folder"):
        place.unlink()


def names() -> list[str]:
    """The names of all templates there are, built in or the user's; nothing is loaded."""
    return sorted({*BUILT_IN, *_own()})


def table() -> list[tuple[str, str, str, int, str]]:
    """Of every template its name, whether it is built in or own, its descriptor, its clicks and its pictures."""
    rows, own = [], {*_own()}
    for name in names():
        if name not in own:
            clicks = BUILT_IN[name]
            rows.append((name, SOURCE, "any", sum(map(len, clicks.values())), ", ".join(sorted(clicks))))
            continue
        try:
            origins = (template := _read(name)).origins
        except VeilError:
            rows.append((name, "own", "none", 0, f"damaged: run `veil template remove {name}`"))
            continue
        files = ", ".join(sorted({origin.image for origin in origins}))
        rows.append((name, "own", template.descriptor, len(origins), files))
    return rows


def expanded(wanted: Iterable[str]) -> list[str]:
    """Names of templates and groups as names of templates, each once."""
    known, found = names(), dict[str, None]()
    for name in wanted:
        if name not in known and name not in GROUPS:
            if name in parts.GROUPS:
                raise VeilError(
                    f"there is no template '{name}': set parts=true, since the part network finds it.",
                    code="template-is-part",
                )
            choice = [*dict.fromkeys([*known, *parts.GROUPS])]
            raise VeilError(
                f"there is no template '{name}'{_suggestion(name, choice)}", code="template-unknown"
            )
        found |= dict.fromkeys([name] if name in known else GROUPS[name])
    return list(found)


def load(wanted: Iterable[str], descriptor: Descriptor | None = None) -> list[Template]:
    """The templates of these names and groups, for use with that descriptor (or the default one)."""
    descriptor = descriptor or descriptors.descriptor()
    own, found = {*_own()}, []
    for name in expanded(wanted):
        template = _read(name) if name in own else built_in(name, descriptor)
        check(template, descriptor)
        found.append(template)
    return found


def lookup(name: str, descriptor: str | None = None) -> tuple[Template, Descriptor, tuple[str, ...]]:
    """One template, a descriptor that suits it, and the built-in pictures that show it."""
    expanded([name])
    own = _read(name) if name in _own() else None
    described = descriptors.descriptor(descriptor or (own.descriptor if own else descriptors.DEFAULT))
    if own:
        return own, described, ("astronaut",)
    return built_in(name, described), described, tuple(BUILT_IN[name])


def built_in(name: str, descriptor: Descriptor) -> Template:
    """A template that comes with Veil, made for that descriptor."""
    return _joined(
        [
            _made(name, *_described(picture, descriptor), points, descriptor, f"{SOURCE}: {picture}")
            for picture, points in BUILT_IN[name].items()
        ]
    )


def check(template: Template, descriptor: Descriptor) -> None:
    """Refuse a template whose vectors cannot be compared with those of the descriptor."""
    if template.descriptor != descriptor.name:
        raise VeilError(
            f"the template '{template.name}' was made with the descriptor {template.descriptor}, not with "
            f"{descriptor.name}: use that one, or make the template again.",
            code="template-of-another-descriptor",
        )
    if template.fingerprint != descriptor.fingerprint or template.vectors.shape[1] != descriptor.dim:
        raise VeilError(
            f"the template '{template.name}' was made with other weights of {descriptor.name} (they begin "
            f"{template.fingerprint[:8]}, these {descriptor.fingerprint[:8]}): make the template again.",
            code="template-of-other-weights",
        )


def saliency(descriptors: Array, templates: Sequence[Template], aggregate: Aggregate = "mean") -> Array:
    """How much each place ``(…, h, w)`` in [0, 1] looks like the templates, of descriptors ``(…, h, w, D)``; Eq. 1."""
    if not templates:
        raise VeilError("there is nothing to look for: name at least one template.", code="nothing-named")
    if aggregate not in get_args(Aggregate):
        raise VeilError(
            f"there is no aggregate '{aggregate}': choose one of {', '.join(get_args(Aggregate))}.",
            code="aggregate-unknown",
        )
    for template in templates:
        if template.vectors.shape[1] != descriptors.shape[-1]:
            raise ValueError(
                f"descriptors have {descriptors.shape[-1]} numbers, those of '{template.name}' "
                f"{template.vectors.shape[1]}"
            )
    cosines = (
        descriptors @ np.concatenate([template.vectors for template in templates]).T
    )  # (…, h, w, clicks)
    firsts = np.cumsum([0, *(len(template.vectors) for template in templates[:-1])])
    each = np.maximum.reduceat(cosines.clip(0, 1), firsts, axis=-1)  # (…, h, w, templates)
    if aggregate == "mean":
        found = each.mean(-1)
    elif aggregate == "max":
        found = each.max(-1)
    else:
        found = 1 - (1 - each).prod(-1)
    return found.astype(np.float32, copy=False)


def targeted(templates: Sequence[Template], descriptors: Array) -> list[Template]:
    """The templates as they look in this video: each vector becomes its best match in ``(…, h, w, D)``.

    What is looked for must be in these frames: the best match is taken however poor it is.
    """
    places = descriptors.reshape(-1, descriptors.shape[-1])
    return [
        dataclasses.replace(template, vectors=places[(places @ template.vectors.T).argmax(0)])
        for template in templates
    ]


def _checked(pixels: Image, points: Sequence[Click]) -> None:
    """Refuse clicks that point at nothing."""
    height, width = pixels.shape[:2]
    if not points:
        raise VeilError(
            "a template needs at least one click: give a point x,y of the picture.", code="click-missing"
        )
    for x, y in points:
        if not (0 <= x < width and 0 <= y < height):  # so that NaN is outside, too
            raise VeilError(
                f"the click {x:g},{y:g} is outside the picture, which is {width} pixels wide and {height} high: give "
                "a point in it.",
                code="click-outside",
            )
    if (pixels == pixels[0, 0]).all():
        raise VeilError(
            "the picture is of one colour throughout, and there is nothing in it to look for: give another.",
            code="picture-uniform",
        )


def _made(
    name: str, pixels: Image, grid: Array, points: Sequence[Click], descriptor: Descriptor, image: str
) -> Template:
    """A template of clicks in one picture, whose descriptors ``(h, w, D)`` are `grid`."""
    height, width = pixels.shape[:2]
    cells = [descriptors.cell(descriptor, (x, y), height, width) for x, y in points]
    checksum = pictures.checksum(pixels)
    return Template(
        name=name,
        descriptor=descriptor.name,
        fingerprint=descriptor.fingerprint,
        vectors=np.stack([grid[row, column] for row, column in cells]),
        origins=tuple(Origin(image, checksum, (width, height), (float(x), float(y))) for x, y in points),
    )


@lru_cache(2 * len(pictures.PICTURES))
def _described(picture: str, descriptor: Descriptor) -> tuple[Image, Array]:
    """One of `pictures.PICTURES` and its descriptors, which several templates share."""
    pixels = pictures.built_in(picture)
    return pixels, descriptor(pixels)


def _joined(templates: Sequence[Template]) -> Template:
    """Templates of one name and one descriptor as one."""
    return dataclasses.replace(
        templates[0],
        vectors=np.concatenate([template.vectors for template in templates]),
        origins=tuple(origin for template in templates for origin in template.origins),
    )


def _own() -> list[str]:
    """The names of the user's templates."""
    return sorted(path.stem for path in folder().glob(f"*{SUFFIX}") if NAME.fullmatch(path.stem))


def _suggestion(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f": did you mean {near[0]}?"
    return f": choose one of {', '.join(known)}." if known else "."


def _read(name: str) -> Template:
    from safetensors import safe_open

    path = folder() / f"{name}{SUFFIX}"
    try:
        with safe_open(path, "np") as file:
            vectors = file.get_tensor("vectors")
            metadata = json.loads(file.metadata()["template"])
        found = Template(
            name=name,
            descriptor=str(metadata["descriptor"]),
            fingerprint=str(metadata["fingerprint"]),
            vectors=vectors,
            origins=tuple(_origin(**origin) for origin in metadata["origins"]),
        )
        right = vectors.dtype == np.float32 and vectors.ndim == 2 and len(vectors) == len(found.origins) > 0
        if not right or not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3):
            raise ValueError("vectors")
    except Exception as error:  # of the format, of JSON, of what is missing in it
        raise VeilError(
            f"{path} is not a template of Veil, or is damaged: run `veil template remove {name}`, and make it again.",
            code="template-damaged",
        ) from error
    return found


def _origin(image: str, checksum: str, size: Sequence[int], point: Sequence[float]) -> Origin:
    (width, height), (x, y) = size, point
    return Origin(str(image), str(checksum), (int(width), int(height)), (float(x), float(y)))


def _write(template: Template, *, overwrite: bool) -> None:
    from safetensors.numpy import save

    place = folder() / f"{template.name}{SUFFIX}"
    with io_errors(place.parent, "written", advice="set XDG_DATA_HOME to a folder that can"):
        place.parent.mkdir(parents=True, exist_ok=True)
    metadata = {
        "descriptor": template.descriptor,
        "fingerprint": template.fingerprint,
        "origins": [dataclasses.asdict(origin) for origin in template.origins],
    }  # the name is that of the file
    with Draft(place, overwrite=overwrite) as draft:
        draft.path.write_bytes(save({"vectors": template.vectors}, {"template": json.dumps(metadata)}))
