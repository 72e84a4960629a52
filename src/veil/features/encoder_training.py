"""How the built-in encoder is trained: on many labels at once, so that its features are of general use.

A large encoder represents what people do *and* who they are. So that what is measured on the built-in one carries over to
those, it is trained on all labels of synthetic videos. With v the vector of a clip (the mean of its tokens), v_t the mean of
the tokens of the t-th quarter of the clip, u a token, and one linear head for each label,

    L_action   = CE(W v, share of each action, or of none, in the clip)       clips, untrimmed
    L_moment   = mean over quarters of CE(W v_t, the action in it)            clips, untrimmed
    L_anomaly  = CE(W v, nothing / fall / fight / run)                        surveillance
    L_identity = CE(W v, identity)                                            clips, untrimmed, gait
    L_gait     = CE(W v, identity)                                            walks of people who all look alike
    L_private  = BCE(W v, attributes)                                         clips, untrimmed, gait, stills
    L_pair     = NT-Xent(g(v), g(v'))                                         two views of a clip, the second often one frame
    L_fill     = mean |W u − pixels of its patch|²                            clips with hidden patches

Its people are those of another synthetic dataset than the one used for measurements: unseen identities. Videos are rendered
once, on the training device, and kept there as bytes; a batch is a function of its number.
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

from veil.data.synthetic.generator import VideoGenerator
from veil.data.synthetic.motion import ACTIONS
from veil.data.synthetic.scenarios import ANOMALIES, ATTRIBUTES, LENGTHS, Kind
from veil.features.encoders.convolutional import Compact
from veil.features.encoders.frozen import LENGTH
from veil.nn.classifier import HALVES
from veil.nn.tensor_files import read_tensors, write_tensors
from veil.training.distributed import rank, world_size
from veil.training.losses import nt_xent
from veil.training.phase import Phase
from veil.training.recipe import STRICT, Seed, Training
from veil.training.schedule import LRSchedule
from veil.training.steps import Setup, Step, Terms

NOTHING = len(ACTIONS)  # the label of moments without an action
QUARTERS = 4  # of a clip, each of which may show an action of its own
PIXELS = 4  # of a patch, down and across, as hidden patches are filled in
KINDS: tuple[Kind, ...] = ("clips", "untrimmed", "surveillance", "gait", "gait-alike", "stills")
# Of 16 clips of a batch, the number of each kind; clips come in pairs of views.
SHARES: dict[Kind, int] = {
    "clips": 6, "untrimmed": 3, "surveillance": 2, "gait": 1, "gait-alike": 3, "stills": 1
}  # fmt: skip
_RENDER_FRAMES = 8192  # frames that are rendered together
_FIRST_HELD_OUT = 10_000_000  # the index from which on videos are for validation


class VideoPool(NamedTuple):
    """Rendered videos of one kind, and their labels."""

    frames: Tensor  # (N, T, size, size, 3) uint8
    labels: Tensor  # (N, T) the action in each frame; NOTHING (surveillance: 0): none
    identity: Tensor  # (N,)
    attributes: Tensor  # (N, ATTRIBUTES)
    odd: Tensor  # (M, 2) video and first frame of clips that show an anomaly, of surveillance


class EncoderBatch(NamedTuple):
    """Clips of all kinds, and their labels; -1 and nan: none."""

    clips: Tensor  # (B, LENGTH, size, size, 3) uint8, kind after kind, clips first: views one, then views two
    light: Tensor  # (B, 2) gain and offset of the brightness
    hidden: Tensor  # (B, QUARTERS, QUARTERS) patches that are hidden
    moments: Tensor  # (B, QUARTERS)
    anomaly: Tensor  # (B,)
    identity: Tensor  # (B,)
    walk: Tensor  # (B,)
    attributes: Tensor  # (B, ATTRIBUTES)
    pairs: int  # how many clips have two views


@lru_cache(16)
def render_pool(
    kind: Kind, seed: int, identities: int, size: int, first: int, count: int, span: int, device: str
) -> VideoPool:
    """Videos of a kind, `span` frames of each at most; half of them rendered at their size and half at twice that."""
    length = min(span, LENGTHS[kind])
    parts = []
    # Not every second one: walks go through the identities in turn, and the rendering must not depend on the identity.
    half = first + count // 2
    for fine, mine in enumerate((range(first, half), range(half, first + count))):
        world_ = VideoGenerator(seed, size << fine, identities=identities, device=device)
        step = max(1, _RENDER_FRAMES // length)
        for begin in range(0, len(mine), step):
            frames, truth = world_.render(list(mine[begin : begin + step]), kind, length=length)
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
    return VideoPool(frames, labels, identity, attributes, odd)


class EncoderHeads(nn.Module):
    """A linear head for each label of a clip."""

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
    """Frames ``(B, T, H, W, 3)`` uint8 as the network's input, ``(B, 3, T, H, W)`` in [-1, 1]."""
    x = clips.permute(0, 4, 1, 2, 3).float().div_(127.5).sub_(1)
    if light is None:
        return x
    gain, more = light[:, :, None, None, None, None].unbind(1)
    return x * gain + more


