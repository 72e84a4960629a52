"""The restoring attacker's first step: learn from pairs of raw and anonymized frames to undo the anonymizer.

Two ways are tried, and the one that comes nearer to the raw validation frames is taken:

*local*    a small U-shaped network, raw ≈ x + g(x): undoes blur, noise, pixels, colours, whatever can be guessed
           from the surroundings.
*keyed*    raw[p] ≈ a[p] · x[m(p)] + b[p] for each place p: undoes what a fixed key did (pixels or blocks moved about,
           inverted, scaled), which no local network can. m(p) is the place that correlates best with p.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.audit.videos import Footage
from veil.training.fit import LRSchedule, Setup, Step, fit

PAIRS = 2048  # frames from which a key is found
AT_ONCE = 256  # frames restored together


@dataclass(frozen=True)
class Restoring:
    """How much work goes into a restorer."""

    steps: int = 600
    batch: int = 32
    lr: float = 2e-3
    width: int = 24


class Local(nn.Module):
    """A U-shaped network over frames ``(B, 3, H, W)`` in [0, 1] that adds what is missing."""

    def __init__(self, width: int):
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.first = _block(3, sizes[0])
        self.down = nn.ModuleList(_block(a, b, 2) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(_block(a + b, a) for a, b in pairwise(sizes))
        self.last = nn.Conv2d(sizes[0], 3, 1)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The restored frames ``(B, 3, H, W)``."""
        kept = [self.first(x - 0.5)]
        for down in self.down:
            kept.append(down(kept[-1]))
        out = kept.pop()
        for up in reversed(self.up):
            beside = kept.pop()
            out = F.interpolate(out, beside.shape[-2:], mode="bilinear", align_corners=False)
            out = up(torch.cat([beside, out], 1))
        return x + self.last(out)


class Keyed(nn.Module):
    """One place of the anonymized frame, scaled and shifted, for each place of the raw one."""

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
        """The restored frames ``(B, 3, H, W)``."""
        out = x.flatten(2)[:, :, self.match] * self.scale + self.shift
        return out.view(x.shape)


class Restorer:
    """What undoes an anonymizer best."""

    def __init__(self, how: str, net: nn.Module, error: float, before: float, device: torch.device):
        self.how, self._net, self._device = how, net, device
        self.error, self.before = (
            error,
            before,
        )  # mean absolute error to raw on validation frames, with and without

    @torch.no_grad()
    def __call__(self, footage: Footage) -> Footage:
        """The footage restored, in 8 bits."""
        frames = footage.frames
        flat = frames.flatten(0, 1)
        out = [to_bytes(self._net(to_float(part.to(self._device)))) for part in flat.split(AT_ONCE)]
        return replace(footage, frames=torch.cat(out).to(frames.device).view(frames.shape))


def learn_restorer(
    raw: tuple[Footage, Footage],
    anonymized: tuple[Footage, Footage],
    how: Restoring,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Restorer:
    """Learn from the training videos, choose on the validation videos; each argument is (train, val)."""
    device = torch.device(device)
    (right, right_val), (seen, seen_val) = (
        [footage.frames.flatten(0, 1) for footage in pair] for pair in (raw, anonymized)
    )
    some = torch.linspace(0, len(right) - 1, min(PAIRS, len(right))).long()
    keyed = Keyed(to_float(right[some].to(device)), to_float(seen[some].to(device)))
    torch.manual_seed(seed)
    local = Local(how.width).to(device)

    def loss(batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"restored": F.l1_loss(local(batch[1]).float(), batch[0])}

    plan = LRSchedule(warmup=how.steps // 20, shape="cosine", updates=how.steps, floor=0.01)
    cuda = device.type == "cuda"
    setup = Setup(seed=seed, precision="bf16" if cuda else "fp32", clip=1.0, channels_last=cuda)
    for _ in fit(
        [Step("restore", (local,), loss, how.lr, schedule=plan)],
        _pairs(right, seen, how, seed, device),
        setup,
    ):
        pass
    local.eval()
    few = torch.linspace(0, len(right_val) - 1, min(PAIRS, len(right_val))).long()
    truth, given = (to_float(frames[few].to(device)) for frames in (right_val, seen_val))
    tried = {"local": local, "keyed": keyed}
    errors = {name: _error(net, given, truth) for name, net in tried.items()}
    best = min(errors, key=lambda name: errors[name])
    return Restorer(best, tried[best], errors[best], _error(nn.Identity(), given, truth), device)


def to_float(frames: Tensor) -> Tensor:
    """Frames ``(B, H, W, 3)`` uint8 as ``(B, 3, H, W)`` in [0, 1]."""
    return frames.permute(0, 3, 1, 2).float().div(255)


def to_bytes(frames: Tensor) -> Tensor:
    """Frames ``(B, 3, H, W)`` in [0, 1] as ``(B, H, W, 3)`` uint8."""
    return frames.mul(255).round().clamp(0, 255).byte().permute(0, 2, 3, 1)


def _pairs(
    raw: Tensor, seen: Tensor, how: Restoring, seed: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    dice = torch.Generator().manual_seed(seed)
    for _ in range(how.steps):
        rows = torch.randint(len(raw), (min(how.batch, len(raw)),), generator=dice).to(raw.device)
        yield to_float(raw[rows].to(device)), to_float(seen[rows].to(device))


@torch.no_grad()
def _error(net: nn.Module, given: Tensor, truth: Tensor) -> float:
    parts = zip(given.split(AT_ONCE), truth.split(AT_ONCE), strict=True)
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
