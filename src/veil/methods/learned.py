"""Learned anonymizers: every recipe by its name, and the anonymizer that a run of one becomes.

A network works at the size and the stride that it was trained with. A video of any size is brought to that size (its
shorter side), redrawn, and brought back: no detail that the network has not drawn can leave. A network that looks at
several frames sees every `skip`-th one, as in training, so that a video is redrawn as `skip` interleaved ones; those are
cut into blocks that are counted from the first frame, whatever the windows are.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
import torch
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from veil import config
from veil.core import Anonymizer, Frames, Veiled, VeilError
from veil.methods.adversarial import Adversarial
from veil.methods.bdq import BDQRecipe
from veil.methods.elr import ELR
from veil.methods.everyone import EveryoneRecipe
from veil.methods.noisy import NoisyRecipe
from veil.methods.penalty import Penalty
from veil.methods.spact import SPAct
from veil.methods.stage import Stage
from veil.methods.stprivacy import STPrivacy
from veil.methods.tedspad import TeDSPAD
from veil.nn import onnx
from veil.nn.unet import ImageToImage, to_onnx
from veil.recipe import Recipe

Redraw = Callable[[Frames], Frames]
STEP = 16  # pixels of which sides are multiples
CHUNK = 8  # frames that are redrawn at once, where each is redrawn by itself


class Learning(Recipe, Protocol):
    """The recipe of a pixel anonymizer."""

    @property
    def stage(self) -> Stage:
        """What it was trained on, and at which size."""
        ...

    def network(self) -> nn.Module:
        """A fresh anonymizer: clips ``(B, 3, T, H, W)`` in [0, 1] to clips; it says its `past` and its `block`."""
        ...


RECIPES: dict[str, type[Learning]] = {
    "spact": SPAct,
    "penalty": Penalty,
    "adversarial": Adversarial,
    "tedspad": TeDSPAD,
    "bdq": BDQRecipe,
    "elr": ELR,
    "stprivacy": STPrivacy,
    "noisy": NoisyRecipe,
    "everyone": EveryoneRecipe,
}


@dataclass(frozen=True)
class Learned(Anonymizer):
    """The anonymizer that a run of `veil train` has learned."""

    weights: str  # the run's weights.safetensors, beside its run.json
    device: str = "cpu"

    @cached_property
    def _made(self) -> tuple[nn.Module, Stage]:
        path = Path(self.weights)
        recipe = _recipe(path.parent)
        net = recipe.network()
        try:
            net.load_state_dict(load_file(path))
        except (SafetensorError, RuntimeError, OSError) as error:
            why = str(error).strip().splitlines()[0]
            raise VeilError(
                f"{path} does not hold the weights of its run ({why}): train it again."
            ) from error
        return net.eval().to(self.device), recipe.stage

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer`."""
        (net, stage), redraw = self._made, self._redraw
        past, block, future = (int(getattr(net, name, 0)) for name in ("past", "block", "future"))
        alone = past == 0 and block == 1
        skip = 1 if alone else stage.skip
        most = CHUNK if self.device == "cpu" else 16 * CHUNK  # a GPU is quicker with many at once
        group = _Group(redraw, stage.size, skip, past, block, future, count=max(1, most // (block * skip)))
        for window in windows:
            for frame in window:
                if (drawn := group.add(frame)) is not None:
                    yield Veiled(drawn, None)
        for drawn in group.rest():
            yield Veiled(drawn, None)

    @cached_property
    def _redraw(self) -> Redraw:
        """Clips ``(N, T, h, w, 3)`` uint8, h and w multiples of 16, redrawn."""
        net, _ = self._made
        if self.device == "cpu" and isinstance(image := getattr(net, "net", None), ImageToImage):
            # Several times as fast as torch on a processor, above all on one that has other work.
            with tempfile.TemporaryDirectory(prefix="veil-") as folder:
                to_onnx(image, Path(folder) / "net.onnx", 4 * STEP)
                model = onnx.session(Path(folder) / "net.onnx")

            def by_onnx(clips: Frames) -> Frames:
                images = clips.reshape(-1, *clips.shape[2:]).transpose(0, 3, 1, 2).astype(np.float32) / 255
                (drawn,) = model.run(None, {"images": images})
                frames = np.rint(np.asarray(drawn).clip(0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1)
                return frames.reshape(clips.shape)

            return by_onnx

        def by_torch(clips: Frames) -> Frames:
            with torch.inference_mode():
                seen = torch.from_numpy(clips).to(self.device).permute(0, 4, 1, 2, 3).float().div_(255)
                drawn = net(seen).mul(255).round_().clamp_(0, 255).byte()
                return drawn.permute(0, 2, 3, 4, 1).cpu().numpy()

        return by_torch


class _Group:
    """Frames that wait until those that are redrawn together, and those after them that are looked at, are there."""

    def __init__(
        self, redraw: Redraw, side: int, skip: int, past: int, block: int, future: int, count: int
    ) -> None:
        """`count`: how many blocks are redrawn at once."""
        self._redraw, self._side, self._skip = redraw, side, skip
        self._past, self._block, self._future = past, block, future
        self._unit, self._length = block * skip, block * skip * count  # frames
        self._small: list[
            Frames
        ] = []  # those before, those to be redrawn, those after, at the network's size
        self._waiting = 0  # how many of them are to be redrawn
        self._size = (0, 0)

    def add(self, frame: Frames) -> Frames | None:
        """One more frame; redrawn ones, where there are enough."""
        self._size = frame.shape[1], frame.shape[0]
        scale = self._side / min(self._size)
        size = _fitting(self._size[0] * scale), _fitting(self._size[1] * scale)
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        small = np.asarray(cv2.resize(frame, size, interpolation=how), np.uint8)
        if not self._small:
            self._small += [small] * self._past * self._skip  # before the first frame nothing moved
        self._small.append(small)
        self._waiting += 1
        ready = self._waiting == self._length + self._future * self._skip
        return self._drawn(self._length) if ready else None

    def rest(self) -> Iterator[Frames]:
        """What still waits when the video is over; after its last frame nothing moves."""
        while self._waiting > 0:
            count = min(self._waiting, self._length)
            needed = count + -count % self._unit
            missing = needed + self._future * self._skip - self._waiting
            self._small += [self._small[-1]] * max(0, missing)
            yield self._drawn(needed)[:count]

    def _drawn(self, count: int) -> Frames:
        """The next `count` frames, redrawn: of each of the interleaved videos some blocks, with what is around them."""
        skip, block, reach = self._skip, self._block, self._past + self._block + self._future
        drawn: list[Any] = [None] * count
        seen = np.stack(self._small[: count + (self._past + self._future) * skip])
        starts = [(phase, first) for phase in range(skip) for first in range(0, count // skip, block)]
        if block == 1 and reach == 1:  # frame by frame: one clip of them all
            drawn[:] = list(self._redraw(seen[None])[0])
        else:
            clips = np.stack([seen[phase::skip][first : first + reach] for phase, first in starts])
            for (phase, first), clip in zip(starts, self._redraw(clips), strict=True):
                at = slice(phase + first * skip, phase + (first + block) * skip, skip)
                drawn[at] = list(clip[self._past : self._past + block])
        self._small = self._small[count:]
        self._waiting -= count
        return np.stack([cv2.resize(frame, self._size, interpolation=cv2.INTER_LINEAR) for frame in drawn])


def _fitting(length: float) -> int:
    """The nearest length that every network takes without padding."""
    return max(STEP, round(length / STEP) * STEP)


def load(run: str | Path) -> Learned:
    """The anonymizer of a run folder."""
    folder = Path(run)
    _recipe(folder)
    weights = folder / "weights.safetensors"
    if not weights.is_file():
        raise VeilError(
            f"{folder} has no weights.safetensors yet: its training is not finished; go on with `veil train --resume`."
        )
    return Learned(str(weights))


def _recipe(folder: Path) -> Learning:
    """How the run in a folder was trained."""
    try:
        about = json.loads((folder / "run.json").read_text())
        kind, plain = about["kind"], about["recipe"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VeilError(f"{folder} holds no run: there is no run.json that Veil has written.") from error
    if kind not in RECIPES:
        raise VeilError(
            f"{folder} is a run of '{kind}', which anonymizes nothing: name a run of {', '.join(RECIPES)}."
        )
    return config.checked(plain, RECIPES[kind], lambda key: str(folder / "run.json"))
