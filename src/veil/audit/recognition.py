"""Recognizers: fresh networks that learn from footage what somebody does, who it is, or what can be seen of them.

Uses and attacks are the same experiment: train on the training videos, keep the weights that do best on the
validation videos, score once on the test videos. A weak attacker flatters the anonymizer, so every one

- standardises its input (what an anonymizer leaves may be faint),
- trains until its training loss is low, in several rounds if it must, and reports that loss,
- looks at many frames of a video and averages.

One of them is no network: "kernel", which is solved (`veil.nn.kernel`) and finds what is faint but always in one place.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.audit.videos import Footage
from veil.core import VeilError
from veil.metrics import Bootstrap, Score, class_mean_average_precision, softmax, top1
from veil.nn import image, video
from veil.nn.kernel import Kernel
from veil.training.fit import LRSchedule, Setup, Step, fit, rank, world_size

Sees = Literal["frames", "clips", "motion"]
Floats = npt.NDArray[np.float64]

CHECKS = 12  # times a round that the validation videos are looked at
LOW = 0.05  # of the loss of a constant answer: from here on, training has succeeded
DONE = 0.01  # the same share: nothing is left to learn
PATIENCE = 3  # checks without a better validation score, once nothing is left to learn
MOST = 6000  # samples that a kernel compares with


@dataclass(frozen=True)
class Recognizer:
    """A network (or "kernel") and what it looks at: single frames, clips, or the differences between a clip's frames."""

    net: str
    sees: Sees

    @property
    def solved(self) -> bool:
        """Whether it is solved, not trained step by step."""
        return self.net == "kernel"

    def __str__(self) -> str:
        return f"{self.net} on {self.sees}"


@dataclass(frozen=True)
class Effort:
    """How much work goes into a recognizer."""

    steps: int = 1200  # of one round on raw video
    adapting: float = 0.4  # of these on other video, where it begins with what it learned on raw video
    rounds: int = 2  # at most; the next begins while the training loss is not low
    batch: int = 32
    lr: float = 1e-3
    weight_decay: float = 0.02
    length: int = 16  # frames in a clip
    looks: int = 8  # frames of a test video that are averaged, where single frames are seen


