"""Which action a video shows: a linear layer on the features of its clips.

The probability of a video is the mean over its clips n of their own probabilities, with features x_n::

    p(k) = 1/N Σ_n softmax(W x_n + b)_k                   one action a video
    p(k) = 1/N Σ_n sigmoid(W x_n + b)_k                   several at once

and the loss is the mean over the videos of the mean over their clips of the cross entropy, or binary cross entropy.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.features.heads.sequence import checked, clip_mean, emptied


class ActionHead(nn.Module):
    """Features `(B, N, D)` of N clips in, logits `(B, N, K)` of each clip out; `probabilities` are a video's.

    `several`: a video may show several actions, or none, and its labels are a row of 0 and 1.
    """

    def __init__(self, dim: int, classes: int, several: bool = False) -> None:
        super().__init__()
        self.several = several
        self.linear = nn.Linear(dim, classes)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits `(B, N, K)`, zeros in the padding; mask `(B, N)`, bool, marks the clips."""
        mask = checked(features, mask)[..., None]
        return emptied(self.linear(emptied(features, mask)), mask)

    def loss(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """The term "action"; labels are `(B,)` int64, or `(B, K)` of 0 and 1 where there may be several."""
        mask, (videos, clips, classes) = checked(logits, mask), logits.shape
        if labels.shape != ((videos, classes) if self.several else (videos,)):
            raise ValueError(
                f"labels are (B, K) where there are several, else (B,), got {tuple(labels.shape)}"
            )
        flat = logits.float().flatten(0, 1)
        each = labels.repeat_interleave(clips, 0)
        if self.several:
            losses = F.binary_cross_entropy_with_logits(flat, each.float(), reduction="none").mean(1)
        else:
            losses = F.cross_entropy(flat, each, reduction="none")
        return {"action": clip_mean(losses.view(videos, 1, clips), mask[:, None]).mean()}

    @torch.no_grad()
    def probabilities(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """What `veil.metrics` scores: `(B, K)` in [0, 1]."""
        logits = self(features, mask).float()
        each = logits.sigmoid() if self.several else logits.softmax(2)
        return clip_mean(each.transpose(1, 2), checked(features, mask)[:, None])
