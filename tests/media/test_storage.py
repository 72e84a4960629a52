"""Files at URLs: what is there is kept until the new file is in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from errors import refuses
from veil.media import storage

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

URL = "memory://bucket/out/a.mp4"


@pytest.fixture
def bucket(tmp_path: Path):
    """A storage that holds an old output, and the file to put in its place."""
    system = fsspec.filesystem("memory")
    system.pipe_file("/bucket/out/a.mp4", b"old")
    (tmp_path / "new.mp4").write_bytes(b"new")
    yield system
    system.rm("/bucket", recursive=True)


def names(system) -> list[str]:
    return [Path(name).name for name in system.find("/bucket")]


def test_a_file_replaces_another(bucket, tmp_path: Path) -> None:
    storage.publish(tmp_path / "new.mp4", URL)
    assert bucket.cat_file("/bucket/out/a.mp4") == b"new" and names(bucket) == ["a.mp4"]


def test_the_old_file_is_kept_where_the_new_one_cannot_be_moved(bucket, tmp_path: Path, monkeypatch) -> None:
    move = MemoryFileSystem.mv

    def mv(self, source, target, **options):
        if target == "/bucket/out/a.mp4" and self.cat_file(source) == b"new":
            raise OSError(5, "Input/output error")
        return move(self, source, target, **options)

    monkeypatch.setattr(MemoryFileSystem, "mv", mv)
    with refuses("unwritable"):
        storage.publish(tmp_path / "new.mp4", URL)
    assert bucket.cat_file("/bucket/out/a.mp4") == b"old" and names(bucket) == ["a.mp4"]


@pytest.mark.parametrize("raises", [True, False])
def test_a_storage_that_moves_over_nothing(raises: bool, bucket, tmp_path: Path, monkeypatch) -> None:
    """Some refuse to move a file over another one, some do nothing and do not report it."""
    move = MemoryFileSystem.mv

    def mv(self, source, target, **options):
        if not self.exists(target):
            return move(self, source, target, **options)
        if raises:
            raise FileExistsError(target)
        return None

    monkeypatch.setattr(MemoryFileSystem, "mv", mv)
    storage.publish(tmp_path / "new.mp4", URL)
    assert bucket.cat_file("/bucket/out/a.mp4") == b"new" and names(bucket) == ["a.mp4"]
