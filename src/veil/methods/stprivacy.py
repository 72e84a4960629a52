"""STPrivacy: a transformer that drops tubelets and reconstructs the others (Li et al. 2023, "STPrivacy: Spatio-Temporal
Privacy-Preserving Action Recognition", arXiv 2301.03046). Written from a description; of the paper only the abstract
was at hand, and the ratios and the shape of the predictor are those of DynamicViT (Rao et al. 2021, arXiv 2106.02034).

A clip is cut into tubelets of 2×16×16 pixels. With z the tokens, m ∈ {0, 1} which of them are kept, and at each of
the stages s a predictor P_s before a layer of the transformer:

    z = W x + places,  m = 1
    [a, b, c] = φ(W_s norm(z))                                              thirds of the channels
    π = P_s([a, mean of b over the kept of its frame, mean of c over the kept of the clip])       logits of keep, drop
    m ← m · Gumbel-softmax(π)_keep                                          train(): 0 or 1, the gradient that of the soft one
    m ← the r_s n best of the n tokens of each frame among the kept         eval(): by π_keep − π_drop
    z ← z + attention(z; m),  z ← z + MLP(z)        weight of key j for query i: m_j exp(s_ij) / Σ_k m_k exp(s_ik)
    out = m · σ(V norm(z))                                                  dropped tubelets are black

"Frame" means the pair of frames that a tubelet spans. How many tubelets are kept is brought to the ratios by

    L_ratio = 1/S Σ_s mean over clips of (mean m_s − r_s)²
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.core import VeilError
from veil.methods.adversarial import (
    AdversarialRecipe,
    SupervisedBudgetConfig,
    SupervisedModules,
    SupervisedSchedule,
)
from veil.methods.sections import UtilityConfig
from veil.training.data import TrainingBatch, TrainingData
from veil.training.data_config import DataConfig
from veil.training.recipe import STRICT, Seed, Training
from veil.training.steps import Terms

LONG, SIDE = 2, 16  # frames and pixels of a tubelet
STAGES, RATIOS = (3, 6, 9), (0.7, 0.49, 0.34)


class TokenSelection(nn.Module):
    """Clips ``(B, 3, T, H, W)`` in [0, 1] to those tubelets that are kept, reconstructed; same shape and range.

    T is a multiple of 2, H and W are of 16. `frames` and `size` are those of its positional embeddings; others get interpolated ones.
    `stages` are the layers, from 0, before which tokens are dropped, `ratios` the share of all tokens that is kept after each.
    """

    past: int = 0
    block: int = 16  # frames that attend to each other

    def __init__(
        self,
        dim: int = 192,
        depth: int = 12,
        heads: int = 3,
        stages: Sequence[int] = STAGES,
        ratios: Sequence[float] = RATIOS,
        frames: int = 16,
        size: int = 112,
    ) -> None:
        if min(dim, depth, heads) < 1 or dim % heads or dim < 4:
            raise VeilError(
                f"a transformer needs heads that divide its width: {dim=}, {depth=}, {heads=}.",
                code="transformer-invalid",
            )
        if list(stages) != sorted(set(stages)) or not all(0 <= stage < depth for stage in stages):
            raise VeilError(
                f"stages rise from 0 to {depth - 1}, the last layer: stages={list(stages)}.",
                code="stages-invalid",
            )
        if len(ratios) != len(stages):
            raise VeilError(
                f"{len(stages)} stages need as many ratios: ratios={list(ratios)}.", code="ratios-invalid"
            )
        if list(ratios) != sorted(ratios, reverse=True) or not all(0 < ratio <= 1 for ratio in ratios):
            raise VeilError(
                f"ratios fall from 1 and stay above 0: ratios={list(ratios)}.", code="ratios-invalid"
            )
        super().__init__()
        grid = _grid(frames, size, size)
        self.stages, self.ratios = tuple(stages), tuple(ratios)
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv3d(3, dim, (LONG, SIDE, SIDE), (LONG, SIDE, SIDE))})
        self.when = nn.Parameter(torch.empty(1, dim, grid[0]))
        self.where = nn.Parameter(torch.empty(1, dim, *grid[1:]))
        self.blocks = nn.ModuleList(_TokenLayer(dim, heads) for _ in range(depth))
        self.predictors = nn.ModuleList(_KeepPredictor(dim) for _ in stages)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, 3 * LONG * SIDE * SIDE)
        for weight in (self.when, self.where):
            nn.init.trunc_normal_(weight, std=0.02)
        # But not in the predictors: their four layers would give all tokens the same answer.
        for module in (self.head, *self.blocks.modules()):
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, clip: Tensor) -> Tensor:
        """What is kept, reconstructed; the rest black."""
        return self.anonymize(clip)[0]

    def anonymize(self, clip: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The same, and after each stage which tubelets are kept: 0 or 1, ``(B, T/2, H/16, W/16)``."""
        if clip.ndim != 5 or clip.shape[1] != 3:
            raise ValueError(f"a clip is (B, 3, T, H, W), got {tuple(clip.shape)}")
        grid = _grid(*clip.shape[2:])
        x = self.patch_embed["proj"](2 * clip - 1) + self._places(grid)  # (B, dim, T/2, H/16, W/16)
        x = x.flatten(3).permute(0, 2, 3, 1)  # (B, frames, n, dim)
        keep = torch.ones_like(x[..., 0])  # (B, frames, n)
        # In eval() as many are kept in every frame, so the others are removed for good, and `at` holds the places of those left.
        at = torch.arange(x.shape[2], device=x.device).expand(keep.shape)
        total, masks = int(x.shape[2]), []  # a number also where it is traced
        for depth, block in enumerate(self.blocks):
            if depth in self.stages:
                stage = self.stages.index(depth)
                logits = self.predictors[stage](x, keep).float()  # (B, frames, n, 2)
                if self.training:
                    keep = keep * _sampled(logits)
                    masks.append(keep)
                else:
                    best = _best(logits[..., 0] - logits[..., 1], max(1, round(self.ratios[stage] * total)))
                    x, at, keep = _taken(x, best), at.gather(2, best), keep.gather(2, best)
                    masks.append(_put(keep[..., None], at, total)[..., 0])
            flat = block(x.flatten(1, 2), keep.flatten(1) if self.training else None)
            x = flat.unflatten(1, x.shape[1:3])
        pixels = torch.sigmoid(self.head(self.norm(x)).float()) * keep[..., None]
        pixels = _put(pixels, at, total).unflatten(3, (3, LONG, SIDE, SIDE)).unflatten(2, grid[1:])
        # (B, frames, rows, columns, 3, 2, 16, 16) to (B, 3, frames, 2, rows, 16, columns, 16)
        pixels = pixels.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(clip.shape)
        return pixels.to(clip.dtype), [mask.unflatten(2, grid[1:]) for mask in masks]

    def _places(self, grid: tuple[int, int, int]) -> Tensor:
        when, where = self.when, self.where
        if grid[0] != when.shape[2]:
            when = F.interpolate(when, grid[0], mode="linear", align_corners=False)
        if grid[1:] != where.shape[2:]:
            where = F.interpolate(where, grid[1:], mode="bicubic", antialias=True)
        return when[..., None, None] + where[:, :, None]  # (1, dim, T/2, H/16, W/16)


