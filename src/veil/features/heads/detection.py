"""When actions happen in a long video: TriDet (Shi et al. 2023, arXiv 2303.07347), on the features of its clips.

Time is measured on the *grid* of clips: clip number i is at i. Six levels cover every position of the grid, every
second, …, every 32nd. A position t of a level with stride s predicts the probability of each action k there, and how far
away it starts and ends.

Backbone: two convolutions, then blocks of scalable-granularity perception (SGP), each level from the one before, halved
by a max-pool. With o = LN(x), depth-wise convolutions DW of the width written below them, w = 1 and k = 5::

    φ = ReLU(DW₁(mean_t o))       ψ = DW_w(o)
    y = x + drop(DW₁(o) φ + (DW_w(o) + DW_kw(o)) ψ + o)
    x' = y + drop(MLP(GN(y)))

Trident head: where an action starts is a mean over bins, weighted by the logits of the positions around t (S, E:
"k starts here", "k ends here") and by those of t itself (C, D), b = 0 … 16::

    start of k = t − s Σ_b b softmax_b( S[t − b, k] + C[t, b] )
    end of k   = t + s Σ_b b softmax_b( E[t + b, k] + D[t, b] )

A position is positive for an action if it is near the action's middle, at most 1.5 s away, and if the farther end is within
the range of its level. With probabilities p and labels y (0 or 1) of all positions and actions, and n a moving average of the
number of positives::

    L_class  = 1/n Σ  focal(p, y) · (IoU^0.2 where y = 1)
    focal    = −0.25 (1 − p)² ln p where y = 1,  −0.75 p² ln(1 − p) where y = 0
    L_extent = 1/n Σ_{y = 1}  1 − IoU + (distance of the middles / length of the hull)²
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.data.sample import Sample, Segment
from veil.features.heads.grid import FAR, Floats, Span, to_seconds
from veil.features.heads.sequence import ChannelNorm, Conv, GroupNorm, checked, clip_mean, emptied, halved

RADIUS = 1.5  # strides around an action's middle in which positions are positive
ALIKE = 1e-3  # actions that differ less in length are equally long
ALPHA, GAMMA = 0.25, 2.0  # of the focal loss
POWER = 0.2  # of the overlap, in the weight of a positive position
PRIOR = 0.01  # probability of every action at first
GROUPS = 16  # of the group norm
START_SCALE = 1e-4  # of what a block adds, at first


class DetectedAction(NamedTuple):
    """An action that was found."""

    start: float  # seconds
    end: float
    label: int
    score: float


class PyramidLevel(NamedTuple):
    """The predictions of one level, at T positions."""

    stride: int  # of the grid
    mask: Tensor  # (B, T) bool
    logits: Tensor  # (B, T, K) that an action happens here
    start: Tensor  # (B, T, K) that an action starts here
    end: Tensor  # (B, T, K)
    centre: Tensor  # (B, T, 2, bins + 1) how far it is to the start and to the end; bin 0 is here

    def offsets(self, video: Tensor, place: Tensor, label: Tensor) -> Tensor:
        """Distances to start and end `(M, 2)`, in strides, of M actions at M places of M videos; all `(M,)`."""
        bins = self.centre.shape[3] - 1
        start, end, centre = self.start.float(), self.end.float(), self.centre.float()
        before = F.pad(start, (0, 0, bins, 0)).unfold(
            1, bins + 1, 1
        )  # (B, T, K, bins + 1), a view: bin 0 is the last
        after = F.pad(end, (0, 0, 0, bins)).unfold(1, bins + 1, 1)
        to_start = (before[video, place, label].flip(1) + centre[video, place, 0]).softmax(1)  # (M, bins + 1)
        to_end = (after[video, place, label] + centre[video, place, 1]).softmax(1)
        steps = torch.arange(bins + 1, device=start.device, dtype=start.dtype)
        return torch.stack([to_start @ steps, to_end @ steps], dim=1)


class LevelTargets(NamedTuple):
    """The targets of one level."""

    labels: Tensor  # (B, T, K) of 0 and 1
    offsets: Tensor  # (B, T, 2) to start and end, in strides; 0 at negatives


class _DropPath(nn.Module):
    """Stochastic depth: what a block adds is scaled in each channel, and dropped for a share of the videos in training."""

    def __init__(self, width: int, share: float) -> None:
        super().__init__()
        self.share = share
        self.scale = nn.Parameter(torch.full((width, 1), START_SCALE))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        if not self.training or not self.share:
            return x
        keep = torch.rand(len(x), 1, 1, device=x.device) >= self.share
        return x * keep / (1 - self.share)


class SGP(nn.Module):
    """One block of scalable-granularity perception, `(B, C, T)` -> `(B, C, T)`, or half as long.

    `spread` is the standard deviation of the depth-wise weights at first. At 0 all their gradients are 0 too, because
    each is multiplied by another that is 0: they stay 0 for ever, and the block is x + o, and then the MLP.
    """

    def __init__(
        self, width: int, hidden: int, window: int, k: float, drop: float, halve: bool, spread: float
    ) -> None:
        super().__init__()
        wide = round((window + 1) * k)
        wide += wide % 2 == 0  # odd
        self.halve = halve
        self.norm, self.group_norm = ChannelNorm(width), GroupNorm(math.gcd(GROUPS, width), width)
        self.instant, self.around = Conv(width, width, 1, width), Conv(width, width, 1, width)
        self.near, self.far = Conv(width, width, window, width), Conv(width, width, wide, width)
        self.gate = Conv(width, width, window, width)
        self.mlp = nn.Sequential(nn.Conv1d(width, hidden, 1), nn.GELU(), nn.Conv1d(hidden, width, 1))
        # As released: only in the blocks that halve.
        self.drops = nn.ModuleList(_DropPath(width, drop) if halve else nn.Identity() for _ in range(2))
        _no_bias(self)
        for conv in (self.instant, self.around, self.near, self.far, self.gate):
            nn.init.normal_(conv.weight, 0, spread) if spread else nn.init.zeros_(conv.weight)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x and mask of the next level, or of the same."""
        if self.halve:
            x, mask = halved(x, mask)
        o = emptied(self.norm(x), mask)
        average = clip_mean(o, mask)[..., None]  # (B, C, 1)
        phi = F.relu(self.around(average, torch.ones_like(average[:, :1], dtype=torch.bool)))
        wider = (self.near(o, mask) + self.far(o, mask)) * self.gate(o, mask)
        y = x + self.drops[0](self.instant(o, mask) * phi + wider + o)
        return emptied(y + self.drops[1](self.mlp(self.group_norm(y, mask))), mask), mask


