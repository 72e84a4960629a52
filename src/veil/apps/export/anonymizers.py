"""Anonymizers of frames, to be exported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veil.apps.demo import sample
from veil.apps.export.exportable import Inputs
from veil.core import Frames
from veil.data import read
from veil.media.sources import open_source
from veil.methods import builtin, learned
from veil.methods.prototypes.network import PrototypeNet
from veil.methods.stprivacy import TokenSelection
from veil.methods.streaming import ClipContext, ClipFunction, anonymized
from veil.nn.unet import ImageToImage

FRAMES, CLIPS = 96, 24  # of each video, and in all, that a model is compared on
FIXED_SIZE = (PrototypeNet, TokenSelection)  # networks whose input has one size


class ExportableAnonymizer:
    """An anonymizer: ``frames`` ``(N, T, h, w, 3)`` uint8 to ``anonymized`` ones of the same shape."""

    kind, output, unit, tolerance = "frames", "anonymized", "levels of 255", 1.0

    def __init__(self, name: str, net: nn.Module, shape: ClipContext) -> None:
        self.name, self.net = name, net.eval()
        self._fixed_size = isinstance(net, FIXED_SIZE)
        self.shape = shape._replace(square=shape.square or self._fixed_size)
        self._frame_by_frame = shape.block == 1 and shape.past == 0 and shape.future == 0

    def forward(self, *inputs: Tensor) -> Tensor:
        """See `Exportable`."""
        (frames,) = inputs
        image = getattr(self.net, "net", None)
        if self._frame_by_frame and isinstance(image, ImageToImage):
            flat = frames.flatten(0, 1).permute(0, 3, 1, 2).float() / 255  # (N·T, 3, h, w)
            anonymized = image.forward_aligned(flat).permute(0, 2, 3, 1)
        elif self._frame_by_frame:  # all frames as one clip, so that any number of clips works
            anonymized = self.net(frames.flatten(0, 1).permute(3, 0, 1, 2)[None].float() / 255)[0].permute(
                1, 2, 3, 0
            )
        else:
            anonymized = self.net(frames.permute(0, 4, 1, 2, 3).float() / 255).permute(0, 2, 3, 4, 1)
        return _to_bytes(anonymized).reshape(frames.shape)

    def reference(self, inputs: Inputs) -> np.ndarray:
        """See `Exportable`."""
        with torch.inference_mode():
            clips = torch.from_numpy(inputs["frames"]).permute(0, 4, 1, 2, 3).float() / 255
            return _to_bytes(self.net(clips)).permute(0, 2, 3, 4, 1).numpy()

    def test_inputs(self, videos: Sequence[str]) -> tuple[list[Inputs], str]:
        """See `Exportable`."""
        clips: list[Frames] = []
        for path in videos:
            with closing(open_source(path)) as source:
                frames = islice((frame for window in source.windows() for frame in window.frames), FRAMES)
                clips += _clips(np.stack(list(frames)), self.shape)
        description = f"{len(videos)} video{'s' * (len(videos) > 1)}"
        if not videos:
            clips += _clips(sample(FRAMES // 2, (160, 120)), self.shape)
            dataset = read("synthetic", size=96, count=8)
            for video in dataset.samples:
                clips += _clips(dataset.frames(video), self.shape)
            description = "the demo's video and 8 of the synthetic dataset"
        # Spread over all videos; each clip is a run of its own, because a run takes one size.
        chosen = [clips[i] for i in np.unique(np.linspace(0, len(clips) - 1, CLIPS).astype(int))]
        return [{"frames": clip} for clip in chosen], description

    def example(self) -> tuple[dict[str, Tensor], dict[str, dict[int, str]], str]:
        """See `Exportable`."""
        shape = self.shape
        length = shape.past + shape.block + shape.future
        free = {0: "batch"}
        description = [f"clips of {length} frames"]
        if self._frame_by_frame:
            free[1], description = "time", ["any number of frames"]
        if self._fixed_size:
            description.append(f"{shape.side}×{shape.side} pixels (frames are resized to that)")
        else:
            free |= {2: "height", 3: "width"}
            description.append("any multiples of 16 pixels")
        side = max(shape.side, 48)  # unlike every other length, so that the trace confuses no axes
        if self._fixed_size:
            side = shape.side
        example = torch.zeros(1 if self._frame_by_frame else 2, length, side, side, 3, dtype=torch.uint8)
        return {"frames": example}, {"frames": free, self.output: free}, ", ".join(description)

    def distance(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """See `Exportable`."""
        return np.abs(one.astype(np.int16) - other).astype(np.float32)

    def metadata(self) -> dict[str, Any]:
        """See `Exportable`."""
        return {
            **self.shape._asdict(),
            "stream": "bring the shorter side to `side` (both to it, where square) and both to multiples of 16; of "
            "every `skip`-th frame give `past` + `block` + `future` in bytes, and take the `block`; then bring them back",
        }

    def may_quantize(self, node: str) -> bool:
        """See `Exportable`."""
        return True


def builtin_prototypes() -> PrototypeNet:
    """The built-in network in torch, with the weights of its ONNX file."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(builtin.BUILTIN_PROTOTYPES))
    weights = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
    state = {
        name.removeprefix("net.").removesuffix("_16"): torch.tensor(values.astype(np.float32))
        for name, values in weights.items()
        if name.startswith("net.")
    }
    for node in model.graph.node:  # the exporter renamed the weights of norms, but not their modules
        module = node.name.rpartition("/")[0].rpartition("/")[2]
        if node.op_type in ("Mul", "Add") and module:
            for name in node.input:
                if name.startswith("onnx::"):
                    what = "weight" if node.op_type == "Mul" else "bias"
                    state[f"{module}.{what}"] = torch.tensor(weights[name].ravel())
    metadata: Mapping[str, Any] = {prop.key: json.loads(prop.value) for prop in model.metadata_props}
    width = len(state["exit.weight"][0])
    net = PrototypeNet(metadata["cell"], width, phase_temperature=metadata["phase_temperature"])
    net.load_state_dict(state)
    return net.eval()


def _to_bytes(values: Tensor) -> Tensor:
    return (values * 255).round().clamp(0, 255).to(torch.uint8)


def _clips(frames: Frames, shape: ClipContext) -> Iterator[Frames]:
    """The inputs of a network of that shape for a video, run by run."""
    given: list[Frames] = []

    def keep(clips: Frames) -> Frames:
        given.append(clips)
        return clips

    anonymize: ClipFunction = keep
    for _ in anonymized([frames], anonymize, shape, learned.CHUNK):
        yield from given
        given.clear()
