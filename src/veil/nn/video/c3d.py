"""C3D."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from veil.nn.classifier import Classifier, init_weights


class C3D(Classifier):
    """C3D (Tran et al. 2015, arXiv 1412.0767), its tensors named as in the Sports-1M weights made from Caffe's.

    It was made for 16×112². Features of any other clip are brought to 1×4×4 for the first linear layer by adaptive
    mean pooling, which changes nothing at 16×112².
    """

    last = "fc8"
    dim = 4096
    dropout = 0.5

    def __init__(self, outputs: int, *, frames: int = 16, size: int = 112) -> None:
        del frames, size  # any are accepted
        super().__init__()
        conv = partial(nn.Conv3d, kernel_size=3, padding=1)
        self.conv1, self.conv2 = conv(3, 64), conv(64, 128)
        self.conv3a, self.conv3b = conv(128, 256), conv(256, 256)
        self.conv4a, self.conv4b = conv(256, 512), conv(512, 512)
        self.conv5a, self.conv5b = conv(512, 512), conv(512, 512)
        self.fc6, self.fc7, self.fc8 = nn.Linear(8192, 4096), nn.Linear(4096, 4096), nn.Linear(4096, outputs)
        init_weights(self)

    def features(self, x: Tensor) -> Tensor:
        """The second linear layer, "fc7"."""
        pool = partial(F.max_pool3d, kernel_size=2, ceil_mode=True)
        x = F.max_pool3d(F.relu(self.conv1(x)), (1, 2, 2), ceil_mode=True)
        x = pool(F.relu(self.conv2(x)))
        x = pool(F.relu(self.conv3b(F.relu(self.conv3a(x)))))
        x = pool(F.relu(self.conv4b(F.relu(self.conv4a(x)))))
        x = pool(F.relu(self.conv5b(F.relu(self.conv5a(x)))), padding=(0, 1, 1))
        x = F.adaptive_avg_pool3d(x, (1, 4, 4)).flatten(1)  # (B, 8192)
        x = F.dropout(F.relu(self.fc6(x)), self.dropout, self.training)
        return F.relu(self.fc7(x))
