"""Recognizers: fresh networks that are trained to recognize an action, an identity or attributes in videos.

Utility and leakage are the same experiment: train on the training videos, keep the weights that do best on the
validation videos, score once on the test videos. How they are trained is in `veil.audit.recognizer_training`.

One of them is not a network: "kernel", which is solved (`veil.nn.kernel`) and finds cues that are faint but always in one
place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.audit.videos import Videos
from veil.metrics import Bootstrap, Score, class_mean_average_precision, softmax, top1
from veil.nn import image, video
from veil.nn.kernel import KernelClassifier

RecognizerInput = Literal["frames", "clips", "motion"]
Floats = npt.NDArray[np.float64]

LOW = 0.05  # of the loss of a constant answer: up to here, the training videos were fitted
MAX_SAMPLES = 6000  # that a kernel is solved for


@dataclass(frozen=True)
class RecognizerSpec:
    """A network (or "kernel") and its input: single frames, clips, or the differences between a clip's frames."""

    net: str
    input: RecognizerInput

    @property
    def solved(self) -> bool:
        """Whether it is solved, not trained step by step."""
        return self.net == "kernel"

    def __str__(self) -> str:
        return f"{self.net} on {self.input}"


@dataclass(frozen=True)
class TrainingBudget:
    """How much a recognizer is trained, and on how many frames it is tested."""

    steps: int = 1200  # of one round on raw video
    adaptation: float = 0.4  # the share of these steps when it starts from the recognizer of raw video
    rounds: int = 2  # at most; the next starts while the training loss is not low
    batch: int = 32
    lr: float = 1e-3
    weight_decay: float = 0.02
    clip_length: int = 16  # frames
    views: int = 8  # frames of a test video that are averaged, where the input is single frames