class Trained:
    """A recognizer that has learned a target."""

    def __init__(
        self, recognizer: Recognizer, net: nn.Module, target: str, mean: Tensor, std: Tensor, effort: Effort
    ):
        self.recognizer, self.net, self.target, self.effort = recognizer, net, target, effort
        self.mean, self.std = mean, std  # (3,) of what it looks at, over the training videos
        self.loss = float("nan")  # where training ended
        self.constant = float("nan")  # the loss of the best constant answer
        self.val = float("nan")  # the best validation score

    def tensors(self) -> dict[str, Tensor]:
        """All that it has learned; `from_tensors` gives it back."""
        numbers = torch.tensor([self.loss, self.constant, self.val], dtype=torch.float64)
        own = {"audit.mean": self.mean, "audit.std": self.std, "audit.numbers": numbers}
        return {name: value.contiguous() for name, value in (*self.net.state_dict().items(), *own.items())}

    @staticmethod
    def from_tensors(
        recognizer: Recognizer, target: str, tensors: dict[str, Tensor], effort: Effort, footage: Footage
    ) -> Trained:
        """What `tensors` gave, for footage of the same shape and classes."""
        mean, std, numbers = (tensors.pop(f"audit.{name}") for name in ("mean", "std", "numbers"))
        outputs = len(footage.classes(target))
        net = (
            Kernel(outputs)
            if recognizer.solved
            else build(recognizer, outputs, footage.frames.shape[1:3], effort)
        )
        net.load_state_dict(tensors)
        trained = Trained(recognizer, net.to(mean.device).eval(), target, mean, std, effort)
        trained.loss, trained.constant, trained.val = numbers.tolist()
        return trained

    @property
    def weak(self) -> bool:
        """Whether training did not succeed, so that finding little means little."""
        return not self.loss <= LOW * self.constant

    def prepare(self, frames: Tensor) -> Tensor:
        """Frames ``(B, T, H, W, 3)`` uint8 as the network's standardised input."""
        clip = frames.permute(0, 4, 1, 2, 3).float().div_(255)
        if self.recognizer.sees == "motion":
            clip = clip[:, :, 1:] - clip[:, :, :-1]
        shape = (1, 3, 1, 1, 1)
        clip = (clip - self.mean.view(shape)) / self.std.view(shape)
        return clip[:, :, 0] if self.recognizer.sees == "frames" else clip

    def terms(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """What training descends, for frames ``(B, T, H, W, 3)`` and their truth."""
        seen, right = batch
        answer = self.net(self.prepare(seen)).float()
        if self.target == "attributes":
            return {"loss": F.binary_cross_entropy_with_logits(answer, right)}
        return {"loss": F.cross_entropy(answer, right)}

    def views(self, frames: int) -> list[Tensor]:
        """Which frames of a test video are looked at together: index tensors, one a look."""
        if self.recognizer.sees == "frames":
            looks = min(self.effort.looks, frames)
            return [torch.tensor([int(index)]) for index in np.linspace(0, frames - 1, looks).round()]
        length = min(self.effort.length, frames)
        step = max(1, frames // length)
        return [torch.arange(phase, phase + (length - 1) * step + 1, step) for phase in range(step)]

    @torch.no_grad()
    def logits(self, frames: Tensor) -> Tensor:
        """Answers ``(N, looks, K)`` for videos ``(N, F, H, W, 3)``."""
        self.net.eval()
        out = []
        for part in frames.split(2 * self.effort.batch):
            part = part.to(self.mean.device)
            with torch.autocast(part.device.type, torch.bfloat16, enabled=part.is_cuda):
                looks = [self.net(self.prepare(part[:, view])) for view in self.views(part.shape[1])]
            out.append(torch.stack(looks, 1).float().cpu())
        return torch.cat(out)

    @torch.no_grad()
    def features(self, frames: Tensor) -> Floats:
        """What the network makes of videos before it answers, ``(N, D)``: the mean over its looks."""
        self.net.eval()
        out = []
        for part in frames.split(2 * self.effort.batch):
            part = part.to(self.mean.device)
            looks = [self.net.features(self.prepare(part[:, view])) for view in self.views(part.shape[1])]  # type: ignore[operator]
            out.append(torch.stack(looks, 1).mean(1).double().cpu().numpy())
        return np.concatenate(out)

    def probabilities(self, frames: Tensor) -> Floats:
        """Answers ``(N, looks, K)`` as probabilities."""
        logits = self.logits(frames).double().numpy()
        if self.target == "attributes":
            # torch's sigmoid rounds by where in memory a number stands: equal answers would be ranked.
            return np.exp(-np.logaddexp(0, -logits))
        return softmax(logits)

    def score(
        self, footage: Footage, bootstrap: Bootstrap | None = None, looks: int | None = None
    ) -> tuple[Score, dict[str, tuple[float, float]]]:
        """How well it answers, and for each attribute alone: value and chance. ``looks``: only so many of them."""
        answers = self.probabilities(footage.frames)
        if looks is not None:
            middle = (answers.shape[1] - looks) // 2
            answers = answers[:, middle : middle + looks]
        return scored(self.target, answers.mean(1), footage, bootstrap)


def scored(
    target: str, answers: Floats, footage: Footage, bootstrap: Bootstrap | None = None
) -> tuple[Score, dict[str, tuple[float, float]]]:
    """Answers ``(N, K)`` against the truth: top-1, or class-mean AP with that of each attribute."""
    truth = footage.truth(target).numpy()
    videos = [sample.id.split("#")[0] for sample in footage.samples]
    if target != "attributes":
        return top1(answers, truth, videos, bootstrap=bootstrap), {}
    score = class_mean_average_precision(answers, truth, videos, bootstrap=bootstrap)
    parts = {}
    for index, name in enumerate(footage.attributes):
        one = class_mean_average_precision(answers[:, index : index + 1], truth[:, index : index + 1])
        parts[name] = (one.value, float(truth[:, index].mean()))
    return score, parts


def learn(
    recognizer: Recognizer,
    target: str,
    train: Footage,
    val: Footage,
    *,
    effort: Effort,
    seed: int = 0,
    device: torch.device | str = "cpu",
    start: Trained | None = None,
    weights: str | None = None,
) -> Trained:
    """Train a recognizer; it comes back with the weights that did best on the validation videos.

    ``start``: begin with what another one has learned; ``weights``: begin with published ones (see `veil.nn`).
    A kernel has no beginning: it is solved for these videos alone, and takes no weights.
    """
    for footage, name in ((train, "training"), (val, "validation")):
        if target not in footage.targets():
            raise VeilError(
                f"the {name} videos of {footage.dataset} do not say {target}, or know one answer only: "
                "this protocol needs labels that differ."
            )
    device = torch.device(device)
    frames, truth = train.frames.to(device), train.truth(target).to(device)
    val = val.to(device)
    outputs = len(train.classes(target))
    if recognizer.solved:
        if weights is not None:
            raise VeilError(f"'{recognizer.net}' is solved for the videos at hand: it takes no weights.")
        return _solve(recognizer, target, frames, truth, outputs, val, effort, seed)
    trained = fresh(recognizer, target, frames, outputs, effort, seed, weights)
    if start is not None:
        trained.net.load_state_dict(start.net.state_dict())
    trained.net.to(device)
    trained.constant = _constant_loss(truth)

    best: tuple[float, float] | None = None
    kept: dict[str, Tensor] = {}
    cuda = device.type == "cuda"
    for turn in range(effort.rounds):
        plan = LRSchedule(warmup=effort.steps // 20, shape="cosine", updates=effort.steps, floor=0.01)
        move = Step("learn", (trained.net,), trained.terms, effort.lr, "adamw", effort.weight_decay, plan)
        setup = Setup(
            seed=seed + 7919 * turn, precision="bf16" if cuda else "fp32", clip=5.0, channels_last=cuda
        )
        recent: list[Tensor] = []
        without = 0
        every = max(1, effort.steps // CHECKS)
        batches = Batches(recognizer, frames, truth, effort, setup.seed, mirror=target != "action")
        for measured in fit([move], map(batches, range(effort.steps)), setup):
            recent.append(measured.terms["loss"])
            if measured.step % every and measured.step != effort.steps:
                continue
            trained.loss = torch.stack(recent).mean().item()
            recent = []
            found = validated(trained, val)
            if best is None or found > best:
                best, kept, without = found, _copied(trained.net), 0
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
    recognizer: Recognizer,
    target: str,
    frames: Tensor,
    truth: Tensor,
    outputs: int,
    val: Footage,
    effort: Effort,
    seed: int,
) -> Trained:
    """A kernel with the solution that does best on the validation videos.

    Its loss is that of its closest fit to the training videos, as a network's is where training ended: the share of
    the labels' spread that is left, in units of a constant answer's loss.
    """
    net = Kernel(outputs)
    trained = _standardising(recognizer, target, net, frames, effort)
    trained.constant = _constant_loss(truth)
    right = truth if truth.ndim == 2 else F.one_hot(truth, outputs)
    rows, samples = _samples(trained, net, frames, seed)
    best: tuple[float, float] | None = None
    kept: dict[str, Tensor] = {}
    least = 1.0
    for left in net.solutions(samples, right[rows]):
        least = min(least, left)
        found = validated(trained, val)
        if best is None or found > best:
            best, kept = found, _copied(net)
    net.load_state_dict(kept)
    net.to(frames.device).eval()
    trained.loss = least * trained.constant
    trained.val = best[0] if best else float("nan")
    return trained


def _samples(trained: Trained, net: Kernel, frames: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Videos ``(V,)``, and all looks at each as they are at test videos ``(V, E, D)``; beyond `MOST`, some of them."""
    dice = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(frames), generator=dice)[:MOST].sort().values
    views = torch.stack(trained.views(frames.shape[1]))  # (looks, T)
    each = min(len(views), max(1, MOST // len(rows)))
    chosen = torch.rand(len(rows), len(views), generator=dice).argsort(1)[:, :each].sort(1).values
    out = []
    for some, looks in zip(rows.split(trained.effort.batch), chosen.split(trained.effort.batch), strict=True):
        seen = frames[
            some[:, None, None].to(frames.device), views[looks].to(frames.device)
        ]  # (B, E, T, H, W, 3)
        out.append(net.shrunk(trained.prepare(seen.flatten(0, 1))).unflatten(0, (len(some), each)))
    return rows.to(frames.device), torch.cat(out)


def build(
    recognizer: Recognizer, outputs: int, shape: Sequence[int], effort: Effort, weights: str | None = None
) -> nn.Module:
    """The network of a recognizer, for videos of ``shape`` (frames, size)."""
    held, size = shape
    if recognizer.sees == "frames":
        return image.make(recognizer.net, outputs, size=size, weights=weights)
    length = min(effort.length, held) - (recognizer.sees == "motion")
    return video.make(recognizer.net, outputs, frames=length, size=size, weights=weights)


def fresh(
    recognizer: Recognizer,
    target: str,
    frames: Tensor,
    outputs: int,
    effort: Effort,
    seed: int,
    weights: str | None,
) -> Trained:
    """A recognizer that has learned nothing yet, but how to standardise what it sees in ``frames``."""
    torch.manual_seed(seed)
    net = build(recognizer, outputs, frames.shape[1:3], effort, weights)
    return _standardising(recognizer, target, net, frames, effort)


def _standardising(
    recognizer: Recognizer, target: str, net: nn.Module, frames: Tensor, effort: Effort
) -> Trained:
    zero, one = torch.zeros(3, device=frames.device), torch.ones(3, device=frames.device)
    trained = Trained(recognizer, net, target, zero, one, effort)
    some = frames[:: max(1, len(frames) // 256)]
    view = slice(None, None, 4) if recognizer.sees != "motion" else slice(0, 8)
    seen = trained.prepare(
        some[:, view].flatten(0, 1)[:, None] if recognizer.sees == "frames" else some[:, view]
    )
    axes = [axis for axis in range(seen.ndim) if axis != 1]
    trained.mean, trained.std = seen.mean(axes), seen.std(axes).clamp_min(1 / 255)
    return trained


class Batches:
    """Batches of clips or frames, shifted and (where left and right mean the same) mirrored; each by its number alone."""

    def __init__(
        self, recognizer: Recognizer, frames: Tensor, truth: Tensor, effort: Effort, seed: int, mirror: bool
    ):
        self._recognizer, self._frames, self._truth = recognizer, frames, truth
        self._effort, self._seed, self._mirror = effort, seed, mirror
        self._size = min(effort.batch, len(frames))
        self._dealt = functools.lru_cache(2)(self._deal)

    def __call__(self, number: int) -> tuple[Tensor, Tensor]:
        """The batch of that number, from 0: ``(B, T, H, W, 3)`` uint8 and its truth; this process's share of it."""
        first = number * self._size
        where = [divmod(place, len(self._frames)) for place in range(first, first + self._size)]
        rows = torch.stack([self._dealt(turn)[place] for turn, place in where])
        dice = torch.Generator().manual_seed(self._seed * 1_000_003 + number)
        held, height, width = self._frames.shape[1:4]
        pad = max(1, height // 14)
        if self._recognizer.sees == "frames":
            when = torch.randint(held, (self._size, 1), generator=dice)
        else:
            share = 0.75 + 0.25 * torch.rand(self._size, 1, generator=dice)
            start = (1 - share) * torch.rand(self._size, 1, generator=dice)
            spread = torch.linspace(0, 1, min(self._effort.length, held))
            when = ((start + share * spread) * (held - 1)).round().long()
        shifts = torch.randint(-pad, pad + 1, (2, self._size, 1), generator=dice)
        y, x = torch.arange(height) + shifts[0], torch.arange(width) + shifts[1]  # (B, H), (B, W)
        if self._mirror:
            x = torch.where(torch.rand(self._size, 1, generator=dice) < 0.5, x.flip(1), x)
        mine, device = slice(rank(), None, world_size()), self._frames.device
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        rows, when, y, x = (index[mine].to(device, non_blocking=True) for index in (rows, when, y, x))
        places = rows[:, None, None, None], when[:, :, None, None], y[:, None, :, None], x[:, None, None, :]
        return self._frames[places], self._truth[rows]  # (B, T, H, W, 3)

    def _deal(self, turn: int) -> Tensor:
        """The order of all videos in one turn through them."""
        dice = torch.Generator().manual_seed(self._seed * 7_000_003 + turn)
        return torch.randperm(len(self._frames), generator=dice)


def validated(trained: Trained, val: Footage) -> tuple[float, float]:
    """The validation score, and the likelihood to tell equal ones apart."""
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
    """The loss of the best answer that does not look."""
    if truth.ndim == 2:
        share = truth.mean(0).clamp(1e-6, 1 - 1e-6)
        return float(-(share * share.log() + (1 - share) * (1 - share).log()).mean())
    share = torch.bincount(truth).float() / len(truth)
    return float(-(share * share.clamp_min(1e-9).log()).sum())


def _copied(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in net.state_dict().items()}