def ratio_loss(masks: Sequence[Tensor], ratios: Sequence[float]) -> Tensor:
    """How far the kept share of each clip is from the ratio, squared; mean over stages and clips.

    Masks as of `TokenSelection.anonymize`, one for each ratio.
    """
    if not masks or len(masks) != len(ratios):
        raise ValueError(f"every stage has a mask and a ratio, got {len(masks)} and {len(ratios)}")
    shares = torch.stack([mask.float().flatten(1).mean(1) for mask in masks])  # (stages, B)
    return (shares - shares.new_tensor(ratios)[:, None]).square().mean()


class _KeepPredictor(nn.Module):
    """Logits of keep and drop for tokens ``(B, frames, n, dim)``, of themselves, their frame and their video."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.parts = (dim - 2 * (dim // 3), dim // 3, dim // 3)
        self.norm, self.inner = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, dim)
        self.out = nn.Sequential(
            nn.Linear(dim, dim // 2),
            nn.GELU(),
            nn.Linear(dim // 2, dim // 4),
            nn.GELU(),
            nn.Linear(dim // 4, 2),
        )

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        own, frame, video = F.gelu(self.inner(self.norm(x))).split(self.parts, dim=3)
        kept = keep[..., None]  # (B, frames, n, 1)

        def mean(part: Tensor, dims: tuple[int, ...]) -> Tensor:
            mean = (part * kept).sum(dims, keepdim=True) / kept.sum(dims, keepdim=True).clamp(min=1)
            return mean.expand(part.shape)

        return self.out(torch.cat([own, mean(frame, (2,)), mean(video, (1, 2))], 3))


class _MaskedAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        split = self.qkv(x).unflatten(2, (3, self.heads, -1))  # (B, N, 3, heads, dim of a head)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        if keep is None:
            mixed = F.scaled_dot_product_attention(query, key, value)
        else:
            scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])  # (B, heads, N, N)
            mixed = masked_softmax(scores.float(), keep).to(value.dtype) @ value
        return self.proj(mixed.transpose(1, 2).flatten(2))  # (B, N, dim)


class _TokenLayer(nn.Module):
    """A layer of a ViT over tokens ``(B, N, dim)``, named as in timm; `keep` ``(B, N)`` is 1 for tokens that are attended to, None: all."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = _MaskedAttention(dim, heads)
        inner = [("fc1", nn.Linear(dim, 4 * dim)), ("act", nn.GELU()), ("fc2", nn.Linear(4 * dim, dim))]
        self.mlp = nn.Sequential(OrderedDict(inner))

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        x = x + self.attn(self.norm1(x), keep)
        return x + self.mlp(self.norm2(x))


