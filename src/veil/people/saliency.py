"""How salient each place of an image is, for each name of what is looked for.

Hair, face, skin, clothes, body and person are found by the part network (`veil.people.parts`); any other name is a template,
compared by a dense descriptor (`veil.people.templates`). So that one threshold serves them all, a map is rescaled such that
0.5 is where it starts to count.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import cv2
import numpy as np
import numpy.typing as npt

from veil.core import Image, VeilError
from veil.people import descriptors, templates
from veil.people import parts as part_network

Array = npt.NDArray[np.float32]


class SaliencyMaps:
    """Maps of an image, one for each thing that is looked for.

    `names`        of parts and templates
    `parts`        whether the part network finds the names it has
    `descriptor`   what compares templates with the image
    `aggregate`    how several maps become one
    `tiles`        the part network also sees this many by this many parts of the image
    `rescale`      whether 0.5 is where a map starts to count; else maps are probabilities and cosines as they are
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        parts: bool,
        descriptor: str,
        aggregate: templates.Aggregate,
        tiles: int,
        rescale: bool,
    ):
        if not names:
            raise VeilError(
                "nothing to hide is named: name a part or a template, such as person.", code="nothing-named"
            )
        self.names, self.aggregate, self.tiles, self.rescale = [*names], aggregate, tiles, rescale
        served = part_network.GROUPS if parts else {}
        self.parts = [name for name in names if name in served]
        rest = [name for name in names if name not in served]
        self.templates: list[templates.Template] = []
        if descriptor not in descriptors.DESCRIPTORS:
            descriptors.descriptor(descriptor)  # raises the error
        self.members = {name: [name] if name in served else templates.expanded([name]) for name in names}
        if rest:
            self.descriptor = descriptors.descriptor(descriptor)
            self.templates = templates.load(rest, self.descriptor)
            self.alike = descriptors.DESCRIPTORS[descriptor].alike

    def targeted(self, images: Iterable[Image]) -> SaliencyMaps:
        """The same, with each template replaced by its best match in these frames."""
        if not self.templates:
            return self
        other = copy.copy(self)
        vectors = [self.descriptor(image).reshape(-1, self.descriptor.dim) for image in images]
        other.templates = templates.targeted(self.templates, np.concatenate(vectors))
        return other

    def __call__(self, image: Image, grid: tuple[int, int]) -> dict[str, Array]:
        """A map ``grid`` for each thing that is looked for, from 0 to 1."""
        maps: dict[str, Array] = {}
        if _is_uniform(image):  # the networks were never trained with such images, and find people in them
            named = [*self.parts, *(template.name for template in self.templates)]
            return {name: np.zeros(grid, np.float32) for name in named}
        if self.parts:
            network = part_network.parts()
            raw = _part_maps(network, image, self.parts, grid, self.tiles)
            maps |= {name: self._rescaled(raw[name], network.thresholds[name]) for name in self.parts}
        if self.templates:
            vectors = self.descriptor(image)
            for template in self.templates:
                saliency = templates.saliency(vectors, [template])
                wide = descriptors.spread(saliency, self.descriptor, *grid)
                maps[template.name] = self._rescaled(wide, self.alike)
        return maps

    def present(self, maps: dict[str, Array], part: tuple[slice, slice], threshold: float) -> list[str]:
        """Which of the names reach the threshold in a part of the maps."""
        return [
            name
            for name in self.names
            if any(maps[one][part].max() >= threshold for one in self.members[name])
        ]

    def combined(self, maps: dict[str, Array]) -> Array:
        """One map ``(h, w)`` of several."""
        stack = np.stack(list(maps.values()))
        if self.aggregate == "mean":
            return stack.mean(0)
        return stack.max(0) if self.aggregate == "max" else 1 - (1 - stack).prod(0)

    def _rescaled(self, values: Array, middle: float) -> Array:
        return rescale(values, middle) if self.rescale else values


def rescale(values: Array, middle: float) -> Array:
    """So that `middle` becomes 0.5, and 0 and 1 stay: two straight lines."""
    either = np.minimum if middle <= 0.5 else np.maximum
    return either(values * np.float32(0.5 / middle), (values - 1) * np.float32(0.5 / (1 - middle)) + 1)


def _part_maps(
    network: part_network.Parts, image: Image, names: list[str], grid: tuple[int, int], tiles: int
) -> dict[str, Array]:
    """Maps of parts over the grid: of the whole image and of tiles of it, which overlap; the larger value counts."""
    height, width = image.shape[:2]
    (h, w), out = grid, {name: np.zeros(grid, np.float32) for name in names}
    views = [(0, 0, w, h)]
    if tiles > 1 and max(height, width) > part_network.SIZE:
        across, down = (_tiles(side, tiles) for side in (w, h))
        views += [(x0, y0, x1, y1) for y0, y1 in down for x0, x1 in across]
    for x0, y0, x1, y1 in views:
        left, right = x0 * width // w, -(-x1 * width // w)
        top, bottom = y0 * height // h, -(-y1 * height // h)
        likely = network(image[top:bottom, left:right])
        for name in names:
            found = cv2.resize(
                part_network.grouped(likely, [name]), (x1 - x0, y1 - y0), interpolation=cv2.INTER_LINEAR
            )
            place = out[name][y0:y1, x0:x1]
            np.maximum(place, found, out=place)
    return out


def _tiles(side: int, count: int) -> list[tuple[int, int]]:
    """Where to cut an axis into `count` tiles that overlap by a fifth of themselves."""
    length = max(1, round(side / (0.8 * count + 0.2)))
    return [
        (begin, begin + length) for begin in (round(i * (side - length) / (count - 1)) for i in range(count))
    ]


def _is_uniform(image: Image) -> bool:
    """Whether all pixels are of one colour, to the last level."""
    return bool((image[0] == image[0, 0]).all() and (image == image[0, 0]).all())
