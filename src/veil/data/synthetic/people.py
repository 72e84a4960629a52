"""Synthetic people: their traits, their appearance, and the shapes of their bodies.

A person is a number. The first ``identities`` numbers are the known identities: each trait is a parity of the bits of the
number, so that exactly half of them have it and all traits are independent. All greater numbers are unseen people with
random traits.

A body is a table of parts. A part is attached to a bone (see `motion`), and has a material (an index into the person's
colours) and a condition (the trait or the piece of clothing it belongs to).

The names of random streams are part of the seed: renaming one changes the people.
"""

from __future__ import annotations

import functools
import zlib
from typing import NamedTuple

import torch
from torch import Tensor

from veil.data.synthetic.motion import GAIT_RANGES, JOINTS, BodyBuild, Gait, Skeleton
from veil.data.synthetic.render import make_shapes

# fmt: off
TRAITS = ("female", "senior", "tall", "heavy", "dark-skin", "light-hair", "long-hair",
          "tattoo", "striped-top", "shorts")
ACCESSORIES = ("bag", "coat")  # in some gait videos
SKINS = ("fair", "tan", "brown", "deep")
HAIRS = ("black", "brown", "blond", "ginger")
MATERIALS = ("skin", "shade", "hair", "brow", "top", "trim", "bottom", "sock", "shoe", "sole", "ink",
             "white", "iris", "lips", "dark", "gold", "bag", "coat", "lens", "blush")
# fmt: on
# The bits whose parity is each trait, then those behind the shades of skin and hair.
_PARITIES = (1, 2, 4, 8, 16, 3, 6, 12, 24, 17, 31, 21)

_SKIN = "fad6ba e4b08a 966242 623e2c"
_HAIR = "221e22 5c3a28 ecc878 ce6230"
_TOPS = (
    "e06054 e8b040 2c868c 62a4d6 2e4678 467a54 9c80c4 de849e "
    "f0e2c4 a63e3a 848846 687688 8eccb0 703e68 ec843a f6f6f2"
)
_BOTTOMS = "425e92 3a3c44 b09870 24283a 684c3c 80868e 70303c 70846c"
_SHOES = "342e30 c4463e eceae4 7a543a"


class People(NamedTuple):
    """The appearance and gait of people; every tensor begins with the shape of their numbers."""

    traits: Tensor  # (..., TRAITS) bool
    skin: Tensor  # index into SKINS
    hair: Tensor  # index into HAIRS
    height: Tensor  # metres
    girth: Tensor  # 1 is slim
    colors: Tensor  # (..., MATERIALS, 3)
    gait: Gait

    def trait(self, name: str) -> Tensor:
        """Whether each person has the trait."""
        return self.traits[..., TRAITS.index(name)]


def uniform(seed: int, stream: str, keys: Tensor, count: int) -> Tensor:
    """Uniform numbers in [0, 1) ``(..., count)``, a function of seed, stream and key on every machine."""
    state = torch.full_like(keys, (seed * 0x9E3779B1 + zlib.crc32(stream.encode())) & 0xFFFFFFFF)
    state = _mix(_mix(state) ^ (keys & 0xFFFFFFFF))
    state = state[..., None] + torch.arange(1, count + 1, device=keys.device) * 0x9E3779B9
    return _mix(_mix(state)).double() / 2**32


def _mix(state: Tensor) -> Tensor:
    """Scramble 32 bits (the finaliser of MurmurHash3), in the low half of 64."""
    state = state & 0xFFFFFFFF
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return state ^ (state >> 16)


def shuffled(seed: int, stream: str, keys: Tensor, count: int) -> Tensor:
    """A permutation of ``count`` items ``(..., count)`` for every key."""
    return uniform(seed, stream, keys, count).argsort(dim=-1, stable=True)


def gaits(seed: int, number: Tensor, identities: int) -> Gait:
    """The gait of each person; over the known identities, each parameter is spread evenly over its range."""
    levels = []
    for i, name in enumerate(Gait._fields):
        order = shuffled(seed, "gait", torch.tensor([i], device=number.device), identities)[0]
        own = (order[number.remainder(identities)] + 0.5) / identities
        unseen = uniform(seed, f"gait {name}", number, 1)[..., 0]
        level = torch.where(number < identities, own, unseen)
        low, high = GAIT_RANGES[name]
        levels.append(low + (high - low) * level)
    return Gait(*levels)


