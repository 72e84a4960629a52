"""Adapters: small maps of features to features, for the features of one encoder.

An adapter standardises features, erases part of them by an affine map E (`veil.features.erasure`; the identity where nothing is
erased), transforms what is left, and restores the scale::

    A(x) = scale · transform(E((x − mean) / scale)) + mean

The transforms are a trained network (`NetworkAdapter`, below) and k-same (`veil.features.subspace`). Which encoder's features an
adapter takes is kept with its weights.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.core import FeatureAnonymizer, VeilError
from veil.features.bank import Bank
from veil.features.erasure import AffineErasure

Context = Literal["clip", "video", "batch"]


class Adapter(nn.Module, FeatureAnonymizer):
    """Features ``(B, N, D)`` of B videos with N clips to features; clips outside ``mask (B, N)`` are ignored."""

    mean: Tensor  # (D,)
    scale: Tensor  # (D,)
    metadata: Tensor  # (bytes,) uint8: the encoder's name and fingerprint, as JSON
    method = ""  # by which it was trained, where it is that of a run
    resizable: tuple[str, ...] = ("metadata",)  # buffers whose length is that of the loaded weights

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
        self.register_buffer("metadata", torch.zeros(0, dtype=torch.uint8))
        self.eraser = AffineErasure(dim)

    @property
    def name(self) -> str:
        """See `FeatureAnonymizer`."""
        return self.method or super().name

    @property
    def encoder(self) -> str:
        """The name of the encoder whose features it takes."""
        return self._read_metadata()["encoder"]

    @property
    def fingerprint(self) -> str:
        """The fingerprint of that encoder's weights."""
        return self._read_metadata()["fingerprint"]

    def set_encoder(self, bank: Bank) -> None:
        """Record which encoder made the features of a bank."""
        text = json.dumps({"encoder": bank.encoder, "fingerprint": bank.fingerprint}).encode()
        self.metadata = torch.tensor(list(text), dtype=torch.uint8, device=self.mean.device)

    def _read_metadata(self) -> dict[str, str]:
        return json.loads(bytes(self.metadata.tolist()))

    def load_weights(self, tensors: dict[str, Tensor]) -> None:
        """Load a state dict, also one whose buffers have another length."""
        for name in self.resizable:
            setattr(self, name, torch.empty_like(tensors[name], device=self.mean.device))
        self.load_state_dict(tensors)

    def standardized(self, clips: Tensor) -> Tensor:
        """Features in the units of the transform."""
        return (clips - self.mean) / self.scale

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Anonymized features, ``(B, N, D)``."""
        if tokens.ndim != 3 or tokens.shape[2] != self.dim:
            raise VeilError(
                f"the adapter takes features (B, N, {self.dim}), got {tuple(tokens.shape)}: use its encoder.",
                code="features-shape",
            )
        x = self.transform(self.eraser(self.standardized(tokens)), mask)
        return x * self.scale + self.mean

    @abstractmethod
    def transform(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Standardised features ``(B, N, D)`` after erasure, transformed."""


