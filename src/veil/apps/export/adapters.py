"""Adapters of features, to be exported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veil.apps.export.exportable import Inputs
from veil.core import VeilError
from veil.data import Dataset, Sample, read
from veil.data.frames import read_frames
from veil.features import encoders
from veil.features.adapter import Adapter, NetworkAdapter
from veil.features.extract import extract
from veil.features.subspace import SAME_CLIP, SubspaceAdapter


class ExportableAdapter:
    """An adapter: ``features`` ``(B, N, D)`` to ``anonymized`` ones of the same shape."""

    kind, output, unit, tolerance = "features", "anonymized", "deviations", 0.02

    def __init__(self, adapter: Adapter) -> None:
        self.name, self.adapter = adapter.name, adapter
        self.net: nn.Module = adapter
        self._masked = (
            isinstance(adapter, NetworkAdapter)
            and adapter.context != "clip"
            and not isinstance(adapter.layers, nn.Sequential)
        )

    def forward(self, *inputs: Tensor) -> Tensor:
        """See `Exportable`."""
        adapter = self.adapter
        features, mask = inputs[0], inputs[1] if self._masked else None
        x = adapter.eraser(adapter.standardized(features))
        if isinstance(adapter, SubspaceAdapter) and len(adapter.references):
            x = self._k_same(adapter, x)
        else:
            x = adapter.transform(x, mask)
        return x * adapter.scale + adapter.mean

    def _k_same(self, adapter: SubspaceAdapter, x: Tensor) -> Tensor:
        """As the adapter's own, by products instead of `cdist`, which as ONNX would hold every difference at once."""
        there = x.flatten(0, 1) @ adapter.whitening  # (B·N, R)
        places = adapter.whitened
        apart = there.square().sum(1, keepdim=True) - 2 * there @ places.T + places.square().sum(1)
        least = SAME_CLIP**2 * adapter.whitening.shape[1]
        apart = torch.where(apart < least, torch.full_like(apart, torch.finfo(torch.float32).max), apart)
        near = apart.topk(adapter.neighbours, 1, largest=False).indices
        return adapter.references[near].mean(1).reshape(x.shape)

    def reference(self, inputs: Inputs) -> np.ndarray:
        """See `Exportable`."""
        given = [torch.from_numpy(value) for value in inputs.values()]
        with torch.inference_mode():
            return self.adapter(*given).numpy()

    def test_inputs(self, videos: Sequence[str]) -> tuple[list[Inputs], str]:
        """See `Exportable`."""
        adapter = self.adapter
        try:
            encoder = encoders.make(adapter.encoder)
        except VeilError:
            encoder = None
        if encoder is not None and encoder.fingerprint == adapter.fingerprint:
            data = read("synthetic", size=encoder.size, count=32)
            description = f"{adapter.encoder} features of 32 videos of the synthetic dataset"
            if videos:
                samples = [Sample(str(i), "test", Path(path)) for i, path in enumerate(videos)]
                data = Dataset("videos", samples, read_frames)
                description = f"{adapter.encoder} features of {len(videos)} video{'s' * (len(videos) > 1)}"
            bank = extract(data, encoder, stills=0)
            clips, mask = bank.clips, bank.mask
        elif videos:
            raise VeilError(
                f"the encoder {adapter.encoder} that this adapter was trained with is not installed, so features of "
                f"{videos[0]} cannot be extracted: leave out --calibrate.",
                code="encoder-missing",
            )
        else:
            rng = torch.Generator().manual_seed(0)
            clips = torch.randn(32, 4, adapter.dim, generator=rng) * adapter.scale + adapter.mean
            mask = torch.ones(32, 4, dtype=torch.bool)
            description = f"random numbers with the mean and deviation of {adapter.encoder} features, which is not installed"
        given = [
            {"features": some.float().numpy(), **({"mask": there.numpy()} if self._masked else {})}
            for some, there in zip(clips.split(4), mask.split(4), strict=True)
        ]
        return given, description

    def example(self) -> tuple[dict[str, Tensor], dict[str, dict[int, str]], str]:
        """See `Exportable`."""
        free = {0: "videos", 1: "clips"}
        # Two clips: for one clip the adapter takes another branch, which the trace would keep.
        examples = {"features": torch.zeros(3, 2, self.adapter.dim)}
        if self._masked:
            examples["mask"] = torch.ones(3, 2, dtype=torch.bool)
        return (
            examples,
            dict.fromkeys([*examples, self.output], free),
            f"any number of videos and clips, {self.adapter.dim} numbers each",
        )

    def distance(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """See `Exportable`."""
        return np.abs(one - other) / self.adapter.scale.clamp_min(1e-6).numpy()

    def metadata(self) -> dict[str, Any]:
        """See `Exportable`."""
        adapter = self.adapter
        return {
            "dim": adapter.dim,
            "encoder": adapter.encoder,
            "fingerprint": adapter.fingerprint,
            "stream": "give the features of a video's clips together, and where there is a mask, which of them are there",
        }

    def may_quantize(self, node: str) -> bool:
        """See `Exportable`: not the closed-form erasure nor the nearest neighbours, which must be exact."""
        return "/layers." in node
