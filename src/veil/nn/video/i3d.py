"""I3D, the inflated Inception network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.nn.classifier import Classifier, init_weights
from veil.nn.video.convolutions import ONE, Triple, window_mean


def _pad_same(x: Tensor, kernel: Triple, stride: Triple) -> Tensor:
    """Pad a clip with zeros as TensorFlow's "SAME" does: where the sum is odd, the end gets one more."""
    sides: list[int] = []
    for length, wide, step in zip(reversed(x.shape[2:]), reversed(kernel), reversed(stride), strict=True):
        extra = max(wide - (length % step or step), 0)
        sides += [extra // 2, extra - extra // 2]
    return F.pad(x, sides)


class _ConvNormReLU(nn.Module):
    """Convolution, batch norm and ReLU, padded as in TensorFlow."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.kernel, self.stride = (kernel, kernel, kernel), (stride, stride, stride)
        self.conv3d = nn.Conv3d(inputs, outputs, kernel, stride, bias=False)
        self.bn = nn.BatchNorm3d(outputs, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv3d(_pad_same(x, self.kernel, self.stride))))


class _SamePool(nn.Module):
    def __init__(self, kernel: Triple, stride: Triple) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool3d(_pad_same(x, self.kernel, self.stride), self.kernel, self.stride)


class _Inception(nn.Module):
    """Four parallel branches, concatenated."""

    def __init__(self, inputs: int, a: int, b: int, bb: int, c: int, cc: int, d: int) -> None:
        super().__init__()
        self.b0 = _ConvNormReLU(inputs, a)
        self.b1a, self.b1b = _ConvNormReLU(inputs, b), _ConvNormReLU(b, bb, 3)
        self.b2a, self.b2b = _ConvNormReLU(inputs, c), _ConvNormReLU(c, cc, 3)
        self.b3a, self.b3b = _SamePool((3, 3, 3), ONE), _ConvNormReLU(inputs, d)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), self.b3b(self.b3a(x))
        return torch.cat(parts, dim=1)


class I3D(Classifier):
    """I3D, an inflated Inception-v1 (Carreira and Zisserman 2017, arXiv 1705.07750), named as in pytorch-i3d."""

    last = "logits"
    dim = 1024
    dropout = 0.5

    def __init__(self, outputs: int, *, frames: int = 16, size: int = 112) -> None:
        del frames, size  # any are accepted
        super().__init__()
        layers: dict[str, nn.Module] = {
            "Conv3d_1a_7x7": _ConvNormReLU(3, 64, 7, 2),
            "MaxPool3d_2a_3x3": _SamePool((1, 3, 3), (1, 2, 2)),
            "Conv3d_2b_1x1": _ConvNormReLU(64, 64),
            "Conv3d_2c_3x3": _ConvNormReLU(64, 192, 3),
            "MaxPool3d_3a_3x3": _SamePool((1, 3, 3), (1, 2, 2)),
            "Mixed_3b": _Inception(192, 64, 96, 128, 16, 32, 32),
            "Mixed_3c": _Inception(256, 128, 128, 192, 32, 96, 64),
            "MaxPool3d_4a_3x3": _SamePool((3, 3, 3), (2, 2, 2)),
            "Mixed_4b": _Inception(480, 192, 96, 208, 16, 48, 64),
            "Mixed_4c": _Inception(512, 160, 112, 224, 24, 64, 64),
            "Mixed_4d": _Inception(512, 128, 128, 256, 24, 64, 64),
            "Mixed_4e": _Inception(512, 112, 144, 288, 32, 64, 64),
            "Mixed_4f": _Inception(528, 256, 160, 320, 32, 128, 128),
            "MaxPool3d_5a_2x2": _SamePool((2, 2, 2), (2, 2, 2)),
            "Mixed_5b": _Inception(832, 256, 160, 320, 32, 128, 128),
            "Mixed_5c": _Inception(832, 384, 192, 384, 48, 128, 128),
        }
        self.layers = tuple(layers)
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.logits = nn.ModuleDict({"conv3d": nn.Conv3d(self.dim, outputs, 1)})
        init_weights(self)

    def features(self, x: Tensor) -> Tensor:
        """The mean over the clip after the last block, in windows of 16 frames."""
        for name in self.layers:
            x = self.get_submodule(name)(x)
        return window_mean(x, (2, 7, 7))

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, K)``."""
        x = F.dropout(self.features(x), self.dropout, self.training)
        return self.logits["conv3d"](x[..., None, None, None]).flatten(1)
