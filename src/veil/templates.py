"""Templates: what is to be hidden, pointed at in a picture (Ilic et al. 2024, "Selective, interpretable and motion
consistent privacy attribute obfuscation", Sec. 3.1 and 3.2).

With K(I_j) the descriptor of patch j of a frame and K(τ) that of a template, both of length 1, a patch is as salient as

    s_j = 1/|T| Σ_{τ ∈ T} max(0, ⟨K(I_j), K(τ)⟩)          (1)
    S   = R(s_1, …, s_m)                                  (2)    R is `veil.nn.dense.spread`

A template is one or more clicks in one picture; of its clicks the best match counts. A mean lets a template that is
not in the frame weaken one that is; `max` and `noisy-or`, 1 − Π (1 − s), do not.

A few templates are built in: clicks in the photograph of an astronaut that comes with scikit-image (NASA, public
domain). A user's own are files in `folder()`: the vectors, and beside them where they are from, but no picture.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageDraw
import PIL.ImageOps

from veil.core import VeilError
from veil.draft import Draft
from veil.nn import dense
from veil.nn.dense import Descriptor
from veil.nn.tracks import Image

Array = npt.NDArray[np.float32]
Click = tuple[float, float]  # x, y in pixels
Aggregate = Literal["mean", "max", "noisy-or"]

GROUPS: dict[str, tuple[str, ...]] = {
    "face": ("cheek", "eyes", "forehead", "lips", "mouth"),
    "skin": ("arm", "cheek", "forehead", "hand", "leg"),
    "body": ("arm", "hand", "leg", "torso"),
    "person": ("arm", "cheek", "eyes", "forehead", "hair", "hand", "leg", "lips", "mouth", "torso"),
}
"""Names that stand for those of their templates that there are; the names are the paper's."""

BUILT_IN: dict[str, tuple[Click, ...]] = {
    "cheek": ((195, 125), (258, 125)),
    "eyes": ((202, 101), (247, 103)),
    "forehead": ((225, 82),),
    "hair": ((225, 40), (165, 75), (285, 90)),
    "mouth": ((223, 145),),
}
"""Clicks in the photograph of the astronaut."""

SOURCE = "built in"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
SUFFIX = ".safetensors"


@dataclass(frozen=True, eq=False)
class Template:
    """What a few clicks in one picture point at."""

    name: str
    descriptor: str
    fingerprint: str  # of the descriptor's weights
    vectors: Array  # (clicks, D), each of length 1
    points: tuple[Click, ...]
    image: str  # the name of its file, or SOURCE
    checksum: str  # of its pixels
    size: tuple[int, int]  # its width and height


def folder() -> Path:
    """Where this user's templates are kept."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "veil" / "templates"


def add(
    name: str,
    image: Path | str | Image,
    points: Sequence[Click],
    descriptor: Descriptor | None = None,
    *,
    overwrite: bool = False,
) -> Template:
    """Make a template of clicks (x, y) in a picture, and keep it under that name."""
    if not NAME.fullmatch(name):
        raise VeilError(
            f"'{name}' is no name for a template: use up to 40 small letters, digits, '-' and '_', such as 'left-hand'."
        )
    if name in GROUPS:
        raise VeilError(f"'{name}' is the name of a group of templates: choose another name.")
    source = "pixels" if isinstance(image, np.ndarray) else Path(image).name
    made = _made(name, opened(image), points, descriptor or dense.descriptor(), source)
    place = folder() / f"{name}{SUFFIX}"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VeilError(f"the folder {place.parent} could not be made ({error.strerror}).") from error
    from safetensors.numpy import save

    told = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    del told["name"], told["vectors"]  # the name is that of the file
    draft = Draft(place, overwrite=overwrite)
    try:
        with draft.told():
            draft.path.write_bytes(save({"vectors": made.vectors}, {"template": json.dumps(told)}))
        draft.publish()
    finally:
        draft.discard()
    return made


def remove(name: str) -> None:
    """Forget one of the user's templates."""
    place = folder() / f"{name}{SUFFIX}"
    if not NAME.fullmatch(name) or not place.is_file():
        raise VeilError(f"there is no template '{name}' of yours to remove{_suggestion(name, _own())}")
    try:
        place.unlink()
    except OSError as error:
        raise VeilError(f"{place} could not be removed ({error.strerror}).") from error


def names() -> list[str]:
    """The names of all templates there are, built in or the user's; nothing is loaded."""
    return sorted({*BUILT_IN, *_own()})


def listed() -> list[Template]:
    """The user's own templates, by name."""
    return [_read(name) for name in _own()]


def expanded(wanted: Iterable[str]) -> list[str]:
    """Names of templates and groups as names of templates, each once; a group is those of its templates there are."""
    known, found = names(), dict[str, None]()
    for name in wanted:
        members = [name] if name in known else [member for member in GROUPS.get(name, ()) if member in known]
        if not members and name in GROUPS:
            raise VeilError(
                f"there is no template of the group '{name}' yet: add one of {', '.join(GROUPS[name])} first."
            )
        if not members:
            raise VeilError(f"there is no template '{name}'{_suggestion(name, [*known, *GROUPS])}")
        found |= dict.fromkeys(members)
    return list(found)


