"""The first step of the reconstruction attacker: train on pairs of raw and anonymized frames to invert the anonymizer.

Two models are trained, and the one that comes nearer to the raw validation frames is used:

*local*    a small U-Net, raw ≈ x + g(x): inverts blur, noise, large pixels and colour changes, as far as the
           surroundings allow.
*keyed*    raw[p] ≈ a[p] · x[m(p)] + b[p] for each pixel p: inverts a fixed key (pixels or blocks permuted,
           inverted, scaled), which no local network can. m(p) is the pixel that correlates best with p.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.audit.videos import Videos
from veil.training.fit import fit
from veil.training.schedule import LRSchedule
from veil.training.steps import Setup, Step

PAIRS = 2048  # frames from which a key is found
FRAME_BATCH = 256  # frames reconstructed together


@dataclass(frozen=True)
class ReconstructionBudget:
    """How much a reconstructor is trained."""

    steps: int = 600
    batch: int = 32
    lr: float = 2e-3
    width: int = 24


class LocalReconstruction(nn.Module):
    """A small U-Net over frames ``(B, 3, H, W)`` in [0, 1] with a residual connection."""

    def __init__(self, width: int):
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.first = _block(3, sizes[0])
        self.down = nn.ModuleList(_block(a, b, 2) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(_block(a + b, a) for a, b in pairwise(sizes))
        self.last = nn.Conv2d(sizes[0], 3, 1)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The reconstructed frames ``(B, 3, H, W)``."""
        kept = [self.first(x - 0.5)]
        for down in self.down:
            kept.append(down(kept[-1]))
        out = kept.pop()
        for up in reversed(self.up):
            beside = kept.pop()
            out = F.interpolate(out, beside.shape[-2:], mode="bilinear", align_corners=False)
            out = up(torch.cat([beside, out], 1))
        return x + self.last(out)


class KeyedReconstruction(nn.Module):
    """One pixel of the anonymized frame, scaled and shifted, for each pixel of the raw one."""

    def __init__(self, raw: Tensor, x: Tensor):
        """Find the key in pairs of frames ``(M, 3, H, W)`` in [0, 1]."""
        super().__init__()
        grey = [_standardised(frames.mean(1).flatten(1)) for frames in (raw, x)]  # (M, P)
        match = torch.cat([(part.T @ grey[1]).abs().argmax(1) for part in grey[0].split(1024, 1)])  # (P,)
        moved, right = x.flatten(2)[:, :, match], raw.flatten(2)  # (M, 3, P)
        mean_x, mean_r = moved.mean(0), right.mean(0)
        both = ((moved - mean_x) * (right - mean_r)).mean(0)
        scale = both / (moved.var(0, correction=0) + 1e-4)  # (3, P)
        self.match, self.scale, self.shift = match, scale, mean_r - scale * mean_x

    def forward(self, x: Tensor) -> Tensor:
        """The reconstructed frames ``(B, 3, H, W)``."""
        out = x.flatten(2)[:, :, self.match] * self.scale + self.shift
        return out.view(x.shape)


class Reconstructor:
    """The better of the two models."""

    def __init__(self, kind: str, net: nn.Module, error: float, before: float, device: torch.device):
        self.kind, self._net, self._device = kind, net, device
        self.error, self.before = (
            error,
            before,
        )  # mean absolute error to raw on validation frames, with and without

    @torch.no_grad()
    def __call__(self, videos: Videos) -> Videos:
        """The reconstructed videos, in 8 bits."""
        frames = videos.frames
        flat = frames.flatten(0, 1)
        out = [to_bytes(self._net(to_float(part.to(self._device)))) for part in flat.split(FRAME_BATCH)]
        return replace(videos, frames=torch.cat(out).to(frames.device).view(frames.shape))


def train_reconstructor(
    raw: tuple[Videos, Videos],
    anonymized: tuple[Videos, Videos],
    budget: ReconstructionBudget,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Reconstructor:
    """Train on the training videos, choose on the validation videos; each argument is (train, val)."""
    device = torch.device(device)
    (right, right_val), (seen, seen_val) = (
        [videos.frames.flatten(0, 1) for videos in pair] for pair in (raw, anonymized)
    )
    some = torch.linspace(0, len(right) - 1, min(PAIRS, len(right))).long()
    keyed = KeyedReconstruction(to_float(right[some].to(device)), to_float(seen[some].to(device)))
    torch.manual_seed(seed)
    local = LocalReconstruction(budget.width).to(device)

    def loss(batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"reconstruction": F.l1_loss(local(batch[1]).float(), batch[0])}

    plan = LRSchedule(warmup=budget.steps // 20, shape="cosine", updates=budget.steps, floor=0.01)
    cuda = device.type == "cuda"
    setup = Setup(seed=seed, precision="bf16" if cuda else "fp32", clip=1.0, channels_last=cuda)
    for _ in fit(
        [Step("reconstruct", (local,), loss, budget.lr, schedule=plan)],
        _pairs(right, seen, budget, seed, device),
        setup,
    ):
        pass
    local.eval()
    few = torch.linspace(0, len(right_val) - 1, min(PAIRS, len(right_val))).long()
    truth, given = (to_float(frames[few].to(device)) for frames in (right_val, seen_val))
    tried = {"local": local, "keyed": keyed}
    errors = {name: _error(net, given, truth) for name, net in tried.items()}
    best = min(errors, key=lambda name: errors[name])
    return Reconstructor(best, tried[best], errors[best], _error(nn.Identity(), given, truth), device)


def to_float(frames: Tensor) -> Tensor:
    """Frames ``(B, H, W, 3)`` uint8 as ``(B, 3, H, W)`` in [0, 1]."""
    return frames.permute(0, 3, 1, 2).float().div(255)


def to_bytes(frames: Tensor) -> Tensor:
    """Frames ``(B, 3, H, W)`` in [0, 1] as ``(B, H, W, 3)`` uint8."""
    return frames.mul(255).round().clamp(0, 255).byte().permute(0, 2, 3, 1)


def _pairs(
    raw: Tensor, seen: Tensor, budget: ReconstructionBudget, seed: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    for _ in range(budget.steps):
        rows = torch.randint(len(raw), (min(budget.batch, len(raw)),), generator=rng).to(raw.device)
        yield to_float(raw[rows].to(device)), to_float(seen[rows].to(device))


@torch.no_grad()
def _error(net: nn.Module, given: Tensor, truth: Tensor) -> float:
    parts = zip(given.split(FRAME_BATCH), truth.split(FRAME_BATCH), strict=True)
    return torch.cat([(net(x).clamp(0, 1) - y).abs().mean((1, 2, 3)) for x, y in parts]).mean().item()


def _standardised(values: Tensor) -> Tensor:
    """Columns of ``(M, P)`` with mean 0 and length 1; constant ones are 0."""
    centred = values - values.mean(0)
    return centred / centred.norm(dim=0).clamp_min(1e-3)


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )
