"""A file that is whole or not there, and that others may read where the umask lets them."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from errors import refuses
from veil.media.draft import Draft


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_have_the_permissions_that_the_umask_gives(mask: int, mode: int, tmp_path: Path) -> None:
    """Also those of safetensors, which puts a file of its own, closed to others, in the place of a draft."""
    before = os.umask(mask)
    try:
        for name in ("text.json", "net.safetensors"):
            draft = Draft(tmp_path / name, overwrite=False)
            if name == "text.json":
                draft.path.write_text("{}")
            else:
                save_file({"a": torch.zeros(2)}, draft.path)
            draft.publish()
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "text.json": mode,
        "net.safetensors": mode,
    }


def test_what_is_there_is_kept_until_the_draft_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "a.txt"
    place.write_text("old")
    with refuses("output-exists"):
        Draft(place, overwrite=False)
    draft = Draft(place, overwrite=True)
    draft.path.write_text("new")
    assert place.read_text() == "old"
    draft.publish()
    draft.discard()
    assert place.read_text() == "new" and [*tmp_path.iterdir()] == [place]


def test_a_context_publishes_or_leaves_nothing(tmp_path: Path) -> None:
    with Draft(tmp_path / "a.txt", overwrite=False) as draft:
        draft.path.write_text("whole")
    with pytest.raises(RuntimeError), Draft(tmp_path / "b.txt", overwrite=False) as draft:
        raise RuntimeError("a defect")
    with refuses("unwritable"), Draft(tmp_path / "c.txt", overwrite=False) as draft:
        raise OSError(28, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
