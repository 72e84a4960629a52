"""Kernel ridge regression on pixels: a classifier with a closed-form solution.

Networks that are trained on shifted video are invariant to shifts, and miss what is faint and always at the same
position. Here every pixel is a feature, however little it varies. A frame is averaged down to at most 16 x 16 pixels;
each value p of a clip is standardized over the training samples, and clipped at 5 deviations::

    a = clip((p − mean) / deviation, −5, 5)                     0 where the training samples do not differ

With the training samples a_1 … a_N, their labels Y `(N, K)` of 0 and 1, and the share m `(K,)` of each label::

    f(a) = Σ_i α_i k(a_i, a)                                    α = (K + λI)⁻¹ (Y − m),  K_ij = k(a_i, a_j)
    k(a, b) = exp(−γ |a − b|² / median_ij |a_i − a_j|²)         or, linear, a·b / mean_i |a_i|²
    logits(a) = (f(a) + m − ½) / s

s is the RMS error of leave-one-video-out cross-validation. It follows in closed form from the solution with all samples,
with the indices V of the samples of a video::

    e_V = (G_VV)⁻¹ α_V                                          G = (K + λI)⁻¹

All is computed in float64; the samples are stored in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 16  # pixels along each side of a reduced frame
FAR = 5.0  # deviations: a pixel that hardly varied in training must not dominate where it does
FLAT = 1e-5  # a smaller deviation of standardized input is rounding
GAMMAS = (0.0, 0.25, 1.0, 4.0)  # 0: the linear kernel
RIDGES = (1e-3, 1e-2, 0.1, 1.0)  # λ; the mean of the kernel's diagonal is 1


class KernelClassifier(nn.Module):
    """Logits `(B, K)` of images `(B, 3, H, W)` or clips `(B, 3, T, H, W)`; `solutions` fits it.

    It has buffers only, whose lengths depend on the training samples; a state dict resizes them.
    """

    mean: Tensor  # (D,)
    scale: Tensor  # (D,), 1 / deviation
    points: Tensor  # (N, D), the training samples
    alpha: Tensor  # (N, K), float64
    share: Tensor  # (K,), float64
    rate: Tensor  # (), float64: of squared distance; of the product where the kernel is linear
    linear: Tensor  # (), bool
    error: Tensor  # (), float64: s

    def __init__(self, outputs: int) -> None:
        super().__init__()
        none, one = torch.zeros(0), torch.ones((), dtype=torch.float64)
        for name, empty in (("mean", none), ("scale", none), ("points", none[None])):
            self.register_buffer(name, empty.clone())
        self.register_buffer("alpha", one.new_zeros(1, outputs))
        self.register_buffer("share", one.new_full((outputs,), 1 / outputs))
        self.register_buffer("rate", one.clone())
        self.register_buffer("linear", torch.tensor(True))
        self.register_buffer("error", one.clone())
        self.register_load_state_dict_pre_hook(_resize)

    def pixels(self, x: Tensor) -> Tensor:
        """The reduced pixels of all channels and frames `(B, D)`."""
        height, width = x.shape[-2:]
        flat = x.float().flatten(1, -3)  # (B, 3 or 3T, H, W)
        return F.adaptive_avg_pool2d(flat, (min(height, SIDE), min(width, SIDE))).flatten(1)

    def features(self, x: Tensor) -> Tensor:
        """The standardized pixels `(B, D)`."""
        return self.standardize(self.pixels(x))

    def forward(self, x: Tensor) -> Tensor:
        """Logits `(B, K)`."""
        with torch.autocast(x.device.type, enabled=False):
            a, points = self.features(x).double(), self.points.double()
            kernel_values = a @ points.T  # (B, N)
            if self.linear:
                kernel_values = kernel_values * self.rate
            else:
                distances = a.square().sum(1, keepdim=True) + points.square().sum(1) - 2 * kernel_values
                kernel_values = (-self.rate * distances.clamp_min(0)).exp()
            return ((kernel_values @ self.alpha + self.share - 0.5) / self.error).float()

    @torch.no_grad()
    def solutions(self, samples: Tensor, targets: Tensor) -> Iterator[float]:
        """Solve for every kernel and λ in turn; each solution is valid until the next iteration.

        `samples` are `(V, E, D)` from `pixels`, E of each video; `targets` is `(V, K)`. Yields the unexplained share of
        the labels' variance in the training samples, |Y − m − f|² / |Y − m|²: 0 is a perfect fit, 1 a constant.
        """
        videos, each, _ = samples.shape
        flat = samples.flatten(0, 1)
        exact = flat.double()
        deviation = exact.std(0, correction=0)
        self.mean = exact.mean(0).float()
        self.scale = torch.where(deviation > FLAT, 1 / deviation.clamp_min(FLAT), 0).float()
        self.points = self.standardize(flat)
        labels = targets.double().repeat_interleave(each, 0)
        self.share = labels.mean(0)
        labels = labels - self.share

        exact = self.points.double()
        products = exact @ exact.T  # (N, N)
        squares = products.diagonal()
        distances = (squares[:, None] + squares - 2 * products).clamp_min(0)
        others = distances[~torch.eye(len(distances), dtype=torch.bool, device=distances.device)]
        scale, size = _first_positive(others.median(), others.mean()), _first_positive(squares.mean())
        diagonal = torch.arange(videos, device=samples.device)
        for gamma in GAMMAS:
            self.linear = torch.tensor(gamma == 0, device=samples.device)
            self.rate = gamma / scale if gamma else 1 / size
            gram = (-self.rate * distances).exp() if gamma else products * self.rate
            for ridge in RIDGES:
                whole = gram.clone()
                whole.diagonal().add_(ridge)
                lower = torch.linalg.cholesky(whole)
                self.alpha = torch.cholesky_solve(labels, lower).contiguous()
                inverse = torch.cholesky_inverse(lower).reshape(videos, each, videos, each)
                own = inverse[diagonal, :, diagonal]  # (V, E, E)
                left_out = torch.linalg.solve(own, self.alpha.view(videos, each, -1))
                self.error = left_out.square().mean().sqrt().clamp_min(1e-3)
                yield float((ridge * self.alpha).square().sum() / labels.square().sum())  # Y − m − f = λα

    def standardize(self, pixels: Tensor) -> Tensor:
        """Pixels `(B, D)` in deviations from the mean of the training samples, clipped."""
        return ((pixels - self.mean) * self.scale).clamp(-FAR, FAR)


def _resize(kernel: nn.Module, state: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Give every buffer the shape of the one to be loaded."""
    for name, buffer in kernel.named_buffers(recurse=False):
        if (new := state.get(prefix + name)) is not None:
            setattr(kernel, name, buffer.new_empty(new.shape))


def _first_positive(*candidates: Tensor) -> Tensor:
    """The first positive value, or 1."""
    return next((value for value in candidates if value > 0), torch.ones_like(candidates[0]))
