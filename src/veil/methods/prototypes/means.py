"""The prototypes: means over the training videos of each action; training windows with their targets; validation."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from veil.core import VeilError
from veil.methods.prototypes.network import PrototypeNet, to_half_cells
from veil.training.data import TrainingData
from veil.training.distributed import rank, world_size
from veil.training.frame_cache import FrameCache

PHASES = 64  # of each action
WINDOWS = 3  # of each validation video


class PrototypeBatch(NamedTuple):
    """The data of one training step."""

    half_cells: Tensor  # (B, T, 2h, 2w)
    target: Tensor  # (B, T, h, w) cells
    action: Tensor  # (B,)


class ActionMeans:
    """Training videos as half-cells, the mean of each action at each phase, and batches by number."""

    def __init__(self, data: TrainingData, cell: int) -> None:
        self.data, self.cell, self.device = data, cell, data.device
        videos, actions, skip = data.train, data.actions, data.config.skip
        self.half_cells = self._half_cells(videos)  # (M, 2h, 2w)
        cells = F.avg_pool2d(self.half_cells, 2)
        frame = torch.cat([torch.arange(max(0, length - skip)) for length in videos.lengths.tolist()])
        frame = (frame + videos.first.repeat_interleave((videos.lengths - skip).clamp_min(0))).to(self.device)
        self.mean, self.deviation = cells.mean(), cells.std().clamp_min(1 / 255)
        change = self.half_cells[frame + skip] - self.half_cells[frame]
        self.change = change.std().clamp_min(1 / 255) if len(frame) else torch.ones((), device=self.device)
        if actions.ndim == 2:
            raise VeilError(
                f"the videos of {videos.dataset.name} show several actions at once, which have no common mean: "
                "choose data with one action per video.",
                code="several-actions",
            )
        times = torch.linspace(0, 1, PHASES) * (videos.lengths[:, None] - 1)
        at_phases = self._interpolated(cells, videos, times)  # (N, phases, h, w)
        sums = torch.zeros(data.n_outputs, *at_phases.shape[1:], device=self.device)
        sums.index_add_(0, actions.to(self.device), at_phases)
        count = torch.bincount(actions, minlength=data.n_outputs).clamp_min(1).to(self.device)
        self.means = sums / count[:, None, None, None]  # (actions, phases, h, w)
        self.prototypes = (self.means - self.mean) / self.deviation
        paces = skip * (PHASES - 1) / (videos.lengths - 1).clamp_min(1)
        self.pace = paces.float().mean().to(self.device)

    def _half_cells(self, videos: FrameCache) -> Tensor:
        parts = [
            to_half_cells(part.permute(3, 0, 1, 2)[None].float() / 255, self.cell)[0]
            for part in videos.frames.split(512)
        ]
        return torch.cat(parts).to(self.device)

    def _interpolated(self, cells: Tensor, videos: FrameCache, times: Tensor) -> Tensor:
        """All videos at times ``(N, K)`` that may lie between frames: ``(N, K, h, w)``."""
        low = times.floor().long()
        high = torch.minimum(low + 1, videos.lengths[:, None] - 1)
        share = (times - low).to(self.device)[..., None, None]
        first = videos.first[:, None]
        return torch.lerp(cells[(first + low).to(self.device)], cells[(first + high).to(self.device)], share)

    def target(self, actions: Tensor, phase: Tensor) -> Tensor:
        """Prototypes of actions ``(B,)`` at phases ``(B, K)`` in [0, 1]: ``(B, K, h, w)``, in deviations from the mean."""
        at = (phase.clamp(0, 1) * (PHASES - 1)).to(self.device)
        low = at.floor().long()
        rows = actions.to(self.device)[:, None]
        cells = torch.lerp(
            self.means[rows, low],
            self.means[rows, (low + 1).clamp_max(PHASES - 1)],
            (at - low)[..., None, None],
        )
        return (cells - self.mean) / self.deviation

    def __call__(self, number: int) -> PrototypeBatch:
        """Windows of videos, some faster and some slower than filmed; a function of seed and number."""
        config, videos = self.data.config, self.data.train
        rng = torch.Generator().manual_seed(self.data.seed * 1_000_003 + number * 8191 + rank())
        count = max(1, config.batch // world_size())
        rows = torch.randint(len(videos), (count,), generator=rng)
        last = (videos.lengths[rows] - 1)[:, None]
        random = torch.rand(2, count, 1, generator=rng)
        # From half a window before the first frame to half a window before the end.
        start = random[0] * (last + 1) - config.length / 2
        pace = config.skip * (0.8 + 0.45 * random[1])
        times = (start + pace * torch.arange(config.length)).round().clamp_min(0).long()
        times = torch.minimum(times, last)
        half_cells = self.half_cells[(videos.first[rows, None] + times).to(self.device)]
        action = self.data.actions[rows]
        target = self.target(action, times / last.clamp_min(1))
        return PrototypeBatch(half_cells, target, action.to(self.device))

    @torch.no_grad()
    def accuracy(self, net: PrototypeNet) -> float:
        """The share of validation videos whose windows together are nearest to prototypes of their own action."""
        videos, config = self.data.val, self.data.config
        half_cells = self._half_cells(videos)
        reach = (config.length - 1) * config.skip
        last = videos.lengths - 1
        starts = torch.linspace(0, 1, WINDOWS) * (last - reach).clamp_min(0)[:, None]  # (N, windows)
        times = (starts[..., None] + config.skip * torch.arange(config.length)).round().long()
        times = (torch.minimum(times, last[:, None, None]) + videos.first[:, None, None]).to(self.device)
        training = net.training
        net.eval()
        distances = [
            net.distances(net.reconstruct(net.inputs(half_cells[window]))).amin(2).cpu()
            for window in times.flatten(0, 1).split(64)
        ]
        net.train(training)
        nearest = torch.cat(distances).unflatten(0, starts.shape).sum(1).argmin(1)  # (N,)
        labels = videos.labels("action")
        return 0.0 if labels is None else float((nearest == labels).float().mean())
