"""BDQ: blur, difference, quantise (Kumawat and Nagahara 2022, "Privacy-Preserving Action Recognition via Motion
Difference Quantization", arXiv 2208.02459). Written from a description; the paper's text and code were not at hand.

With g a Gaussian of 5×5 pixels and standard deviation σ, n bits, N = 2^n − 1, and thresholds b_1 ≤ … ≤ b_N in [0, N]:

    u_t = g * x_t                                  blur: removes edges
    d_t = u_t − u_{t−1},  d_0 = 0                  difference: removes static content
    y   = N (d − min d) / (max d − min d)          over the clip, each by itself
    q   = Σ_i sigmoid(h (y − b_i))                 quantisation: N soft steps of hardness h; true steps in eval()
    out = q / N

Learned are the thresholds, which begin at ½, 1½, …, and σ, which begins at 3: sixteen numbers, the same
in every place. Static pixels have one level of grey, which depends on the motion in the rest of the clip.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

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
from veil.training.data import TrainingData
from veil.training.data_config import DataConfig
from veil.training.recipe import STRICT, Seed, Training

Sigma = Literal["fixed", "learned"]
Steps = Literal["hard", "soft"]

LEAST = 1 / 255  # of the differences' range


class BDQ(nn.Module):
    """Clips ``(B, 3, T, H, W)`` in [0, 1] to their motion, in 2^bits levels; same shape and range, any size.

    `kernel` is the blur's width in pixels, `time` its length in frames, `spread` the initial σ, and `sigma` states
    whether σ is learned. `steps` are those of eval(): ``hard``, which have no gradient, or ``soft`` as in train().
    """

    past: int = 1  # frames before a frame that it depends on
    block: int = 16  # frames that share one range

    def __init__(
        self,
        bits: int = 4,
        hardness: float = 5.0,
        kernel: int = 5,
        time: int = 1,
        sigma: Sigma = "learned",
        spread: float = 3.0,
        steps: Steps = "hard",
    ) -> None:
        for word, name, known in ((sigma, "sigma", Sigma), (steps, "steps", Steps)):
            if word not in get_args(known):
                raise VeilError(
                    f"BDQ has no {name} '{word}': choose {' or '.join(get_args(known))}.", code="bdq-option"
                )
        if not 1 <= bits <= 8:
            raise VeilError(f"BDQ quantises to 1 to 8 bits: bits={bits}.", code="bdq-bits")
        if kernel < 1 or kernel % 2 == 0:
            raise VeilError(
                f"the blur of BDQ is an odd number of pixels wide: kernel={kernel}.", code="bdq-kernel"
            )
        if time < 1 or min(hardness, spread) <= 0:
            raise VeilError(
                f"BDQ needs numbers above 0: time={time}, hardness={hardness:g}, spread={spread:g}.",
                code="bdq-not-positive",
            )
        super().__init__()
        self.past = time
        self.top, self.hardness = 2**bits - 1, hardness
        self.kernel, self.time, self.steps = kernel, time, steps
        log_sigma = torch.tensor(math.log(spread))
        if sigma == "learned":
            self.log_sigma = nn.Parameter(log_sigma)
        else:
            # Paper: learned. Here: a choice, because the released code keeps it fixed.
            self.register_buffer("log_sigma", log_sigma)
        self.thresholds = nn.Parameter(torch.arange(self.top) + 0.5)  # (2^bits - 1,)

    def forward(self, clip: Tensor) -> Tensor:
        """The motion, in levels from 0 to 1."""
        if clip.ndim != 5 or clip.shape[1] != 3:
            raise ValueError(f"a clip is (B, 3, T, H, W), got {tuple(clip.shape)}")
        # In full precision whatever the others have: bf16 would round away the differences that are all there is.
        with torch.autocast(clip.device.type, enabled=False):
            x = clip if clip.dtype == torch.double else clip.float()
            level = self._quantise(scaled(differences(self._blur(x)), self.top))
            # Paper: brought back to the range of the differences. Here: to [0, 1], because that is a clip's.
            return (level / self.top).to(clip.dtype)

    def _blur(self, x: Tensor) -> Tensor:
        side = self.kernel // 2
        # Paper: a window around the frame, which the released code makes one frame long. Here: a window that ends with
        # it, because in a stream the next frames are not known.
        x = F.pad(x, (side, side, side, side, self.time - 1, 0), mode="replicate")
        across = torch.arange(-side, side + 1, device=x.device)
        before = torch.arange(1 - self.time, 1, device=x.device)
        for axis, offsets in ((4, across), (3, across), (2, before)):
            weights = torch.exp(-offsets.square() / (2 * torch.exp(2 * self.log_sigma.to(x.dtype))))
            x = _mixed(x, axis, weights / weights.sum())
        return x

    def _quantise(self, y: Tensor) -> Tensor:
        bounds = self.thresholds.to(y.dtype)
        # Paper: clamped. Here: with the gradient of what is not clamped, because a threshold that has left the range
        # would never come back.
        bounds = bounds + (bounds.clamp(0, self.top) - bounds).detach()
        bounds = bounds.sort().values
        if self.steps == "hard" and not self.training:
            return torch.bucketize(y.detach().contiguous(), bounds.detach()).to(y.dtype)
        level = torch.zeros_like(y)
        for bound in bounds:
            level = level + torch.sigmoid(self.hardness * (y - bound))
        return level


def _mixed(x: Tensor, axis: int, weights: Tensor) -> Tensor:
    """The weighted sum of every `len(weights)` neighbours along an axis, which gets shorter by one less than that."""
    length = x.shape[axis] - len(weights) + 1
    mixed = weights[0] * x.narrow(axis, 0, length)
    # A sum of shifts, not a convolution: equal frames then stay equal to the last bit.
    for start in range(1, len(weights)):
        mixed = mixed + weights[start] * x.narrow(axis, start, length)
    return mixed


def differences(clip: Tensor) -> Tensor:
    """Each frame less the one before it, ``(B, 3, T, H, W)`` in [-1, 1]; 0 in the first."""
    # Paper: T - 1 frames. Here: T, because a video keeps its length; before its first frame it was the same.
    return clip - torch.cat([clip[:, :, :1], clip[:, :, :-1]], 2)  # not torch.diff, which cannot be exported


def scaled(x: Tensor, top: float) -> Tensor:
    """Each clip's own range, of all its channels and frames together, brought to [0, top]."""
    low, high = x.amin((1, 2, 3, 4), keepdim=True), x.amax((1, 2, 3, 4), keepdim=True)  # (B, 1, 1, 1, 1)
    # Paper: whatever the range is. Here: at least one step of 8 bits, because in a clip where nothing moves the range is
    # 0, or rounding.
    return top * (x - low) / (high - low).clamp(min=LEAST)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BDQConfig:
    """`[anonymizer]` of BDQ."""

    bits: Annotated[int, Field(ge=1, le=8)] = 4
    hardness: Annotated[float, Field(gt=0)] = 5.0
    sigma: Sigma = "learned"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BDQRecipe:
    """How BDQ is trained: as the supervised method, with entropy. A is blur, difference and quantiser.

    ``A ← descend CE(T(A(x)), y) − 2 · H(B(v))``, then ``T, B ← descend CE(T(A(x)), y) + CE(B(v), p)``, v one frame of A(x).
    """

    data: DataConfig = Field(default_factory=lambda: DataConfig(size=224, batch=16, augment="none"))
    anonymizer: BDQConfig = Field(default_factory=BDQConfig)
    utility: UtilityConfig = Field(default_factory=lambda: UtilityConfig(network="i3d_r50"))
    budget: SupervisedBudgetConfig = Field(
        default_factory=lambda: SupervisedBudgetConfig(
            networks=("resnet50",), uncertainty="entropy", weight=2.0
        )
    )
    schedule: SupervisedSchedule = Field(
        default_factory=lambda: SupervisedSchedule(
            reconstruction_steps=0,
            warmup_steps=0,
            adversarial_steps=2000,
            optimizer="sgd",
            cosine=True,
            lr_anonymizer=1e-2,
            lr_others=1e-2,
        )
    )
    seed: Seed = 0

    def __post_init__(self) -> None:
        self.supervised()
        if self.data.length < 2:
            raise VeilError(
                f"BDQ shows differences of consecutive frames: raise data.length, which is {self.data.length}.",
                code="clip-too-short",
            )

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
        return BDQ(self.anonymizer.bits, self.anonymizer.hardness, sigma=self.anonymizer.sigma)

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        torch.manual_seed(self.seed)
        data, supervised = TrainingData(self.data, device, self.seed), self.supervised()
        if data.people.images_only:
            raise VeilError(
                f"BDQ shows nothing of a single image, and {data.people.dataset.name} has no videos: "
                "choose private videos in which people move.",
                code="private-images-without-motion",
            )
        modules = SupervisedModules(supervised, self.network().to(device), data)
        # Paper: T is updated with A. Here: with B, as in every other method, because it is then updated on the present A.
        return supervised.training_of(modules, devices, modules.anonymizer_loss)