def people(
    seed: int, number: Tensor, identities: int, *, like: Tensor | None = None, outfit: Tensor | None = None
) -> People:
    """The persons of these numbers.

    With ``like``, they have the traits of those numbers, and nothing else of them. With ``outfit``, they have the
    clothes of those numbers.
    """
    bits = _bits(seed, number if like is None else like.expand_as(number), identities)
    traits, more = bits[..., : len(TRAITS)], bits[..., len(TRAITS) :].long()
    skin = 2 * traits[..., TRAITS.index("dark-skin")].long() + more[..., 0]
    hair = 2 * traits[..., TRAITS.index("light-hair")].long() + more[..., 1]
    u = uniform(seed, "looks", number, 4)
    height = torch.where(traits[..., TRAITS.index("tall")], 1.81, 1.51) + 0.07 * u[..., 0]
    girth = torch.where(traits[..., TRAITS.index("heavy")], 1.45, 0.84) + 0.1 * u[..., 1]
    outfit = number if outfit is None else outfit
    v = uniform(seed, "clothes", outfit, 6)
    known = outfit < identities
    top = torch.where(known, outfit * 5, (v[..., 0] * 16).long()).remainder(16)
    bottom = torch.where(known, outfit * 3 + outfit // 16, (v[..., 1] * 8).long()).remainder(8)
    colors = _colors(traits, skin, hair, u[..., 2:], top, bottom, v[..., 2:])
    return People(traits, skin, hair, height, girth, colors, gaits(seed, number, identities))


def _bits(seed: int, number: Tensor, identities: int) -> Tensor:
    """The traits of people, one more bit for the shade of the skin, and one for that of the hair."""
    masks = torch.tensor(_PARITIES, device=number.device)
    flipped = uniform(seed, "traits", torch.arange(len(_PARITIES), device=number.device), 1)[:, 0] < 0.5
    code = number[..., None] & masks
    for shift in (16, 8, 4, 2, 1):
        code = code ^ (code >> shift)
    # The name of a stream is part of the seed: another name would make other people.
    unseen = uniform(seed, "stranger", number, len(_PARITIES)) < 0.5
    return torch.where(number[..., None] < identities, (code & 1).bool() ^ flipped, unseen)


def _colors(
    traits: Tensor, skin: Tensor, hair: Tensor, u: Tensor, top: Tensor, bottom: Tensor, v: Tensor
) -> Tensor:
    """The colours ``(..., MATERIALS, 3)``; ``u`` and ``v`` are random numbers of body and clothes."""

    def pick(palette: str, index: Tensor) -> Tensor:
        tones = [list(bytes.fromhex(tone)) for tone in palette.split()]
        return torch.tensor(tones, device=u.device, dtype=torch.float64)[index] / 255

    def flat(tone: str) -> Tensor:
        return pick(tone, torch.zeros_like(skin))

    dark, senior, female = (
        traits[..., TRAITS.index(name), None] for name in ("dark-skin", "senior", "female")
    )
    face = pick(_SKIN, skin) * (0.97 + 0.06 * u[..., 0:1])
    locks = pick(_HAIR, hair) * (0.94 + 0.12 * u[..., 1:2])
    shirt = pick(_TOPS, top) * (0.94 + 0.08 * v[..., 0:1])
    bright = shirt.mean(-1, keepdim=True) > 0.55
    found = {
        "skin": face,
        "shade": face * torch.tensor([0.86, 0.78, 0.74], device=u.device, dtype=u.dtype),
        "hair": locks,
        "brow": torch.where(senior, flat("dedcd8"), locks * 0.7),
        "top": shirt,
        "trim": torch.where(bright, flat("263054"), flat("faf6ec")),
        "bottom": pick(_BOTTOMS, bottom) * (0.92 + 0.1 * v[..., 1:2]),
        "sock": flat("eeece6"),
        "shoe": pick(_SHOES, (v[..., 2] * 4).long()),
        "sole": flat("e8e4dc"),
        "ink": torch.where(dark, flat("56d6be"), flat("1c3e76")),
        "white": flat("fafafa"),
        "iris": flat("282226"),
        "lips": torch.where(female, flat("d62c4c"), face * 0.62),
        "dark": flat("2c2830"),
        "gold": flat("face54"),
        "bag": flat("7e5234"),
        "coat": pick(_TOPS, (v[..., 3] * 16).long()) * 0.72,
        "lens": face * 0.4 + 0.6,
        "blush": face * torch.tensor([1.02, 0.82, 0.8], device=u.device, dtype=u.dtype),
    }
    return torch.stack([found[name] for name in MATERIALS], dim=-2).clamp(0, 1)


def with_equal_looks(persons: People) -> People:
    """The same people, all of whom look like one nobody in particular; only their gaits are their own."""
    plain = persons.traits & False
    cloth = {
        "top": (0.36, 0.47, 0.58),
        "trim": (0.42, 0.53, 0.64),
        "bottom": (0.26, 0.33, 0.42),
        "coat": (0.3, 0.34, 0.4),
    }
    tones = [cloth.get(name, (0.66, 0.68, 0.7)) for name in MATERIALS]
    colors = torch.tensor(tones, device=plain.device, dtype=torch.float64).expand_as(persons.colors)
    same = torch.full_like(persons.height, 1.7)
    none = torch.zeros_like(persons.skin)
    return People(plain, none, none, same, torch.ones_like(same), colors, persons.gait)


def build(persons: People) -> BodyBuild:
    """The proportions of their skeletons."""
    female = persons.trait("female")
    grown = 0.55 + 0.45 * persons.girth
    shoulders = torch.where(female, 0.096, 0.122) * grown
    return BodyBuild(persons.height, shoulders, torch.where(female, 0.058, 0.05) * grown)


Point = tuple[
    float, float, float
]  # along, side, front: shares of the bone's length, then of the height (of the head: its radius)
Width = float | tuple[float, float]  # a radius, or one seen from the front and one seen from the side


class Part(NamedTuple):
    """A limb-like shape between two points of a bone."""

    bone: str
    material: str
    a: Point
    b: Point
    ra: Width
    rb: Width
    where: str = ""  # a trait or a thing worn; "not x" turns it round; several are joined by " & "
    nearer: float = 0.0  # metres towards the camera, for the order of painting only
    light: float = 0.2
    faces: bool = False  # seen from its own side only
    band: float = 0.0  # a band of this half-width across the bone, instead of a limb
    square: float = 0.0  # how much of its width is flat at the ends


# fmt: off
def _head() -> list[Part]:
    def of(material: str, a: Point, b: Point, ra: float, rb: float, where: str = "", nearer: float = 0.0,
           light: float = 0.05) -> Part:
        return Part("head", material, a, b, ra, rb, where, nearer + 0.04, light, faces=True)

    parts = [
        Part("torso", "shade", (0.9, 0, 0), (1.16, 0, 0.004), 0.036, 0.034, "", -0.02),
        Part("head", "skin", (0.2, 0, 0), (-0.36, 0, 0.08), 0.78, 0.6, "", 0.0, 0.16),
        Part("head", "hair", (0.2, 0, -0.2), (-0.1, 0, -0.26), 0.86, 0.82, "", -0.06, 0.25),
        Part("head", "hair", (0.26, 0, -0.14), (0.1, 0, -0.2), 0.83, 0.8, "", 0.07, 0.3),
        Part("head", "hair", (0.1, 0, -0.36), (-2.2, 0, -0.5), 0.9, 0.66, "long-hair", -0.02, 0.25),
        of("skin", (-0.02, 0, 0.5), (-0.42, 0, 0.46), 0.64, 0.52, "", 0.06, 0.12),
        of("hair", (0.6, -0.34, 0.5), (0.56, 0.3, 0.55), 0.25, 0.2, "", 0.09, 0.2),
        of("hair", (-0.62, -0.3, 0.6), (-0.62, 0.3, 0.6), 0.28, 0.28, "not female", 0.08, 0.1),
        of("hair", (-0.36, -0.22, 0.84), (-0.36, 0.22, 0.84), 0.07, 0.07, "not female", 0.1),
        of("shade", (-0.14, 0, 0.9), (-0.22, 0, 0.95), 0.09, 0.1, "", 0.12),
        of("lips", (-0.5, -0.12, 0.8), (-0.5, 0.12, 0.8), 0.1, 0.1, "female", 0.12),
        of("lips", (-0.54, -0.14, 0.8), (-0.54, 0.14, 0.8), 0.06, 0.06, "not female", 0.12),
        of("shade", (0.4, -0.3, 0.78), (0.4, 0.3, 0.78), 0.035, 0.035, "senior", 0.1),
        of("dark", (0.06, -0.1, 0.95), (0.06, 0.1, 0.95), 0.04, 0.04, "senior", 0.12),
    ]
    for s in (-1, 1):
        parts += [
            Part("head", "shade", (-0.06, 0.8 * s, -0.05), (-0.14, 0.8 * s, -0.04),
                 0.14, 0.12, "", 0.08, 0.1),
            Part("head", "hair", (0.2, 0.68 * s, 0.02), (-1.7, 0.7 * s, 0.18),
                 0.26, 0.2, "long-hair", 0.12, 0.25),
            of("dark", (0.03, 0.34 * s, 0.9), (0.03, 0.35 * s, 0.9), 0.3, 0.3, "senior", 0.1),
            of("lens", (0.03, 0.34 * s, 0.9), (0.03, 0.35 * s, 0.9), 0.22, 0.22, "senior", 0.11),
            of("white", (0.05, 0.33 * s, 0.82), (0.01, 0.33 * s, 0.82), 0.14, 0.14, "not senior", 0.1),
            of("iris", (0.06, 0.33 * s, 0.86), (0.0, 0.33 * s, 0.86), 0.1, 0.1, "", 0.13),
            of("dark", (0.15, 0.2 * s, 0.84), (0.2, 0.52 * s, 0.74), 0.045, 0.05, "female", 0.14),
            of("brow", (0.33, 0.18 * s, 0.84), (0.33, 0.48 * s, 0.76), 0.06, 0.05, "", 0.14),
            Part("head", "lips", (0.98, 0.1 * s, 0.04), (1.06, 0.34 * s, 0.04),
                 0.12, 0.2, "female", 0.14, 0.15),
            of("blush", (-0.26, 0.42 * s, 0.7), (-0.26, 0.44 * s, 0.7), 0.15, 0.15, "female", 0.09),
            Part("head", "gold", (-0.34, 0.8 * s, 0.0), (-0.4, 0.8 * s, 0.0), 0.1, 0.12, "female", 0.13, 0.2),
            of("ink", (-0.22, 0.46 * s, 0.72), (-0.34, 0.44 * s, 0.72), 0.11, 0.11, "tattoo", 0.1),
            Part("head", "sock", (0.16, 0.76 * s, -0.05), (-0.16, 0.76 * s, -0.1),
                 0.22, 0.18, "senior", 0.075, 0.1),
            of("shade", (-0.34, 0.32 * s, 0.78), (-0.56, 0.36 * s, 0.7), 0.03, 0.03, "senior", 0.1),
        ]
    return parts


def _trunk() -> list[Part]:
    stripes = [
        Part("torso", "trim", (a, 0, 0), (a + 0.1, 0, 0), (w, 0.062), 0.0, f"striped-top & {sex}", 0.127, 0.1,
             band=0.017)
        for sex, widths in (("female", (0.077, 0.074, 0.08)), ("not female", (0.079, 0.089, 0.098)))
        for a, w in zip((0.14, 0.42, 0.7), widths, strict=True)
    ]
    return [
        Part("hips", "bottom", (-0.004, -0.028, 0), (-0.004, 0.028, 0), 0.056, 0.056),
        Part("torso", "top", (-0.06, 0, 0), (0.76, 0, 0), (0.088, 0.07), (0.104, 0.07),
             "not female", 0.1, square=0.6),
        Part("torso", "top", (0.84, -0.078, 0), (0.84, 0.078, 0), 0.042, 0.042, "not female", 0.09),
        Part("torso", "top", (0.12, 0, 0), (0.76, 0, 0), (0.066, 0.056), (0.084, 0.06),
             "female", 0.1, square=0.4),
        Part("hips", "top", (-0.105, 0, 0), (0.062, 0, 0), (0.118, 0.1), (0.058, 0.05),
             "female", 0.125, square=0.55),
        Part("torso", "top", (0.84, -0.06, 0), (0.84, 0.06, 0), 0.036, 0.036, "female", 0.09),
        Part("torso", "top", (0.62, -0.036, 0.045), (0.62, 0.036, 0.045), 0.036, 0.036, "female", 0.09),
        Part("torso", "trim", (0.93, -0.016, 0.026), (0.93, 0.016, 0.026),
             0.022, 0.022, "", 0.01, faces=True),
        Part("torso", "top", (0.16, 0, 0.02), (0.36, 0, 0.016), 0.094, 0.086, "heavy & not coat", 0.095),
        *stripes,
        Part("torso", "bag", (0.96, -0.075, 0.055), (0.06, 0.095, 0.055), 0.012, 0.012, "bag", 0.14),
        Part("torso", "bag", (0.08, 0.13, 0.02), (-0.2, 0.13, 0.02), 0.06, 0.066, "bag", 0.14),
        Part("torso", "coat", (-0.62, 0, 0), (0.76, 0, 0), (0.118, 0.094), (0.108, 0.074),
             "coat", 0.13, square=0.6),
    ]


def _side(x: str) -> list[Part]:
    ink = [
        Part(f"forearm_{x}", "ink", (a, 0, 0), (a + 0.1, 0, 0), 0.034, 0.0, "tattoo & not coat", 0.016, 0.05,
             band=0.024)
        for a in (0.2, 0.72)
    ]
    return [
        Part(f"thigh_{x}", "skin", (0.4, 0, 0), (1, 0, 0), 0.046, 0.037, "shorts"),
        Part(f"thigh_{x}", "bottom", (0, 0, 0), (0.62, 0, 0), 0.06, 0.057, "shorts", 0.004),
        Part(f"thigh_{x}", "bottom", (0, 0, 0), (1, 0, 0), 0.058, 0.042, "not shorts", 0.004),
        Part(f"shin_{x}", "skin", (0, 0, 0), (1, 0, 0), 0.037, 0.026, "shorts"),
        Part(f"shin_{x}", "sock", (0.8, 0, 0), (1, 0, 0), 0.029, 0.028, "shorts", 0.004),
        Part(f"shin_{x}", "bottom", (0, 0, 0), (0.94, 0, 0), 0.043, 0.036, "not shorts"),
        Part(f"foot_{x}", "sole", (-0.16, 0, -0.014), (0.88, 0, -0.014), 0.027, 0.024, "", 0.005),
        Part(f"foot_{x}", "shoe", (-0.14, 0, 0.002), (0.8, 0, -0.004), 0.032, 0.024, "", 0.006),
        Part(f"arm_{x}", "skin", (0.2, 0, 0), (1, 0, 0), 0.035, 0.029),
        Part(f"arm_{x}", "top", (0, 0, 0), (0.6, 0, 0), 0.044, 0.043, "", 0.008),
        Part(f"forearm_{x}", "skin", (0, 0, 0), (1, 0, 0), 0.031, 0.024, "", 0.01),
        Part(f"forearm_{x}", "skin", (1.04, 0, 0), (1.2, 0, 0), 0.028, 0.025, "", 0.014),
        *ink,
        Part(f"arm_{x}", "coat", (0, 0, 0), (1, 0, 0), 0.05, 0.044, "coat", 0.016),
        Part(f"forearm_{x}", "coat", (0, 0, 0), (0.9, 0, 0), 0.044, 0.037, "coat", 0.018),
    ]


PARTS = (*_trunk(), *_side("r"), *_side("l"), *_head())
# fmt: on
CONDITIONS = (*TRAITS, *ACCESSORIES)


class _PartTable(NamedTuple):
    bone: Tensor
    material: Tensor
    a: Tensor  # (K, 3)
    b: Tensor
    ra: Tensor  # (K, 2)
    rb: Tensor
    wants: Tensor  # (K, CONDITIONS): 1 where it must hold, -1 where it must not
    nearer: Tensor
    faces: Tensor
    band: Tensor
    light: Tensor
    square: Tensor
    head: Tensor  # (K,) bool
    long: Tensor  # (K,) bool: the bone begins at one end, not in the middle


@functools.cache
def _part_table(device: torch.device) -> _PartTable:
    def column(values: list[float] | list[tuple[float, ...]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    def index(values: list[int]) -> Tensor:
        return torch.tensor(values, device=device)

    def pair(width: Width) -> tuple[float, float]:
        return width if isinstance(width, tuple) else (width, width)

    wants = torch.zeros(len(PARTS), len(CONDITIONS), dtype=torch.float64)
    for i, part in enumerate(PARTS):
        for word in filter(None, part.where.split(" & ")):
            wants[i, CONDITIONS.index(word.removeprefix("not "))] = -1 if word.startswith("not ") else 1
    return _PartTable(
        index([JOINTS.index(part.bone) for part in PARTS]),
        index([MATERIALS.index(part.material) for part in PARTS]),
        column([part.a for part in PARTS]),
        column([part.b for part in PARTS]),
        column([pair(part.ra) for part in PARTS]),
        column([pair(part.rb) for part in PARTS]),
        wants.to(device),
        column([part.nearer for part in PARTS]),
        index([part.faces for part in PARTS]),
        column([part.band for part in PARTS]),
        column([part.light for part in PARTS]),
        column([part.square for part in PARTS]),
        index([part.bone == "head" for part in PARTS]),
        index([part.bone not in ("head", "hips") for part in PARTS]),
    )


class View(NamedTuple):
    """The projection from scene metres to pixels; every tensor is ``(F, P)`` or broadcasts to it."""

    scale: Tensor  # pixels a metre
    x: Tensor  # pixel of the scene's origin
    y: Tensor
    tilt: float  # how far down the picture a metre towards the camera leads, in metres

    def project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Where points ``(F, P, N, 3)`` are seen, in pixels."""
        x, y, z = points.unbind(-1)
        scale = self.scale[..., None]
        return self.x[..., None] + scale * x, self.y[..., None] + scale * (self.tilt * z - y)


def body_shapes(persons: People, accessories: Tensor, bones: Skeleton, view: View, present: Tensor) -> Tensor:
    """The shapes ``(F, P, K, 15)`` of the people (F, P) who are ``present``; ``accessories`` is (F, P, WORN)."""
    table = _part_table(accessories.device)
    axes, origin = bones.axes[..., table.bone, :, :], bones.origin[..., table.bone, :]  # (F, P, K, 3, 3)
    height = persons.height[..., None]
    head = (bones.axes[..., 2, 0, :].square().sum(-1, keepdim=True)).sqrt()
    sideways = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64, device=accessories.device)
    halfway = (1 - sideways) * torch.where(table.long, 0.5, 0.0)[:, None]
    unit = torch.where(table.head, 1.0, height)  # what the numbers across a bone are shares of

    def place(p: Tensor) -> Tensor:
        across = p[:, 1, None] * axes[..., 1, :] + p[:, 2, None] * axes[..., 2, :]
        return origin + p[:, 0, None] * axes[..., 0, :] + unit[..., None] * across

    a, b = place(table.a), place(table.b)
    (xa, ya), (xb, yb) = view.project(a), view.project(b)
    dx, dy = xb - xa, yb - ya
    length = (dx.square() + dy.square()).sqrt().clamp_min(1e-6)
    # How wide a flat body is, depends on how much of its side is turned to the camera.
    side = axes[..., 1, 2].abs() / axes[..., 1, :].square().sum(-1).sqrt()
    grown = (
        torch.where(table.head, head, height * (0.35 + 0.65 * persons.girth[..., None]))
        * view.scale[..., None]
    )
    ra, rb = (
        grown
        * ((r[:, 0] * (1 - side.square()).clamp_min(0).sqrt()).square() + (r[:, 1] * side).square()).sqrt()
        for r in (table.ra, table.rb)
    )
    band = table.band > 0
    thick = torch.where(table.head, head, height) * view.scale[..., None] * table.band
    flat = table.square * torch.minimum(ra, rb)
    # Parts of a bone are ordered by how far they stick out of it, not by where along it they sit.
    depth = place((table.a + table.b) / 2 * sideways + halfway)[..., 2]
    ux, uy = dx / length, dy / length
    outward = (table.a[:, 1:] + table.b[:, 1:]) / 2
    turned = outward[:, 0] * axes[..., 1, 2] + outward[:, 1] * axes[..., 2, 2]
    turned = turned / (
        outward.square().sum(-1).sqrt().clamp_min(1e-9) * axes[..., 1, :].square().sum(-1).sqrt()
    )
    seen = torch.where(table.faces, ((turned + 0.12) / 0.3).clamp(0, 1), 1.0)
    has = torch.cat([persons.traits, accessories], -1).double() * 2 - 1  # (F, P, CONDITIONS)
    met = ((table.wants == 0) | (table.wants == has[..., None, :])).all(-1)
    return make_shapes(
        torch.where(band, xa, (xa + xb) / 2),
        torch.where(band, ya, (ya + yb) / 2),
        axis=(torch.where(band, -uy, ux), torch.where(band, ux, uy)),
        long=torch.where(band, (ra - 0.6 * thick).clamp_min(0), length / 2),
        wide=flat,
        radius=torch.where(band, thick, (ra + rb) / 2 - flat).clamp_min(0.3),
        taper=torch.where(band, 0.0, (rb - ra) / length.clamp_min(1.0)),
        alpha=seen * met * present[..., None],
        light=table.light,
        color=persons.colors[..., table.material, :],
        depth=depth + table.nearer,
    )
