"""The files of a run: each is written completely or not at all, and read with an error that names it."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from veil.core import VeilError, io_errors
from veil.media.draft import Draft


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file completely or not at all; it replaces an existing one."""
    full_disk = OSError, SafetensorError
    with Draft(path, overwrite=True) as draft, io_errors(path, "written", errors=full_disk):
        write(draft.path)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_file(path, lambda draft: save_file(contiguous, draft, None if metadata is None else dict(metadata)))


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    write_file(path, lambda draft: draft.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8"))


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """The values of a JSON file with an object in it; `advice` ends the message of an error."""
    with io_errors(path, "read", advice=advice):
        text = path.read_bytes()
    try:
        values = json.loads(text)
    except ValueError as error:
        raise VeilError(f"{path} is not valid JSON ({error}): {advice}.", code="json-invalid") from error
    if not isinstance(values, dict):
        raise VeilError(f"{path} does not hold a JSON object: {advice}.", code="json-invalid")
    return values


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lock(path: Path) -> BinaryIO:
    """A file that this process locks until it closes it or dies.

    `filelock` is not used: its lock is inherited by forked data workers and would outlive a killed training.
    """
    file = path.open("ab")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.close()
        raise VeilError(
            f"{path.parent} is being written by another process: wait for it, or stop it first.",
            code="run-locked",
        ) from None
    except OSError:  # a file system without locks
        pass
    return file


def remove_drafts(folder: Path) -> None:
    """Remove the incomplete files of a killed process."""
    for path in folder.glob(".veil-*"):
        path.unlink(missing_ok=True)
