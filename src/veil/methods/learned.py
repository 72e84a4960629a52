"""The anonymizer that a run of `veil train` becomes; see `veil.methods.streaming` for how a video passes through it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from veil.core import Anonymizer, Frames, Veiled, VeilError
from veil.methods.recipes import RECIPES, PixelRecipe
from veil.methods.streaming import STEP, ClipContext, ClipFunction, anonymized
from veil.nn import onnx
from veil.nn.unet import ImageToImage, to_onnx
from veil.training import config
from veil.training.data_config import DataConfig
from veil.training.run import recipe_in, weights_in

CHUNK = 8  # frames that are anonymized at once, where each is anonymized by itself


@dataclass(frozen=True)
class Learned(Anonymizer):
    """The anonymizer of a run of `veil train`."""

    weights: str  # the run's weights.safetensors, beside its run.json
    device: str = "cpu"

    @cached_property
    def made(self) -> tuple[nn.Module, DataConfig]:
        """The network, and its training data."""
        path = Path(self.weights)
        recipe = _recipe(path.parent)
        net = recipe.network()
        try:
            net.load_state_dict(load_file(path))
        except (SafetensorError, RuntimeError, OSError) as error:
            lines = [line.strip() for line in str(error).strip().splitlines()]
            reason = " ".join(lines[1:] or lines)[:200]  # torch's first line of several has no details
            raise VeilError(
                f"{path} does not hold the weights of its run ({reason}): train it again.",
                code="weights-do-not-fit",
            ) from error
        return net.eval().to(self.device), recipe.data

    @property
    def name(self) -> str:
        """See `Anonymizer`: the method of the run."""
        return recipe_in(Path(self.weights).parent)[0]

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer`."""
        return anonymized(windows, self._anonymize, self.context, self._chunk)

    def ahead(self) -> int:
        """See `Anonymizer`."""
        return self.context.ahead(self._chunk)

    @property
    def _chunk(self) -> int:
        return CHUNK if self.device == "cpu" else 16 * CHUNK  # a GPU is faster with many at once

    @property
    def context(self) -> ClipContext:
        """What the network sees at once."""
        net, data = self.made
        past, block, future = (int(getattr(net, name, 0)) for name in ("past", "block", "future"))
        dense = getattr(net, "dense", past == 0 and block == 1)
        skip = 1 if dense else data.skip
        return ClipContext(data.size, skip, past, block, future, getattr(net, "square", False))

    @cached_property
    def _anonymize(self) -> ClipFunction:
        """Clips ``(N, T, h, w, 3)`` uint8, h and w multiples of 16, anonymized."""
        net, _ = self.made
        if self.device == "cpu" and isinstance(image := getattr(net, "net", None), ImageToImage):
            # Several times as fast as torch on a CPU, most of all on one that is busy.
            with tempfile.TemporaryDirectory(prefix="veil-") as folder:
                to_onnx(image, Path(folder) / "net.onnx", 4 * STEP)
                model = onnx.session(Path(folder) / "net.onnx")

            def by_onnx(clips: Frames) -> Frames:
                images = clips.reshape(-1, *clips.shape[2:]).transpose(0, 3, 1, 2).astype(np.float32) / 255
                (output,) = model.run(None, {"images": images})
                frames = np.rint(np.asarray(output).clip(0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1)
                return frames.reshape(clips.shape)

            return by_onnx

        def by_torch(clips: Frames) -> Frames:
            with torch.inference_mode():
                clip = torch.from_numpy(clips).to(self.device).permute(0, 4, 1, 2, 3).float().div_(255)
                output = net(clip).mul(255).round_().clamp_(0, 255).byte()
                return output.permute(0, 2, 3, 4, 1).cpu().numpy()

        return by_torch


def load(run: str | Path) -> Learned:
    """The anonymizer of a run folder."""
    folder = Path(run)
    _recipe(folder)
    return Learned(str(weights_in(folder)))


def _recipe(folder: Path) -> PixelRecipe:
    """The recipe of the run in a folder."""
    kind, values = recipe_in(folder)
    if kind not in RECIPES:
        raise VeilError(
            f"{folder} is a run of '{kind}', which is not a pixel anonymizer: name a run of {', '.join(RECIPES)}.",
            code="run-anonymizes-no-pixels",
        )
    return config.checked(values, RECIPES[kind], lambda key: str(folder / "run.json"))
