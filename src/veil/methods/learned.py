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
from veil.core import Anonymizer, Frames, Veiled, VeilError, to_clip, to_frames
from veil.methods.adversarial import Adversarial
from veil.methods.bdq import BDQRecipe
from veil.methods.elr import ELR
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
        past, block = int(net.past), int(net.block)  # type: ignore[arg-type]
        skip = 1 if past == 0 and block == 1 else stage.skip
        length = (CHUNK if self.device == "cpu" else 8 * CHUNK) if block == 1 else block
        waiting: list[Frames] = []  # frames that wait for the rest of their group
        before: list[Frames] = []  # of the interleaved videos, the `past` small frames before the group
        for window in windows:
            for frame in window:
                waiting.append(frame)
                if len(waiting) == length * skip:
                    yield Veiled(_redrawn(redraw, stage.size, waiting, before, skip, past), None)
                    waiting = []
        if waiting:
            missing = -len(waiting) % (block * skip) if block > 1 else -len(waiting) % skip
            group = [*waiting, *[waiting[-1]] * missing]
            yield Veiled(_redrawn(redraw, stage.size, group, before, skip, past)[: len(waiting)], None)

    @cached_property
    def _redraw(self) -> Redraw:
        """Frames ``(T, h, w, 3)``, h and w multiples of 16, redrawn."""
        net, _ = self._made
        if self.device == "cpu" and isinstance(image := getattr(net, "net", None), ImageToImage):
            # Several times as fast as torch on a processor, above all on one that has other work.
            with tempfile.TemporaryDirectory(prefix="veil-") as folder:
                to_onnx(image, Path(folder) / "net.onnx", 4 * STEP)
                model = onnx.session(Path(folder) / "net.onnx")

            def by_onnx(frames: Frames) -> Frames:
                (drawn,) = model.run(None, {"images": frames.transpose(0, 3, 1, 2).astype(np.float32) / 255})
                return np.rint(np.asarray(drawn).clip(0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1)

            return by_onnx

        def by_torch(frames: Frames) -> Frames:
            with torch.inference_mode():
                return to_frames(net(to_clip(frames)[None].to(self.device))[0])

        return by_torch


def _redrawn(
    redraw: Redraw, side: int, group: list[Frames], before: list[Frames], skip: int, past: int
) -> Frames:
    """Frames of one group, through the network at its size; `before` are the small frames that it follows."""
    height, width = group[0].shape[:2]
    scale = side / min(height, width)
    size = _fitting(width * scale), _fitting(height * scale)
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    small: list[Frames] = [
        np.asarray(cv2.resize(frame, size, interpolation=how), np.uint8) for frame in group
    ]
    if not before:
        before += small[:skip] * past  # before the first frames nothing moved
    seen = [*before, *small]
    before[:] = seen[len(seen) - past * skip :]
    drawn: list[Any] = [None] * len(group)
    for phase in range(skip):
        drawn[phase::skip] = list(redraw(np.stack(seen[phase::skip]))[past:])
    return np.stack([cv2.resize(frame, (width, height), interpolation=cv2.INTER_LINEAR) for frame in drawn])


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
