"""Everyone: a video is replaced by what everybody together would have shown doing the same. Veil's own method.

No adversary, and no label that says who is seen: only that several people were filmed doing each action. With x a video
of one person doing action a, φ ∈ [0, 1] how far it has come, r(x)(φ) its frame there as means over large cells, in grey,
and V_a the training videos of that action::

    m_a(φ) = mean over x' ∈ V_a of r(x')(φ)                    a picture of everybody
    d_b(ψ) = mean over the frames k of |G(x)_k − m_b(ψ + kΔ)|²         G sees 16 frames of x, not a and not φ
    G  ←  descend |G(x)(φ) − m_a(φ)|² + w · CE(softmax_b of log Σ_ψ exp(−d_b(ψ) / τ), a)
    A(x) = m_b(ψ + kΔ) of the b that is nearest, least d_b(ψ) over ψ; ψ by chance, p(ψ) ∝ exp(−d_b(ψ) / σ)

What leaves is never drawn from the person: it is one of the pictures of everybody, of which there are some hundreds; for
every block of frames one b and one ψ. All that can tell who it is, is what they do and when; and when is told with noise. (`loose`
is σ; of none, the nearest ψ leaves, which tells more of who it is.) Chance is a number that follows from every grey level of
the block: whoever has the video gets the same again, so that asking often averages nothing away; to whoever has not, it is
chance. (G's own drawing, which is close to m_a(φ) but not equal, would not do: networks that attack it find little, but a
kernel machine finds faint traces of nearly everybody; `snap = false` is that.)

G sees means over cells half as large, and what changed in them since the frame before, of people moved,
scaled and weakened or strengthened at random. It looks at every `skip`-th frame, `skip` times, so that it has seen each; d is the
mean over those.

The price: an action that was not trained with is shown as the nearest one that was. Δ is the mean pace of training videos.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.core import VeilError
from veil.nn import onnx
from veil.training.data import DataConfig, FrameCache, TrainingData, setup
from veil.training.fit import LRSchedule, Phase, Step, Terms, rank, world_size
from veil.training.losses import single_label
from veil.training.recipe import STRICT, Seed, Training

PHASES = 64  # of a video, at which means are held
LIMIT = 4.0  # deviations beyond which a change counts no more
WINDOWS = 3  # of a validation video that are looked at
PAST, BLOCK, FUTURE = 4, 8, 4  # frames that are looked at before, in and after a block that is drawn together
SEEN = PAST + BLOCK + FUTURE
PRIME = 1_048_573  # below 2**20, so that what chance sums up fits into 64 bits


class Prototypes(nn.Module):
    """Clips ``(B, 3, T, H, W)`` in [0, 1] to what everybody would have shown; H and W are what it was trained with."""

    square = True  # its pictures are
    dense = True  # it takes every frame, and looks at every `skip`-th itself

    mean: Tensor  # of the cells of training videos, and
    deviation: Tensor
    change: Tensor  # the deviation of what changes in half a cell from frame to frame
    pace: Tensor  # pictures from one frame to the next
    pictures: Tensor  # (actions, phases, h, w), in deviations from the mean

    def __init__(
        self, cell: int = 8, width: int = 32, snap: bool = True, loose: float = 0.01, skip: int = 1
    ) -> None:
        if cell < 2 or cell % 2:
            raise VeilError(f"a cell is an even number of pixels wide: cell={cell}.")
        super().__init__()
        self.cell, self.snap, self.loose, w = cell, snap, loose, width
        self.past, self.block, self.future = PAST * skip, BLOCK * skip, FUTURE * skip
        for name in ("mean", "deviation", "change", "pace"):
            self.register_buffer(name, torch.ones(()))
        self.register_buffer("pictures", torch.zeros(1, 1, 1, 1))
        self.register_load_state_dict_pre_hook(_make_room)
        self.enter = nn.Sequential(_layer(2, w, (1, 2, 2)), _layer(w, w))  # cells
        self.down = nn.Sequential(_layer(w, 2 * w, (2, 2, 2)), _layer(2 * w, 2 * w))
        self.deep = nn.Sequential(_layer(2 * w, 3 * w, (2, 2, 2)), _layer(3 * w, 3 * w), nn.Dropout3d(0.2))
        self.whole = nn.Sequential(nn.Linear(3 * w, 3 * w), nn.SiLU(), nn.Linear(3 * w, 3 * w))
        self.up, self.last = _layer(5 * w, 2 * w), _layer(3 * w, w)
        self.exit = nn.Conv3d(w, 1, 3, padding=1)

    def forward(self, clip: Tensor) -> Tensor:
        """The clip, redrawn."""
        if clip.ndim != 5 or clip.shape[1] != 3 or clip.shape[2] % SEEN:
            raise ValueError(f"a clip is (B, 3, T, H, W), T a multiple of {SEEN}, got {tuple(clip.shape)}")
        cells = self.shown(halves(clip, self.cell))  # (B, T, h, w)
        large = cells.repeat_interleave(self.cell, 2).repeat_interleave(self.cell, 3)  # (B, T, H, W)
        return large[:, None].expand(-1, 3, -1, -1, -1).to(clip.dtype)

    def shown(self, light: Tensor) -> Tensor:
        """What leaves, ``(B, T, h, w)`` cells in [0, 1], of half-cells ``(B, T, 2h, 2w)``: T is a multiple of what is looked at."""
        count, length, skip = light.shape[0], light.shape[1], light.shape[1] // SEEN
        every = light.unflatten(1, (SEEN, -1)).transpose(1, 2).flatten(0, 1)  # (B·skip, SEEN, 2h, 2w)
        drawn = self.draw(self.seen(every))
        if not self.snap:
            shown = drawn.unflatten(0, (count, -1)).transpose(1, 2).flatten(1, 2)
        else:
            far = self.far(drawn).unflatten(0, (count, -1)).mean(1)  # (B, actions, phases)
            action = far.amin(2).argmin(1)
            near = far[torch.arange(count, device=far.device), action]  # (B, phases)
            phase = near.argmin(1)
            if self.loose:
                below = (-near / self.loose).softmax(1).cumsum(1)[:, :-1] < self.chance(light)[:, None]
                phase = below.sum(1)
            offset = (torch.arange(length, device=far.device) - (length - 1) / 2) * (self.pace / skip)
            at = (phase[:, None] + offset).round().long().clamp(0, self.pictures.shape[1] - 1)  # (B, T)
            shown = self.pictures[action[:, None], at]
        return (shown * self.deviation + self.mean).clamp(0, 1)

    def chance(self, light: Tensor) -> Tensor:
        """A number in [0, 1) for each clip of half-cells ``(B, T, 2h, 2w)``: other wherever one grey level is."""
        levels = (light * (255 * 3 * (self.cell // 2) ** 2)).round().long().flatten(1)  # sums of bytes
        weights = torch.arange(1, levels.shape[1] + 1, device=light.device) * 48_271 % PRIME
        return (levels * weights).sum(1).remainder(PRIME) / PRIME

    def far(self, drawn: Tensor) -> Tensor:
        """d of drawings ``(B, T, h, w)`` from every run of pictures: ``(B, actions, phases)``."""
        runs = self._runs(drawn.shape[1])  # (actions, phases, T, h, w)
        flat, theirs = drawn.float().flatten(1), runs.flatten(2).flatten(0, 1)
        with torch.autocast(flat.device.type, enabled=False):
            squares = flat.square().sum(1)[:, None] - 2 * flat @ theirs.T + theirs.square().sum(1)
        return (squares / flat.shape[1]).unflatten(1, runs.shape[:2])

    def _runs(self, length: int) -> Tensor:
        """Pictures that follow each other, around each phase: ``(actions, phases, T, h, w)``."""
        phases = self.pictures.shape[1]
        offset = ((torch.arange(length, device=self.pace.device) - (length - 1) / 2) * self.pace).round()
        at = torch.arange(phases, device=self.pace.device)[:, None] + offset.long()
        return self.pictures[:, at.clamp(0, phases - 1)]

    def seen(self, light: Tensor) -> Tensor:
        """Half-cells ``(B, T, 2h, 2w)`` as the network takes them: what changed, and what is there, ``(B, 2, T, 2h, 2w)``."""
        change = (light - torch.cat([light[:, :1], light[:, :-1]], 1)) / self.change
        return torch.stack([change.clamp(-LIMIT, LIMIT), (light - self.mean) / self.deviation], 1)

    def draw(self, seen: Tensor) -> Tensor:
        """Cells ``(B, T, h, w)``, in deviations from the mean."""
        fine = self.enter(seen)  # (B, w, T, h, w)
        middle = self.down(fine)
        deep = self.deep(middle)
        deep = deep + self.whole(deep.mean((2, 3, 4)))[:, :, None, None, None]
        middle = self.up(torch.cat([F.interpolate(deep, middle.shape[2:]), middle], 1))
        fine = self.last(torch.cat([F.interpolate(middle, fine.shape[2:]), fine], 1))
        return self.exit(fine)[:, 0].float()


def _make_room(net: nn.Module, state: Mapping[str, Tensor], prefix: str, *_: object) -> None:
    """For as many pictures as there are in what is loaded."""
    found = state.get(f"{prefix}pictures")
    if found is not None:
        net.pictures = torch.empty_like(found, device=next(net.parameters()).device)


def _layer(inputs: int, outputs: int, stride: tuple[int, int, int] = (1, 1, 1)) -> nn.Sequential:
    # Norms of each clip alone: what happens to one video never depends on another.
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, stride, 1), nn.GroupNorm(math.gcd(8, outputs), outputs), nn.SiLU()
    )


def halves(clip: Tensor, cell: int) -> Tensor:
    """Means over half-cells of clips ``(B, 3, T, H, W)``, in grey: ``(B, T, H/(cell/2), W/(cell/2))``."""
    height, width = clip.shape[3:]
    if height % cell or width % cell:
        raise VeilError(f"frames of {height}×{width} pixels do not fit into cells of {cell} pixels.")
    return F.avg_pool2d(clip.float().mean(1), cell // 2)


def to_onnx(net: Prototypes, path: Path, stage: DataConfig) -> None:
    """Write a network as ONNX: half-cells ``(N, T, 2h, 2w)`` to ``cells`` ``(N, T, h, w)`` in [0, 1], in 16 bits.

    T is any multiple of `SEEN`.
    """
    side = 2 * stage.size // net.cell
    told = {
        "side": stage.size,
        "cell": net.cell,
        "loose": net.loose,
        "past": PAST,
        "block": BLOCK,
        "future": FUTURE,
    }
    axes = {0: "batch", 1: "time"}
    example = torch.rand(2, 3 * SEEN, side, side)
    onnx.write(path, net, net.shown, example, output="cells", axes=axes, told=told, half=True)


class Seen(NamedTuple):
    """One turn's data."""

    light: Tensor  # (B, T, 2h, 2w) half-cells
    wanted: Tensor  # (B, T, h, w) cells
    action: Tensor  # (B,)


