"""ELR: extreme low resolution by inverse super-resolution (Ryoo et al. 2017, "Privacy-Preserving Human Activity
Recognition from Extreme Low Resolution", arXiv 1604.03196; 2018, arXiv 1708.00999). Written from a description; the
papers' text was not at hand.

Super-resolution makes one sharp image from many coarse ones that differ by less than a pixel. The inverse makes of one
sharp video x many coarse ones, each by its own motion F_k, so that a network can learn from all of them:

    y_k = D_s F_k (g * x)                               g: Gaussian; D_s: means over s×s pixels
    F_k z(p) = z(R(φ_k) p / c_k + s (δ_k, ε_k))         p: pixels from the middle; δ, ε: within half a coarse pixel
    out = up_s(y_k)                                     bilinear, so that the size stays

Which motions help is learned: of a pool of random ones, those are chosen one after another that together score best
on validation data (`choose`). One video should leave the house in one version only: several of them, put together,
are the input of super-resolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.core import VeilError
from veil.methods.sections import UtilityConfig
from veil.training.data import TrainingBatch, TrainingData
from veil.training.data_config import DataConfig
from veil.training.losses import classification_loss
from veil.training.networks import check_names, clip_network
from veil.training.phase import Phase
from veil.training.precision import mixed_precision
from veil.training.recipe import STRICT, LearningRate, Seed, Training
from veil.training.steps import Step, Terms
from veil.training.validation import predict, score, validate

SHIFT, SCALE, TURN = 0.5, 0.1, math.radians(5)  # the largest: of a coarse pixel, of the size, in radians
POOL, COUNT = 64, 8


def transforms(count: int = POOL, seed: int = 0) -> Tensor:
    """The pool ``(count, 4)``: shift to the right and down in coarse pixels, scale, rotation in radians; number 0 is the identity.

    A longer pool of the same seed begins with the shorter one.
    """
    sampled = torch.rand(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    sampled = (2 * sampled - 1) * torch.tensor([SHIFT, SHIFT, SCALE, TURN])
    sampled[:1] = 0
    sampled[:, 2] += 1
    return sampled.float()


class LowResolution(nn.Module):
    """Clips ``(B, 3, T, H, W)`` in [0, 1] made coarse by a factor and enlarged again; same shape and range, any size.

    `chosen` are numbers of transforms in the pool of that size and seed, `blur` is the Gaussian's standard deviation in
    coarse pixels. All frames of a clip have the same transform.
    """

    past: int = 0
    block: int = 1

    transforms: Tensor  # (chosen, 4)

    def __init__(
        self,
        factor: int = 16,
        chosen: Sequence[int] = tuple(range(COUNT)),
        pool: int = POOL,
        seed: int = 0,
        blur: float = 0.5,
    ) -> None:
        if factor < 1 or blur < 0:
            raise VeilError(
                f"a low resolution needs factor 1 and blur 0 or more: {factor=}, blur={blur:g}.",
                code="low-resolution-invalid",
            )
        if not chosen or min(chosen) < 0 or max(chosen) >= pool:
            raise VeilError(
                f"of {pool} transforms, 0 to {pool - 1} can be chosen: chosen={list(chosen)}.",
                code="transform-unknown",
            )
        super().__init__()
        self.factor, self.chosen, self.blur = factor, tuple(chosen), blur
        self.register_buffer("transforms", transforms(pool, seed)[list(chosen)])

    def forward(self, clip: Tensor, which: Tensor | None = None) -> Tensor:
        """Each clip by the transform at its place of `which` ``(B,)`` among the chosen ones.

        By default sampled for each clip in train(), and the first one in eval().
        """
        if clip.ndim != 5 or clip.shape[1] != 3:
            raise ValueError(f"a clip is (B, 3, T, H, W), got {tuple(clip.shape)}")
        if which is None:
            which = torch.zeros(len(clip), dtype=torch.long, device=clip.device)
            if self.training:
                which = torch.randint_like(which, len(self.chosen))
        if which.shape != clip.shape[:1] or which.dtype != torch.long:
            raise ValueError(f"which is int64 ({len(clip)},), got {which.dtype} {tuple(which.shape)}")
        height, width = clip.shape[3:]
        # In full precision whatever the others have: in bf16 a place in the frame would be off by a pixel.
        with torch.autocast(clip.device.type, enabled=False):
            x = clip if clip.dtype == torch.double else clip.float()
            x = _blurred(x.flatten(1, 2), self.blur * self.factor)  # (B, 3·T, H, W)
            places = _places(self._motion(which, height, width).to(x.dtype), height, width)
            x = F.grid_sample(x, places, padding_mode="border", align_corners=False)
            x = F.pad(x, (0, -width % self.factor, 0, -height % self.factor), mode="replicate")
            x = F.avg_pool2d(x, self.factor)  # (B, 3·T, ⌈H/s⌉, ⌈W/s⌉)
            x = F.interpolate(x, scale_factor=self.factor, mode="bilinear", align_corners=False)
            x = x[:, :, :height, :width].unflatten(1, clip.shape[1:3]).clamp(0, 1)  # of what rounding adds
            return x.to(clip.dtype)

    def _motion(self, which: Tensor, height: int, width: int) -> Tensor:
        """From each place to where its value comes from, ``(B, 2, 3)``, in halves of the frame as torch wants it."""
        right, down, scale, turn = self.transforms[which].unbind(1)  # (B,) each
        cos, sin = turn.cos() / scale, turn.sin() / scale
        rows = [
            torch.stack([cos, -sin * height / width, 2 * self.factor * right / width], 1),
            torch.stack([sin * width / height, cos, 2 * self.factor * down / height], 1),
        ]
        return torch.stack(rows, 1)


def _places(motion: Tensor, height: int, width: int) -> Tensor:
    """Where the value of each pixel comes from by a motion ``(B, 2, 3)``: ``(B, H, W, 2)``."""
    # As F.affine_grid, which when it is exported forgets that frames have any size.
    across, down = (
        (2 * torch.arange(length, device=motion.device, dtype=motion.dtype) + 1) / length - 1
        for length in (width, height)
    )
    across, down = across[None, None, :, None], down[None, :, None, None]
    x, y, one = motion[:, None, None].unbind(-1)  # (B, 1, 1, 2) each
    return x * across + y * down + one


def _blurred(images: Tensor, sigma: float) -> Tensor:
    """Each channel of ``(B, C, H, W)`` blurred by itself; the border is repeated."""
    if not sigma:
        return images
    side = math.ceil(3 * sigma)
    weights = torch.exp(-torch.arange(-side, side + 1, device=images.device).square() / (2 * sigma**2))
    weights = (weights / weights.sum()).to(images.dtype)
    x = F.pad(images.flatten(0, 1)[:, None], (side, side, side, side), mode="replicate")
    x = F.conv2d(F.conv2d(x, weights[None, None, None]), weights[None, None, :, None])
    return x[:, 0].unflatten(0, images.shape[:2])


def choose(score: Callable[[list[int]], float], pool: int = POOL, count: int = COUNT) -> list[int]:
    """The `count` transforms of a pool that score best together, each the best one beside those before it.

    `score` is called once for every set that is tried, pool − i of them for the i-th choice; of equals the first is
    taken. It must be measured on validation data: transforms chosen on the test set would bias its score.

    >>> choose(lambda numbers: -abs(sum(numbers) - 7), pool=6, count=2)
    [5, 2]
    """
    # Paper: by a Markov chain or by entropy. Here: greedily, because the description states no more and greedy choice is deterministic.
    if not 1 <= count <= pool:
        raise VeilError(
            f"{count} of {pool} transforms cannot be chosen: change the count.", code="too-many-transforms"
        )
    chosen: list[int] = []
    for _ in range(count):
        scores = {k: score([*chosen, k]) for k in range(pool) if k not in chosen}
        for k, value in scores.items():
            if math.isnan(value):
                raise VeilError(
                    f"the score of the transforms {[*chosen, k]} is not a number.", code="score-not-a-number"
                )
        chosen.append(max(scores, key=lambda k: scores[k]))
    return chosen


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LowResolutionConfig:
    """`[anonymizer]` of ELR."""

    factor: Annotated[int, Field(ge=1)] = 16
    pool: Annotated[int, Field(ge=1)] = POOL
    count: Annotated[int, Field(ge=1)] = COUNT  # transforms that are chosen from the pool

    def __post_init__(self) -> None:
        if self.count > self.pool:
            raise VeilError(
                f"anonymizer.count = {self.count} is more than the {self.pool} transforms of the pool: lower it.",
                code="too-many-transforms",
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ELRSchedule:
    """`[schedule]` of ELR."""

    steps: Annotated[int, Field(ge=2)] = 1000
    lr: LearningRate = 1e-3


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ELRRecipe:
    """One utility network learns from all transforms of the pool; those with which it then performs best are chosen."""

    data: DataConfig = Field(default_factory=lambda: DataConfig(size=224, batch=16, augment="none"))
    anonymizer: LowResolutionConfig = Field(default_factory=LowResolutionConfig)
    utility: UtilityConfig = Field(default_factory=lambda: UtilityConfig(network="i3d_r50"))
    schedule: ELRSchedule = Field(default_factory=ELRSchedule)
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_names(clips=(self.utility.network,))

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.schedule.steps

    def network(self) -> nn.Module:
        """A fresh anonymizer; the chosen transforms are in its weights."""
        of = self.anonymizer
        return LowResolution(of.factor, range(of.count), of.pool, self.seed)

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        torch.manual_seed(self.seed)
        data, of = TrainingData(self.data, device, self.seed), self.anonymizer
        utility = clip_network(self.utility.network, data.n_outputs, self.data, self.utility.weights).to(
            device
        )
        anonymizer = LowResolution(of.factor, range(of.pool), of.pool, self.seed).to(
            device
        )  # all of the pool

        def utility_loss(batch: TrainingBatch) -> Terms:
            which = torch.randint(of.pool, (len(batch.clip),), device=batch.clip.device)
            return {"utility": +classification_loss(utility(anonymizer(batch.clip, which)), batch.action)}

        def chosen() -> dict[str, Tensor]:
            predictions = [
                predict(data, lambda clip, k=k: anonymizer(clip, _all(clip, k)), utility)
                for k in range(of.pool)
            ]
            together = torch.stack(predictions)  # (pool, N, K)

            def mean_score(numbers: list[int]) -> float:
                return score(data, together[numbers].mean(0))

            return {"transforms": anonymizer.transforms[choose(mean_score, of.pool, of.count)]}

        step = Step("utility", (utility,), utility_loss, self.schedule.lr)
        return Training(
            Phase([step], mixed_precision(device, devices, self.seed)),
            data,
            lambda: validate(data, anonymizer, utility),
            chosen,
        )


def _all(clip: Tensor, number: int) -> Tensor:
    return torch.full((len(clip),), number, device=clip.device)