class _TridentHead(nn.Module):
    """Two convolutions and a last one, the same for all levels."""

    def __init__(self, width: int, outputs: int, bias: float = 0.0) -> None:
        super().__init__()
        self.convs = nn.ModuleList(Conv(width, width, 3, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(ChannelNorm(width) for _ in range(2))
        self.last = Conv(width, outputs, 3)
        nn.init.constant_(self.last.bias, bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x, mask)))
        return self.last(x, mask)


class TriDet(nn.Module):
    """Features `(B, T, dim)` of clips in; predictions for each position of each level and each action out.

    The defaults are those for THUMOS14; `levels`, `width` and `bins` make one that is small enough for short videos.

    width, hidden: channels, and those within the MLPs. window, k, spread: see `SGP`. stem: how many blocks come before the
    levels. drop: of blocks, in training. noise: the deviation of what is added to features in training. reach: how many of its
    strides away the farther end of an action may be on a level; where both ends are nearer than half of that, the
    level before is responsible. positives, momentum: n at first, and how slowly it follows.
    """

    positives: Tensor  # (), the number of positives of a batch: a moving average

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        width: int = 512,
        hidden: int = 768,
        levels: int = 6,
        bins: int = 16,
        window: int = 1,
        k: float = 5.0,
        stem: int = 2,
        spread: float = 0.0,
        drop: float = 0.1,
        noise: float = 5e-4,
        reach: float = 4.0,
        positives: float = 100.0,
        momentum: float = 0.9,
    ) -> None:
        super().__init__()
        self.classes, self.bins, self.noise, self.momentum = classes, bins, noise, momentum
        self.ranges = [(reach * 2 ** (i - 1) if i else 0.0, reach * 2**i) for i in range(levels)]
        self.ranges[-1] = (self.ranges[-1][0], FAR)
        self.embed = nn.ModuleList(Conv(n, width, 3, bias=False) for n in (dim, width))
        self.norms = nn.ModuleList(ChannelNorm(width) for _ in range(2))
        self.stem = nn.ModuleList(SGP(width, hidden, window, k, drop, False, spread) for _ in range(stem))
        self.branch = nn.ModuleList(
            SGP(width, hidden, window, k, drop, True, spread) for _ in range(levels - 1)
        )
        self.neck = nn.ModuleList(ChannelNorm(width) for _ in range(levels))
        self.what = _TridentHead(width, classes, -math.log((1 - PRIOR) / PRIOR))
        # Released: starts and ends begin at the bias of the actions. Here: at 0, because bins beyond a video's ends are
        # 0, and a video would seem to begin and end outside of itself.
        self.start, self.end = _TridentHead(width, classes), _TridentHead(width, classes)
        self.centre = _TridentHead(width, 2 * (bins + 1))
        self.scale = nn.Parameter(torch.ones(levels))
        self.register_buffer("positives", torch.tensor(positives))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> tuple[PyramidLevel, ...]:
        """The levels, finest first; mask `(B, T)`, bool, marks the clips."""
        valid = checked(features, mask)[:, None]  # (B, 1, T)
        if self.training and self.noise:
            features = features + self.noise * torch.randn_like(features)
        x = emptied(features.transpose(1, 2), valid)
        for conv, norm in zip(self.embed, self.norms, strict=True):
            x = F.relu(norm(conv(x, valid)))
        for block in self.stem:
            x, valid = block(x, valid)
        levels = []
        for i, norm in enumerate(self.neck):
            if i:
                x, valid = self.branch[i - 1](x, valid)
            levels.append(self._level(i, emptied(norm(x), valid), valid))
        return tuple(levels)

    def _level(self, i: int, x: Tensor, mask: Tensor) -> PyramidLevel:
        centre = F.relu(self.scale[i] * self.centre(x, mask)).transpose(1, 2)
        return PyramidLevel(
            stride=2**i,
            mask=mask[:, 0],
            logits=self.what(x, mask).transpose(1, 2),
            start=self.start(x.detach(), mask).transpose(1, 2),
            end=self.end(x.detach(), mask).transpose(1, 2),
            centre=centre.unflatten(2, (2, self.bins + 1)),
        )

    def loss(self, levels: Sequence[PyramidLevel], segments: Sequence[Sequence[Span]]) -> dict[str, Tensor]:
        """The terms "class" and "extent" of a batch, given each video's actions on the grid (`on_grid`)."""
        videos = len(levels[0].mask)
        if len(segments) != videos:
            raise ValueError(f"there are actions of {len(segments)} videos, and features of {videos}")
        device = levels[0].mask.device
        rows = torch.zeros(videos, max([1, *map(len, segments)]), 3, dtype=torch.double)  # (B, G, 3)
        for row, video in zip(rows, segments, strict=True):
            row[: len(video)] = torch.tensor(video, dtype=torch.double).view(-1, 3)
        if not 0 <= rows[..., 2].min() <= rows[..., 2].max() < self.classes:
            raise ValueError(f"labels lie in 0..{self.classes - 1}, got {rows[..., 2].unique().tolist()}")
        spans = rows.to(device)
        with torch.autocast(device.type, enabled=False):
            parts = [
                self._level_loss(level, reach, spans)
                for level, reach in zip(levels, self.ranges, strict=True)
            ]
        what, extent, count = (torch.stack(part).sum() for part in zip(*parts, strict=True))
        if self.training:
            with torch.no_grad():
                self.positives.lerp_(count.clamp_min(1).to(self.positives), 1 - self.momentum)
        return {"class": what / self.positives, "extent": extent / self.positives}

    def _level_loss(
        self, level: PyramidLevel, reach: tuple[float, float], spans: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The sums of both terms over a level's positions, and the number of positives."""
        level_targets = targets(level.mask.shape[1], level.stride, reach, spans, self.classes)
        labels = level_targets.labels * level.mask[..., None]  # (B, T, K)
        video, place, label = labels.nonzero(as_tuple=True)
        wanted = level_targets.offsets[video, place]  # (M, 2)
        overlap, apart = agreement(level.offsets(video, place, label), wanted)
        weight = level.mask[..., None].float().expand_as(labels).clone()
        # Released: the gradient goes through this weight as well. Here: not, because a position whose extent got worse
        # would be rewarded by a smaller loss of its class.
        weight[video, place, label] = overlap.detach() ** POWER
        what = (focal(level.logits.float(), labels) * weight).sum()
        return what, (1 - overlap + apart).sum(), (labels.sum(2) > 0).sum()

    @torch.no_grad()
    def detect(
        self,
        features: Tensor,
        mask: Tensor | None,
        starts: Tensor,
        length: float,
        seconds: Tensor,
        *,
        least: float = 0.001,
        most: int = 2000,
        shortest: float = 0.05,
        sigma: float = 0.5,
    ) -> list[list[DetectedAction]]:
        """The actions in each of B videos, by falling score.

        starts `(B, T)`: the second at which each clip begins; length: how many seconds a clip covers; seconds `(B,)`: how
        long each video is. least: scores below are dropped, before and after soft-NMS; most: how many of a level, and of
        a video, are kept; shortest: places of the grid that an action lasts at least; sigma: of soft-NMS.
        """
        mask = checked(features, mask)
        levels = self(features, mask)
        counts = mask.sum(1).tolist()
        every: list[list[DetectedAction]] = []
        for v, count in enumerate(counts):
            rows = torch.cat([_candidates(level, v, least, most, shortest) for level in levels]).cpu().numpy()
            rows = np.concatenate(
                [soft_nms(rows[rows[:, 2] == k], sigma, least) for k in np.unique(rows[:, 2])] or [rows]
            )
            rows = rows[np.argsort(-rows[:, 3], kind="stable")][:most]
            times = to_seconds(rows[:, :2], starts[v, :count].cpu().numpy(), length).clip(
                0, float(seconds[v])
            )
            found = zip(times.tolist(), rows[:, 2:].tolist(), strict=True)
            every.append([DetectedAction(start, end, int(k), score) for (start, end), (k, score) in found])
        return every


def targets(
    places: int, stride: int, reach: tuple[float, float], spans: Tensor, classes: int
) -> LevelTargets:
    """The targets of a level for the actions of B videos, `(B, G, 3)`: start, end, label on the grid.

    A position t is positive for an action if it is inside, at most RADIUS strides from the middle, and if the farther of both
    ends is within the reach. Of several actions the shortest counts; of equally short ones all. An action without duration
    has no positives: videos with fewer actions than others are padded with such.
    """
    start, end = spans[:, None, :, 0], spans[:, None, :, 1]  # (B, 1, G)
    at = torch.arange(places, device=spans.device)[:, None] * stride  # (T, 1)
    ends = torch.stack([at - start, end - at], dim=3)  # (B, T, G, 2)
    farther = ends.amax(3)
    near = (ends.amin(3) > 0) & ((at - (start + end) / 2).abs() < RADIUS * stride)
    mine = near & (farther >= reach[0]) & (farther <= reach[1])  # (B, T, G)
    lasts = (end - start).where(mine, torch.inf)
    shortest, which = lasts.min(2, keepdim=True)
    learned = mine & (lasts <= shortest + ALIKE)
    labels = (learned.to(spans) @ F.one_hot(spans[..., 2].long(), classes).to(spans)).clamp_max(1)
    offsets = ends.gather(2, which[..., None].expand(-1, -1, -1, 2))[:, :, 0] / stride  # (B, T, 2)
    return LevelTargets(labels.float(), offsets.where(mine.any(2, keepdim=True), 0).float())


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    """The focal loss of each logit, without a mean; labels of 0 and 1."""
    p = logits.sigmoid()
    right = p * labels + (1 - p) * (1 - labels)
    share = ALPHA * labels + (1 - ALPHA) * (1 - labels)
    return share * (1 - right) ** GAMMA * F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def agreement(found: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """IoU `(M,)` of extents around the same place, distances to start and end `(M, 2)`; and what DIoU takes off it."""
    both = torch.minimum(found, wanted).sum(1)
    hull = torch.maximum(found, wanted).sum(1).clamp_min(1e-8)  # both hold the place: it is their union, too
    middles = ((found[:, 1] - found[:, 0]) - (wanted[:, 1] - wanted[:, 0])) / 2
    return both / hull, (middles / hull).square()


def _candidates(level: PyramidLevel, video: int, least: float, most: int, shortest: float) -> Tensor:
    """The likely actions at a level, rows `(N, 4)` of start, end, label, score, float64; times on the grid."""
    share = level.logits[video].float().sigmoid() * level.mask[video, :, None]  # (T, K)
    place, label = (share > least).nonzero(as_tuple=True)
    score, best = share[place, label].sort(descending=True, stable=True)
    score, place, label = score[:most], place[best[:most]], label[best[:most]]
    offsets = level.offsets(torch.full_like(place, video), place, label)
    times = (place[:, None] + offsets * place.new_tensor([-1, 1])).double() * level.stride
    rows = torch.cat([times, label[:, None], score[:, None]], dim=1)
    return rows[rows[:, 1] - rows[:, 0] > shortest]


def soft_nms(rows: Floats, sigma: float, least: float) -> Floats:
    """Detections of one action, rows `(N, 4)` of start, end, label, score, as Gaussian soft-NMS leaves them.

    The one with the highest score is kept, and the score of every other is multiplied by exp(−IoU² / sigma); then the highest of
    the others is kept, and so on, until none has a score of at least `least`.
    """
    left, kept = rows.copy(), []
    while len(left) and left[best := int(left[:, 3].argmax()), 3] >= least:
        row = left[best].copy()
        kept.append(row)
        left = np.delete(left, best, axis=0)
        both = np.minimum(left[:, 1], row[1]) - np.maximum(left[:, 0], row[0])
        both = both.clip(min=0)
        overlap = both / np.maximum((left[:, 1] - left[:, 0]) + (row[1] - row[0]) - both, 1e-12)
        left[:, 3] *= np.exp(-(overlap**2) / sigma)
    return np.array(kept).reshape(-1, 4)


def tables(
    samples: Iterable[Sample], detections: Iterable[Sequence[DetectedAction]]
) -> tuple[Mapping[str, Sequence[DetectedAction]], Mapping[str, Sequence[Segment]]]:
    """The detections and the true segments of each video, as `veil.metrics.temporal_map` takes them."""
    pairs = list(zip(samples, detections, strict=True))
    return {s.id: found for s, found in pairs}, {s.id: s.segments for s, _ in pairs}


def _no_bias(module: nn.Module) -> None:
    """Every convolution begins without a bias."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv1d) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
