"""Losses that more than one method uses.

Each is a scalar, the mean over the batch, unless its docstring states otherwise. None has a sign or a weight of its
own: a method writes both where it adds its terms. All are computed in fp32, whatever the networks' precision is: bf16
would change a similarity over a temperature of 0.1 by several hundredths.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn

from veil.core import VeilError
from veil.training.distributed import world_size

Per = Literal["batch", "clip", "frame"]
_DIMS: dict[Per, tuple[int, ...]] = {"batch": (0, 1, 2, 3, 4), "clip": (1, 2, 3, 4), "frame": (1, 3, 4)}


# Contrastive losses


def nt_xent(a: Tensor, b: Tensor, temperature: float = 0.1) -> Tensor:
    """The contrastive loss of SimCLR: a and b are `(N, D)`, and rows i of both are a pair.

    With the 2N views z = [a; b], s_ij = cos(z_i, z_j) / temperature, and p(i) the partner of view i::

        L = 1/2N Σ_i −ln( exp(s_i,p(i)) / Σ_{j≠i} exp(s_ij) )

    A constant encoder gets `chance_loss(N)`, one that inverts every similarity up to 2/temperature + ln(2N − 2).
    The negatives are those of this process.
    """
    if a.ndim != 2 or a.shape != b.shape:
        raise ValueError(f"pairs are (N, D) and (N, D), got {tuple(a.shape)} and {tuple(b.shape)}")
    n = len(a)
    if n < 2:
        raise VeilError(
            f"a contrastive loss needs at least 2 pairs, and this batch has {n}: use a larger batch.",
            code="too-few-pairs",
        )
    z = torch.cat([_unit(a), _unit(b)])  # (2N, D)
    itself = torch.eye(2 * n, dtype=torch.bool, device=z.device)
    similar = (_products(z, z) / temperature).masked_fill(itself, -math.inf)  # (2N, 2N)
    return F.cross_entropy(similar, torch.arange(2 * n, device=z.device).roll(n))


def chance_loss(n: int) -> float:
    """`nt_xent` at chance level, for n pairs with equal features: ln(2n − 1)."""
    return math.log(2 * n - 1)


def clamped(loss: Tensor, cap: float) -> Tensor:
    """min(loss, cap), elementwise, with no gradient above the cap: an adversary gains nothing by a larger loss.

    The anonymizer should bring a budget network to chance level, not to the inverse of the truth, which leaks as much::

        clamped(nt_xent(a, b), chance_loss(len(a)) + margin)
    """
    return loss.clamp(max=cap)


class MomentumQueue(nn.Module):
    """Contrast with the keys of earlier batches (MoCo): an encoder, its momentum encoder, and a queue of keys.

    With q = E(a), k = E'(b), both of unit length, and the queue k_1 … k_K of earlier k::

        L = 1/N Σ_i −ln( exp(q_i·k_i / τ) / (exp(q_i·k_i / τ) + Σ_j exp(q_i·k_j / τ)) )
        E' ← momentum · E' + (1 − momentum) · E          before each update

    No gradient flows through the keys. The encoder maps a and b to `(N, dim)`. The first queue is random, from the
    seed. Queue and momentum encoder are in the state dict, so a resumed training continues exactly.
    """

    queue: Tensor  # (K, D), unit rows, the latest first

    def __init__(
        self,
        encoder: nn.Module,
        dim: int = 128,
        size: int = 4096,
        temperature: float = 0.1,
        momentum: float = 0.999,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.encoder, self.momentum_encoder = encoder, copy.deepcopy(encoder).requires_grad_(False)
        self.temperature, self.momentum = temperature, momentum
        random_keys = torch.randn(size, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("queue", _unit(random_keys))

    @property
    def chance_loss(self) -> float:
        """The loss at chance level, with equal keys: ln(1 + K)."""
        return math.log(1 + len(self.queue))

    def forward(self, a: Tensor, b: Tensor, *, update: bool = False) -> Tensor:
        """The loss of N pairs. `update`, in the encoder's own step: update the momentum encoder and the queue.

        An argument and not the train mode, because a frozen network may be in train mode too (`Step.batch_stats`).
        """
        with torch.no_grad():
            if update:
                self._update_momentum_encoder()
            # Paper: keys are shuffled between GPUs, so that batch statistics do not reveal the partner. Here: not,
            # because on one GPU it changes nothing; an encoder with batch norm may distinguish its batch from the queue.
            keys = _unit(self.momentum_encoder(b))  # (N, D)
        queries = _unit(self.encoder(a))  # (N, D)
        # A copy, because the backward pass needs the queue before its update.
        past = self.queue.clone()
        positive = (queries * keys).sum(1, keepdim=True)  # (N, 1)
        similar = torch.cat([positive, _products(queries, past)], 1) / self.temperature  # (N, 1 + K)
        if update:
            self.queue.copy_(torch.cat([_gather_keys(keys), past])[: len(past)])
        return F.cross_entropy(similar, similar.new_zeros(len(similar), dtype=torch.long))

    def _update_momentum_encoder(self) -> None:
        for slow, fast in zip(self.momentum_encoder.parameters(), self.encoder.parameters(), strict=True):
            slow.lerp_(fast.detach(), 1 - self.momentum)


# Rotation


def rotations(images: Tensor) -> tuple[Tensor, Tensor]:
    """Images `(N, …, S, S)` rotated by 0°, 90°, 180° and 270° (RotNet): `(4N, …, S, S)`, and labels `(4N,)` in 0..3.

    First all images unrotated, then all rotated once, and so on. Clips are rotated frame by frame.
    """
    if images.shape[-1] != images.shape[-2]:
        raise ValueError(f"only square images can be rotated within a batch, got {tuple(images.shape)}")
    rotated = [torch.rot90(images, k, (-2, -1)) for k in range(4)]
    return torch.cat(rotated), torch.arange(4, device=images.device).repeat_interleave(len(images))


def rotation_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the four rotations: logits `(4N, 4)` and labels `(4N,)` of `rotations`; chance level: ln 4."""
    if logits.ndim != 2 or logits.shape[1] != 4:
        raise ValueError(f"a rotation has four classes, logits (4N, 4), got {tuple(logits.shape)}")
    return single_label(logits, labels)


