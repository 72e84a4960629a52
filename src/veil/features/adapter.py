"""The adapter of features: an eraser, a network, and others who stand for one; each of them may be left out.

With E the eraser (`veil.features.erasure`), N the network (residual attention or an MLP), and k-same::

    A(x) = same(N(E(x)))          same(x) = mean of the k clips of training videos that are nearest to x

Nearest is by Euclid after whitening; a clip never stands for itself. The k clips may be of fewer than k videos. What is remembered for it, clips of
training videos after N, is kept with the weights.

Attention sees one clip (`context = "clip"`), or a video's clips together (`"video"`). What happens to one video never depends on another; `"batch"`
breaks this law as SPLAVU's released code does (its attention runs over the batch), and is there to reproduce its tables only.
"""

from __future__ import annotations

import json
import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.core import VeilError
from veil.features.bank import Bank
from veil.features.erasure import Affine

Context = Literal["clip", "video", "batch"]
ITSELF = 1e-2  # deviations: a clip that is nearer is the same one


class Layer(nn.Module):
    """x + attention(x), and x + feed-forward(x) where there is one; ``(B, N, D)``."""

    def __init__(self, dim: int, heads: int, ratio: float, normed: bool) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(dim) if normed else nn.Identity()
        self.into = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        wide = round(ratio * dim)
        self.feed: nn.Sequential | None = None
        if wide:
            norm = nn.LayerNorm(dim) if normed else nn.Identity()
            self.feed = nn.Sequential(norm, nn.Linear(dim, wide), nn.GELU(), nn.Linear(wide, dim))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Where mask ``(B, N)`` is False, nobody looks."""
        x = x + self.out(self._seen(self.before(x), mask))
        return x if self.feed is None else x + self.feed(x)

    def _seen(self, x: Tensor, mask: Tensor | None) -> Tensor:
        dim = x.shape[-1]
        if x.shape[1] == 1:  # who is alone sees itself: queries and keys make no difference
            return F.linear(x, self.into.weight[2 * dim :], self.into.bias[2 * dim :])
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.into(x).chunk(3, -1)
        )
        allowed = None if mask is None else mask[:, None, None, :]
        return F.scaled_dot_product_attention(query, key, value, allowed).transpose(1, 2).flatten(2)


class Adapter(nn.Module):
    """A: features ``(B, N, D)`` of B videos with N clips to features; a clip that is not in ``mask (B, N)`` is not seen."""

    mean: Tensor  # (D,)
    scale: Tensor  # (D,)
    about: Tensor  # (bytes,) uint8: which features it was trained on, as JSON
    others: Tensor  # (M, D) clips of training videos after the network, where k of them stand for one
    places: Tensor  # (M, R) these, whitened
    whiten: Tensor  # (D, R)

    def __init__(
        self,
        dim: int,
        *,
        net: Literal["attention", "mlp", "none"] = "attention",
        layers: int = 3,
        heads: int = 8,
        ratio: float = 2.0,
        normed: bool = False,
        context: Context = "clip",
        identity: bool = False,
        neighbours: int = 0,
    ) -> None:
        super().__init__()
        if net == "attention" and dim % heads:
            raise VeilError(f"features of {dim} numbers cannot be shared among {heads} heads: change heads.")
        self.dim, self.context, self.neighbours = dim, context, neighbours
        for name in ("others", "places", "whiten"):
            self.register_buffer(name, torch.zeros(0, 0))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
        self.register_buffer("about", torch.zeros(0, dtype=torch.uint8))
        self.eraser = Affine(dim)
        self.layers: nn.ModuleList | nn.Sequential = nn.ModuleList()
        if net == "attention":
            self.layers = nn.ModuleList(Layer(dim, heads, ratio, normed) for _ in range(layers))
        elif net == "mlp":
            parts = [
                [nn.Linear(dim, dim), nn.ReLU(), nn.BatchNorm1d(dim), nn.Dropout(0.1)] for _ in range(layers)
            ]
            self.layers = nn.Sequential(*(module for part in parts for module in part))
        if identity:
            for layer in self.layers:
                if isinstance(layer, Layer):
                    last = [layer.out] if layer.feed is None else [layer.out, layer.feed[-1]]
                    for linear in last:
                        assert isinstance(linear, nn.Linear)
                        nn.init.zeros_(linear.weight)
                        nn.init.zeros_(linear.bias)

    @property
    def encoder(self) -> str:
        """The name of the encoder whose features it takes."""
        return self._told()["encoder"]

    @property
    def fingerprint(self) -> str:
        """Of that encoder's weights."""
        return self._told()["fingerprint"]

    def fill(self, tensors: dict[str, Tensor]) -> None:
        """Take over what another one has learned; what it remembers may be of any length."""
        for name in ("about", "others", "places", "whiten"):
            setattr(self, name, torch.empty_like(tensors[name], device=self.mean.device))
        self.load_state_dict(tensors)

    def tell(self, bank: Bank) -> None:
        """Remember which features these are."""
        told = json.dumps({"encoder": bank.encoder, "fingerprint": bank.fingerprint}).encode()
        self.about = torch.tensor(list(told), dtype=torch.uint8, device=self.mean.device)

    def _told(self) -> dict[str, str]:
        return json.loads(bytes(self.about.tolist()))

    def forward(self, clips: Tensor, mask: Tensor | None = None) -> Tensor:
        """Anonymized features, ``(B, N, D)``."""
        if clips.ndim != 3 or clips.shape[2] != self.dim:
            raise VeilError(
                f"the adapter takes features (B, N, {self.dim}), got {tuple(clips.shape)}: "
                "they are those of another encoder."
            )
        x = self.standard((clips - self.mean) / self.scale, mask)
        if len(self.others):
            x = self._same(x)
        return x * self.scale + self.mean

    @torch.no_grad()
    def remember(self, bank: Bank) -> None:
        """From now on, clips of these videos stand for others."""
        x = self.standard((bank.clips - self.mean) / self.scale, bank.mask)[bank.mask]
        check_others(len(x), self.neighbours)
        spread, vectors = torch.linalg.eigh((x - x.mean(0)).double().T.cov())
        there = spread > 1e-6 * spread[-1]
        self.whiten = (vectors[:, there] / spread[there].sqrt()).to(x)
        self.others, self.places = x, x @ self.whiten

    def _same(self, x: Tensor) -> Tensor:
        """The mean of the nearest others, ``(B, N, D)``."""
        out = []
        for part in x.flatten(0, 1).split(4096):
            apart = torch.cdist(part @ self.whiten, self.places)
            apart = apart.masked_fill(apart < ITSELF * self.whiten.shape[1] ** 0.5, math.inf)
            near = apart.topk(self.neighbours, 1, largest=False).indices
            out.append(self.others[near].mean(1))
        return torch.cat(out).view_as(x)

    def standard(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The same for features that are standardised already."""
        x = self.eraser(x)
        videos, number, dim = x.shape
        if isinstance(self.layers, nn.Sequential):
            if mask is None:
                return self.layers(x.flatten(0, 1)).view(videos, number, dim)
            out = x.new_zeros(x.shape)  # so that what is not there does not count in a batch's statistics
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


def check_others(clips: int, neighbours: int) -> None:
    """Refuse so few clips that they cannot stand for one another."""
    if clips <= neighbours:
        raise VeilError(
            f"{clips} clips cannot stand for others {neighbours} at a time: lower neighbours, or train on more videos."
        )


def anonymized(adapter: Adapter, bank: Bank) -> Bank:
    """The features of all videos after the adapter, which must have been trained on features of the same encoder."""
    if adapter.fingerprint != bank.fingerprint:
        raise VeilError(
            f"the adapter was trained on features of {adapter.encoder} ({adapter.fingerprint[:12]}), "
            f"these are of {bank.encoder} ({bank.fingerprint[:12]}): extract them with its encoder."
        )
    with torch.no_grad():
        clips = torch.cat([adapter(*part) for part in _parts(bank)])
        stills = bank.stills
        if stills.shape[1]:
            alone = stills.flatten(0, 1)[:, None]  # each static clip is a video of its own
            stills = torch.cat([adapter(part) for part in alone.split(4096)])[:, 0].view_as(stills)
    return bank.changed(clips, stills)


def _parts(bank: Bank) -> list[tuple[Tensor, Tensor]]:
    return list(zip(bank.clips.split(1024), bank.mask.split(1024), strict=True))
