"""How recognizers are trained. A weak attacker overestimates privacy, so every one

- standardises its input (what an anonymizer leaves may be faint),
- trains until its training loss is low, in several rounds if necessary, and reports that loss,
- averages over many frames of a video.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.audit.recognition import (
    LOW,
    RecognizerSpec,
    TrainedRecognizer,
    TrainingBudget,
    build,
    kernel_samples,
    scored,
)
from veil.audit.videos import Videos
from veil.core import VeilError
from veil.nn.kernel import KernelClassifier
from veil.training.distributed import rank, world_size
from veil.training.fit import fit
from veil.training.schedule import LRSchedule
from veil.training.steps import Setup, Step

CHECKS = 12  # validations in a round
DONE = 0.01  # of the loss of a constant answer: nothing is left to learn
PATIENCE = 3  # validations without a better score, once nothing is left to learn


def train_recognizer(
    recognizer: RecognizerSpec,
    target: str,
    train: Videos,
    val: Videos,
    *,
    budget: TrainingBudget,
    seed: int = 0,
    device: torch.device | str = "cpu",
    start: TrainedRecognizer | None = None,
    weights: str | None = None,
) -> TrainedRecognizer:
    """Train a recognizer; it has the weights that did best on the validation videos.

    ``start``: initialise with another recognizer's weights; ``weights``: with published ones (see `veil.nn`).
    A kernel is solved for these videos alone and takes no weights.
    """
    for videos, name in ((train, "training"), (val, "validation")):
        if target not in videos.targets():
            raise VeilError(
                f"the {name} videos of {videos.dataset} have no labels of {target}, or one class only: "
                "choose data with labels that differ.",
                code="audit-labels-missing",
            )
    device = torch.device(device)
    frames, truth = train.frames.to(device), train.truth(target).to(device)
    val = val.to(device)
    outputs = len(train.classes(target))
    if recognizer.solved:
        if weights is not None:
            raise VeilError(
                f"the recognizer '{recognizer.net}' takes no weights: leave them out.",
                code="audit-weights-unused",
            )
        return _solve(recognizer, target, frames, truth, outputs, val, budget, seed)
    trained = new_recognizer(recognizer, target, frames, outputs, budget, seed, weights)
    if start is not None:
        trained.net.load_state_dict(start.net.state_dict())
    trained.net.to(device)
    trained.constant = _constant_loss(truth)

    best: tuple[float, float] | None = None
    kept: dict[str, Tensor] = {}
    cuda = device.type == "cuda"
    for round_ in range(budget.rounds):
        plan = LRSchedule(warmup=budget.steps // 20, shape="cosine", updates=budget.steps, floor=0.01)
        step = Step("learn", (trained.net,), trained.terms, budget.lr, "adamw", budget.weight_decay, plan)
        setup = Setup(
            seed=seed + 7919 * round_, precision="bf16" if cuda else "fp32", clip=5.0, channels_last=cuda
        )
        recent: list[Tensor] = []
        without = 0
        every = max(1, budget.steps // CHECKS)
        batches = RecognizerBatches(recognizer, frames, truth, budget, setup.seed, mirror=target != "action")
        for measured in fit([step], map(batches, range(budget.steps)), setup):
            recent.append(measured.terms["loss"])
            if measured.step % every and measured.step != budget.steps:
                continue
            trained.loss = torch.stack(recent).mean().item()
            recent = []
            score = validate(trained, val)
            if best is None or score > best:
                best, kept, without = score, _copied(trained.net), 0
            else:
                without += 1
            if trained.loss < DONE * trained.constant and without >= PATIENCE:
                break
        if trained.loss <= LOW * trained.constant:
            break
    trained.net.load_state_dict(kept)
    trained.net.eval()
    trained.val = best[0] if best else float("nan")
    return trained


def _solve(
    recognizer: RecognizerSpec,
    target: str,
    frames: Tensor,
    truth: Tensor,
    outputs: int,
    val: Videos,
    budget: TrainingBudget,
    seed: int,
) -> TrainedRecognizer:
    """A kernel with the solution that does best on the validation videos.

    Its loss is that of its closest fit to the training videos, as a network's is where training ended: the share of
    the labels' spread that is left, in units of a constant answer's loss.
    """
    net = KernelClassifier(outputs)
    trained = _standardised(recognizer, target, net, frames, budget)
    trained.constant = _constant_loss(truth)
    right = truth if truth.ndim == 2 else F.one_hot(truth, outputs)
    rows, samples = kernel_samples(trained, net, frames, seed)
    best: tuple[float, float] | None = None
    kept: dict[str, Tensor] = {}
    least = 1.0
    for left in net.solutions(samples, right[rows]):
        least = min(least, left)
        score = validate(trained, val)
        if best is None or score > best:
            best, kept = score, _copied(net)
    net.load_state_dict(kept)
    net.to(frames.device).eval()
    trained.loss = least * trained.constant
    trained.val = best[0] if best else float("nan")
    return trained


def new_recognizer(
    recognizer: RecognizerSpec,
    target: str,
    frames: Tensor,
    outputs: int,
    budget: TrainingBudget,
    seed: int,
    weights: str | None,
) -> TrainedRecognizer:
    """An untrained recognizer whose input is standardised by ``frames``."""
    torch.manual_seed(seed)
    net = build(recognizer, outputs, frames.shape[1:3], budget, weights)
    return _standardised(recognizer, target, net, frames, budget)


def _standardised(
    recognizer: RecognizerSpec, target: str, net: nn.Module, frames: Tensor, budget: TrainingBudget
) -> TrainedRecognizer:
    zero, one = torch.zeros(3, device=frames.device), torch.ones(3, device=frames.device)
    trained = TrainedRecognizer(recognizer, net, target, zero, one, budget)
    some = frames[:: max(1, len(frames) // 256)]
    view = slice(None, None, 4) if recognizer.input != "motion" else slice(0, 8)
    seen = trained.prepare(
        some[:, view].flatten(0, 1)[:, None] if recognizer.input == "frames" else some[:, view]
    )
    axes = [axis for axis in range(seen.ndim) if axis != 1]
    trained.mean, trained.std = seen.mean(axes), seen.std(axes).clamp_min(1 / 255)
    return trained


class RecognizerBatches:
    """Batches of clips or frames, shifted and, where chosen, mirrored; each is a function of its number alone."""

    def __init__(
        self,
        recognizer: RecognizerSpec,
        frames: Tensor,
        truth: Tensor,
        budget: TrainingBudget,
        seed: int,
        mirror: bool,
    ):
        self._recognizer, self._frames, self._truth = recognizer, frames, truth
        self._budget, self._seed, self._mirror = budget, seed, mirror
        self._size = min(budget.batch, len(frames))
        self._ordered = functools.lru_cache(2)(self._order)

    def __call__(self, number: int) -> tuple[Tensor, Tensor]:
        """Batch `number`, from 0: ``(B, T, H, W, 3)`` uint8 and its labels; this process's share of it."""
        first = number * self._size
        where = [divmod(place, len(self._frames)) for place in range(first, first + self._size)]
        rows = torch.stack([self._ordered(epoch)[place] for epoch, place in where])
        rng = torch.Generator().manual_seed(self._seed * 1_000_003 + number)
        held, height, width = self._frames.shape[1:4]
        pad = max(1, height // 14)
        if self._recognizer.input == "frames":
            when = torch.randint(held, (self._size, 1), generator=rng)
        else:
            share = 0.75 + 0.25 * torch.rand(self._size, 1, generator=rng)
            start = (1 - share) * torch.rand(self._size, 1, generator=rng)
            spread = torch.linspace(0, 1, min(self._budget.clip_length, held))
            when = ((start + share * spread) * (held - 1)).round().long()
        shifts = torch.randint(-pad, pad + 1, (2, self._size, 1), generator=rng)
        y, x = torch.arange(height) + shifts[0], torch.arange(width) + shifts[1]  # (B, H), (B, W)
        if self._mirror:
            x = torch.where(torch.rand(self._size, 1, generator=rng) < 0.5, x.flip(1), x)
        mine, device = slice(rank(), None, world_size()), self._frames.device
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        rows, when, y, x = (index[mine].to(device, non_blocking=True) for index in (rows, when, y, x))
        places = rows[:, None, None, None], when[:, :, None, None], y[:, None, :, None], x[:, None, None, :]
        return self._frames[places], self._truth[rows]  # (B, T, H, W, 3)

    def _order(self, epoch: int) -> Tensor:
        """The order of all videos in one epoch."""
        rng = torch.Generator().manual_seed(self._seed * 7_000_003 + epoch)
        return torch.randperm(len(self._frames), generator=rng)


def validate(trained: TrainedRecognizer, val: Videos) -> tuple[float, float]:
    """The validation score, and the likelihood for breaking ties."""
    logits = trained.logits(val.frames)
    truth = val.truth(trained.target)
    if trained.target == "attributes":
        likely = -F.binary_cross_entropy_with_logits(logits.mean(1), truth).item()
        answers = logits.sigmoid().mean(1)
    else:
        likely = -F.cross_entropy(logits.mean(1), truth).item()
        answers = logits.softmax(-1).mean(1)
    score, _ = scored(trained.target, answers.double().numpy(), val)
    return (0.0 if np.isnan(score.value) else score.value), likely


def _constant_loss(truth: Tensor) -> float:
    """The loss of the best constant answer."""
    if truth.ndim == 2:
        share = truth.mean(0).clamp(1e-6, 1 - 1e-6)
        return float(-(share * share.log() + (1 - share) * (1 - share).log()).mean())
    share = torch.bincount(truth).float() / len(truth)
    return float(-(share * share.clamp_min(1e-9).log()).sum())


def _copied(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in net.state_dict().items()}
