"""Utility on validation videos during training: how well a network recognizes the action in anonymized clips."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from veil.metrics import class_mean_average_precision, top1
from veil.training.data import TrainingData

MAX_VIDEOS = 96  # validation videos that are evaluated, about


def validate(data: TrainingData, anonymizer: nn.Module, utility: nn.Module) -> dict[str, float]:
    """Top-1 accuracy of the action after anonymization, or class-mean AP where a video shows several."""
    training = anonymizer.training
    anonymizer.eval()
    value = score(data, predict(data, anonymizer, utility))
    anonymizer.train(training)
    return {"action": value}


@torch.no_grad()
def predict(data: TrainingData, anonymize: Callable[[Tensor], Tensor], utility: nn.Module) -> Tensor:
    """Class probabilities ``(N, K)`` of validation videos, from one clip of the middle of each."""
    config, rows = data.config, _rows(data)
    lengths, length = data.val.lengths[rows], config.length
    strides = torch.clamp((lengths - 1) // max(1, length - 1), 1, config.skip)
    start = (lengths - 1 - strides * (length - 1)).clamp_min(0) // 2
    times = start[:, None] + strides[:, None] * torch.arange(length)
    training = utility.training
    utility.eval()
    batches = []
    for part in torch.arange(len(rows)).split(config.batch):
        clip = data.val.clips(rows[part], times[part]).float() / 255
        with torch.autocast(data.device.type, torch.bfloat16, enabled=data.device.type == "cuda"):
            batches.append(utility(anonymize(clip)).double().cpu())
    utility.train(training)
    logits = torch.cat(batches)
    return logits.sigmoid() if data.actions.ndim == 2 else logits.softmax(1)


def score(data: TrainingData, probabilities: Tensor) -> float:
    """Top-1 accuracy or class-mean AP of the probabilities of `predict`."""
    labels = data.val_actions[_rows(data)].numpy()
    metric = class_mean_average_precision if labels.ndim == 2 else top1
    return metric(probabilities.numpy(), labels).value


def _rows(data: TrainingData) -> Tensor:
    return torch.arange(0, len(data.val), max(1, len(data.val) // MAX_VIDEOS))