def masked_softmax(scores: Tensor, keep: Tensor) -> Tensor:
    """Softmax of ``(B, heads, N, N)`` over the last axis, to which tokens that are not kept ``(B, N)`` add nothing.

    With a gradient for `keep`, of dropped tokens too. A token always sees itself, so that no row is empty.
    """
    itself = torch.eye(keep.shape[1], dtype=torch.bool, device=keep.device)
    seen = keep[:, None, None, :].masked_fill(itself, 1)  # (B, 1, N, N)
    top = scores.detach().masked_fill(seen == 0, -math.inf).amax(3, keepdim=True)
    # What is not seen may lie above the top; there it could be infinite, and infinity times 0 is not a number.
    weights = (scores - top).clamp(max=0).exp() * seen
    return weights / weights.sum(3, keepdim=True)


def _sampled(logits: Tensor) -> Tensor:
    """Sampled 0 or 1, ``(…, 2)`` to ``(…)``, with the gradient of the probability (straight-through Gumbel-softmax)."""
    soft = F.gumbel_softmax(logits, dim=-1)[..., 0]
    return (soft >= 0.5).to(soft.dtype) + (soft - soft.detach())


def _best(scores: Tensor, count: int) -> Tensor:
    """Where the `count` highest of the last axis are, in order of place; of equals the first."""
    if torch.onnx.is_in_onnx_export():  # which has no stable sort, but whose TopK takes the first of equals
        return scores.topk(count, dim=-1).indices.sort(-1).values
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :count].sort(-1).values


