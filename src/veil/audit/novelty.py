"""Which labels a learned anonymizer was trained with: a novel-label protocol must not contain them."""

from __future__ import annotations

from collections.abc import Iterator

from veil.audit.audit_data import AuditData
from veil.training.data_config import DataConfig


def trained_labels(config: DataConfig) -> dict[str, list[str]]:
    """The labels that a run was trained with, where it was not with all."""
    return {"actions": [*config.actions], "attributes": [*config.private_attributes]}


def not_novel(config: DataConfig, data: AuditData) -> Iterator[str]:
    """Where labels were chosen, for a run or for its audit: the labels under audit that the run was trained with."""
    private = data.private or data.utility
    audited = {
        "actions": data.actions or data.utility.actions,
        "attributes": data.attributes or private.attributes,
    }
    trained = trained_labels(config)
    if data.actions and not trained["actions"] and config.name == data.utility.name:
        trained["actions"] = [*data.utility.actions]
    for kind, names in trained.items():
        if both := [name for name in audited[kind] if name in names]:
            yield f"Novel {kind} alone: the run was trained with {', '.join(both)}."
