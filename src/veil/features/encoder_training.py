"""How the built-in encoder is trained: on many things at once, so that its features are of general use.

A large encoder knows what people do *and* who they are. So that what is measured on the built-in one means something for
those, it is trained to know all that a video of the synthetic world holds. With v the vector of a clip (the mean of its
tokens), v_t the mean of the tokens of the t-th quarter of the clip, u a token, and one linear head for each question,

    L_action   = CE(W v, share of each action, or of none, in the clip)       clips, untrimmed
    L_moment   = mean over quarters of CE(W v_t, what happens then)           clips, untrimmed
    L_anomaly  = CE(W v, nothing / fall / fight / run)                        surveillance
    L_identity = CE(W v, who it is)                                           clips, untrimmed, gait
    L_gait     = CE(W v, whose walk it is)                                    walks of people who all look alike
    L_private  = BCE(W v, attributes)                                         clips, untrimmed, gait, stills
    L_pair     = NT-Xent(g(v), g(v'))                                         two views of a clip, the second often one frame
    L_fill     = mean |W u − pixels of its place|²                            clips of which places are hidden

Its people are those of another world than the one that things are measured in: strangers. Videos are painted once, on the
training device, and held there as bytes; a batch follows from its number.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn

from veil.data.synthetic.motion import ACTIONS
from veil.data.synthetic.scripts import ANOMALIES, ATTRIBUTES, LENGTHS, Kind
from veil.data.synthetic.world import World
from veil.features.encoders import LENGTH, Compact
from veil.nn.classifier import HALVES
from veil.nn.tensor_files import read_tensors, write_tensors
from veil.training.fit import LRSchedule, Phase, Setup, Step, Terms, rank, world_size
from veil.training.losses import nt_xent
from veil.training.recipe import STRICT, Seed, Training

NOTHING = len(ACTIONS)  # the label of moments in which no action goes on
QUARTERS = 4  # of a clip, in each of which something of its own may happen
PIXELS = 4  # of a place, down and across, as hidden places are to be filled in
KINDS: tuple[Kind, ...] = ("clips", "untrimmed", "surveillance", "gait", "gait-alike", "stills")
# Of 16 clips of a batch, so many are of each kind; clips come in pairs of views.
SHARES: dict[Kind, int] = {
    "clips": 6, "untrimmed": 3, "surveillance": 2, "gait": 1, "gait-alike": 3, "stills": 1
}  # fmt: skip
_AT_ONCE = 8192  # frames that are painted together
_HELD_OUT = 10_000_000  # the index from which on videos are for validation


class Pool(NamedTuple):
    """Videos of one kind, painted, and what is true of them."""

    frames: Tensor  # (N, T, size, size, 3) uint8
    labels: Tensor  # (N, T) what happens in each frame; NOTHING (surveillance: 0): nothing
    identity: Tensor  # (N,)
    attributes: Tensor  # (N, ATTRIBUTES)
    odd: Tensor  # (M, 2) video and first frame of clips that show an anomaly, of surveillance


class Batch(NamedTuple):
    """Clips of all kinds, and what is to be said of them; -1 and nan: nothing."""

    clips: Tensor  # (B, LENGTH, size, size, 3) uint8, kind after kind, clips first: views one, then views two
    light: Tensor  # (B, 2) by what they are made brighter and darker
    hidden: Tensor  # (B, QUARTERS, QUARTERS) places that are hidden
    moments: Tensor  # (B, QUARTERS)
    anomaly: Tensor  # (B,)
    identity: Tensor  # (B,)
    walk: Tensor  # (B,)
    attributes: Tensor  # (B, ATTRIBUTES)
    pairs: int  # how many clips have two views


@lru_cache(16)
def painted(
    kind: Kind, seed: int, identities: int, size: int, first: int, count: int, span: int, device: str
) -> Pool:
    """Videos of a kind, `span` frames of each at most; half of them painted at their size and half at twice that."""
    length = min(span, LENGTHS[kind])
    parts = []
    # Not every second one: walks go through the identities in turn, and how it is painted must not tell who it is.
    half = first + count // 2
    for fine, mine in enumerate((range(first, half), range(half, first + count))):
        stage = World(seed, size << fine, identities=identities, device=device)
        step = max(1, _AT_ONCE // length)
        for begin in range(0, len(mine), step):
            frames, truth = stage.render(list(mine[begin : begin + step]), kind, length=length)
            if fine:
                flat = frames.flatten(0, 1).permute(0, 3, 1, 2).float()
                small = F.interpolate(flat, (size, size), mode="bilinear", antialias=True)
                small = small.round().clamp(0, 255).byte().permute(0, 2, 3, 1)
                frames = small.unflatten(0, frames.shape[:2])
            labels = (
                truth.labels if kind == "surveillance" else truth.labels.where(truth.labels >= 0, NOTHING)
            )
            parts.append((frames.contiguous(), labels, truth.identity, truth.attributes))
    frames, labels, identity, attributes = (torch.cat(part) for part in zip(*parts, strict=True))
    odd = torch.zeros(0, 2, dtype=torch.int64, device=frames.device)
    if kind == "surveillance":
        shown = (labels > 0).float()[:, None]
        odd = (F.avg_pool1d(shown, LENGTH, 1)[:, 0] >= 0.5).nonzero()
    return Pool(frames, labels, identity, attributes, odd)


class Questions(nn.Module):
    """A linear head for each question about a clip."""

    def __init__(self, dim: int, identities: int) -> None:
        super().__init__()
        self.action = nn.Linear(dim, NOTHING + 1)
        self.moment = nn.Linear(dim, NOTHING + 1)
        self.anomaly = nn.Linear(dim, len(ANOMALIES))
        self.identity = nn.Linear(dim, identities)
        self.walk = nn.Linear(dim, identities)
        self.attributes = nn.Linear(dim, len(ATTRIBUTES))
        self.pair = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 128))
        self.fill = nn.Linear(dim, LENGTH // QUARTERS * PIXELS**2 * 3)


def standardised(clips: Tensor, light: Tensor | None = None) -> Tensor:
    """Frames ``(B, T, H, W, 3)`` uint8 as the network sees them, ``(B, 3, T, H, W)`` in [-1, 1]."""
    x = clips.permute(0, 4, 1, 2, 3).float().div_(127.5).sub_(1)
    if light is None:
        return x
    gain, more = light[:, :, None, None, None, None].unbind(1)
    return x * gain + more


def patches(x: Tensor, tokens: int) -> Tensor:
    """The pixels of each token's place, coarsely: ``(B, 3, LENGTH, H, W)`` to ``(B, tokens, numbers)``."""
    side = math.isqrt(tokens // QUARTERS)
    coarse = F.adaptive_avg_pool3d(x, (LENGTH, side * PIXELS, side * PIXELS))
    parts = coarse.unflatten(4, (side, -1)).unflatten(3, (side, -1)).unflatten(2, (QUARTERS, -1))
    return parts.permute(0, 2, 4, 6, 3, 5, 7, 1).flatten(4).flatten(1, 3)


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderRecipe:
    """The built-in encoder, trained on the synthetic world."""

    world: Annotated[int, Field(ge=1)] = 1  # its seed; world 0 is the one that things are measured in
    identities: Annotated[int, Field(ge=2)] = 256
    size: Annotated[int, Field(ge=28, le=224)] = 56
    widths: tuple[int, int, int, int] = (32, 64, 128, 256)
    clips: Annotated[int, Field(ge=4)] = 24_576  # videos of each kind
    untrimmed: Annotated[int, Field(ge=2)] = 512
    surveillance: Annotated[int, Field(ge=4)] = 384
    gait: Annotated[int, Field(ge=2)] = 4_096
    alike: Annotated[int, Field(ge=2)] = 12_288
    stills: Annotated[int, Field(ge=2)] = 16_384
    span: Annotated[int, Field(ge=LENGTH)] = 400  # frames of a video that are painted, at most
    held_out: Annotated[int, Field(ge=2)] = 512  # videos of each kind to check with; of long ones an eighth
    steps: Annotated[int, Field(ge=2)] = 6_000
    batch: Annotated[int, Field(ge=16, multiple_of=16)] = 256
    lr: Annotated[float, Field(gt=0)] = 3e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    w_action: float = 1.0
    w_moment: float = 0.5
    w_anomaly: float = 0.5
    w_identity: float = 0.5
    w_gait: float = 0.5
    w_private: float = 1.0
    w_pair: float = 0.2
    w_fill: float = 1.0
    seed: Seed = 0

    def pools(self, device: torch.device, *, held_out: bool = False) -> dict[Kind, Pool]:
        """The videos to learn from, or those to check with."""
        counts = self.clips, self.untrimmed, self.surveillance, self.gait, self.alike, self.stills
        found: dict[Kind, Pool] = {}
        for kind, count in zip(KINDS, counts, strict=True):
            if held_out:
                count = min(count, max(2, self.held_out // (8 if LENGTHS[kind] > 32 else 1)))
            # Walks go through all identities in turn, so that a first index must be a multiple of them.
            first = _HELD_OUT // self.identities * self.identities if held_out else 0
            found[kind] = painted(
                kind, self.world, self.identities, self.size, first, count, self.span, str(device)
            )
        return found

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        pools, held_out = self.pools(device), self.pools(device, held_out=True)
        torch.manual_seed(self.seed)
        body = Compact(self.widths).to(device)
        heads = Questions(body.dim, self.identities).to(device)
        cuda = device.type == "cuda"
        plan = LRSchedule(warmup=self.steps // 20, shape="cosine", updates=self.steps, floor=0.01)

        def loss(batch: Batch) -> Terms:
            return self.terms(body, heads, batch)

        move = Step("learn", (body, heads), loss, self.lr, "adamw", self.weight_decay, plan)
        setup = Setup(
            seed=self.seed,
            precision="bf16" if cuda else "fp32",
            clip=5.0,
            channels_last=cuda,
            devices=devices,
        )
        told = {
            "widths": self.widths,
            "size": self.size,
            "length": LENGTH,
            "mean": HALVES[0],
            "std": HALVES[1],
        }
        return Training(
            Phase([move], setup),
            lambda number: drawn(pools, self.batch, self.seed * 1_000_003 + number),
            lambda: checked(body, heads, drawn(held_out, max(self.batch, 1024) if cuda else self.batch, -1)),
            body.state_dict,
            metadata=told,
        )

    def terms(self, body: Compact, heads: Questions, batch: Batch) -> Terms:
        """What is descended; see the equations above."""
        whole = standardised(batch.clips, batch.light)
        rows, columns = whole.shape[-2] / QUARTERS, whole.shape[-1] / QUARTERS
        y = (torch.arange(whole.shape[-2], device=whole.device) / rows).long()
        x = (torch.arange(whole.shape[-1], device=whole.device) / columns).long()
        covered = batch.hidden[:, y][:, :, x][:, None, None]  # (B, 1, 1, H, W)
        tokens = body(whole.masked_fill(covered, 0))  # (B, 64, dim)
        said = answers(heads, tokens)
        right = F.one_hot(batch.moments.clamp_min(0), NOTHING + 1).float().mean(1)
        some = batch.hidden.any(1).any(1)
        filled, target = heads.fill(tokens).float(), patches(whole, tokens.shape[1])
        pair = heads.pair(tokens.mean(1)[: 2 * batch.pairs]).float()
        return {
            "action": self.w_action * _asked(F.cross_entropy, said["action"], right, batch.moments[:, 0] >= 0),
            "moment": self.w_moment * _asked(
                F.cross_entropy, said["moment"].flatten(0, 1), batch.moments.flatten(),
                (batch.moments >= 0).flatten(),
            ),
            "anomaly": self.w_anomaly * _asked(F.cross_entropy, said["anomaly"], batch.anomaly, batch.anomaly >= 0),
            "identity": self.w_identity * _asked(
                F.cross_entropy, said["identity"], batch.identity, batch.identity >= 0
            ),
            "gait": self.w_gait * _asked(F.cross_entropy, said["walk"], batch.walk, batch.walk >= 0),
            "private": self.w_private * _asked(
                F.binary_cross_entropy_with_logits, said["attributes"], batch.attributes,
                ~batch.attributes.isnan().any(1),
            ),
            "pair": self.w_pair * nt_xent(pair[: batch.pairs], pair[batch.pairs :]),
            "fill": self.w_fill * _asked(F.mse_loss, filled, target, some),
        }  # fmt: skip


def _asked(loss: object, said: Tensor, right: Tensor, asked: Tensor) -> Tensor:
    """The mean loss over the rows that have an answer; 0 where none has."""
    # Weights instead of a choice of rows, whose number a GPU would have to be waited for.
    right = right.nan_to_num() if right.is_floating_point() else right.clamp_min(0)
    each = loss(said.float(), right, reduction="none")  # type: ignore[operator]
    each = each.flatten(1).mean(1) if each.ndim > 1 else each
    weight = asked.float()
    return (each * weight).sum() / weight.sum().clamp_min(1)


def answers(heads: Questions, tokens: Tensor) -> dict[str, Tensor]:
    """What the heads say of tokens ``(B, QUARTERS · places, dim)``."""
    moments = tokens.unflatten(1, (QUARTERS, -1)).mean(2)  # (B, QUARTERS, dim)
    clip = tokens.mean(1)
    found = {
        name: getattr(heads, name)(clip) for name in ("action", "anomaly", "identity", "walk", "attributes")
    }
    return {**found, "moment": heads.moment(moments)}


def drawn(pools: dict[Kind, Pool], size: int, number: int) -> Batch:
    """The batch of that number; this process's share of it."""
    device = next(iter(pools.values())).frames.device
    dice = torch.Generator(device).manual_seed((number * world_size() + rank()) % 2**63)
    share = max(1, size // 16 // world_size())

    def chance(*shape: int) -> Tensor:
        return torch.rand(shape, generator=dice, device=device)

    def below(count: int, many: int) -> Tensor:
        return torch.randint(many, (count,), generator=dice, device=device)

    parts: list[tuple[Tensor, ...]] = []
    for kind in KINDS:
        pool, count = pools[kind], share * SHARES[kind]
        videos, held, height, width = pool.frames.shape[:4]
        rows = below(count // 2, videos).repeat(2) if kind == "clips" else below(count, videos)
        first = below(count, max(1, held - LENGTH + 1))
        if len(pool.odd):  # or hardly a clip would show anything of note
            some = pool.odd[below(count, len(pool.odd))]
            bad = chance(count) < 0.5
            rows, first = torch.where(bad, some[:, 0], rows), torch.where(bad, some[:, 1], first)
        when = (first[:, None] + torch.arange(LENGTH, device=device)).clamp_max(held - 1)
        still = torch.zeros(count, dtype=torch.bool, device=device)
        if kind == "clips":  # of second views, half are one frame
            still[count // 2 :] = chance(count - count // 2) < 0.5
            when = torch.where(still[:, None], below(count, held)[:, None], when)
        far = max(1, height // 14)
        y = (torch.arange(height, device=device) + below(count, 2 * far + 1)[:, None] - far).clamp(
            0, height - 1
        )
        x = (torch.arange(width, device=device) + below(count, 2 * far + 1)[:, None] - far).clamp(
            0, width - 1
        )
        clips = pool.frames[
            rows[:, None, None, None], when[:, :, None, None], y[:, None, :, None], x[:, None, None]
        ]
        labels = pool.labels[rows[:, None], when]  # (count, LENGTH)
        none = torch.full((count,), -1, device=device)
        middles = labels[:, LENGTH // QUARTERS // 2 :: LENGTH // QUARTERS]
        acts = kind in ("clips", "untrimmed")
        moments = torch.where(still[:, None], -1, middles) if acts else none[:, None].expand(-1, QUARTERS)
        anomaly = none
        if kind == "surveillance":  # hardly begun or just over is neither the one nor the other
            shown = (labels > 0).sum(1)
            anomaly = torch.where((shown > 0) & (shown < QUARTERS), -1, labels.amax(1))
        who = pool.identity[rows]
        attributes = pool.attributes[rows]
        if kind in ("surveillance", "gait-alike"):
            attributes = torch.full_like(attributes, torch.nan)
        light = torch.stack([0.9 + 0.2 * chance(count), 0.1 * (chance(count) - 0.5)], dim=1)
        hidden = (chance(count, QUARTERS, QUARTERS) < 0.35) & (chance(count, 1, 1) < 0.3)
        parts.append((
            clips, light, hidden, moments, anomaly,
            who if kind in ("clips", "untrimmed", "gait") else none,
            who if kind == "gait-alike" else none,
            attributes,
        ))  # fmt: skip
    return Batch(*(torch.cat(part) for part in zip(*parts, strict=True)), pairs=share * SHARES["clips"] // 2)


@torch.no_grad()
def checked(body: Compact, heads: Questions, batch: Batch) -> dict[str, float]:
    """How many answers on videos that were held out are right; "val" is the mean over the questions."""
    mode = body.training
    for net in (body, heads):
        net.eval()
    said = answers(heads, torch.cat([body(standardised(part)) for part in batch.clips.split(256)]))
    for net in (body, heads):
        net.train(mode)
    moving = (batch.moments >= 0).all(1) & (batch.moments == batch.moments[:, :1]).all(1)
    found = {}
    for name, right in (
        ("action", torch.where(moving, batch.moments[:, 0], -1)),
        ("anomaly", batch.anomaly),
        ("identity", batch.identity),
        ("walk", batch.walk),
    ):
        asked = right >= 0
        found[name] = ((said[name].argmax(1) == right) & asked).sum() / asked.sum().clamp_min(1)
    told = ~batch.attributes.isnan().any(1)
    right = ((said["attributes"] > 0) == (batch.attributes > 0.5)).float().mean(1)
    found["attributes"] = (right * told).sum() / told.sum().clamp_min(1)
    numbers = {f"{name} right": float(value) for name, value in found.items()}
    return {**numbers, "val": sum(numbers.values()) / len(numbers)}


def export(weights: Path, output: Path, **told: Any) -> None:
    """Write what a run has trained in 16 bits, as it comes with the package."""
    tensors, known = read_tensors(weights)
    write_tensors(tensors, output, {**known, **told}, half=True)
