"""What a template or a part matches, drawn over a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageDraw

from veil.core import Image
from veil.people import descriptors, parts, pictures, templates
from veil.people.descriptors import Descriptor
from veil.people.templates import Template


def draw_template(
    image: Path | str | Image, template: Template, descriptor: Descriptor | None = None
) -> PIL.Image.Image:
    """The picture with the template's saliency laid over it, dark to bright, and a line around what matches.

    Circles are the clicks, where it is the template's own picture.
    """
    pixels = pictures.read(image)
    height, width = pixels.shape[:2]
    descriptor = descriptor or descriptors.descriptor(template.descriptor)
    templates.check(template, descriptor)
    saliency = templates.saliency(descriptor(pixels), [template])
    heat = descriptors.spread(saliency, descriptor, height, width)
    kind = descriptors.DESCRIPTORS.get(descriptor.name)
    overlay = _overlay(pixels, heat, kind.alike if kind else 0.5)
    checksum, pen = pictures.checksum(pixels), PIL.ImageDraw.Draw(overlay)
    radius = max(3, min(height, width) // 80)
    for x, y in (origin.point for origin in template.origins if origin.checksum == checksum):
        box = (x - radius, y - radius, x + radius, y + radius)
        pen.ellipse(box, outline=(255, 255, 255), width=max(1, radius // 3))
    return overlay


def draw_matches(
    name: str, images: Sequence[Path | str] = (), descriptor: str | None = None
) -> list[PIL.Image.Image]:
    """What a template, or a name that the part network serves, matches in each of the images.

    Without images: in those of a built-in template's own, and for others in the photograph of the astronaut.
    """
    given = [pictures.read(image) for image in images]
    if name in parts.GROUPS:
        network = parts.parts()
        level = network.thresholds[name]
        given = given or [pictures.built_in("astronaut")]
        return [_shrunk(_overlay(pixels, network.maps(pixels, [name]), level)) for pixels in given]
    template, described, sources = templates.lookup(name, descriptor)
    given = given or [pictures.built_in(source) for source in sources]
    return [_shrunk(draw_template(pixels, template, described)) for pixels in given]


def _shrunk(overlay: PIL.Image.Image) -> PIL.Image.Image:
    overlay.thumbnail((880, 880))
    return overlay


def _overlay(pixels: Image, heat: npt.NDArray[np.float32], level: float) -> PIL.Image.Image:
    """A picture under a map ``(H, W)`` of its size, at half brightness where that is `level`; a line is drawn there."""
    shade = np.round((heat / (2 * level)).clip(0, 1) * 255).astype(np.uint8)
    colours = cv2.applyColorMap(shade, cv2.COLORMAP_INFERNO)[..., ::-1]
    overlay = cv2.addWeighted(pixels, 0.4, np.ascontiguousarray(colours), 0.6, 0)
    around, _ = cv2.findContours((heat >= level).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(overlay, around, -1, (0, 255, 255), max(1, min(heat.shape) // 250))
    return PIL.Image.fromarray(overlay)
