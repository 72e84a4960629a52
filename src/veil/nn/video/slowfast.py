"""SlowFast, with one pathway for few frames and one for all."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.nn.classifier import Classifier, init_weights
from veil.nn.video.convolutions import Triple, conv3d, window_mean
from veil.nn.video.resnet3d import ResNet3DStem, bottleneck_stage, stage_stride


class _FastToSlow(nn.Module):
    """Concatenates every fourth time step of the fast pathway to the slow one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_fast_to_slow = conv3d(channels, 2 * channels, (7, 1, 1), (4, 1, 1))
        self.norm = nn.BatchNorm3d(2 * channels)

    def forward(self, slow: Tensor, fast: Tensor) -> Tensor:
        return torch.cat([slow, F.relu(self.norm(self.conv_fast_to_slow(fast)))], dim=1)


class _Pathways(nn.Module):
    def __init__(self, slow: nn.Module, fast: nn.Module, fuse: int) -> None:
        super().__init__()
        self.multipathway_blocks = nn.ModuleList([slow, fast])
        self.multipathway_fusion = _FastToSlow(fuse) if fuse else None

    def forward(self, slow: Tensor, fast: Tensor) -> tuple[Tensor, Tensor]:
        slow, fast = self.multipathway_blocks[0](slow), self.multipathway_blocks[1](fast)
        return (self.multipathway_fusion(slow, fast) if self.multipathway_fusion else slow), fast


class SlowFast(Classifier):
    """SlowFast-R50 (Feichtenhofer et al. 2019, arXiv 1812.03982), its tensors named as in pytorchvideo.

    The fast pathway gets the whole clip, the slow one a quarter of its frames.
    """

    dim = 2304
    last = "blocks.6.proj"
    dropout = 0.5

    def __init__(self, outputs: int, *, frames: int = 16, size: int = 112) -> None:
        super().__init__()
        paths = [_Pathways(ResNet3DStem(64, 1), ResNet3DStem(8, 5), fuse=8)]
        for stage, depth in enumerate((3, 4, 6, 3)):
            inner, stride = 64 * 2**stage, stage_stride(stage)
            before = (
                64 if stage == 0 else 2 * inner
            )  # the output of a stage has four times the channels inside it
            slow = bottleneck_stage(
                (before * 5 // 4, inner, 4 * inner), depth, stride, times=(3,) if stage > 1 else (1,)
            )
            fast = bottleneck_stage((before // 8, inner // 8, inner // 2), depth, stride, times=(3,))
            paths.append(_Pathways(slow, fast, fuse=inner // 2 if stage < 3 else 0))
        head = nn.ModuleDict({"proj": nn.Linear(self.dim, outputs)})
        self.blocks = nn.ModuleList([*paths, nn.Identity(), head])
        side = -(-size // 32)
        self.windows: tuple[Triple, Triple] = (-(-frames // 4), side, side), (frames, side, side)
        init_weights(self)

    def features(self, x: Tensor) -> Tensor:
        """The means over the clip of both pathways after the last stage, the slow one first."""
        length = x.shape[2]
        # Paper: every fourth frame. Here: as many, spread evenly from the first to the last, as in the published training.
        kept = torch.linspace(0, length - 1, -(-length // 4), device=x.device).long()
        slow, fast = x[:, :, kept], x
        *blocks, _, _ = self.blocks
        for paths in blocks:
            slow, fast = paths(slow, fast)
        return torch.cat([window_mean(slow, self.windows[0]), window_mean(fast, self.windows[1])], dim=1)
