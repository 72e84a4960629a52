"""The losses of the part network. With log-probabilities l,

L_parts   = mean of −w_y l_y,  where l_ANY = log Σ_{k=1..7} exp l_k        a part, or any part
L_person  = mean of −l_0 on background, −l_ANY on people                  a person, or nobody
L_overlap = mean over parts and the person of 1 − 2 Σ p·y / (Σ p + Σ y)   small parts count as much as large ones
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from veil.training.part_network.dataset import ANY, IGNORE
from veil.training.part_network.recipe import PartRecipe
from veil.training.steps import Terms


def part_loss(logits: Tensor, labels: Tensor, weights: Sequence[float] = (1,) * 9) -> Tensor:
    """L_parts: logits ``(B, 8, H, W)``, labels ``(B, H, W)``; `weights` of the labels 0 to `ANY`."""
    return _weighted(_with_any(logits), labels, weights)


def part_terms(logits: Tensor, labels: Tensor, recipe: PartRecipe = PartRecipe()) -> Terms:
    """The three terms that training descends."""
    table = _with_any(logits)  # (B, 9, H, W)
    person = (labels >= 1) & (labels <= ANY)
    ignored = labels == IGNORE
    two = torch.where(ignored, IGNORE, torch.where(person, ANY, 0))
    return {
        "parts": _weighted(table, labels, recipe.part_weights),
        "person": _weighted(table, two, (1,) * 9),
        "overlap": recipe.overlap * _overlap(table, labels, person, ignored),
    }


def _with_any(logits: Tensor) -> Tensor:
    logs = F.log_softmax(logits.float(), 1)
    return torch.cat([logs, logs[:, 1:].logsumexp(1, keepdim=True)], 1)


def _weighted(table: Tensor, labels: Tensor, weights: Sequence[float]) -> Tensor:
    known = labels != IGNORE
    index = torch.where(known, labels, 0)
    weight = torch.tensor(weights, device=table.device, dtype=table.dtype)[index] * known
    return -(weight * table.gather(1, index[:, None])[:, 0]).sum() / weight.sum().clamp(min=1)


def _overlap(table: Tensor, labels: Tensor, person: Tensor, ignored: Tensor) -> Tensor:
    """L_overlap, over the whole batch; a part that nobody shows counts nothing."""
    predicted = table[:, 1:].exp()  # (B, 8, H, W): seven parts, any
    kinds = torch.arange(1, ANY, device=labels.device)[:, None, None]
    true = torch.cat([labels[:, None] == kinds, person[:, None]], 1)
    parts_known = ~ignored & (labels != ANY)
    known = torch.cat([parts_known[:, None].expand(-1, ANY - 1, -1, -1), ~ignored[:, None]], 1)
    both, predicted, true = ((value * known).sum((0, 2, 3)) for value in (predicted * true, predicted, true))
    shown = true > 0
    return ((1 - 2 * both / (predicted + true).clamp(min=1)) * shown).sum() / shown.sum().clamp(min=1)
