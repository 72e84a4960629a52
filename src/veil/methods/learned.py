"""Learned anonymizers: every recipe by its name, and the anonymizer that a run of one becomes.

How a video goes through a network is told in `veil.methods.network`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from veil.core import Anonymizer, Frames, Veiled, VeilError, __version__
from veil.methods.adversarial import Adversarial
from veil.methods.bdq import BDQRecipe
from veil.methods.elr import ELR
from veil.methods.network import STEP, Redraw, Shape, redrawn
from veil.methods.noisy import NoisyRecipe
from veil.methods.penalty import Penalty
from veil.methods.prototypes import PrototypesRecipe
from veil.methods.spact import SPAct
from veil.methods.stprivacy import STPrivacy
from veil.methods.tedspad import TeDSPAD
from veil.nn import onnx
from veil.nn.unet import ImageToImage, to_onnx
from veil.training import config
from veil.training.data import DataConfig
from veil.training.recipe import Recipe
from veil.training.run import recipe_in, weights_in

CHUNK = 8  # frames that are redrawn at once, where each is redrawn by itself


class Learning(Recipe, Protocol):
    """The recipe of a pixel anonymizer."""

    @property
    def stage(self) -> DataConfig:
        """What it was trained on, and at which size."""
        ...

    def network(self) -> nn.Module:
        """A fresh anonymizer: clips ``(B, 3, T, H, W)`` in [0, 1] to clips; it says its `past` and its `block`, and is
        `dense` where it takes every frame."""
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
    "prototypes": PrototypesRecipe,
}
OTHERS = ("recognize", "encoder", "splavu")  # what else `veil train` trains


@dataclass(frozen=True)
class Learned(Anonymizer):
    """The anonymizer that a run of `veil train` has learned."""

    weights: str  # the run's weights.safetensors, beside its run.json
    device: str = "cpu"

    @cached_property
    def made(self) -> tuple[nn.Module, DataConfig]:
        """The network, and what it was trained on."""
        path = Path(self.weights)
        recipe = _recipe(path.parent)
        net = recipe.network()
        try:
            net.load_state_dict(load_file(path))
        except (SafetensorError, RuntimeError, OSError) as error:
            told = [line.strip() for line in str(error).strip().splitlines()]
            why = " ".join(told[1:] or told)[:200]  # of several lines, torch's first says nothing
            raise VeilError(
                f"{path} does not hold the weights of its run ({why}): train it again."
            ) from error
        return net.eval().to(self.device), recipe.stage

    @property
    def name(self) -> str:
        """See `Anonymizer`: what it was trained by."""
        return recipe_in(Path(self.weights).parent)[0]

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer`."""
        return redrawn(windows, self._redraw, self.shape, self._most)

    def ahead(self) -> int:
        """See `Anonymizer`."""
        return self.shape.ahead(self._most)

    @property
    def _most(self) -> int:
        return CHUNK if self.device == "cpu" else 16 * CHUNK  # a GPU is quicker with many at once

    @property
    def shape(self) -> Shape:
        """What the network sees at once."""
        net, stage = self.made
        past, block, future = (int(getattr(net, name, 0)) for name in ("past", "block", "future"))
        dense = getattr(net, "dense", past == 0 and block == 1)
        skip = 1 if dense else stage.skip
        return Shape(stage.size, skip, past, block, future, getattr(net, "square", False))

    @cached_property
    def _redraw(self) -> Redraw:
        """Clips ``(N, T, h, w, 3)`` uint8, h and w multiples of 16, redrawn."""
        net, _ = self.made
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


def load(run: str | Path) -> Learned:
    """The anonymizer of a run folder."""
    folder = Path(run)
    _recipe(folder)
    return Learned(str(weights_in(folder)))


def _recipe(folder: Path) -> Learning:
    """How the run in a folder was trained."""
    kind, plain = recipe_in(folder)
    if kind not in RECIPES:
        why = "anonymizes nothing" if kind in OTHERS else f"Veil {__version__} does not know"
        raise VeilError(f"{folder} is a run of '{kind}', which {why}: name a run of {', '.join(RECIPES)}.")
    return config.checked(plain, RECIPES[kind], lambda key: str(folder / "run.json"))
