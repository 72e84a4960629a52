"""Probes: what can be learned from features of single clips about an action, an identity or attributes.

Each probe is trained on the training videos, selected on the validation videos and scored once on the test videos:

*linear*, *mlp*   one layer, or two with a ReLU between (D, D, K): several at once with other weight decays, and stopped early
*knn*             the nearest clips by cosine
*kernel*          kernel ridge regression (`veil.nn.kernel`), in closed form
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.core import VeilError
from veil.features.bank import Bank
from veil.metrics import Bootstrap, Score, class_mean_average_precision, top1
from veil.nn.kernel import KernelClassifier
from veil.training.fit import fit
from veil.training.phase import Phase
from veil.training.schedule import LRSchedule
from veil.training.steps import Setup, Step

Probe = Literal["linear", "mlp", "knn", "kernel"]
PROBES: tuple[Probe, ...] = ("linear", "mlp", "knn", "kernel")
DECAYS = (0.0, 1e-4, 1e-3, 1e-2)  # of the weights' squares; one member each
NEIGHBOURS = (1, 3, 7, 15, 31)
KERNEL_CLIPS = 4  # clips of a video that a kernel is fitted to
VALIDATIONS = 15  # during training


@dataclass(frozen=True)
class ProbeBudget:
    """The training budget of one probe or head."""

    steps: int = 600  # of a probe
    batch: int = 1024  # clips
    lr: float = 3e-3
    detection: dict[str, int] = field(
        default_factory=lambda: {"width": 128, "hidden": 192, "levels": 4, "bins": 8}
    )
    anomaly: dict[str, tuple[int, int, int]] = field(
        default_factory=lambda: {"widths": (64, 64, 128), "depths": (1, 1, 1)}
    )
    videos: int = 8  # long ones in a batch
    head_steps: int = 600  # of a head for long videos
    anomaly_runs: int = 3  # trainings of MGFN, of which the best on validation videos is scored


class ProbeResult(NamedTuple):
    """The score on the test videos, and the value on the validation videos by which it was selected."""

    score: Score
    val: float
    probabilities: np.ndarray  # (V, K): of each test video


def train_probe(
    probe: Probe,
    target: str,
    train: Bank,
    val: Bank,
    test: Bank,
    *,
    seed: int = 0,
    budget: ProbeBudget = ProbeBudget(),
    bootstrap: Bootstrap | None = None,
) -> ProbeResult:
    """Train and score a probe of ``target``: "action", "identity", "attributes", or a group such as "gender"."""
    truths = [bank.truth(target) for bank in (train, val, test)]
    kept = [with_labels(bank, truth) for bank, truth in zip((train, val, test), truths, strict=True)]
    (a, right), (b, right_val), (c, right_test) = kept
    for name, bank in (("training", a), ("validation", b), ("test", c)):
        if not len(bank):
            raise VeilError(
                f"no {name} video has a label of {target}: choose another target, or features with labels.",
                code="label-missing",
            )
    classes = (
        right.shape[1]
        if right.ndim == 2
        else int(max(map(int, (right.max(), right_val.max(), right_test.max())))) + 1
    )
    answer = {"knn": _nearest_neighbours, "kernel": _kernel}.get(probe)
    if answer is not None:
        answers, best = answer(a, right, b, right_val, c, classes, seed)
    else:
        answers, best = _train_members(probe == "mlp", a, right, b, right_val, c, classes, seed, budget)
    return ProbeResult(score_probabilities(answers, right_test, c, bootstrap), best, answers)


def with_labels(bank: Bank, truth: Tensor) -> tuple[Bank, Tensor]:
    """The videos whose label is known."""
    labelled = (truth >= 0) if truth.ndim == 1 else truth.isfinite().all(1)
    return bank.take(labelled), truth[labelled]


def score_probabilities(
    answers: np.ndarray, right: Tensor, bank: Bank, bootstrap: Bootstrap | None = None
) -> Score:
    """The top-1 accuracy, or the class-mean average precision of attributes."""
    truth, videos = right.cpu().numpy(), [sample.id for sample in bank.samples]
    if right.ndim == 2:
        return class_mean_average_precision(answers, truth, videos, bootstrap=bootstrap)
    return top1(answers, truth, videos, bootstrap=bootstrap)


class ProbeEnsemble(nn.Module):
    """M probes beside each other, ``(B, D)`` to ``(M, B, K)``, on standardised features."""

    mean: Tensor
    scale: Tensor

    def __init__(self, x: Tensor, classes: int, deep: bool) -> None:
        super().__init__()
        dim = x.shape[1]
        mean, scale = mean_and_scale(x)
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


def _train_members(
    deep: bool,
    a: Bank,
    right: Tensor,
    b: Bank,
    right_val: Tensor,
    c: Bank,
    classes: int,
    seed: int,
    budget: ProbeBudget,
) -> tuple[np.ndarray, float]:
    torch.manual_seed(seed)
    x, y = a.clips[a.mask], right.repeat_interleave(a.counts, 0)
    members = ProbeEnsemble(x, classes, deep).to(x.device)
    count = min(budget.batch, len(x))

    def loss(batch: Tensor) -> dict[str, Tensor]:
        logits = members(x[batch])
        each = y[batch].expand(len(logits), *y[batch].shape)
        if y.ndim == 2:
            losses = F.binary_cross_entropy_with_logits(logits, each, reduction="none").mean((1, 2))
        else:
            losses = (
                F.cross_entropy(logits.flatten(0, 1), each.flatten(), reduction="none")
                .view(len(logits), -1)
                .mean(1)
            )
        return {"answer": losses.sum(), "decay": members.decay()}

    plan = LRSchedule(warmup=budget.steps // 20, shape="cosine", updates=budget.steps, floor=0.01)
    step = Step("learn", (members,), loss, budget.lr, "adam", schedule=plan)
    rng = torch.Generator().manual_seed(seed)
    batches = (torch.randperm(len(x), generator=rng)[:count].to(x.device) for _ in range(budget.steps))
    every, best, kept = max(1, budget.steps // VALIDATIONS), -math.inf, np.zeros(0)
    for measured in fit(Phase([step], Setup(seed=seed)), batches):
        if measured.step % every and measured.step != budget.steps:
            continue
        values = [
            score_probabilities(answers, right_val, b).value
            for answers in video_probabilities(members, b, right.ndim == 2)
        ]
        place = int(np.argmax(values))
        if values[place] > best:
            best, kept = values[place], video_probabilities(members, c, right.ndim == 2)[place]
    return kept, best


@torch.no_grad()
def video_probabilities(net: nn.Module, bank: Bank, several: bool) -> np.ndarray:
    """The mean over a video's clips of their probabilities, ``(M, V, K)``."""
    logits = net(bank.clips[bank.mask]).double()
    logits = logits if logits.ndim == 3 else logits[None]
    each = logits.sigmoid() if several else logits.softmax(-1)
    rows = torch.arange(len(bank), device=each.device).repeat_interleave(bank.counts)
    total = each.new_zeros(len(each), len(bank), each.shape[2]).index_add_(1, rows, each)
    return (total / bank.counts[:, None]).cpu().numpy()