def patches(x: Tensor, tokens: int) -> Tensor:
    """The pixels of each token's patch, coarsely: ``(B, 3, LENGTH, H, W)`` to ``(B, tokens, numbers)``."""
    side = math.isqrt(tokens // QUARTERS)
    coarse = F.adaptive_avg_pool3d(x, (LENGTH, side * PIXELS, side * PIXELS))
    parts = coarse.unflatten(4, (side, -1)).unflatten(3, (side, -1)).unflatten(2, (QUARTERS, -1))
    return parts.permute(0, 2, 4, 6, 3, 5, 7, 1).flatten(4).flatten(1, 3)


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderData:
    """The synthetic videos: how many of each kind, and of whom."""

    world: Annotated[int, Field(ge=1)] = 1  # its seed; world 0 is used for measurements
    identities: Annotated[int, Field(ge=2)] = 256
    size: Annotated[int, Field(ge=28, le=224)] = 56
    clips: Annotated[int, Field(ge=4)] = 24_576  # videos of each kind
    untrimmed: Annotated[int, Field(ge=2)] = 512
    surveillance: Annotated[int, Field(ge=4)] = 384
    gait: Annotated[int, Field(ge=2)] = 4_096
    gait_alike: Annotated[int, Field(ge=2)] = 12_288
    stills: Annotated[int, Field(ge=2)] = 16_384
    max_frames: Annotated[int, Field(ge=LENGTH)] = 400  # of a video
    held_out: Annotated[int, Field(ge=2)] = 512  # validation videos of each kind; of long ones an eighth
    batch: Annotated[int, Field(ge=16, multiple_of=16)] = 256

    def pools(self, device: torch.device, *, held_out: bool = False) -> dict[Kind, VideoPool]:
        """The training videos, or the validation videos."""
        counts = self.clips, self.untrimmed, self.surveillance, self.gait, self.gait_alike, self.stills
        found: dict[Kind, VideoPool] = {}
        for kind, count in zip(KINDS, counts, strict=True):
            if held_out:
                count = min(count, max(2, self.held_out // (8 if LENGTHS[kind] > 32 else 1)))
            # Walks go through all identities in turn, so that a first index must be a multiple of them.
            first = _FIRST_HELD_OUT // self.identities * self.identities if held_out else 0
            found[kind] = render_pool(
                kind, self.world, self.identities, self.size, first, count, self.max_frames, str(device)
            )
        return found


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderNetwork:
    """The network."""

    widths: tuple[int, int, int, int] = (32, 64, 128, 256)


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderWeights:
    """The weights of the losses."""

    action: float = 1.0
    moment: float = 0.5
    anomaly: float = 0.5
    identity: float = 0.5
    gait: float = 0.5
    private: float = 1.0
    pair: float = 0.2
    fill: float = 1.0


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderSchedule:
    """How long the encoder is trained, and the learning rate."""

    steps: Annotated[int, Field(ge=2)] = 6_000
    lr: Annotated[float, Field(gt=0)] = 3e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.05


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderRecipe:
    """The built-in encoder, trained on synthetic videos."""

    data: EncoderData = Field(default_factory=EncoderData)
    encoder: EncoderNetwork = Field(default_factory=EncoderNetwork)
    utility: EncoderWeights = Field(default_factory=EncoderWeights)
    schedule: EncoderSchedule = Field(default_factory=EncoderSchedule)
    seed: Seed = 0

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.schedule.steps

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        data, schedule = self.data, self.schedule
        pools, held_out = data.pools(device), data.pools(device, held_out=True)
        torch.manual_seed(self.seed)
        body = Compact(self.encoder.widths).to(device)
        heads = EncoderHeads(body.dim, data.identities).to(device)
        cuda = device.type == "cuda"
        plan = LRSchedule(warmup=self.steps // 20, shape="cosine", updates=self.steps, floor=0.01)

        def loss(batch: EncoderBatch) -> Terms:
            return self.terms(body, heads, batch)

        step = Step("learn", (body, heads), loss, schedule.lr, "adamw", schedule.weight_decay, plan)
        setup = Setup(
            seed=self.seed,
            precision="bf16" if cuda else "fp32",
            clip=5.0,
            channels_last=cuda,
            devices=devices,
        )
        metadata = {
            "widths": self.encoder.widths,
            "size": data.size,
            "length": LENGTH,
            "mean": HALVES[0],
            "std": HALVES[1],
        }
        return Training(
            Phase([step], setup),
            lambda number: sample_batch(pools, data.batch, self.seed * 1_000_003 + number),
            lambda: validate(
                body, heads, sample_batch(held_out, max(data.batch, 1024) if cuda else data.batch, -1)
            ),
            body.state_dict,
            metadata=metadata,
        )

    def terms(self, body: Compact, heads: EncoderHeads, batch: EncoderBatch) -> Terms:
        """The weighted losses; see the equations above."""
        weights = self.utility
        whole = standardised(batch.clips, batch.light)
        rows, columns = whole.shape[-2] / QUARTERS, whole.shape[-1] / QUARTERS
        y = (torch.arange(whole.shape[-2], device=whole.device) / rows).long()
        x = (torch.arange(whole.shape[-1], device=whole.device) / columns).long()
        covered = batch.hidden[:, y][:, :, x][:, None, None]  # (B, 1, 1, H, W)
        tokens = body(whole.masked_fill(covered, 0))  # (B, 64, dim)
        predicted = predict(heads, tokens)
        right = F.one_hot(batch.moments.clamp_min(0), NOTHING + 1).float().mean(1)
        some = batch.hidden.any(1).any(1)
        filled, target = heads.fill(tokens).float(), patches(whole, tokens.shape[1])
        pair = heads.pair(tokens.mean(1)[: 2 * batch.pairs]).float()
        return {
            "action": weights.action * _masked_mean(F.cross_entropy, predicted["action"], right, batch.moments[:, 0] >= 0),
            "moment": weights.moment * _masked_mean(
                F.cross_entropy, predicted["moment"].flatten(0, 1), batch.moments.flatten(),
                (batch.moments >= 0).flatten(),
            ),
            "anomaly": weights.anomaly * _masked_mean(F.cross_entropy, predicted["anomaly"], batch.anomaly, batch.anomaly >= 0),
            "identity": weights.identity * _masked_mean(
                F.cross_entropy, predicted["identity"], batch.identity, batch.identity >= 0
            ),
            "gait": weights.gait * _masked_mean(F.cross_entropy, predicted["walk"], batch.walk, batch.walk >= 0),
            "private": weights.private * _masked_mean(
                F.binary_cross_entropy_with_logits, predicted["attributes"], batch.attributes,
                ~batch.attributes.isnan().any(1),
            ),
            "pair": weights.pair * nt_xent(pair[: batch.pairs], pair[batch.pairs :]),
            "fill": weights.fill * _masked_mean(F.mse_loss, filled, target, some),
        }  # fmt: skip


def _masked_mean(loss: object, predicted: Tensor, right: Tensor, known: Tensor) -> Tensor:
    """The mean loss over the rows that have a label; 0 where none has."""
    # Weights instead of a choice of rows, whose number would have to be read from the GPU.
    right = right.nan_to_num() if right.is_floating_point() else right.clamp_min(0)
    each = loss(predicted.float(), right, reduction="none")  # type: ignore[operator]
    each = each.flatten(1).mean(1) if each.ndim > 1 else each
    weight = known.float()
    return (each * weight).sum() / weight.sum().clamp_min(1)


def predict(heads: EncoderHeads, tokens: Tensor) -> dict[str, Tensor]:
    """The predictions of the heads for tokens ``(B, QUARTERS · places, dim)``."""
    moments = tokens.unflatten(1, (QUARTERS, -1)).mean(2)  # (B, QUARTERS, dim)
    clip = tokens.mean(1)
    found = {
        name: getattr(heads, name)(clip) for name in ("action", "anomaly", "identity", "walk", "attributes")
    }
    return {**found, "moment": heads.moment(moments)}


def sample_batch(pools: dict[Kind, VideoPool], size: int, number: int) -> EncoderBatch:
    """The batch of that number; this process's share of it."""
    device = next(iter(pools.values())).frames.device
    rng = torch.Generator(device).manual_seed((number * world_size() + rank()) % 2**63)
    share = max(1, size // 16 // world_size())

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, generator=rng, device=device)

    def below(count: int, many: int) -> Tensor:
        return torch.randint(many, (count,), generator=rng, device=device)

    parts: list[tuple[Tensor, ...]] = []
    for kind in KINDS:
        pool, count = pools[kind], share * SHARES[kind]
        videos, held, height, width = pool.frames.shape[:4]
        rows = below(count // 2, videos).repeat(2) if kind == "clips" else below(count, videos)
        first = below(count, max(1, held - LENGTH + 1))
        if len(pool.odd):  # otherwise hardly a clip would show an anomaly
            some = pool.odd[below(count, len(pool.odd))]
            bad = random(count) < 0.5
            rows, first = torch.where(bad, some[:, 0], rows), torch.where(bad, some[:, 1], first)
        when = (first[:, None] + torch.arange(LENGTH, device=device)).clamp_max(held - 1)
        still = torch.zeros(count, dtype=torch.bool, device=device)
        if kind == "clips":  # of second views, half are one frame
            still[count // 2 :] = random(count - count // 2) < 0.5
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
        if kind == "surveillance":  # barely begun or nearly over counts as neither
            shown = (labels > 0).sum(1)
            anomaly = torch.where((shown > 0) & (shown < QUARTERS), -1, labels.amax(1))
        identity = pool.identity[rows]
        attributes = pool.attributes[rows]
        if kind in ("surveillance", "gait-alike"):
            attributes = torch.full_like(attributes, torch.nan)
        light = torch.stack([0.9 + 0.2 * random(count), 0.1 * (random(count) - 0.5)], dim=1)
        hidden = (random(count, QUARTERS, QUARTERS) < 0.35) & (random(count, 1, 1) < 0.3)
        parts.append((
            clips, light, hidden, moments, anomaly,
            identity if kind in ("clips", "untrimmed", "gait") else none,
            identity if kind == "gait-alike" else none,
            attributes,
        ))  # fmt: skip
    return EncoderBatch(
        *(torch.cat(part) for part in zip(*parts, strict=True)), pairs=share * SHARES["clips"] // 2
    )


@torch.no_grad()
def validate(body: Compact, heads: EncoderHeads, batch: EncoderBatch) -> dict[str, float]:
    """The accuracy of each head on validation videos; "val" is their mean."""
    mode = body.training
    for net in (body, heads):
        net.eval()
    predicted = predict(heads, torch.cat([body(standardised(part)) for part in batch.clips.split(256)]))
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
        known = right >= 0
        found[name] = ((predicted[name].argmax(1) == right) & known).sum() / known.sum().clamp_min(1)
    known = ~batch.attributes.isnan().any(1)
    right = ((predicted["attributes"] > 0) == (batch.attributes > 0.5)).float().mean(1)
    found["attributes"] = (right * known).sum() / known.sum().clamp_min(1)
    numbers = {f"{name} right": float(value) for name, value in found.items()}
    return {**numbers, "val": sum(numbers.values()) / len(numbers)}


def export(weights: Path, output: Path, **metadata: Any) -> None:
    """Write the weights of a run in 16 bits, as they come with the package."""
    tensors, known = read_tensors(weights)
    write_tensors(tensors, output, {**known, **metadata}, half=True)