def load(wanted: Iterable[str], descriptor: Descriptor | None = None) -> list[Template]:
    """The templates of these names and groups, for use with that descriptor (or the default one)."""
    descriptor = descriptor or dense.descriptor()
    own, found = {*_own()}, []
    for name in expanded(wanted):
        template = _read(name) if name in own else built_in(name, descriptor)
        check(template, descriptor)
        found.append(template)
    return found


def built_in(name: str, descriptor: Descriptor) -> Template:
    """A template that comes with Veil, made for that descriptor."""
    from skimage import data

    return _made(name, data.astronaut(), BUILT_IN[name], descriptor, SOURCE)


def check(template: Template, descriptor: Descriptor) -> None:
    """Refuse a template whose vectors cannot be compared with those of the descriptor."""
    if template.descriptor != descriptor.name:
        raise VeilError(
            f"the template '{template.name}' was made with the descriptor {template.descriptor}, not with "
            f"{descriptor.name}: use that one, or make the template anew."
        )
    if template.fingerprint != descriptor.fingerprint or template.vectors.shape[1] != descriptor.dim:
        raise VeilError(
            f"the template '{template.name}' was made with other weights of {descriptor.name} (they begin "
            f"{template.fingerprint[:8]}, these {descriptor.fingerprint[:8]}): make the template anew."
        )


def saliency(descriptors: Array, templates: Sequence[Template], aggregate: Aggregate = "mean") -> Array:
    """How much each place ``(…, h, w)`` in [0, 1] looks like the templates, of descriptors ``(…, h, w, D)``; Eq. 1."""
    if not templates:
        raise VeilError("there is nothing to look for: name at least one template.")
    if aggregate not in get_args(Aggregate):
        raise VeilError(
            f"there is no aggregate '{aggregate}': choose one of {', '.join(get_args(Aggregate))}."
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


def picture(
    image: Path | str | Image, template: Template, descriptor: Descriptor | None = None
) -> PIL.Image.Image:
    """The picture with the template's saliency laid over it, dark to bright; its clicks where it is its own picture."""
    pixels = opened(image)
    height, width = pixels.shape[:2]
    descriptor = descriptor or dense.descriptor(template.descriptor)
    check(template, descriptor)
    heat = dense.spread(saliency(descriptor(pixels), [template]), descriptor, height, width)
    colours = cv2.applyColorMap(np.round(heat * 255).astype(np.uint8), cv2.COLORMAP_INFERNO)[..., ::-1]
    laid = PIL.Image.blend(
        PIL.Image.fromarray(pixels), PIL.Image.fromarray(np.ascontiguousarray(colours)), 0.6
    )
    if template.checksum == _checksum(pixels):
        pen, radius = PIL.ImageDraw.Draw(laid), max(3, min(height, width) // 80)
        for x, y in template.points:
            box = (x - radius, y - radius, x + radius, y + radius)
            pen.ellipse(box, outline=(255, 255, 255), width=max(1, radius // 3))
    return laid


def opened(image: Path | str | Image) -> Image:
    """The pixels ``(H, W, 3)`` of a picture, upright as it is shown."""
    if isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            raise VeilError(f"a picture is (H, W, 3) uint8, got {image.shape} {image.dtype}.")
        return image
    if not Path(image).is_file():
        raise VeilError(f"there is no picture {image}.")
    try:
        with PIL.Image.open(image) as file:
            return np.array(PIL.ImageOps.exif_transpose(file).convert("RGB"))
    except Exception as error:  # every format has classes of its own
        raise VeilError(f"{image} could not be read as a picture: give a JPEG, PNG or the like.") from error


def _made(name: str, pixels: Image, points: Sequence[Click], descriptor: Descriptor, source: str) -> Template:
    height, width = pixels.shape[:2]
    if not points:
        raise VeilError("a template needs at least one click: give a point x,y of the picture.")
    for x, y in points:
        if not (0 <= x < width and 0 <= y < height):  # so that NaN is outside, too
            raise VeilError(
                f"the click {x:g},{y:g} is outside the picture, which is {width} pixels wide and {height} high."
            )
    if (pixels == pixels[0, 0]).all():
        raise VeilError("the picture is of one colour throughout: there is nothing in it to look for.")
    grid = descriptor(pixels)
    cells = [dense.cell(descriptor, (x, y), height, width) for x, y in points]
    return Template(
        name=name,
        descriptor=descriptor.name,
        fingerprint=descriptor.fingerprint,
        vectors=np.stack([grid[row, column] for row, column in cells]),
        points=tuple((float(x), float(y)) for x, y in points),
        image=source,
        checksum=_checksum(pixels),
        size=(width, height),
    )


def _checksum(pixels: Image) -> str:
    head = f"{pixels.shape[1]}x{pixels.shape[0]} ".encode()
    return hashlib.sha256(head + pixels.tobytes()).hexdigest()


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
            told = json.loads(file.metadata()["template"])
        found = Template(
            name=name,
            descriptor=str(told["descriptor"]),
            fingerprint=str(told["fingerprint"]),
            vectors=vectors,
            points=tuple((float(x), float(y)) for x, y in told["points"]),
            image=str(told["image"]),
            checksum=str(told["checksum"]),
            size=(int(told["size"][0]), int(told["size"][1])),
        )
        right = vectors.dtype == np.float32 and vectors.ndim == 2 and len(vectors) == len(found.points) > 0
        if not right or not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3):
            raise ValueError("vectors")
    except Exception as error:  # of the format, of JSON, of what is missing in it
        raise VeilError(f"{path} is not a template of Veil, or is damaged: delete it.") from error
    return found