def _nearest_neighbours(
    a: Bank, right: Tensor, b: Bank, right_val: Tensor, c: Bank, classes: int, seed: int
) -> tuple[np.ndarray, float]:
    del seed
    x = a.clips[a.mask]
    mean, scale = mean_and_scale(x)
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

    values = [score_probabilities(some, right_val, b).value for some in answers(b)]
    place = int(np.argmax(values))
    return answers(c)[place], values[place]


def _kernel(
    a: Bank, right: Tensor, b: Bank, right_val: Tensor, c: Bank, classes: int, seed: int
) -> tuple[np.ndarray, float]:
    del seed
    net = KernelClassifier(classes).to(a.clips.device)
    share = torch.linspace(0, 1, min(KERNEL_CLIPS, a.clips.shape[1]), device=a.clips.device)
    places = (share * (a.counts[:, None] - 1)).round().long()  # (V, E)
    samples = a.clips.gather(1, places[..., None].expand(-1, -1, a.dim))
    labels = right if right.ndim == 2 else F.one_hot(right, classes)

    class Vectors(nn.Module):
        """The kernel, for vectors instead of images."""

        def forward(self, x: Tensor) -> Tensor:
            return net(x[:, :, None, None])

    best, kept = -math.inf, np.zeros(0)
    for _ in net.solutions(samples, labels):
        net.to(a.clips.device)
        value = score_probabilities(video_probabilities(Vectors(), b, right.ndim == 2)[0], right_val, b).value
        if value > best:
            best, kept = value, video_probabilities(Vectors(), c, right.ndim == 2)[0]
    return kept, best


def mean_and_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the deviation of features ``(B, D)``; very small deviations are raised."""
    return x.mean(0), x.std(0).clamp_min(1e-6 + 1e-4 * float(x.std()))
