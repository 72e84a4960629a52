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

from torch import Tensor, nn

from veil.nn.unet import UNet, per_frame


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