class AdapterLayer(nn.Module):
    """x + attention(x), and x + feed-forward(x) where there is one; ``(B, N, D)``."""

    def __init__(self, dim: int, heads: int, ratio: float, norm: bool) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(dim) if norm else nn.Identity()
        self.into = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        hidden = round(ratio * dim)
        self.feed: nn.Sequential | None = None
        if hidden:
            first = nn.LayerNorm(dim) if norm else nn.Identity()
            self.feed = nn.Sequential(first, nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Where mask ``(B, N)`` is False, nothing is attended to."""
        x = x + self.out(self._attention(self.before(x), mask))
        return x if self.feed is None else x + self.feed(x)

    def _attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        dim = x.shape[-1]
        if x.shape[1] == 1:  # one token attends to itself alone: queries and keys make no difference
            return F.linear(x, self.into.weight[2 * dim :], self.into.bias[2 * dim :])
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.into(x).chunk(3, -1)
        )
        allowed = None if mask is None else mask[:, None, None, :]
        return F.scaled_dot_product_attention(query, key, value, allowed).transpose(1, 2).flatten(2)


class NetworkAdapter(Adapter):
    """An adapter whose transform is a residual network: attention with a feed-forward, or an MLP.

    Attention sees one clip (``context = "clip"``), or a video's clips together (``"video"``). What happens to one video
    never depends on another; ``"batch"`` breaks this law as SPLAVU's released code does (its attention runs over the
    batch), and exists to reproduce its tables only. ``identity``: the network starts as the identity.
    """

    def __init__(
        self,
        dim: int,
        *,
        network: Literal["attention", "mlp"] = "attention",
        layers: int = 3,
        heads: int = 8,
        mlp_ratio: float = 2.0,
        norm: bool = False,
        context: Context = "clip",
        identity: bool = False,
    ) -> None:
        super().__init__(dim)
        if network == "attention" and dim % heads:
            raise VeilError(
                f"features of {dim} numbers cannot be divided among {heads} heads: change heads.",
                code="heads",
            )
        self._params: dict[str, Any] = {
            "dim": dim, "network": network, "layers": layers, "heads": heads, "mlp_ratio": mlp_ratio,
            "norm": norm, "context": context, "identity": identity,
        }  # fmt: skip
        self.context = context
        self.layers: nn.ModuleList | nn.Sequential
        if network == "attention":
            self.layers = nn.ModuleList(AdapterLayer(dim, heads, mlp_ratio, norm) for _ in range(layers))
        else:
            parts = [
                [nn.Linear(dim, dim), nn.ReLU(), nn.BatchNorm1d(dim), nn.Dropout(0.1)] for _ in range(layers)
            ]
            self.layers = nn.Sequential(*(module for part in parts for module in part))
        if identity:
            for layer in self.layers:
                if isinstance(layer, AdapterLayer):
                    last = [layer.out] if layer.feed is None else [layer.out, layer.feed[-1]]
                    for linear in last:
                        assert isinstance(linear, nn.Linear)
                        nn.init.zeros_(linear.weight)
                        nn.init.zeros_(linear.bias)

    def params(self) -> dict[str, Any]:
        """See `FeatureAnonymizer`."""
        return dict(self._params)

    def transform(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """See `Adapter`."""
        videos, number, dim = x.shape
        if isinstance(self.layers, nn.Sequential):
            if mask is None:
                return self.layers(x.flatten(0, 1)).view(videos, number, dim)
            out = x.new_zeros(x.shape)  # so that padding does not count in a batch's statistics
            out[mask] = self.layers(x[mask]).to(out.dtype)
            return out
        if self.context == "clip":
            x, mask = x.reshape(videos * number, 1, dim), None
        elif self.context == "batch":
            x = x.reshape(1, videos * number, dim)
            mask = None if mask is None else mask.reshape(1, -1)
        for layer in self.layers:
            x = layer(x, mask)
        return x.reshape(videos, number, dim)


def anonymized(adapter: Adapter, bank: Bank) -> Bank:
    """The features of all videos after the adapter, which must have been trained on features of the same encoder."""
    if adapter.fingerprint != bank.fingerprint:
        raise VeilError(
            f"the adapter was trained on features of {adapter.encoder} ({adapter.fingerprint[:12]}), "
            f"these are of {bank.encoder} ({bank.fingerprint[:12]}): extract them with its encoder.",
            code="features-of-another-encoder",
        )
    with torch.no_grad():
        parts = zip(bank.clips.split(1024), bank.mask.split(1024), strict=True)
        clips = torch.cat([adapter(*part) for part in parts])
        stills = bank.stills
        if stills.shape[1]:
            alone = stills.flatten(0, 1)[:, None]  # each static clip is a video of its own
            stills = torch.cat([adapter(part) for part in alone.split(4096)])[:, 0].view_as(stills)
    return bank.changed(clips, stills)
