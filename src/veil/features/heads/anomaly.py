"""Which moments of a long video are anomalous: MGFN (Chen et al. 2023, arXiv 2211.15098).

It is trained on whole videos with one label each, normal or abnormal. Each is reduced to 32 pieces (`binned`).
With the features x_t `(D,)` of a piece, and amplified by how large they are::

    token_t = Conv₃(x)_t + 0.1 Conv₃(‖x‖₂)_t

Three stages of layers follow: first *glance* (attention over the whole video), then twice *focus* (a convolution over five
pieces, of its own for each head); each layer is::

    x ← x + Conv₃(x);   x ← x + Glance(x) or Focus(x);   x ← x + FFN(x)

The last features f_t have a score s_t = sigmoid(w·LN(f_t) + b). The k = 3 pieces with the largest ‖f_t‖₂ represent a video,
after seven of ten were dropped at random; S is the mean of their scores, and M `(k,)` their ‖f_t‖₁. With abnormal videos a,
normal ones n, y = 1 for the abnormal, and d the Euclidean distance::

    L = BCE(S, y)                                                                       "bag"
      + λ_c mean (λ_s max(0, 200 − d(M_a, M_n))² + d(M_a, M_a')² + d(M_n, M_n')²)       "magnitude"
      + λ_1 Σ_a Σ_t (s_t − s_{t+1})²                                                    "smooth"
      + λ_2 ‖s of all a‖₂                                                               "sparse"

Videos of a kind are paired in the order in which they come: an abnormal with a normal one, the first half of a kind with
its second half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.core import VeilError
from veil.data.sample import Segment
from veil.features.heads.sequence import BatchNorm, ChannelNorm, Conv, checked, emptied

PIECES = 32  # that a video is brought to for training
MARGIN = 200.0  # between the magnitudes of abnormal and normal videos
AMPLIFIED = 0.1  # weight of the magnitude beside the features
HEAD = 64  # channels of a head
REACH = 5  # pieces that focus sees


@dataclass(frozen=True)
class LossWeights:
    """Of the terms beside the bag's, as the docstring of this file names them."""

    smooth: float  # λ_1
    sparse: float  # λ_2
    magnitude: float  # λ_c
    apart: float  # λ_s


WeightsName = Literal["paper", "released"]
LOSS_WEIGHTS: dict[WeightsName, LossWeights] = {
    "paper": LossWeights(smooth=1.0, sparse=1.0, magnitude=1e-3, apart=1.0),
    "released": LossWeights(smooth=8e-4, sparse=8e-3, magnitude=1e-3, apart=1e-3),
}


class AnomalyScores(NamedTuple):
    """The predictions for each piece of B videos, in C crops."""

    scores: Tensor  # (B, T) in [0, 1], the mean over the crops; 0 in the padding
    features: Tensor  # (B, C, T, F)
    mask: Tensor  # (B, T) bool


class Bag(NamedTuple):
    """The pieces that represent each of B videos."""

    places: Tensor  # (B, k)
    score: Tensor  # (B,) the mean of their scores
    magnitude: Tensor  # (B, C, k) the L1 norms of their features, in each crop


class _Glance(nn.Module):
    """Attention over all clips of a video."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = _heads(width)
        self.norm = ChannelNorm(width)
        self.qkv = nn.Conv1d(width, 3 * width, 1, bias=False)
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).unflatten(1, (3, self.heads, -1)).transpose(3, 4)  # (B, 3, H, T, 64)
        seen = F.scaled_dot_product_attention(*parts.unbind(1), attn_mask=mask[:, None])  # (B, H, T, 64)
        return self.out(seen.transpose(2, 3).flatten(1, 2))


class _Focus(nn.Module):
    """A convolution over neighbouring clips, the same for all channels of a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = _heads(width)
        self.norm = BatchNorm(width)
        self.value = nn.Conv1d(width, width, 1, bias=False)
        self.near = Conv(self.heads, self.heads, REACH, groups=self.heads)
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        value = self.value(self.norm(x, mask)).unflatten(1, (-1, self.heads))  # (B, 64, H, T)
        each = mask.repeat_interleave(value.shape[1], 0)
        near = self.near(value.flatten(0, 1), each).view_as(value)
        return self.out(near.flatten(1, 2))


