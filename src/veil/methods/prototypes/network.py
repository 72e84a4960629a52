"""The network of action prototypes: it reconstructs mean cells from 16 frames, and the nearest prototypes are shown."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.core import VeilError
from veil.methods.prototypes.sampling import sample_phase, uniform_from_levels

PAST, BLOCK, FUTURE = (
    4,
    8,
    4,
)  # frames that are seen before, in and after a block with one action and one phase
CONTEXT = PAST + BLOCK + FUTURE
MAX_CHANGE = 4.0  # deviations; larger changes are clamped


class PrototypeNet(nn.Module):
    """Clips ``(B, 3, T, H, W)`` in [0, 1] to prototypes of their action; H and W are those of the training data."""

    square = True  # the prototypes are
    dense = True  # it takes every frame, and selects every `skip`-th itself

    mean: Tensor  # of the cells of training videos, and
    deviation: Tensor
    change: Tensor  # the deviation of the change of half-cells from frame to frame
    pace: Tensor  # phases from one frame to the next
    prototypes: Tensor  # (actions, phases, h, w), in deviations from the mean

    def __init__(
        self,
        cell: int = 8,
        width: int = 32,
        quantize: bool = True,
        phase_temperature: float = 0.01,
        skip: int = 1,
    ) -> None:
        if cell < 2 or cell % 2:
            raise VeilError(f"a cell is an even number of pixels wide: cell={cell}.", code="cell-odd")
        super().__init__()
        self.cell, self.quantize, self.phase_temperature, w = cell, quantize, phase_temperature, width
        self.past, self.block, self.future = PAST * skip, BLOCK * skip, FUTURE * skip
        for name in ("mean", "deviation", "change", "pace"):
            self.register_buffer(name, torch.ones(()))
        self.register_buffer("prototypes", torch.zeros(1, 1, 1, 1))
        self.register_load_state_dict_pre_hook(_resize_prototypes)
        self.enter = nn.Sequential(_layer(2, w, (1, 2, 2)), _layer(w, w))  # cells
        self.down = nn.Sequential(_layer(w, 2 * w, (2, 2, 2)), _layer(2 * w, 2 * w))
        self.deep = nn.Sequential(_layer(2 * w, 3 * w, (2, 2, 2)), _layer(3 * w, 3 * w), nn.Dropout3d(0.2))
        self.whole = nn.Sequential(nn.Linear(3 * w, 3 * w), nn.SiLU(), nn.Linear(3 * w, 3 * w))
        self.up, self.last = _layer(5 * w, 2 * w), _layer(3 * w, w)
        self.exit = nn.Conv3d(w, 1, 3, padding=1)

    def forward(self, clip: Tensor) -> Tensor:
        """The clip, anonymized."""
        if clip.ndim != 5 or clip.shape[1] != 3 or clip.shape[2] % CONTEXT:
            raise ValueError(f"a clip is (B, 3, T, H, W), T a multiple of {CONTEXT}, got {tuple(clip.shape)}")
        cells = self.cells(to_half_cells(clip, self.cell))  # (B, T, h, w)
        large = cells.repeat_interleave(self.cell, 2).repeat_interleave(self.cell, 3)  # (B, T, H, W)
        return large[:, None].expand(-1, 3, -1, -1, -1).to(clip.dtype)

    def cells(self, half_cells: Tensor) -> Tensor:
        """The output ``(B, T, h, w)`` in [0, 1], from half-cells ``(B, T, 2h, 2w)``: T is a multiple of `CONTEXT`."""
        count, length, skip = half_cells.shape[0], half_cells.shape[1], half_cells.shape[1] // CONTEXT
        strided = (
            half_cells.unflatten(1, (CONTEXT, -1)).transpose(1, 2).flatten(0, 1)
        )  # (B·skip, CONTEXT, 2h, 2w)
        reconstruction = self.reconstruct(self.inputs(strided))
        if not self.quantize:
            cells = reconstruction.unflatten(0, (count, -1)).transpose(1, 2).flatten(1, 2)
        else:
            distances = (
                self.distances(reconstruction).unflatten(0, (count, -1)).mean(1)
            )  # (B, actions, phases)
            action = distances.amin(2).argmin(1)
            of_action = distances[torch.arange(count, device=distances.device), action]  # (B, phases)
            phase = of_action.argmin(1)
            if self.phase_temperature:
                uniform = uniform_from_levels(half_cells, self.cell)
                phase = sample_phase(of_action, self.phase_temperature, uniform)
            offset = (torch.arange(length, device=distances.device) - (length - 1) / 2) * (self.pace / skip)
            phases = (phase[:, None] + offset).round().long()
            cells = self.prototypes[action[:, None], phases.clamp(0, self.prototypes.shape[1] - 1)]
        return (cells * self.deviation + self.mean).clamp(0, 1)

    def distances(self, reconstruction: Tensor) -> Tensor:
        """d of reconstructions ``(B, T, h, w)`` from every sequence of prototypes: ``(B, actions, phases)``."""
        sequences = self._sequences(reconstruction.shape[1])  # (actions, phases, T, h, w)
        flat, others = reconstruction.float().flatten(1), sequences.flatten(2).flatten(0, 1)
        with torch.autocast(flat.device.type, enabled=False):
            squares = flat.square().sum(1)[:, None] - 2 * flat @ others.T + others.square().sum(1)
        return (squares / flat.shape[1]).unflatten(1, sequences.shape[:2])

    def _sequences(self, length: int) -> Tensor:
        """Consecutive prototypes, around each phase: ``(actions, phases, T, h, w)``."""
        phases = self.prototypes.shape[1]
        offset = ((torch.arange(length, device=self.pace.device) - (length - 1) / 2) * self.pace).round()
        at = torch.arange(phases, device=self.pace.device)[:, None] + offset.long()
        return self.prototypes[:, at.clamp(0, phases - 1)]

    def inputs(self, half_cells: Tensor) -> Tensor:
        """Change and level of half-cells ``(B, T, 2h, 2w)``, standardized: ``(B, 2, T, 2h, 2w)``."""
        change = (half_cells - torch.cat([half_cells[:, :1], half_cells[:, :-1]], 1)) / self.change
        level = (half_cells - self.mean) / self.deviation
        return torch.stack([change.clamp(-MAX_CHANGE, MAX_CHANGE), level], 1)

    def reconstruct(self, inputs: Tensor) -> Tensor:
        """G: cells ``(B, T, h, w)``, in deviations from the mean."""
        fine = self.enter(inputs)  # (B, w, T, h, w)
        middle = self.down(fine)
        deep = self.deep(middle)
        deep = deep + self.whole(deep.mean((2, 3, 4)))[:, :, None, None, None]
        middle = self.up(torch.cat([F.interpolate(deep, middle.shape[2:]), middle], 1))
        fine = self.last(torch.cat([F.interpolate(middle, fine.shape[2:]), fine], 1))
        return self.exit(fine)[:, 0].float()


def _resize_prototypes(net: nn.Module, state: Mapping[str, Tensor], prefix: str, *_: object) -> None:
    """Make room for the prototypes that are loaded, however many there are."""
    loaded = state.get(f"{prefix}prototypes")
    if loaded is not None:
        net.prototypes = torch.empty_like(loaded, device=next(net.parameters()).device)


def _layer(inputs: int, outputs: int, stride: tuple[int, int, int] = (1, 1, 1)) -> nn.Sequential:
    # Norms over one clip: the output of a video never depends on another video.
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, stride, 1), nn.GroupNorm(math.gcd(8, outputs), outputs), nn.SiLU()
    )


def to_half_cells(clip: Tensor, cell: int) -> Tensor:
    """Grey means over half-cells of clips ``(B, 3, T, H, W)``: ``(B, T, H/(cell/2), W/(cell/2))``."""
    height, width = clip.shape[3:]
    if height % cell or width % cell:
        raise VeilError(
            f"frames of {height}×{width} pixels do not fit into cells of {cell} pixels: choose another size.",
            code="cells-do-not-fit",
        )
    return F.avg_pool2d(clip.float().mean(1), cell // 2)
