"""Noisy Features (Zhang et al., ICDM 2019) as SPAct adapted it to video (Dave et al. 2022, arXiv 2203.15205, supplement).

Neither the paper's text nor SPAct's code for it was at hand: this follows a description only. The original hides
private things in the signals of wearable sensors; SPAct made its TransNet a U-Net and its LossNet an R3D-18.
T is the U-Net, f a frozen network of the task, g one of the privacy task, e uniform noise of the clip's shape:

    D_T = 1/BD Σ_b |f(T(x_b)) − f(x_b)|²                  what the task sees stays
    D_P = 1/BD' Σ_b |g(T(x_b)) − mean over e of g(e)|²    what the privacy task sees becomes what it sees in noise

Both are minimised. No label is needed but those that f and g were trained with, and g stays as it is: nothing here
answers an attacker who learns anew.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from veil.nn.unet import UNet, per_frame
from veil.training.data import Batch, DataConfig, TrainingData, named, of_clips, of_frames, setup
from veil.training.fit import Phase, PhaseSequence, Step, Terms
from veil.training.losses import classification_loss
from veil.training.recipe import STRICT, Seed, Training


class NoisyFeatures(nn.Module):
    """Clips ``(B, 3, T, H, W)`` in [0, 1], every frame redrawn by one U-Net; same shape and range, any size."""

    past: int = 0
    block: int = 1

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.net = UNet(width, depth)

    def forward(self, clip: Tensor) -> Tensor:
        """Redrawn."""
        return per_frame(self.net, clip).to(clip.dtype)


def task_distance(original: Tensor, changed: Tensor) -> Tensor:
    """D_T of features f(x) and f(T(x)), ``(B, …)`` each: mean squared difference, with a gradient for the second only."""
    if original.shape != changed.shape:
        raise ValueError(
            f"features of the same clips have one shape, got {tuple(original.shape)} and {tuple(changed.shape)}"
        )
    return (changed.float() - original.detach().float()).square().mean()


def noise_distance(changed: Tensor, noise: Tensor) -> Tensor:
    """D_P of features g(T(x)) ``(B, …)`` and g(e) ``(M, …)`` of any number of noises; a gradient for the first only."""
    if changed.shape[1:] != noise.shape[1:] or not len(noise):
        raise ValueError(
            f"features of clips and of noise are alike, got {tuple(changed.shape)} and {tuple(noise.shape)}"
        )
    # To the mean, not each to its own noise: the gradient is the same in the mean, and less noisy.
    return (changed.float() - noise.detach().float().mean(0)).square().mean()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NoisyRecipe:
    """f and g learn from raw video; then T learns to show f the same, and g noise, while both hold still.

    ``T ← descend D_T + privacy · D_P``
    """

    stage: DataConfig = Field(default_factory=DataConfig)
    width: Annotated[int, Field(ge=4, le=128)] = 64
    task: str = "r3d_18"
    task_weights: str | None = None
    budget: str = "resnet50"
    privacy: Annotated[float, Field(ge=0)] = 1.0
    drawing: Annotated[int, Field(ge=0)] = 300  # steps
    warming: Annotated[int, Field(ge=1)] = 600  # of f and g, on raw video
    playing: Annotated[int, Field(ge=2)] = 600
    lr_draw: Annotated[float, Field(gt=0)] = 1e-3
    lr_warm: Annotated[float, Field(gt=0)] = 1e-3
    lr: Annotated[float, Field(gt=0)] = 1e-4
    seed: Seed = 0

    def __post_init__(self) -> None:
        named((self.task,), (self.budget,))

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.drawing + self.warming + self.playing

    def network(self) -> nn.Module:
        """A fresh anonymizer."""
        return NoisyFeatures(self.width)

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        torch.manual_seed(self.seed)
        staged = TrainingData(self.stage, device, self.seed)
        redraw = self.network().to(device)
        task = of_clips(self.task, staged.outputs, self.stage, self.task_weights).to(device)
        budget = of_frames(self.budget, staged.kinds, self.stage).to(device)
        made = setup(device, devices, self.seed)

        def draw(batch: Batch) -> Terms:
            return {"clips": (redraw(batch.clip) - batch.clip).abs().mean()}

        def warm(batch: Batch) -> Terms:
            assert batch.private is not None
            return {
                "task": +classification_loss(task(batch.clip), batch.action),
                "budget": +classification_loss(budget(batch.first), batch.private),
            }

        def hide(batch: Batch) -> Terms:
            with torch.no_grad():
                seen = task.features(batch.clip)
                noise = budget.features(torch.rand_like(batch.first))
            shown = redraw(batch.first[:, :, None])[:, :, 0]
            return {
                "task": +task_distance(seen, task.features(redraw(batch.clip))),
                "noise": +self.privacy * noise_distance(budget.features(shown), noise),
            }

        games = [
            (self.drawing, lambda: Phase([Step("draw", (redraw,), draw, self.lr_draw)], made)),
            (self.warming, lambda: Phase([Step("warm", (task, budget), warm, self.lr_warm)], made)),
            (self.playing, lambda: Phase([Step("hide", (redraw,), hide, self.lr)], made)),
        ]
        series = PhaseSequence({"redraw": redraw, "task": task, "budget": budget}, games)
        return Training(series, staged, lambda: staged.check(redraw, task), redraw.state_dict)
