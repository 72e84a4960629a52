"""R3D, R(2+1)D and MViT of torchvision."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torchvision.models.video import mvit, resnet

from veil.nn.classifier import Classifier


class R3D(Classifier, resnet.VideoResNet):
    """R3D-18 and R(2+1)D-18 (Tran et al. 2018, arXiv 1711.11248), as torchvision has them.

    `spact` is the variant of SPAct: the last stage keeps the number of frames, with a temporal dilation of 2.
    """

    last = "fc"
    dim = 512

    def __init__(
        self, outputs: int, *, split: bool = False, spact: bool = False, frames: int = 16, size: int = 112
    ) -> None:
        del frames, size  # any are accepted
        conv = resnet.Conv2Plus1D if split else resnet.Conv3DSimple
        stem = resnet.R2Plus1dStem if split else resnet.BasicStem
        super().__init__(resnet.BasicBlock, [conv] * 4, [2, 2, 2, 2], stem, num_classes=outputs)
        if spact:
            conv1 = nn.Conv3d(256, 512, 3, (1, 2, 2), padding=(2, 1, 1), dilation=(2, 1, 1), bias=False)
            self.set_submodule("layer4.0.conv1.0", conv1)
            self.set_submodule("layer4.0.downsample.0", nn.Conv3d(256, 512, 1, (1, 2, 2), bias=False))

    def features(self, x: Tensor) -> Tensor:
        """The mean over the clip after the last block."""
        return self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x))))).mean((2, 3, 4))


class MViT(Classifier, mvit.MViT):
    """MViTv2-S (Li et al. 2022, arXiv 2112.01526), as torchvision has it.

    Its tables of relative positions are those published for 16×224², resampled to the input.
    """

    last = "head"
    dim = 768

    def __init__(self, outputs: int, *, frames: int = 16, size: int = 112) -> None:
        del frames, size  # any are accepted
        stages = [stage for stage, depth in enumerate((1, 2, 11, 2)) for _ in range(depth)]
        blocks = [
            mvit.MSBlockConfig(
                num_heads=2**stage,
                input_channels=96 * 2**before,
                output_channels=96 * 2**stage,
                kernel_q=[3, 3, 3],
                kernel_kv=[3, 3, 3],
                stride_q=[1, 1 + stage - before, 1 + stage - before],
                stride_kv=[1, 8 // 2**stage, 8 // 2**stage],
            )
            for before, stage in pairwise([0, *stages])
        ]
        super().__init__(
            (224, 224),
            16,
            blocks,
            residual_pool=True,
            residual_with_cls_embed=False,
            rel_pos_embed=True,
            proj_after_attn=True,
            stochastic_depth_prob=0.2,
            num_classes=outputs,
        )

    def features(self, x: Tensor) -> Tensor:
        """The class token after the last block."""
        x = self.conv_proj(x)
        grid = x.shape[2:]
        x = self.pos_encoding(x.flatten(2).transpose(1, 2))  # (B, 1 + N, 96)
        for block in self.blocks:
            x, grid = block(x, grid)
        return self.norm(x)[:, 0]
