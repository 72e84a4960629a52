"""Kernel ridge regression on pixels: a recognizer that is solved, not descended.

Networks that are trained on shifted video learn what survives shifts, and overlook what is faint and always in the same
place. Here every pixel stands for itself, however little it varies. A frame is averaged down to at most 16 x 16 pixels;
each number p of a clip is standardised over the training samples, and cut off at 5 deviations::

    a = clip((p − mean) / deviation, −5, 5)                     0 where the training samples do not differ

With the training samples a_1 … a_N, their labels Y `(N, K)` of 0 and 1, and the share m `(K,)` of each label::

    f(a) = Σ_i α_i k(a_i, a)                                    α = (K + λI)⁻¹ (Y − m),  K_ij = k(a_i, a_j)
    k(a, b) = exp(−γ |a − b|² / median_ij |a_i − a_j|²)         or, linear, a·b / mean_i |a_i|²
    logits(a) = (f(a) + m − ½) / s

s is the RMS error for samples that were left out together with all others of their video V. It follows from the
solution with them, so that nothing is solved anew::

    e_V = (G_VV)⁻¹ α_V                                          G = (K + λI)⁻¹

All is computed in float64; the samples are held in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 16  # pixels, both ways, that are left of a frame
FAR = 5.0  # deviations: what hardly varied in training must not drown the rest where it varies
FLAT = 1e-5  # of standardised input: a deviation below is rounding
GAMMAS = (0.0, 0.25, 1.0, 4.0)  # 0: the linear kernel
RIDGES = (1e-3, 1e-2, 0.1, 1.0)  # λ; the mean of the kernel's diagonal is 1


class Kernel(nn.Module):
    """Images `(B, 3, H, W)` or clips `(B, 3, T, H, W)` in, logits `(B, K)` out; `solutions` learns.

    It has buffers only, as long as what it has learned; a state dict brings its own lengths.
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

    def shrunk(self, x: Tensor) -> Tensor:
        """What it looks at: the pixels of all channels and frames `(B, D)`."""
        height, width = x.shape[-2:]
        pixels = x.float().flatten(1, -3)  # (B, 3 or 3T, H, W)
        return F.adaptive_avg_pool2d(pixels, (min(height, SIDE), min(width, SIDE))).flatten(1)

    def features(self, x: Tensor) -> Tensor:
        """What it looks at, standardised `(B, D)`."""
        return self.standardised(self.shrunk(x))

    def forward(self, x: Tensor) -> Tensor:
        """Logits `(B, K)`."""
        with torch.autocast(x.device.type, enabled=False):
            a, points = self.features(x).double(), self.points.double()
            alike = a @ points.T  # (B, N)
            if self.linear:
                alike = alike * self.rate
            else:
                apart = a.square().sum(1, keepdim=True) + points.square().sum(1) - 2 * alike
                alike = (-self.rate * apart.clamp_min(0)).exp()
            return ((alike @ self.alpha + self.share - 0.5) / self.error).float()

    @torch.no_grad()
    def solutions(self, samples: Tensor, right: Tensor) -> Iterator[float]:
        """Solve for every kernel and λ in turn; each solution is held until the next is asked for.

        `samples` are `(V, E, D)` as `shrunk` gives them, E of each video; `right` is `(V, K)`. Yields the share of
        the labels' spread that is left in its own samples, |Y − m − f|² / |Y − m|²: 0 is learned by heart, 1 is a
        constant answer.
        """
        videos, each, _ = samples.shape
        flat = samples.flatten(0, 1)
        exact = flat.double()
        deviation = exact.std(0, correction=0)
        self.mean = exact.mean(0).float()
        self.scale = torch.where(deviation > FLAT, 1 / deviation.clamp_min(FLAT), 0).float()
        self.points = self.standardised(flat)
        labels = right.double().repeat_interleave(each, 0)
        self.share = labels.mean(0)
        labels = labels - self.share

        exact = self.points.double()
        products = exact @ exact.T  # (N, N)
        squares = products.diagonal()
        apart = (squares[:, None] + squares - 2 * products).clamp_min(0)
        others = apart[~torch.eye(len(apart), dtype=torch.bool, device=apart.device)]
        usual, size = _first(others.median(), others.mean()), _first(squares.mean())
        diagonal = torch.arange(videos, device=samples.device)
        for gamma in GAMMAS:
            self.linear = torch.tensor(gamma == 0, device=samples.device)
            self.rate = gamma / usual if gamma else 1 / size
            gram = (-self.rate * apart).exp() if gamma else products * self.rate
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

    def standardised(self, shrunk: Tensor) -> Tensor:
        """Pixels `(B, D)` in deviations from the training samples' mean, cut off."""
        return ((shrunk - self.mean) * self.scale).clamp(-FAR, FAR)


def _resize(kernel: nn.Module, state: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Make every buffer as long as the one that is about to be loaded into it."""
    for name, held in kernel.named_buffers(recurse=False):
        if (new := state.get(prefix + name)) is not None:
            setattr(kernel, name, held.new_empty(new.shape))


def _first(*candidates: Tensor) -> Tensor:
    """The first that is above 0, or 1."""
    return next((value for value in candidates if value > 0), torch.ones_like(candidates[0]))
