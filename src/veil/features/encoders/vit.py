"""The one vision transformer over clips: VideoMAE, VideoMAEv2, InternVideo, V-JEPA and V-JEPA 2 are configurations of it.

timm has no video transformer with tubelets, biases of queries and values only, or rotary positions in three axes, so the
blocks are written out here; their tensors are named as in the official code.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.features.encoders.frozen import LENGTH, Backbone


@dataclass(frozen=True)
class ViTConfig:
    """The configuration of a `VideoViT`."""

    dim: int
    depth: int
    heads: int
    inner: int  # units between the two linear layers of a block
    patch: int = 16
    size: int = 224
    length: int = LENGTH
    tubelet: int = 2  # frames of a patch
    positions: Literal["sinusoid", "stored", "rotary"] = "sinusoid"
    bias: Literal["qv", "qkv"] = "qv"  # keys have one or not
    final_norm: Literal["fc_norm", "norm"] = (
        "fc_norm"  # the last norm is on the mean of all tokens, or on each
    )
    eps: float = 1e-6
    last_eps: float = 1e-6  # of the last norm

    @property
    def grid(self) -> tuple[int, int, int]:
        """Patches over time, down and across."""
        return self.length // self.tubelet, self.size // self.patch, self.size // self.patch


class _ViTAttention(nn.Module):
    def __init__(self, shape: ViTConfig) -> None:
        super().__init__()
        dim = shape.dim
        self.shape = shape
        self.qkv = nn.Linear(dim, 3 * dim, bias=shape.bias == "qkv")
        if shape.bias == "qv":
            self.q_bias, self.v_bias = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.qkv.bias
        if self.shape.bias == "qv":
            bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        split = F.linear(x, self.qkv.weight, bias).unflatten(2, (3, self.shape.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # (B, heads, N, dim of a head)
        if self.shape.positions == "rotary":
            query, key = rotate_by_position(query, self.shape.grid), rotate_by_position(key, self.shape.grid)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))  # (B, N, dim)


class _ViTBlock(nn.Module):
    def __init__(self, shape: ViTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.dim, eps=shape.eps)
        self.attn = _ViTAttention(shape)
        self.norm2 = nn.LayerNorm(shape.dim, eps=shape.eps)
        inner = [("fc1", nn.Linear(shape.dim, shape.inner)), ("act", nn.GELU())]
        self.mlp = nn.Sequential(OrderedDict([*inner, ("fc2", nn.Linear(shape.inner, shape.dim))]))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VideoViT(Backbone):
    """A transformer over patches of a clip; its tensors are named as in the official code of VideoMAE and V-JEPA."""

    # A classifier; what was trained beside the encoder; V-JEPA 2 keeps a table of positions that it does not use.
    ignored = ("head.", "predictor.", "pooler.")

    def __init__(self, shape: ViTConfig) -> None:
        super().__init__()
        self.shape, self.dim = shape, shape.dim
        patch = shape.tubelet, shape.patch, shape.patch
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv3d(3, shape.dim, patch, patch)})
        if shape.positions == "stored":
            self.pos_embed = nn.Parameter(torch.zeros(1, math.prod(shape.grid), shape.dim))
        elif shape.positions == "sinusoid":  # computed, so no published file has it
            self.register_buffer(
                "positions", sinusoidal_positions(math.prod(shape.grid), shape.dim), persistent=False
            )
        else:
            self.ignored = (*self.ignored, "pos_embed")
        self.blocks = nn.ModuleList(_ViTBlock(shape) for _ in range(shape.depth))
        self.add_module(shape.final_norm, nn.LayerNorm(shape.dim, eps=shape.last_eps))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``(B, N, dim)``, frame after frame and row after row."""
        x = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        if self.shape.positions == "stored":
            x = x + self.pos_embed
        elif self.shape.positions == "sinusoid":
            x = x + self.get_buffer("positions").to(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.get_submodule("norm")(x) if self.shape.final_norm == "norm" else x

    def pool(self, tokens: Tensor) -> Tensor:
        """The mean of the tokens, normed where that is done to the mean."""
        mean = tokens.mean(1)
        return self.get_submodule("fc_norm")(mean) if self.shape.final_norm == "fc_norm" else mean


def sinusoidal_positions(count: int, dim: int) -> Tensor:
    """Positions of tokens in a row, ``(1, count, dim)``: sin(n / 10000^(2⌊j/2⌋/dim)) for even j, cos for odd ones."""
    place = torch.arange(count, dtype=torch.float64)[:, None]
    rate = 10000 ** -(2 * torch.arange(dim, dtype=torch.float64).div(2, rounding_mode="floor") / dim)
    table = place * rate
    table[:, 0::2], table[:, 1::2] = table[:, 0::2].sin(), table[:, 1::2].cos()
    return table.float()[None]


def rotate_by_position(x: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """Queries or keys ``(B, heads, N, D)`` rotated by their position: a third of D by time, one by row, one by column."""
    # Paper: components 2i and 2i + 1 turn by the same angle. Here: component j by place · 10000^(−(j mod n)/n) with n
    # pairs to a third, because the released weights were trained so.
    pairs = x.shape[-1] // 3 // 2
    axes = torch.meshgrid(*(torch.arange(n, device=x.device) for n in grid), indexing="ij")
    rate = 10000 ** -(torch.arange(pairs, device=x.device, dtype=x.dtype) / pairs)
    parts = []
    for number, axis in enumerate(axes):
        part = x[..., 2 * pairs * number : 2 * pairs * (number + 1)]
        angle = (axis.flatten()[:, None] * rate).repeat(1, 2)  # (N, 2·pairs)
        even, odd = part.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([-odd, even], dim=-1).flatten(-2)
        parts.append(part * angle.cos() + turned * angle.sin())
    return torch.cat([*parts, x[..., 6 * pairs :]], dim=-1)