class Means:
    """Training videos as half-cells, what everybody shows of each action, and windows by number."""

    def __init__(self, recipe: PrototypesRecipe, staged: TrainingData) -> None:
        self.recipe, self.staged, self.device = recipe, staged, staged.device
        self.light = self._half(staged.train)  # (M, 2h, 2w)
        cells = _cells(self.light)
        reel, actions, skip = staged.train, staged.actions, staged.stage.skip
        frame = torch.cat([torch.arange(max(0, length - skip)) for length in reel.lengths.tolist()])
        frame = (frame + reel.first.repeat_interleave((reel.lengths - skip).clamp_min(0))).to(self.device)
        self.mean, self.deviation = cells.mean(), cells.std().clamp_min(1 / 255)
        change = self.light[frame + skip] - self.light[frame]
        self.change = change.std().clamp_min(1 / 255) if len(frame) else torch.ones((), device=self.device)
        if actions.ndim == 2:
            raise VeilError(
                f"the videos of {reel.dataset.name} show several actions at once, of which there is no mean: "
                "choose data with one action a video."
            )
        when = torch.linspace(0, 1, PHASES) * (reel.lengths[:, None] - 1)
        at = self._between(cells, reel, torch.arange(len(reel)), when)  # (N, phases, h, w)
        self.everyone = torch.zeros(staged.outputs, *at.shape[1:], device=self.device)
        self.everyone.index_add_(0, actions.to(self.device), at)
        count = torch.bincount(actions, minlength=staged.outputs).clamp_min(1).to(self.device)
        self.everyone = self.everyone / count[:, None, None, None]  # (actions, phases, h, w)
        self.pictures = (self.everyone - self.mean) / self.deviation
        paces = skip * (PHASES - 1) / (reel.lengths - 1).clamp_min(1)
        self.pace = paces.float().mean().to(self.device)

    def _half(self, reel: FrameCache) -> Tensor:
        parts = [
            halves(part.permute(3, 0, 1, 2)[None].float() / 255, self.recipe.cell)[0]
            for part in reel.frames.split(512)
        ]
        return torch.cat(parts).to(self.device)

    def _between(self, cells: Tensor, reel: FrameCache, rows: Tensor, when: Tensor) -> Tensor:
        """Videos ``(B,)`` at moments ``(B, K)`` that may lie between frames."""
        low = when.floor().long()
        high = torch.minimum(low + 1, reel.lengths[rows, None] - 1)
        share = (when - low).to(self.device)[..., None, None]
        first = reel.first[rows, None]
        return torch.lerp(cells[(first + low).to(self.device)], cells[(first + high).to(self.device)], share)

    def wanted(self, actions: Tensor, phase: Tensor) -> Tensor:
        """What everybody shows of actions ``(B,)`` at phases ``(B, K)``: ``(B, K, h, w)`` in deviations from the mean."""
        where = (phase.clamp(0, 1) * (PHASES - 1)).to(self.device)
        low = where.floor().long()
        table, who = self.everyone, actions.to(self.device)[:, None]
        found = torch.lerp(
            table[who, low], table[who, (low + 1).clamp_max(PHASES - 1)], (where - low)[..., None, None]
        )
        return (found - self.mean) / self.deviation

    def __call__(self, number: int) -> Seen:
        """Windows of videos, some faster and some slower than they were; by their number alone."""
        stage, reel = self.staged.stage, self.staged.train
        dice = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + number * 8191 + rank())
        count = max(1, stage.batch // world_size())
        rows = torch.randint(len(reel), (count,), generator=dice)
        last = (reel.lengths[rows] - 1)[:, None]
        luck = torch.rand(2, count, 1, generator=dice)
        start = (
            luck[0] * (last + 1) - stage.length / 2
        )  # from a window that has hardly begun to one that is nearly over
        pace = stage.skip * (0.8 + 0.45 * luck[1])
        when = torch.minimum((start + pace * torch.arange(stage.length)).round().clamp_min(0).long(), last)
        light = self.light[(reel.first[rows, None] + when).to(self.device)]
        action = self.staged.actions[rows]
        return Seen(light, self.wanted(action, when / last.clamp_min(1)), action.to(self.device))

    @torch.no_grad()
    def nearest(self, net: Prototypes) -> float:
        """How many validation videos are, over some windows, nearest to pictures of their action."""
        reel, stage = self.staged.val, self.staged.stage
        light = self._half(reel)
        reach = (stage.length - 1) * stage.skip
        last = reel.lengths - 1
        starts = torch.linspace(0, 1, WINDOWS) * (last - reach).clamp_min(0)[:, None]  # (N, windows)
        when = (starts[..., None] + stage.skip * torch.arange(stage.length)).round().long()
        when = (torch.minimum(when, last[:, None, None]) + reel.first[:, None, None]).to(self.device)
        mode = net.training
        net.eval()
        far = [
            net.far(net.draw(net.seen(light[window]))).amin(2).cpu()
            for window in when.flatten(0, 1).split(64)
        ]
        net.train(mode)
        answers = torch.cat(far).unflatten(0, starts.shape).sum(1).argmin(1)  # (N,)
        right = reel.truth("action")
        return 0.0 if right is None else float((answers == right).float().mean())


def _cells(light: Tensor) -> Tensor:
    return F.avg_pool2d(light, 2)


def varied(seen: Tensor) -> Tensor:
    """What the network sees ``(B, 2, T, h, w)``, of people who stand elsewhere, are of another size, and move more or less."""
    with torch.autocast(seen.device.type, enabled=False):
        count, _, _, height, width = seen.shape
        dice = 2 * torch.rand(5, count, device=seen.device) - 1
        theta = torch.zeros(count, 2, 3, device=seen.device)
        theta[:, 0, 0], theta[:, 1, 1] = (dice[:2] * math.log(1.2)).exp()
        theta[:, 0, 2], theta[:, 1, 2] = 0.2 * dice[2], 0.12 * dice[3]
        flat = seen.float().flatten(1, 2)  # (B, 2·T, h, w)
        where = F.affine_grid(theta, [count, 1, height, width], align_corners=False)
        moved = F.grid_sample(flat, where, padding_mode="border", align_corners=False).view(seen.shape)
        strength = (dice[4] * math.log(1.4)).exp()[:, None, None, None, None]
        return moved * strength + 0.15 * torch.randn_like(moved)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrototypesRecipe:
    """Regression to everybody's mean."""

    stage: DataConfig = Field(default_factory=lambda: DataConfig(length=16, skip=3, batch=64, augment="none"))
    cell: Annotated[int, Field(ge=2, le=64)] = 8  # pixels
    width: Annotated[int, Field(ge=8, le=128)] = 32
    snap: bool = True  # false, to compare with: what leaves is G's own drawing
    loose: Annotated[float, Field(ge=0)] = 0.01  # σ
    tell: Annotated[float, Field(ge=0)] = 0.02  # w
    sharp: Annotated[float, Field(gt=0)] = 0.01  # τ
    steps: Annotated[int, Field(ge=2)] = 2500
    lr: Annotated[float, Field(gt=0)] = 2e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.cell % 2 or self.stage.size % self.cell:
            raise VeilError(
                f"frames of {self.stage.size} pixels do not fit into cells of {self.cell}: "
                "cell is even and a part of stage.size."
            )

    def network(self) -> Prototypes:
        """A fresh anonymizer."""
        return Prototypes(self.cell, self.width, self.snap, self.loose, self.stage.skip)

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        torch.manual_seed(self.seed)
        means = Means(self, TrainingData(self.stage, device, self.seed))
        net = self.network().to(device)
        net.pictures = means.pictures
        for name in ("mean", "deviation", "change", "pace"):
            getattr(net, name).copy_(getattr(means, name))

        def learn(batch: Seen) -> Terms:
            drawn = net.draw(varied(net.seen(batch.light)))
            likely = torch.logsumexp(-net.far(drawn) / self.sharp, 2)  # (B, actions)
            return {
                "distance": +(drawn - batch.wanted).square().mean(),
                "tell": +self.tell * single_label(likely, batch.action),
            }

        plan = LRSchedule(warmup=min(50, self.steps // 4), shape="cosine", updates=self.steps, floor=0.01)
        move = Step("learn", (net,), learn, self.lr, "adamw", self.weight_decay, plan)
        return Training(
            Phase([move], setup(device, devices, self.seed)),
            means,
            lambda: {"val": means.nearest(net)},
            net.state_dict,
        )
