"""Features before attackers and users: what can be learned from them of who is there, and of what they do.

Every one of them learns from the training videos, is chosen on the validation videos and scored once on the test videos:

*linear*, *mlp*   one layer, or two with a ReLU between (D, D, K): several at once with other weight decays, and stopped early
*knn*             the nearest clips by cosine
*kernel*          kernel ridge regression (`veil.nn.kernel`), which is solved
*inversion*       a decoder learns to draw a frame from the features; then a kernel looks at what was drawn

An attacker who is *adapted* learns from features after anonymization; one who knows *raw* features only is trained on these. What is
useful is learned anew from anonymized features: actions (linear), where they are (TriDet), what is unusual (MGFN).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.core import VeilError
from veil.features.bank import Bank
from veil.features.heads.anomaly import MGFN, binned, frame_scores, frame_truth
from veil.features.heads.detection import TriDet, tables
from veil.features.heads.grid import on_grid
from veil.metrics import (
    Bootstrap,
    Score,
    class_mean_average_precision,
    frame_auc,
    group_accuracy,
    group_gap,
    rank1,
    softmax,
    temporal_map,
    top1,
)
from veil.nn.kernel import KernelClassifier
from veil.training.fit import LRSchedule, Phase, Setup, Step, fit

Probe = Literal["linear", "mlp", "knn", "kernel"]
PROBES: tuple[Probe, ...] = ("linear", "mlp", "knn", "kernel")
DECAYS = (0.0, 1e-4, 1e-3, 1e-2)  # of the weights' squares; one member each
NEIGHBOURS = (1, 3, 7, 15, 31)
LOOKS = 4  # clips of a video that a kernel learns from
CHECKS = 15  # looks at validation videos during training
FPS = 10.0  # frames a second at which anomalies are scored


@dataclass(frozen=True)
class Effort:
    """How much work goes into one answer."""

    steps: int = 600
    batch: int = 1024  # clips
    lr: float = 3e-3
    detector: dict[str, int] = field(
        default_factory=lambda: {"width": 128, "hidden": 192, "levels": 4, "bins": 8}
    )
    watcher: dict[str, tuple[int, int, int]] = field(
        default_factory=lambda: {"widths": (64, 64, 128), "depths": (1, 1, 1)}
    )
    videos: int = 8  # long ones in a batch
    turns: int = 600  # batches of long videos
    watchers: int = 3  # who learn what is unusual; the one that does best on validation videos is asked


class Found(NamedTuple):
    """What one of them found on the test videos, and how sure it had been on the validation videos."""

    score: Score
    val: float
    answers: np.ndarray  # (V, K): of each test video


# Who answers from single clips


def probed(
    probe: Probe,
    target: str,
    train: Bank,
    val: Bank,
    test: Bank,
    *,
    seed: int = 0,
    effort: Effort = Effort(),
    bootstrap: Bootstrap | None = None,
) -> Found:
    """What a probe learns of ``target``: "action", "identity", "attributes", or a group such as "gender"."""
    truths = [bank.truth(target) for bank in (train, val, test)]
    kept = [_known(bank, truth) for bank, truth in zip((train, val, test), truths, strict=True)]
    (a, right), (b, right_val), (c, right_test) = kept
    for name, bank in (("training", a), ("validation", b), ("test", c)):
        if not len(bank):
            raise VeilError(
                f"no {name} video says its {target}: choose another target, or features with labels."
            )
    classes = (
        right.shape[1]
        if right.ndim == 2
        else int(max(map(int, (right.max(), right_val.max(), right_test.max())))) + 1
    )
    answer = {"knn": _neighbours, "kernel": _kernel}.get(probe)
    if answer is not None:
        answers, best = answer(a, right, b, right_val, c, classes, seed)
    else:
        answers, best = _trained(probe == "mlp", a, right, b, right_val, c, classes, seed, effort)
    return Found(_scored(answers, right_test, c, bootstrap), best, answers)


def _known(bank: Bank, truth: Tensor) -> tuple[Bank, Tensor]:
    """The videos of which the truth is known."""
    there = (truth >= 0) if truth.ndim == 1 else truth.isfinite().all(1)
    return bank.take(there), truth[there]


def _scored(answers: np.ndarray, right: Tensor, bank: Bank, bootstrap: Bootstrap | None = None) -> Score:
    truth, videos = right.cpu().numpy(), [sample.id for sample in bank.samples]
    if right.ndim == 2:
        return class_mean_average_precision(answers, truth, videos, bootstrap=bootstrap)
    return top1(answers, truth, videos, bootstrap=bootstrap)


class Members(nn.Module):
    """M probes beside each other, ``(B, D)`` to ``(M, B, K)``, on standardised features."""

    mean: Tensor
    scale: Tensor

    def __init__(self, x: Tensor, classes: int, deep: bool) -> None:
        super().__init__()
        dim = x.shape[1]
        mean, scale = _spread(x)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        sizes = [dim, dim, classes] if deep else [dim, classes]
        bounds = [1 / math.sqrt(size) for size in sizes[:-1]]
        members = len(DECAYS)
        self.weights = nn.ParameterList(
            torch.empty(members, i, o).uniform_(-bound, bound)
            for i, o, bound in zip(sizes, sizes[1:], bounds, strict=False)
        )
        self.biases = nn.ParameterList(torch.zeros(members, 1, o) for o in sizes[1:])
        self.decays = DECAYS

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(M, B, K)``."""
        x = ((x - self.mean) / self.scale).expand(len(self.decays), -1, -1)
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x.relu() if place else x, weight)
        return x

    def decay(self) -> Tensor:
        """What the weights cost, by member."""
        each = torch.stack([weight.square().sum((1, 2)) for weight in self.weights]).sum(0)  # (M,)
        return (each * each.new_tensor(self.decays)).sum()


