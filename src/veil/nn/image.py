"""Networks for images ``(B, 3, H, W)`` by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet

from veil.nn.classifier import HALVES, RGB, Classifier, ClassifierSpec, init_weights, make_classifier


class ResNet(Classifier, resnet.ResNet):
    """ResNets (He et al. 2016, arXiv 1512.03385), as torchvision has them."""

    last = "fc"

    def __init__(
        self,
        outputs: int,
        *,
        block: type[resnet.BasicBlock | resnet.Bottleneck] = resnet.BasicBlock,
        depth: Sequence[int] = (2, 2, 2, 2),
        frames: int = 16,
        size: int = 112,
    ) -> None:
        del frames, size  # any are accepted
        super().__init__(block, list(depth), num_classes=outputs)
        self.dim = self.fc.in_features

    def features(self, x: Tensor) -> Tensor:
        """The mean over the image after the last block."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))


class _Residual2d(nn.Module):
    """Two convolutions with a shortcut; the first halves height and width where the channels change."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride == 2:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, 2, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class Small2d(Classifier):
    """A small residual network for training from scratch on two CPU cores at about 56²."""

    last = "fc"

    def __init__(
        self,
        outputs: int,
        *,
        widths: Sequence[int] = (16, 32, 64, 112),
        frames: int = 16,
        size: int = 112,
    ) -> None:
        del frames, size  # any are accepted
        super().__init__()
        self.dim = widths[-1]
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 5, 2, 2, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(*(_Residual2d(a, b) for a, b in pairwise(widths)))
        self.fc = nn.Linear(self.dim, outputs)
        init_weights(self)
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def features(self, x: Tensor) -> Tensor:
        """The mean over the image after the last block."""
        x = x.contiguous(memory_format=torch.channels_last)  # faster on a CPU
        return self.blocks(self.stem(x)).mean((2, 3))


def _mobilenet_v1(outputs: int, **options: Any) -> Classifier:
    from veil.nn.timm_nets import MobileNetV1  # importing timm takes seconds

    return MobileNetV1(outputs, **options)


def _vit(outputs: int, **options: Any) -> Classifier:
    from veil.nn.timm_nets import ViT

    return ViT(outputs, **options)


_IMAGENET: tuple[RGB, RGB, int] = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224
_HALVES: tuple[RGB, RGB, int] = *HALVES, 224
_resnet34 = partial(ResNet, depth=(3, 4, 6, 3))
_resnet50 = partial(ResNet, block=resnet.Bottleneck, depth=(3, 4, 6, 3))
_resnet101 = partial(ResNet, block=resnet.Bottleneck, depth=(3, 4, 23, 3))
_resnet152 = partial(ResNet, block=resnet.Bottleneck, depth=(3, 8, 36, 3))
_vit_b_16, _vit_b_32 = partial(_vit, patch=16), partial(_vit, patch=32)

IMAGE_NETS: dict[str, ClassifierSpec] = {
    "resnet18": ClassifierSpec(
        ResNet, 11_689_512, 1000, "torchvision ResNet18_Weights.IMAGENET1K_V1", *_IMAGENET
    ),
    "resnet34": ClassifierSpec(
        _resnet34, 21_797_672, 1000, "torchvision ResNet34_Weights.IMAGENET1K_V1", *_IMAGENET
    ),
    "resnet50": ClassifierSpec(
        _resnet50, 25_557_032, 1000, "torchvision ResNet50_Weights.IMAGENET1K_V1", *_IMAGENET
    ),
    "resnet101": ClassifierSpec(
        _resnet101, 44_549_160, 1000, "torchvision ResNet101_Weights.IMAGENET1K_V1", *_IMAGENET
    ),
    "resnet152": ClassifierSpec(
        _resnet152, 60_192_808, 1000, "torchvision ResNet152_Weights.IMAGENET1K_V1", *_IMAGENET
    ),
    "mobilenet_v1": ClassifierSpec(
        _mobilenet_v1, 4_231_976, 1000, "timm mobilenetv1_100.ra4_e3600_r224_in1k", *_HALVES
    ),
    "vit_b_16": ClassifierSpec(
        _vit_b_16, 86_567_656, 1000, "timm vit_base_patch16_224.augreg_in21k_ft_in1k", *_HALVES
    ),
    "vit_b_32": ClassifierSpec(
        _vit_b_32, 88_224_232, 1000, "timm vit_base_patch32_224.augreg_in21k_ft_in1k", *_HALVES
    ),
    "small2d": ClassifierSpec(Small2d, 259_866, 10, "none: it is trained from scratch", *HALVES, 56),
}


def make(
    name: str, outputs: int, *, frames: int = 16, size: int = 112, weights: Path | str | None = None
) -> Classifier:
    """The image network of that name with `outputs` logits; `weights` as `make_classifier` takes them.

    >>> make("small2d", 7).features(torch.zeros(2, 3, 56, 56)).shape
    torch.Size([2, 112])
    """
    return make_classifier(IMAGE_NETS, name, outputs, frames=frames, size=size, weights=weights)
