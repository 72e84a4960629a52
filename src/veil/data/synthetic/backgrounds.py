"""Backgrounds of synthetic videos: tables of flat shapes over a wall (or a sky) and a floor.

Positions are fractions of the frame's side: x from its centre, y from its top. A background is wider than a frame, so
that the camera can move. `objects` renders them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

HORIZON = 0.735  # where the floor begins


class BackgroundShape(NamedTuple):
    """A rounded box: half its width and height, and the radius of its corners."""

    color: str
    x: float
    y: float
    w: float
    h: float
    round: float = 0.004
    angle: float = 0.0  # degrees
    light: float = 0.06
    edge: float = 1.0  # width, in pixels of 112
    alpha: float = 1.0
    group: int = 0  # the shapes of a group are shifted together; group 0 is fixed


class Background(NamedTuple):
    """Colours by name, one in each of three palettes, and shapes.

    The colours "high" and "low" are the wall's (or the sky's), "far" and "near" the floor's.
    """

    colors: str
    shapes: list[BackgroundShape]

    def palettes(self) -> dict[str, list[list[float]]]:
        """The colours as numbers in [0, 1]."""
        lines = [line.split() for line in self.colors.strip().splitlines()]
        return {
            name: [[byte / 255 for byte in bytes.fromhex(tone)] for tone in tones] for name, *tones in lines
        }


def _group(number: int, *shapes: BackgroundShape) -> list[BackgroundShape]:
    return [shape._replace(group=number) for shape in shapes]


def _tree(group: int, x: float, y: float, size: float) -> list[BackgroundShape]:
    crown = [(-0.7, 0.1, 0.75), (0.7, 0.05, 0.7), (0.0, -0.55, 0.85), (0.1, 0.25, 0.8)]
    return _group(
        group,
        BackgroundShape("trunk", x, y, 0.16 * size, 1.2 * size, 0.1 * size, light=0.2),
        *(
            BackgroundShape("leaf", x + size * a, y + size * (b - 1.6), *3 * (size * r,), light=0.28)
            for a, b, r in crown
        ),
    )


def _planks(color: str) -> list[BackgroundShape]:
    """Lines on the floor that run towards the camera."""
    height, lines = 1.02 - HORIZON, []
    for top in (0.17 * i for i in range(-5, 6)):
        angle, half = math.degrees(math.atan2(height, top)), math.hypot(height, top) / 2
        lines.append(
            BackgroundShape(color, 1.5 * top, HORIZON + height / 2, half, 0.002, 0.002, angle, 0, alpha=0.35)
        )
    return lines


def _palm(side: int) -> list[tuple[float, float, float]]:
    """The positions and angles of the leaves on one side of a palm tree."""
    return [(0.11 * side, 0.03, 28 * side), (0.09 * side, -0.04, -14 * side), (0.035 * side, 0.05, 62 * side)]


def _books() -> list[BackgroundShape]:
    shapes = []
    for shelf, y in enumerate((0.2, 0.42, 0.64)):
        x, i = -0.82, 3 * shelf
        while x < 0.82:
            w, h = 0.016 + 0.008 * (i * 7 % 3), 0.062 + 0.012 * (i * 5 % 4)
            if i % 9 != 8:
                shapes.append(BackgroundShape(f"book{1 + i * 3 % 4}", x + w, y - h, w, h, 0.003, light=0.12))
            x, i = x + 2 * w + 0.03 * (i % 9 == 8) + 0.03, i + 1
        shapes.append(BackgroundShape("wood", 0, y + 0.012, 0.95, 0.013, 0.002))
    return shapes


_ROOM = Background(
    """
    high   eee2d0 bed0ce d8c4d2
    low    e2d0b8 a8bebe c6aebe
    far    b08460 806854 967874
    near   cca076 a4886c bc9c92
    line   78543a 544234 685050
    trim   faf6ee f2f4f0 f8f0f0
    glass  b0d6e8 e8debe 96b4d6
    drape  78969e d69678 f0e0c8
    rug    964c46 3a5c70 685480
    rug2   ce966e 98b2b0 beaacc
    leaf   4e8058 3c6850 608c5c
    pot    c46846 ece8de 504c60
    art    deb256 ce6454 6096a0
    wood   6e4a34 4c3a30 5c4246
    """,
    [
        *_planks("line"),
        BackgroundShape("trim", 0, HORIZON - 0.012, 0.95, 0.012, 0.002),
        *_group(
            1,
            BackgroundShape("trim", -0.22, 0.32, 0.185, 0.2, 0.006),
            *(BackgroundShape("glass", x, 0.32, 0.074, 0.174, light=0.16) for x in (-0.305, -0.135)),
            BackgroundShape("trim", -0.22, 0.3, 0.17, 0.007, 0.003),
            *(BackgroundShape("drape", x, 0.35, 0.05, 0.26, 0.02, light=0.2) for x in (-0.43, -0.01)),
        ),
        *_group(
            2,
            BackgroundShape("wood", 0.3, 0.28, 0.1, 0.12),
            BackgroundShape("trim", 0.3, 0.28, 0.085, 0.105, 0.003),
            BackgroundShape("art", 0.3, 0.31, 0.06, 0.045, 0.04),
            BackgroundShape("drape", 0.32, 0.24, 0.03, 0.03, 0.03),
        ),
        *_group(
            3,
            BackgroundShape("rug", 0, 0.9, 0.42, 0.075, 0.05, light=0.04),
            BackgroundShape("rug2", 0, 0.9, 0.37, 0.055, 0.04, light=0.04),
            BackgroundShape("rug", 0, 0.9, 0.34, 0.042, 0.03, light=0.04),
        ),
        *_group(
            4,
            BackgroundShape("leaf", 0.58, 0.5, 0.03, 0.13, 0.03, -20, light=0.3),
            BackgroundShape("leaf", 0.68, 0.5, 0.03, 0.12, 0.03, 24, light=0.3),
            BackgroundShape("leaf", 0.63, 0.46, 0.028, 0.15, 0.028, 2, light=0.3),
            BackgroundShape("pot", 0.63, 0.68, 0.06, 0.075, 0.02, light=0.25),
        ),
    ],
)

_STREET = Background(
    """
    high   78acd6 eeaa7a 222c4e
    low    dee6e2 fadaac 54547a
    far    9c9894 7e7070 424454
    near   b6b2ac 9e8e88 5c5e6c
    line   807c7a 64585a 343646
    house1 ce8868 8e5a5c 3a3852
    house2 e4c696 b07a68 4a445c
    house3 96a0ac 685e74 30384e
    house4 ba685c c48e70 524254
    pane   5c748c fcd684 f8ce74
    door   4a5c56 543a3e 222030
    post   3e424a 342e38 1a1c26
    lamp   fff0c4 ffe2a0 ffecb2
    trunk  685040 4e3a36 2c2830
    leaf   60945c 7a744a 304848
    kerb   dedad0 c4b0a2 80808a
    """,
    [
        BackgroundShape("house1", -0.62, 0.42, 0.2, 0.34),
        BackgroundShape("house2", -0.2, 0.5, 0.21, 0.26),
        BackgroundShape("house3", 0.24, 0.38, 0.22, 0.38),
        BackgroundShape("house4", 0.68, 0.47, 0.21, 0.28),
        *(
            BackgroundShape("pane", house + x, y, 0.026, 0.035, light=0.1, group=5 + i)
            for i, (house, floors) in enumerate(
                (
                    (-0.62, (0.2, 0.36, 0.52)),
                    (-0.2, (0.34, 0.5)),
                    (0.24, (0.13, 0.29, 0.45)),
                    (0.68, (0.3, 0.46)),
                )
            )
            for x in (-0.1, 0.0, 0.1)
            for y in floors
        ),
        *(BackgroundShape("door", x, 0.68, 0.038, 0.065, 0.01) for x in (-0.7, -0.2, 0.34)),
        BackgroundShape("kerb", 0, HORIZON + 0.012, 0.95, 0.012, 0.002),
        BackgroundShape("line", 0, 0.83, 0.95, 0.002, 0.002, light=0, alpha=0.5),
        *(
            BackgroundShape("line", x, 0.87, 0.0025, 0.13, 0.002, -75 * x, light=0, alpha=0.5)
            for x in (-0.7, -0.42, -0.14, 0.14, 0.42, 0.7)
        ),
        *_tree(1, -0.4, 0.66, 0.085),
        *_group(
            2,
            BackgroundShape("post", 0.44, 0.44, 0.009, 0.32, 0.006, light=0.2),
            BackgroundShape("post", 0.41, 0.12, 0.04, 0.008, 0.006),
            BackgroundShape("lamp", 0.38, 0.14, 0.03, 0.018, 0.014, light=0.02),
            BackgroundShape("lamp", 0.38, 0.15, 0.1, 0.1, 0.1, light=0, edge=22, alpha=0.25),
        ),
    ],
)

_PARK = Background(
    """
    high   7ebae2 eebe96 b0c4d8
    low    e2f0ec fce8c4 e8eef2
    far    7aa65c a69456 ced8e0
    near   96be6a c0aa62 e8eef2
    cloud  ffffff ffecd6 f6fafc
    hill   74a27c 9e8466 a6bccc
    hill2  92ba8c c4a47c c2d4e0
    trunk  70543e 604436 564c4c
    leaf   548a52 ce7a3a 688886
    path   dec8a0 e2c8a4 c4ccd4
    bush   629658 b6623a 7e9896
    bloom  ee7680 d64c42 bc4854
    bloom2 fad662 fac45c f0f0f4
    """,
    [
        *_group(
            1,
            BackgroundShape("cloud", -0.3, 0.16, 0.13, 0.03, 0.03, edge=6, alpha=0.85),
            BackgroundShape("cloud", -0.24, 0.13, 0.07, 0.04, 0.04, edge=6, alpha=0.85),
        ),
        BackgroundShape("cloud", 0.4, 0.24, 0.15, 0.028, 0.028, edge=6, alpha=0.8, group=2),
        BackgroundShape("hill2", 0.45, 0.98, 0.5, 0.46, 0.46, light=0.1),
        BackgroundShape("hill", -0.4, 1.06, 0.55, 0.5, 0.5, light=0.1),
        BackgroundShape("far", 0, 0.9, 1.0, 0.165, light=0),
        BackgroundShape("near", 0, 1.0, 1.0, 0.16, 0.08, light=0, edge=16),
        BackgroundShape("path", 0.1, 0.88, 0.9, 0.028, 0.02, -3, light=0, edge=3),
        *_tree(3, -0.42, 0.62, 0.1),
        *_tree(4, 0.36, 0.65, 0.075),
        *_tree(5, 0.74, 0.63, 0.09),
        *_group(
            6,
            BackgroundShape("bush", 0.05, 0.72, 0.06, 0.05, 0.05, light=0.3),
            BackgroundShape("bush", 0.13, 0.73, 0.05, 0.04, 0.04, light=0.3),
        ),
        *(
            BackgroundShape(
                bloom, -0.7 + 0.16 * i, 0.78 + 0.03 * (i * 5 % 3), *3 * (0.008,), light=0.1, group=7
            )
            for i, bloom in enumerate(5 * ("bloom2", "bloom"))
        ),
    ],
)

_HALL = Background(
    """
    high   d6dce0 c4cec4 464e60
    low    e8eaea daded4 5c6476
    far    cc9e68 7c9086 625a64
    near   e2b880 96aa9e 7c727a
    line   faf8f0 f4f0d6 dec88c
    band   4876a0 be5446 e0ac4c
    glass  badaec dce8de 8096b2
    trim   a4aab2 8c9490 3a3e4c
    bar    9c6c42 785a42 947058
    mat    3c6896 ac4c42 463e62
    hoop   e25c3a f0aa3c e86e50
    """,
    [
        BackgroundShape("band", 0, 0.56, 0.95, 0.05, 0.002),
        *(BackgroundShape("trim", x, 0.2, 0.135, 0.115, 0.006) for x in (-0.6, -0.2, 0.2, 0.6)),
        *(BackgroundShape("glass", x, 0.2, 0.122, 0.102, light=0.18) for x in (-0.6, -0.2, 0.2, 0.6)),
        *(BackgroundShape("trim", x, 0.2, 0.004, 0.1, 0.002) for x in (-0.6, -0.2, 0.2, 0.6)),
        *_group(
            1,
            *(BackgroundShape("bar", x, 0.5, 0.012, 0.235, light=0.2) for x in (0.36, 0.52)),
            *(BackgroundShape("bar", 0.44, 0.31 + 0.07 * i, 0.08, 0.011, 0.006, light=0.2) for i in range(6)),
        ),
        BackgroundShape("line", 0, 0.86, 0.95, 0.008, 0.003, light=0),
        BackgroundShape("line", -0.25, 0.87, 0.007, 0.16, 0.003, 28, light=0),
        BackgroundShape("line", 0.3, 0.87, 0.007, 0.16, 0.003, -32, light=0),
        BackgroundShape("mat", -0.5, 0.775, 0.22, 0.03, 0.008, light=0.1, group=2),
        *_group(
            3,
            BackgroundShape("trim", -0.36, 0.4, 0.085, 0.065),
            BackgroundShape("line", -0.36, 0.4, 0.075, 0.055),
            BackgroundShape("hoop", -0.36, 0.445, 0.04, 0.008, 0.006),
        ),
    ],
)

_BEACH = Background(
    """
    high   68b2de ec8e76 96acb8
    low    e0f0f0 fcd4a0 d0d8d6
    far    e8d0a0 cea688 b6ac98
    near   f6e2b6 e4be9c ccc2ac
    sun    fff6ce ffe8a8 f4f6f0
    sea    3a94b2 746e98 547680
    sea2   5cb6c4 a6869e 709298
    foam   fafcfa fce2cc e8eeec
    sail   fcfaf4 fae2ce eceeec
    hull   a85040 60384c 3c4e60
    board  e25c52 56749c 408278
    stripe faf0e2 f8e8d2 e8e4d4
    trunk  96704c 6a4842 746252
    leaf   4c8e5c 465854 587a64
    """,
    [
        *_group(
            1,
            BackgroundShape("sun", -0.26, 0.22, 0.08, 0.08, 0.08, light=0.02),
            BackgroundShape("sun", -0.26, 0.22, 0.17, 0.17, 0.17, light=0, edge=24, alpha=0.35),
        ),
        BackgroundShape("sea", 0, 0.64, 0.95, 0.115, 0.002, light=0.03),
        BackgroundShape("sea2", 0, 0.7, 0.95, 0.04, light=0.03),
        *(
            BackgroundShape("sea2", -0.7 + 0.28 * i, 0.57 + 0.025 * (i % 3), 0.07, 0.004, alpha=0.8)
            for i in range(6)
        ),
        BackgroundShape("foam", 0, 0.742, 0.95, 0.012, 0.01, edge=2),
        *_group(
            2,
            BackgroundShape("sail", 0.22, 0.46, 0.012, 0.06, 0.01, 14),
            BackgroundShape("sail", 0.26, 0.48, 0.01, 0.04, 0.008, -16),
            BackgroundShape("hull", 0.235, 0.535, 0.06, 0.014, 0.012),
        ),
        *_group(
            3,
            BackgroundShape("trunk", 0.6, 0.5, 0.02, 0.27, 0.018, 8, light=0.25),
            *(
                BackgroundShape("leaf", 0.64 + x, 0.23 + y, 0.12, 0.02, 0.018, angle, light=0.3)
                for x, y, angle in (*_palm(1), *_palm(-1))
            ),
        ),
        *_group(
            4,
            BackgroundShape("board", -0.5, 0.58, 0.24, 0.042, 0.04, 82, light=0.3),
            BackgroundShape("stripe", -0.5, 0.58, 0.24, 0.008, 0.006, 82, light=0.1),
            BackgroundShape("stripe", -0.49, 0.5, 0.035, 0.012, 0.01, -8, light=0.1),
        ),
    ],
)

_LIBRARY = Background(
    """
    high   5c4234 cec6ba 3c4858
    low    70503c d8d0c4 485666
    far    606c62 70687a 947a68
    near   7a8678 8c8294 b0947e
    wood   8a6042 f0ece4 687686
    book1  b04a40 d47868 dc965a
    book2  d8b26a 789ca8 5c8c96
    book3  4e707a e8c478 c4545c
    book4  d6cebc 7a8474 e4dccc
    desk   a4744e c4a078 7c5c4c
    lamp   fadc96 ffecbe fce2a0
    green  3c6e56 5c848c c65c50
    """,
    [
        *_books(),
        BackgroundShape("wood", 0, HORIZON - 0.015, 0.95, 0.016, 0.003),
        *_group(
            1,
            BackgroundShape("desk", 0.5, 0.68, 0.17, 0.016, 0.006, light=0.15),
            *(BackgroundShape("desk", x, 0.74, 0.012, 0.06) for x in (0.37, 0.63)),
            BackgroundShape("green", 0.54, 0.6, 0.045, 0.022, 0.018, light=0.25),
            BackgroundShape("wood", 0.54, 0.635, 0.006, 0.035),
            BackgroundShape("lamp", 0.54, 0.6, 0.11, 0.11, 0.1, light=0, edge=20, alpha=0.22),
        ),
    ],
)

BACKGROUNDS = {
    "room": _ROOM,
    "street": _STREET,
    "park": _PARK,
    "hall": _HALL,
    "beach": _BEACH,
    "library": _LIBRARY,
}
