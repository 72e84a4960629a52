"""Scores with chance, intervals and notes: classification, retrieval, temporal detection and trade-offs."""

from veil.metrics.classification import (
    average_precision,
    average_precisions,
    class_mean_average_precision,
    f1_scores,
    frame_auc,
    group_accuracy,
    group_gap,
    macro_f1,
    macro_f1_raw_logit,
    softmax,
    top1,
)
from veil.metrics.retrieval import rank1
from veil.metrics.score import Bootstrap, Resampling, Score, video_mean
from veil.metrics.temporal import THUMOS_TIOU, temporal_average_precisions, temporal_map
from veil.metrics.trade_off import excess_leakage, f_lambda, hypervolume, pareto_front

__all__ = [
    "THUMOS_TIOU",
    "Bootstrap",
    "Resampling",
    "Score",
    "average_precision",
    "average_precisions",
    "class_mean_average_precision",
    "excess_leakage",
    "f1_scores",
    "f_lambda",
    "frame_auc",
    "group_accuracy",
    "group_gap",
    "hypervolume",
    "macro_f1",
    "macro_f1_raw_logit",
    "pareto_front",
    "rank1",
    "softmax",
    "temporal_average_precisions",
    "temporal_map",
    "top1",
    "video_mean",
]