class _MGFNLayer(nn.Module):
    def __init__(self, width: int, kind: Literal["glance", "focus"]) -> None:
        super().__init__()
        self.conv = Conv(width, width, 3)
        self.attention = _Glance(width) if kind == "glance" else _Focus(width)
        self.feed = nn.Sequential(
            ChannelNorm(width), nn.Conv1d(width, 4 * width, 1), nn.GELU(), nn.Conv1d(4 * width, width, 1)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.conv(x, mask)
        x = x + self.attention(x, mask)
        return x + self.feed(x)


class MGFN(nn.Module):
    """Features `(B, T, dim)` of clips in, or `(B, crops, T, dim)`; the scores of each clip out.

    The defaults are the paper's. widths, depths: channels and layers of the stages. top: k. dropout: of pieces, before the
    largest are chosen. weights: of the terms, as printed or as in the published code.

    Only their magnitudes separate the clips of an abnormal video in the loss, and *glance* mixes all of them. Trained for long on
    few videos it may score all clips of a video as abnormal, or even more so those where nothing happens: choose when to stop by the frames of validation videos.
    """

    def __init__(
        self,
        dim: int,
        *,
        widths: tuple[int, int, int] = (64, 128, 1024),
        depths: tuple[int, int, int] = (3, 3, 2),
        top: int = 3,
        dropout: float = 0.7,
        weights: WeightsName = "released",
    ) -> None:
        super().__init__()
        if weights not in LOSS_WEIGHTS:
            raise VeilError(
                f"MGFN has no weights {weights!r}: choose from {', '.join(LOSS_WEIGHTS)}.",
                code="mgfn-weights",
            )
        self.top, self.dropout, self.weights = top, dropout, LOSS_WEIGHTS[weights]
        first, second, last = widths
        self.tokens, self.magnitude = Conv(dim, first, 3), Conv(1, first, 3)
        glance, focus, deep = (
            nn.ModuleList(_MGFNLayer(width, kind) for _ in range(depth))
            for width, depth, kind in zip(widths, depths, ("glance", "focus", "focus"), strict=True)
        )
        self.stages = nn.ModuleList((glance, focus, deep))
        self.between = nn.ModuleList(
            nn.Sequential(ChannelNorm(a), nn.Conv1d(a, b, 1)) for a, b in ((first, second), (second, last))
        )
        self.norm, self.linear = nn.LayerNorm(last), nn.Linear(last, 1)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> AnomalyScores:
        """mask `(B, T)`, bool, marks the clips. In tests of clips as they are; in training of `binned` videos."""
        crops = features[:, None] if features.ndim == 3 else features  # (B, C, T, D)
        if crops.ndim != 4:
            raise ValueError(f"features are (B, T, D) or (B, crops, T, D), got {tuple(features.shape)}")
        mask = checked(crops[:, 0], mask)
        each = mask.repeat_interleave(crops.shape[1], 0)[:, None]  # (BC, 1, T)
        x = emptied(crops.flatten(0, 1).transpose(1, 2), each)  # (BC, D, T)
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        x = self.tokens(x, each) + AMPLIFIED * self.magnitude(length, each)
        for i, stage in enumerate(self.stages):
            x = self.between[i - 1](x) if i else x
            for layer in stage:  # type: ignore[union-attr]
                x = layer(x, each)
        found = emptied(x, each).transpose(1, 2).unflatten(0, crops.shape[:2])  # (B, C, T, F)
        scores = self.linear(self.norm(found)).float().sigmoid()[..., 0].mean(1)  # (B, T)
        return AnomalyScores(emptied(scores, mask), found, mask)

    def bag(self, scored: AnomalyScores) -> Bag:
        """The pieces of each video with the largest magnitudes, and their scores; of a random selection in training."""
        scores, features, mask = scored
        if mask.shape[1] < self.top:
            raise ValueError(f"a video of {mask.shape[1]} pieces has no {self.top} largest; see `binned`")
        size = torch.linalg.vector_norm(features.detach().float(), dim=3).mean(1)  # (B, T)
        size = F.dropout(torch.ones_like(size), self.dropout, self.training) * size
        places = size.masked_fill(~mask, -1).topk(self.top, dim=1).indices  # (B, k)
        valid = mask.gather(1, places)
        score = (scores.gather(1, places) * valid).sum(1) / valid.sum(1).clamp_min(1)
        index = places[:, None, :, None].expand(-1, features.shape[1], -1, features.shape[3])
        magnitude = features.gather(2, index).float().abs().sum(3) * valid[:, None]  # (B, C, k)
        return Bag(places, score, magnitude)

    def loss(self, scored: AnomalyScores, abnormal: Tensor) -> dict[str, Tensor]:
        """The weighted terms "bag", "magnitude", "smooth" and "sparse"; abnormal `(B,)` bool: something happens in it."""
        scores, _, mask = scored
        if abnormal.shape != scores.shape[:1] or abnormal.dtype != torch.bool:
            raise ValueError(f"abnormal is (B,) bool, got {tuple(abnormal.shape)} of {abnormal.dtype}")
        weights = self.weights
        with torch.autocast(scores.device.type, enabled=False):
            bag = self.bag(scored)
            bad, good = bag.magnitude[abnormal], bag.magnitude[~abnormal]
            size = weights.apart * contrast(bad, good, apart=True)
            size = size + contrast(*_halves(bad)) + contrast(*_halves(good))
            # Released: the scores of all abnormal videos in one row, so that the last of one is pulled to the first of the
            # next. Here: each video for itself.
            smooth = smoothness(scores[abnormal], mask[abnormal])
            # The square root has no slope at 0.
            sparse = (scores[abnormal].square().sum() + 1e-12).sqrt()
            return {
                "bag": F.binary_cross_entropy(bag.score.clamp(1e-7, 1 - 1e-7), abnormal.float()),
                "magnitude": weights.magnitude * size,
                "smooth": weights.smooth * smooth,
                "sparse": weights.sparse * sparse,
            }


def contrast(a: Tensor, b: Tensor, apart: bool = False) -> Tensor:
    """Mean squared distance of the magnitudes `(V, C, k)` of paired videos; or of what MARGIN exceeds the distance by.

    Of unequal numbers of videos, those without a partner are left out; of no pairs it is 0.
    """
    pairs = min(len(a), len(b))
    if not pairs:
        return (a.sum() + b.sum()) * 0
    gap = a[:pairs] - b[:pairs]
    if not apart:
        return gap.square().sum(2).mean()
    return F.relu(MARGIN - (gap.square().sum(2) + 1e-12).sqrt()).square().mean()


def smoothness(scores: Tensor, mask: Tensor) -> Tensor:
    """The sum over videos and clips of (s_t − s_{t+1})², scores and mask `(V, T)`."""
    return ((scores[:, 1:] - scores[:, :-1]).square() * (mask[:, 1:] & mask[:, :-1])).sum()


def binned(features: Tensor, mask: Tensor | None = None, pieces: int = PIECES) -> Tensor:
    """Videos `(B, T, D)`, or `(B, crops, T, D)`, reduced to this many pieces: `(B, pieces, D)`, or with crops.

    Piece i of a video of N clips is the mean of the clips from ⌊i N / pieces⌋ on to before ⌊(i + 1) N / pieces⌋, and that
    first clip where there is none between.
    """
    crops = features[:, None] if features.ndim == 3 else features
    mask = checked(crops[:, 0], mask)
    count = mask.sum(1, keepdim=True)  # (B, 1)
    edge = torch.arange(pieces + 1, device=mask.device) * count // pieces  # (B, pieces + 1)
    first, past = edge[:, :-1, None], torch.maximum(edge[:, 1:], edge[:, :-1] + 1)[..., None]
    place = torch.arange(mask.shape[1], device=mask.device)
    member = ((place >= first) & (place < past)).to(features.dtype) / (past - first)  # (B, pieces, T)
    out = member[:, None] @ emptied(crops, mask[:, None, :, None])
    return out[:, 0] if features.ndim == 3 else out


def _halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    half = len(rows) // 2
    return rows[:half], rows[half : 2 * half]


def _heads(width: int) -> int:
    if width % HEAD:
        raise ValueError(f"a width is a multiple of {HEAD}, got {width}")
    return width // HEAD


# From clips to frames


def frame_scores(
    scores: npt.ArrayLike, starts: npt.ArrayLike, length: float, frames: int, fps: float
) -> npt.NDArray[np.float64]:
    """The score of each frame `(frames,)`, given those `(T,)` of clips that begin at `starts` `(T,)` seconds.

    A frame has the mean score of the clips that it is in, and in none, that of the nearest. Where clips follow one
    another, this repeats each score for all frames of its clip.
    """
    s, first = np.asarray(scores, dtype=np.float64), np.asarray(starts, dtype=np.float64)
    if s.ndim != 1 or s.shape != first.shape or not len(s):
        raise VeilError(
            f"there is one score for each clip of a video, got {s.shape} and {first.shape}.",
            code="scores-shape",
        )
    middle = (np.arange(frames) + 0.5) / fps  # of a frame's time: no clip begins or ends there
    sums, counts = np.zeros(frames), np.zeros(frames)
    begin = np.searchsorted(middle, first)
    past = np.searchsorted(middle, first + length)
    for score, a, b in zip(s, begin, past, strict=True):
        sums[a:b] += score
        counts[a:b] += 1
    nearest = np.abs(middle[:, None] - (first + length / 2)).argmin(1) if (counts == 0).any() else 0
    return np.where(counts > 0, sums / np.maximum(counts, 1), s[nearest])


def frame_truth(segments: Sequence[Segment], frames: int, fps: float) -> npt.NDArray[np.bool_]:
    """Which frames `(frames,)` are within a segment, whatever its label."""
    middle = (np.arange(frames) + 0.5) / fps
    inside = np.zeros(frames, dtype=bool)
    for segment in segments:
        inside |= (middle >= segment.start) & (middle < segment.end)
    return inside