def _trained(
    deep: bool,
    a: Bank,
    right: Tensor,
    b: Bank,
    right_val: Tensor,
    c: Bank,
    classes: int,
    seed: int,
    effort: Effort,
) -> tuple[np.ndarray, float]:
    torch.manual_seed(seed)
    x, y = a.clips[a.mask], right.repeat_interleave(a.counts, 0)
    members = Members(x, classes, deep).to(x.device)
    count = min(effort.batch, len(x))

    def loss(batch: Tensor) -> dict[str, Tensor]:
        logits = members(x[batch])
        each = y[batch].expand(len(logits), *y[batch].shape)
        if y.ndim == 2:
            told = F.binary_cross_entropy_with_logits(logits, each, reduction="none").mean((1, 2))
        else:
            told = (
                F.cross_entropy(logits.flatten(0, 1), each.flatten(), reduction="none")
                .view(len(logits), -1)
                .mean(1)
            )
        return {"answer": told.sum(), "decay": members.decay()}

    plan = LRSchedule(warmup=effort.steps // 20, shape="cosine", updates=effort.steps, floor=0.01)
    move = Step("learn", (members,), loss, effort.lr, "adam", schedule=plan)
    dice = torch.Generator().manual_seed(seed)
    batches = (torch.randperm(len(x), generator=dice)[:count].to(x.device) for _ in range(effort.steps))
    every, best, kept = max(1, effort.steps // CHECKS), -math.inf, np.zeros(0)
    for measured in fit(Phase([move], Setup(seed=seed)), batches):
        if measured.step % every and measured.step != effort.steps:
            continue
        values = [_scored(answers, right_val, b).value for answers in _of_videos(members, b, right.ndim == 2)]
        place = int(np.argmax(values))
        if values[place] > best:
            best, kept = values[place], _of_videos(members, c, right.ndim == 2)[place]
    return kept, best


@torch.no_grad()
def _of_videos(net: nn.Module, bank: Bank, several: bool) -> np.ndarray:
    """The mean over a video's clips of what is said of each, ``(M, V, K)``."""
    logits = net(bank.clips[bank.mask]).double()
    logits = logits if logits.ndim == 3 else logits[None]
    each = logits.sigmoid() if several else logits.softmax(-1)
    rows = torch.arange(len(bank), device=each.device).repeat_interleave(bank.counts)
    total = each.new_zeros(len(each), len(bank), each.shape[2]).index_add_(1, rows, each)
    return (total / bank.counts[:, None]).cpu().numpy()


def _neighbours(
    a: Bank, right: Tensor, b: Bank, right_val: Tensor, c: Bank, classes: int, seed: int
) -> tuple[np.ndarray, float]:
    del seed
    x = a.clips[a.mask]
    mean, scale = _spread(x)
    shelf = F.normalize((x - mean) / scale, dim=1)
    labels = right if right.ndim == 2 else F.one_hot(right, classes)
    labels = labels.double().repeat_interleave(a.counts, 0)

    def answers(bank: Bank) -> list[np.ndarray]:
        probe = F.normalize((bank.clips[bank.mask] - mean) / scale, dim=1)
        most = min(max(NEIGHBOURS), len(shelf))
        near = torch.cat([(part @ shelf.T).topk(most, 1).indices for part in probe.split(2048)])
        rows = torch.arange(len(bank), device=near.device).repeat_interleave(bank.counts)
        out = []
        for k in NEIGHBOURS:
            each = labels[near[:, :k]].mean(1)
            total = each.new_zeros(len(bank), classes).index_add_(0, rows, each)
            out.append((total / bank.counts[:, None]).cpu().numpy())
        return out

    values = [_scored(said, right_val, b).value for said in answers(b)]
    place = int(np.argmax(values))
    return answers(c)[place], values[place]


def _kernel(
    a: Bank, right: Tensor, b: Bank, right_val: Tensor, c: Bank, classes: int, seed: int
) -> tuple[np.ndarray, float]:
    del seed
    net = KernelClassifier(classes).to(a.clips.device)
    share = torch.linspace(0, 1, min(LOOKS, a.clips.shape[1]), device=a.clips.device)
    places = (share * (a.counts[:, None] - 1)).round().long()  # (V, E)
    samples = a.clips.gather(1, places[..., None].expand(-1, -1, a.dim))
    labels = right if right.ndim == 2 else F.one_hot(right, classes)

    class Vectors(nn.Module):
        """The kernel, for vectors instead of pictures."""

        def forward(self, x: Tensor) -> Tensor:
            return net(x[:, :, None, None])

    best, kept = -math.inf, np.zeros(0)
    for _ in net.solutions(samples, labels):
        net.to(a.clips.device)
        value = _scored(_of_videos(Vectors(), b, right.ndim == 2)[0], right_val, b).value
        if value > best:
            best, kept = value, _of_videos(Vectors(), c, right.ndim == 2)[0]
    return kept, best


# Who answers from long videos


def detected(
    train: Bank,
    val: Bank,
    test: Bank,
    *,
    seed: int = 0,
    effort: Effort = Effort(),
    bootstrap: Bootstrap | None = None,
) -> Found:
    """Where actions are in long videos, by a TriDet that learns it anew: mean AP over tIoU."""
    torch.manual_seed(seed)
    device = train.clips.device
    net = TriDet(train.dim, len(train.actions), **effort.detector).to(device)  # type: ignore[arg-type]
    mean, scale = _spread(train.clips[train.mask])

    def scaled(bank: Bank) -> Tensor:
        return (bank.clips - mean) / scale

    spans = [
        on_grid(sample.segments, starts[:count], train.length)
        for sample, starts, count in zip(
            train.samples, train.starts.cpu().numpy(), train.counts.tolist(), strict=True
        )
    ]
    x, mask = scaled(train), train.mask

    def loss(rows: list[int]) -> dict[str, Tensor]:
        return net.loss(net(x[rows], mask[rows]), [spans[row] for row in rows])

    def score(bank: Bank, resample: Bootstrap | None = None) -> Score:
        found = net.detect(scaled(bank), bank.mask, bank.starts, bank.length, bank.seconds, most=200)
        return temporal_map(*tables(bank.samples, found), bootstrap=resample)

    best = _best_of(net, loss, lambda: score(val).value, len(train), seed, effort)
    return Found(score(test, bootstrap), best, np.zeros((0, 0)))


def watched(
    train: Bank,
    val: Bank,
    test: Bank,
    *,
    seed: int = 0,
    effort: Effort = Effort(),
    bootstrap: Bootstrap | None = None,
) -> Found:
    """Where something unusual happens, by an MGFN that learns it anew from whole videos: AUC over the frames.

    Who is only told that something happens in a video may learn the wrong thing: of several, the one is asked that does best on
    validation videos.
    """
    tries = (_watched(train, val, seed * effort.watchers + place, effort) for place in range(effort.watchers))
    best, score = max(tries, key=lambda one: one[0])
    return Found(score(test, bootstrap), best, np.zeros((0, 0)))


def _watched(
    train: Bank, val: Bank, seed: int, effort: Effort
) -> tuple[float, Callable[[Bank, Bootstrap | None], Score]]:
    """How well one MGFN did on the validation videos, and what it scores on others."""
    torch.manual_seed(seed)
    device = train.clips.device
    net = MGFN(train.dim, **effort.watcher).to(device)  # type: ignore[arg-type]
    mean, scale = _spread(train.clips[train.mask])
    abnormal = (train.truth("action") > 0).to(device)  # 0 is normal
    kinds = [abnormal.logical_not().nonzero()[:, 0].tolist(), abnormal.nonzero()[:, 0].tolist()]
    x = binned((train.clips - mean) / scale, train.mask)
    dice = np.random.default_rng(seed)

    def loss(_: list[int]) -> dict[str, Tensor]:
        rows = [int(dice.choice(kind)) for kind in kinds for _ in range(effort.videos)]
        return net.loss(net(x[rows]), abnormal[rows])

    def score(bank: Bank, resample: Bootstrap | None = None) -> Score:
        judged = net((bank.clips - mean) / scale, bank.mask).scores.cpu().numpy()
        said, truth, videos = [], [], []
        for row, (sample, starts) in enumerate(zip(bank.samples, bank.starts.cpu().numpy(), strict=True)):
            count, frames = int(bank.counts[row]), round(float(bank.seconds[row]) * FPS)
            said.append(frame_scores(judged[row, :count], starts[:count], bank.length, frames, FPS))
            truth.append(frame_truth(sample.segments, frames, FPS))
            videos += [sample.id] * frames
        return frame_auc(np.concatenate(said), np.concatenate(truth), videos, bootstrap=resample)

    return _best_of(net, loss, lambda: score(val).value, len(train), seed, effort, lr=1e-4), score


def _spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the deviation of features ``(B, D)``; what hardly varies counts as if it did a little."""
    return x.mean(0), x.std(0).clamp_min(1e-6 + 1e-4 * float(x.std()))


def _best_of(
    net: nn.Module,
    loss: Callable[[list[int]], dict[str, Tensor]],
    score: Callable[[], float],
    videos: int,
    seed: int,
    effort: Effort,
    lr: float = 1e-3,
) -> float:
    """Train a head; it keeps the weights that do best on the validation videos."""
    plan = LRSchedule(warmup=effort.turns // 20, shape="cosine", updates=effort.turns, floor=0.01)
    move = Step("learn", (net,), loss, lr, "adamw", 0.025, plan)
    dice = np.random.default_rng(seed)
    count = min(effort.videos, videos)
    batches = (dice.choice(videos, count, replace=False).tolist() for _ in range(effort.turns))
    every, best, kept = max(1, effort.turns // 6), -math.inf, {}
    for measured in fit(Phase([move], Setup(seed=seed, clip=1.0)), batches):
        if measured.step % every and measured.step != effort.turns:
            continue
        net.eval()
        with torch.no_grad():
            value = score()
        net.train()
        if value > best:
            best, kept = value, {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.load_state_dict(kept)
    net.eval().requires_grad_(False)
    return best


# Groups, walks, pictures


def gap(
    train: Bank, val: Bank, test: Bank, group: str, *, seed: int = 0, effort: Effort = Effort()
) -> tuple[Score, Score, dict[str, Score]]:
    """Actions by a linear probe: accuracy, the gap between the groups, and each group's accuracy."""
    found = probed("linear", "action", train, val, test, seed=seed, effort=effort)
    truth = test.truth("action").cpu().numpy()
    groups = np.array([sample.groups[group] for sample in test.samples])
    videos = [sample.id for sample in test.samples]
    return (
        found.score,
        group_gap(found.answers, truth, groups, videos),
        group_accuracy(found.answers, truth, groups, videos),
    )


def walked(bank: Bank, *, across_views: bool = False) -> Score:
    """Who walks, by the nearest walk of the gallery: rank-1, nothing is learned.

    The gallery are the videos of the group role "gallery", the probes those of role "probe", as in CASIA-B.
    """
    total = (bank.clips * bank.mask[..., None]).sum(1) / bank.counts[:, None]
    features = total.double().cpu().numpy()
    role = np.array([sample.groups.get("role", "") for sample in bank.samples])
    view = np.array([sample.groups.get("view", "") for sample in bank.samples])
    who = bank.truth("identity").cpu().numpy()
    probe, gallery = role == "probe", role == "gallery"
    if not probe.any() or not gallery.any():
        raise VeilError(
            "these videos do not say which are the gallery and which the probes: rank-1 needs both."
        )
    views = (view[probe], view[gallery]) if across_views else None
    return rank1(features[probe], who[probe], features[gallery], who[gallery], views=views)


class Decoder(nn.Module):
    """Features ``(B, D)`` to pictures ``(B, 3, 32, 32)`` in [0, 1]."""

    def __init__(self, dim: int, width: int = 256) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, width * 16))
        steps: list[nn.Module] = []
        for inner, outer in ((width, width // 2), (width // 2, width // 4), (width // 4, width // 8)):
            steps += [nn.ConvTranspose2d(inner, outer, 4, 2, 1), nn.BatchNorm2d(outer), nn.GELU()]
        self.rest = nn.Sequential(*steps, nn.Conv2d(width // 8, 3, 3, padding=1), nn.Sigmoid())
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """The picture that the features let one draw."""
        return self.rest(self.first(x).view(-1, self.width, 4, 4))


def inverted(
    train: Bank,
    pictures: Tensor,
    others: Sequence[Bank],
    *,
    seed: int = 0,
    steps: int = 600,
    width: int = 256,
) -> tuple[list[Tensor], Tensor]:
    """What a decoder draws of the first clips of other videos, and of the training videos: ``(V, 3, 32, 32)``.

    ``pictures (V, 3, 32, 32)`` in [0, 1] are what the first clips of the training videos show: the attacker can anonymize
    videos of his own, so he knows both.
    """
    torch.manual_seed(seed)
    mean, scale = _spread(train.clips[train.mask])
    device = train.clips.device
    net = Decoder(train.dim, width).to(device)
    x, y = (train.clips[:, 0] - mean) / scale, pictures.to(device)

    def loss(rows: Tensor) -> dict[str, Tensor]:
        return {"apart": (net(x[rows]) - y[rows]).abs().mean()}

    plan = LRSchedule(warmup=steps // 20, shape="cosine", updates=steps, floor=0.01)
    dice = torch.Generator().manual_seed(seed)
    batches = (torch.randperm(len(x), generator=dice)[:256].to(device) for _ in range(steps))
    for _ in fit(Phase([Step("draw", (net,), loss, 1e-3, "adamw", 0.01, plan)], Setup(seed=seed)), batches):
        pass
    net.eval()
    with torch.no_grad():
        drawn = [
            torch.cat([net(part) for part in ((bank.clips[:, 0] - mean) / scale).split(1024)])
            for bank in (train, *others)
        ]
    return drawn[1:], drawn[0]


def seen_in(pictures: Sequence[Tensor], rights: Sequence[Tensor], banks: Sequence[Bank]) -> Found:
    """What a kernel learns from pictures of training, validation and test videos of who is in them."""
    classes = int(max(int(right.max()) for right in rights)) + 1
    net = KernelClassifier(classes).to(pictures[0].device)
    labels = F.one_hot(rights[0], classes)
    best, kept = -math.inf, np.zeros(0)
    shrunk = net.pixels(pictures[0])[:, None]
    for _ in net.solutions(shrunk, labels):
        net.to(pictures[0].device)
        value = _scored(softmax(net(pictures[1]).double().cpu().numpy()), rights[1], banks[1]).value
        if value > best:
            best, kept = value, softmax(net(pictures[2]).double().cpu().numpy())
    return Found(_scored(kept, rights[2], banks[2]), best, kept)


# A store before all of them


class Asked(NamedTuple):
    """One question to features, and the answer."""

    target: str
    by: str
    knows: Literal["raw", "adapted"]
    score: Score
    raw: float | None  # what the same one finds in raw features

    @property
    def left(self) -> float | None:
        """The share of what raw features tell above chance that is left."""
        chance = self.score.chance
        if self.raw is None or chance is None or self.raw <= chance:
            return None
        return (self.score.value - chance) / (self.raw - chance)


def compared(
    raw: Bank, after: Bank | None, targets: Sequence[str] = (), *, seed: int = 0, effort: Effort = Effort()
) -> list[Asked]:
    """What all probes find in raw features and, where given, in features of the same videos after anonymization.

    The labels are those of ``raw``; ``targets`` [all that its videos say] are as in `probed`.
    """
    after = None if after is None else _labelled_as(after, raw)
    asked = []
    for target in targets or _told(raw):
        parts = [raw.split(name) for name in ("train", "val", "test")]
        for probe in PROBES:
            before = probed(probe, target, *parts, seed=seed, effort=effort).score  # type: ignore[misc]
            if after is None:
                asked.append(Asked(target, probe, "raw", before, None))
                continue
            left = [after.split(name) for name in ("train", "val", "test")]
            for knows, learned in (("adapted", left), ("raw", [*parts[:2], left[2]])):
                found = probed(probe, target, *learned, seed=seed, effort=effort).score  # type: ignore[misc]
                asked.append(Asked(target, probe, knows, found, before.value))  # type: ignore[arg-type]
    return asked


def _told(bank: Bank) -> list[str]:
    """What can be asked: what differs among the training videos and is known of all splits."""
    found = []
    for target in ("action", "identity", "attributes"):
        try:
            truths = [
                _known(part, part.truth(target))[1] for part in map(bank.split, ("train", "val", "test"))
            ]
        except VeilError:
            continue
        if all(len(truth) for truth in truths) and len(truths[0].unique(dim=0)) > 1:
            found.append(target)
    if not found:
        raise VeilError(
            "these features have no labels that differ in train, val and test videos: extract them with --labels or --data."
        )
    return found


def _labelled_as(after: Bank, raw: Bank) -> Bank:
    """Features after anonymization, in the order and with the labels of those before."""
    places = {sample.id: place for place, sample in enumerate(after.samples)}
    missing = next((sample.id for sample in raw.samples if sample.id not in places), None)
    if missing is not None:
        raise VeilError(f"the anonymized features have no video {missing}: anonymize the same store.")
    taken = after.take([places[sample.id] for sample in raw.samples])
    words = {name: getattr(raw, name) for name in ("actions", "attributes", "identities")}
    return replace(taken, samples=raw.samples, **words)
