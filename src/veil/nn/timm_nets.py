"""MobileNetV1 and ViT of timm, for images of any size."""

from __future__ import annotations

from timm.models._efficientnet_builder import decode_arch_def
from timm.models.efficientnet import EfficientNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from veil.nn.classifier import Classifier, init_weights


class MobileNetV1(Classifier, EfficientNet):
    """MobileNet (Howard et al. 2017, arXiv 1704.04861)."""

    last = "classifier"
    dim = 1024

    def __init__(self, outputs: int, *, frames: int = 16, size: int = 112) -> None:
        del frames, size  # any are accepted
        # Separable convolutions: repeats, kernel, stride and channels of each stage.
        stages = ["dsa_r1_k3_s1_c64", "dsa_r2_k3_s2_c128", "dsa_r2_k3_s2_c256", "dsa_r6_k3_s2_c512"]
        blocks = decode_arch_def([[stage] for stage in (*stages, "dsa_r2_k3_s2_c1024")])
        super().__init__(blocks, outputs, num_features=0, stem_size=32, act_layer=nn.ReLU6)
        init_weights(self)

    def features(self, x: Tensor) -> Tensor:
        """The mean over the image after the last block."""
        return self.forward_features(x).mean((2, 3))


class ViT(Classifier, VisionTransformer):  # pyright: ignore[reportIncompatibleMethodOverride]
    """ViT-B (Dosovitskiy et al. 2021, arXiv 2010.11929).

    Its position embeddings are for 224², and are resampled to the grid of the input; an image that is not a multiple of
    the patch is padded with zeros, which is grey after standardization.
    """

    last = "head"
    dim = 768

    def __init__(self, outputs: int, *, patch: int = 16, frames: int = 16, size: int = 112) -> None:
        del frames, size  # any are accepted
        super().__init__(patch_size=patch, num_classes=outputs, dynamic_img_size=True, dynamic_img_pad=True)

    def features(self, x: Tensor) -> Tensor:
        """The class token after the last layer."""
        return self.forward_features(x)[:, 0]