class TrainedRecognizer:
    """A recognizer after training on a target."""

    def __init__(
        self,
        recognizer: RecognizerSpec,
        net: nn.Module,
        target: str,
        mean: Tensor,
        std: Tensor,
        budget: TrainingBudget,
    ):
        self.recognizer, self.net, self.target, self.budget = recognizer, net, target, budget
        self.mean, self.std = mean, std  # (3,) of its input, over the training videos
        self.loss = float("nan")  # where training ended
        self.constant = float("nan")  # the loss of the best constant answer
        self.val = float("nan")  # the best validation score

    def tensors(self) -> dict[str, Tensor]:
        """Its state for the cache, without video: `from_tensors` restores it.

        A kernel holds its training samples, which are small raw frames: they are left out, and taken again from the videos.
        """
        numbers = torch.tensor([self.loss, self.constant, self.val], dtype=torch.float64)
        own = {"audit.mean": self.mean, "audit.std": self.std, "audit.numbers": numbers}
        state = {name: value for name, value in self.net.state_dict().items() if not self._is_sample(name)}
        return {name: value.contiguous() for name, value in (*state.items(), *own.items())}

    def _is_sample(self, name: str) -> bool:
        return self.recognizer.solved and name == "points"

    @staticmethod
    def from_tensors(
        recognizer: RecognizerSpec,
        target: str,
        tensors: dict[str, Tensor],
        budget: TrainingBudget,
        videos: Videos,
        seed: int = 0,
    ) -> TrainedRecognizer:
        """The recognizer that `tensors` describes; `videos` and `seed` are those it was trained with."""
        mean, std, numbers = (tensors.pop(f"audit.{name}") for name in ("mean", "std", "numbers"))
        outputs = len(videos.classes(target))
        frames = videos.frames
        net = (
            KernelClassifier(outputs)
            if recognizer.solved
            else build(recognizer, outputs, frames.shape[1:3], budget)
        )
        trained = TrainedRecognizer(recognizer, net, target, mean, std, budget)
        if isinstance(net, KernelClassifier):
            net.mean, net.scale = tensors["mean"], tensors["scale"]
            samples = kernel_samples(trained, net, frames.to(mean.device), seed)[1]
            tensors = {**tensors, "points": net.standardize(samples.flatten(0, 1))}
        net.load_state_dict(tensors)
        net.to(mean.device).eval()
        trained.loss, trained.constant, trained.val = numbers.tolist()
        return trained

    @property
    def underfitted(self) -> bool:
        """Whether the training videos were not fitted, so that a low score proves little."""
        return not self.loss <= LOW * self.constant

    def prepare(self, frames: Tensor) -> Tensor:
        """Frames ``(B, T, H, W, 3)`` uint8 as the network's standardised input."""
        clip = frames.permute(0, 4, 1, 2, 3).float().div_(255)
        if self.recognizer.input == "motion":
            clip = clip[:, :, 1:] - clip[:, :, :-1]
        shape = (1, 3, 1, 1, 1)
        clip = (clip - self.mean.view(shape)) / self.std.view(shape)
        return clip[:, :, 0] if self.recognizer.input == "frames" else clip

    def terms(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """The loss, for frames ``(B, T, H, W, 3)`` and their labels."""
        frames, labels = batch
        logits = self.net(self.prepare(frames)).float()
        if self.target == "attributes":
            return {"loss": F.binary_cross_entropy_with_logits(logits, labels)}
        return {"loss": F.cross_entropy(logits, labels)}

    def views(self, frames: int) -> list[Tensor]:
        """The frames of a test video that are evaluated together: index tensors, one a view."""
        if self.recognizer.input == "frames":
            count = min(self.budget.views, frames)
            return [torch.tensor([int(index)]) for index in np.linspace(0, frames - 1, count).round()]
        length = min(self.budget.clip_length, frames)
        step = max(1, frames // length)
        return [torch.arange(phase, phase + (length - 1) * step + 1, step) for phase in range(step)]

    @torch.no_grad()
    def logits(self, frames: Tensor) -> Tensor:
        """Logits ``(N, views, K)`` for videos ``(N, F, H, W, 3)``."""
        self.net.eval()
        out = []
        for part in frames.split(2 * self.budget.batch):
            part = part.to(self.mean.device)
            with torch.autocast(part.device.type, torch.bfloat16, enabled=part.is_cuda):
                views = [self.net(self.prepare(part[:, view])) for view in self.views(part.shape[1])]
            out.append(torch.stack(views, 1).float().cpu())
        return torch.cat(out)

    @torch.no_grad()
    def features(self, frames: Tensor) -> Floats:
        """Features of videos before the classifier, ``(N, D)``: the mean over views."""
        self.net.eval()
        out = []
        for part in frames.split(2 * self.budget.batch):
            part = part.to(self.mean.device)
            views = [self.net.features(self.prepare(part[:, view])) for view in self.views(part.shape[1])]  # type: ignore[operator]
            out.append(torch.stack(views, 1).mean(1).double().cpu().numpy())
        return np.concatenate(out)

    def probabilities(self, frames: Tensor) -> Floats:
        """Probabilities ``(N, views, K)``."""
        logits = self.logits(frames).double().numpy()
        if self.target == "attributes":
            # torch's sigmoid rounds differently by memory alignment: equal answers would be ranked.
            return np.exp(-np.logaddexp(0, -logits))
        return softmax(logits)

    def score(
        self, videos: Videos, bootstrap: Bootstrap | None = None, views: int | None = None
    ) -> tuple[Score, dict[str, tuple[float, float]]]:
        """The score, and for each attribute its value and chance; ``views``: of that many views only."""
        answers = self.probabilities(videos.frames)
        if views is not None:
            middle = (answers.shape[1] - views) // 2
            answers = answers[:, middle : middle + views]
        return scored(self.target, answers.mean(1), videos, bootstrap)


def scored(
    target: str, answers: Floats, videos: Videos, bootstrap: Bootstrap | None = None
) -> tuple[Score, dict[str, tuple[float, float]]]:
    """The score of answers ``(N, K)``: top-1, or class-mean AP with that of each attribute."""
    truth = videos.truth(target).numpy()
    names = [sample.id.split("#")[0] for sample in videos.samples]
    if target != "attributes":
        return top1(answers, truth, names, bootstrap=bootstrap), {}
    score = class_mean_average_precision(answers, truth, names, bootstrap=bootstrap)
    parts = {}
    for index, name in enumerate(videos.attributes):
        one = class_mean_average_precision(answers[:, index : index + 1], truth[:, index : index + 1])
        parts[name] = (one.value, float(truth[:, index].mean()))
    return score, parts


def build(
    recognizer: RecognizerSpec,
    outputs: int,
    shape: Sequence[int],
    budget: TrainingBudget,
    weights: str | None = None,
) -> nn.Module:
    """The network of a recognizer, for videos of ``shape`` (frames, size)."""
    held, size = shape
    if recognizer.input == "frames":
        return image.make(recognizer.net, outputs, size=size, weights=weights)
    length = min(budget.clip_length, held) - (recognizer.input == "motion")
    return video.make(recognizer.net, outputs, frames=length, size=size, weights=weights)


def kernel_samples(
    trained: TrainedRecognizer, net: KernelClassifier, frames: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    """Indices of videos ``(V,)``, and the views of each that a kernel is solved for ``(V, E, D)``; at most `MAX_SAMPLES`."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(frames), generator=rng)[:MAX_SAMPLES].sort().values
    views = torch.stack(trained.views(frames.shape[1]))  # (views, T)
    each = min(len(views), max(1, MAX_SAMPLES // len(rows)))
    chosen = torch.rand(len(rows), len(views), generator=rng).argsort(1)[:, :each].sort(1).values
    out = []
    for some, picked in zip(
        rows.split(trained.budget.batch), chosen.split(trained.budget.batch), strict=True
    ):
        part = frames[
            some[:, None, None].to(frames.device), views[picked].to(frames.device)
        ]  # (B, E, T, H, W, 3)
        out.append(net.pixels(trained.prepare(part.flatten(0, 1))).unflatten(0, (len(some), each)))
    return rows.to(frames.device), torch.cat(out)