def _taken(x: Tensor, at: Tensor) -> Tensor:
    """Rows ``(B, frames, k, D)`` of ``(B, frames, n, D)`` at ``(B, frames, k)``."""
    return x.gather(2, at[..., None].expand(*at.shape, x.shape[3]))


def _put(x: Tensor, at: Tensor, total: int) -> Tensor:
    """The inverse: rows ``(B, frames, k, D)`` back at their places among `total`, and 0 elsewhere."""
    empty = x.new_zeros(*x.shape[:2], total, x.shape[3])
    return empty.scatter(2, at[..., None].expand(x.shape), x)


def _grid(frames: int, height: int, width: int) -> tuple[int, int, int]:
    """How many tubelets there are each way."""
    if min(frames, height, width) < 1 or frames % LONG or height % SIDE or width % SIDE:
        raise VeilError(
            f"{frames} frames of {height}×{width} pixels do not fit into tubelets of {LONG}×{SIDE}×{SIDE}: "
            "choose multiples of these.",
            code="tubelets-do-not-fit",
        )
    return frames // LONG, height // SIDE, width // SIDE


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TokenSelectionConfig:
    """`[anonymizer]` of STPrivacy."""

    dim: Annotated[int, Field(ge=12)] = 192
    depth: Annotated[int, Field(ge=1)] = 12
    heads: Annotated[int, Field(ge=1)] = 3
    stages: tuple[int, ...] = STAGES
    ratios: tuple[float, ...] = RATIOS


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RatioConfig:
    """`[ratio]`: the term that is added to those of the supervised method."""

    weight: Annotated[float, Field(ge=0)] = 2.0  # of L_ratio


@dataclass(frozen=True, kw_only=True, config=STRICT)
class STPrivacyRecipe:
    """How STPrivacy is trained: as the supervised method, with a penalty where the kept share differs from the ratios."""

    # Paper: ViTs recognize actions and private attributes. Here: MViT and ViT-B, because they are the ones at hand.
    data: DataConfig = Field(default_factory=lambda: DataConfig(batch=8, augment="none"))
    anonymizer: TokenSelectionConfig = Field(default_factory=TokenSelectionConfig)
    utility: UtilityConfig = Field(default_factory=lambda: UtilityConfig(network="mvit_v2_s"))
    budget: SupervisedBudgetConfig = Field(
        default_factory=lambda: SupervisedBudgetConfig(
            networks=("vit_b_16",), uncertainty="reversal", weight=1.0
        )
    )
    ratio: RatioConfig = Field(default_factory=RatioConfig)
    schedule: SupervisedSchedule = Field(
        default_factory=lambda: SupervisedSchedule(optimizer="adamw", cosine=True)
    )
    seed: Seed = 0

    def __post_init__(self) -> None:
        self.supervised()
        self.network()  # refuses values that do not fit together

    def supervised(self) -> AdversarialRecipe:
        """The supervised method on the same data."""
        return AdversarialRecipe(
            data=self.data,
            utility=self.utility,
            budget=self.budget,
            schedule=self.schedule,
            seed=self.seed,
        )

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.supervised().steps

    def network(self) -> nn.Module:
        """A fresh anonymizer."""
        of, data = self.anonymizer, self.data
        return TokenSelection(of.dim, of.depth, of.heads, of.stages, of.ratios, data.length, data.size)

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        torch.manual_seed(self.seed)
        supervised, anonymizer = self.supervised(), self.network().to(device)
        modules = SupervisedModules(supervised, anonymizer, TrainingData(self.data, device, self.seed))

        def anonymizer_loss(batch: TrainingBatch) -> Terms:
            anonymized, masks = anonymizer.anonymize(batch.clip)  # type: ignore[operator]
            ratio = self.ratio.weight * ratio_loss(masks, self.anonymizer.ratios)
            return {**modules.anonymizer_loss(batch, anonymized), "ratio": ratio}

        return supervised.training_of(modules, devices, anonymizer_loss)