# Classification of classes and attributes


def single_label(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, 1/N Σ_i −ln softmax(z_i)[y_i]: logits `(N, K)`, labels `(N,)` in 0..K-1."""
    return F.cross_entropy(_exact(logits), labels)


def multi_label(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy, 1/NK Σ_ik −y ln σ(z) − (1 − y) ln σ(−z): logits `(N, K)`, labels `(N, K)` in [0, 1]."""
    return F.binary_cross_entropy_with_logits(_exact(logits), labels.to(_exact(logits).dtype))


def classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`single_label` for integer labels `(N,)`, `multi_label` for float labels `(N, K)`."""
    if labels.ndim == 1 and labels.dtype == torch.long and logits.ndim == 2 and len(logits) == len(labels):
        return single_label(logits, labels)
    if labels.ndim == 2 and labels.is_floating_point() and logits.shape == labels.shape:
        return multi_label(logits, labels)
    raise ValueError(
        "labels are (N,) int64 or (N, K) float for logits (N, K), "
        f"got {tuple(labels.shape)} {labels.dtype} for {tuple(logits.shape)}"
    )


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy in nats of classes, −Σ_k p_k ln p_k with p = softmax(z): logits `(…, K)`; 0 to ln K.

    High where the prediction is uncertain: an anonymizer subtracts it.
    """
    log = _exact(logits).log_softmax(-1)
    return -(log.exp() * log).sum(-1).mean()


def binary_entropy(logits: Tensor) -> Tensor:
    """Mean entropy in nats of attributes, −p ln p − (1 − p) ln(1 − p) with p = σ(z): logits of any shape; 0 to ln 2."""
    z = _exact(logits)
    return -(z.sigmoid() * F.logsigmoid(z) + (-z).sigmoid() * F.logsigmoid(-z)).mean()


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """Cross-entropy of classes to the uniform label (VITA), mean of −1/K Σ_k ln p_k: logits `(…, K)`.

    Minimal, ln K, where all classes are equally likely: an anonymizer adds it. Unlike that of the entropy, its
    gradient does not vanish where the prediction is certain.
    """
    return -_exact(logits).log_softmax(-1).mean()


def binary_uniform_cross_entropy(logits: Tensor) -> Tensor:
    """The same for attributes, mean of −½ ln σ(z) − ½ ln σ(−z): logits of any shape; minimal, ln 2, at z = 0."""
    z = _exact(logits)
    return -(F.logsigmoid(z) + F.logsigmoid(-z)).mean() / 2


def max_over_networks(losses: Sequence[Tensor]) -> Tensor:
    """max_m L_adv(m), over the budget networks m (VITA): the anonymizer is trained against the strongest of them.

    The anonymizer minimizes L_T + γ · max_m L_adv(m), where L_adv is low if network m is uncertain
    (`uniform_cross_entropy`, −`entropy`), so the largest is that of the most certain network. The networks' own losses,
    which are low where they are right, are negated: L_T + ω · max_m(−L_B(m)).
    """
    if not losses:
        raise ValueError("the maximum over no budget networks is not defined")
    return torch.stack(list(losses)).max()


# Distances of pixels and features


def distortion(original: Tensor, changed: Tensor, per: Per = "batch") -> Tensor:
    """RMS difference, sqrt(mean((x − y)²) + 1e-12), of clips `(B, 3, T, H, W)` in [0, 1].

    The mean is over the whole batch: `()`; over each clip: `(B,)`; or over each frame: `(B, T)`. Mid-grey differs from
    uniform noise by about 0.29, its negative by about 0.58; the maximum is 1.
    """
    if original.ndim != 5 or original.shape != changed.shape:
        raise ValueError(f"clips are (B, 3, T, H, W), got {tuple(original.shape)}, {tuple(changed.shape)}")
    squares = (_exact(original) - _exact(changed)).square()
    return (squares.mean(_DIMS[per]) + 1e-12).sqrt()  # the root has no slope at 0


def distortion_penalty(original: Tensor, changed: Tensor, bound: float, per: Per = "batch") -> Tensor:
    """The distortion above a bound, mean of max(0, RMS − bound); arguments as in `distortion`.

    No gradient below the bound. Pixels in [0, 1] never exceed a bound of 1, which is no penalty.
    """
    return F.relu(distortion(original, changed, per) - bound).mean()


def triplet(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0) -> Tensor:
    """Mean of max(0, |a − p| − |a − n| + margin), with a, p, n of unit length and Euclidean distance (TeD-SPAD).

    All are `(N, D)`. Distances of unit vectors lie in [0, 2].
    """
    if anchor.ndim != 2 or not anchor.shape == positive.shape == negative.shape:
        shapes = [tuple(x.shape) for x in (anchor, positive, negative)]
        raise ValueError(f"triplets are (N, D) each, got {shapes}")
    a, p, n = _unit(anchor), _unit(positive), _unit(negative)
    near, far = torch.linalg.vector_norm(a - p, dim=1), torch.linalg.vector_norm(a - n, dim=1)
    return F.relu(near - far + margin).mean()


def _exact(x: Tensor) -> Tensor:
    return x if x.dtype == torch.double else x.float()


def _unit(x: Tensor) -> Tensor:
    """Rows of unit length; a row of almost zero stays short, so that its gradient is finite."""
    return F.normalize(_exact(x), dim=1, eps=1e-6)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """The inner products of all rows, `(N, D)` and `(M, D)` -> `(N, M)`; autocast would round them to bf16."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b.T


def _gather_keys(keys: Tensor) -> Tensor:
    """The keys of all processes, so that all queues stay equal."""
    if world_size() == 1:
        return keys
    parts = [torch.empty_like(keys) for _ in range(world_size())]
    distributed.all_gather(parts, keys.contiguous())
    return torch.cat(parts)
