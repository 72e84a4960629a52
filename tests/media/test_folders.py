"""The user's folders follow the XDG variables, and in the usual places without them."""

from pathlib import Path

import pytest

from veil.media.folders import cache_folder, data_folder


@pytest.mark.parametrize(
    ("folder", "variable", "usual"),
    [(cache_folder, "XDG_CACHE_HOME", ".cache"), (data_folder, "XDG_DATA_HOME", ".local/share")],
)
def test_folders_of_the_user(folder, variable, usual, tmp_path, monkeypatch):
    monkeypatch.setenv(variable, str(tmp_path))
    assert folder("weights") == tmp_path / "veil" / "weights"
    for unset in ("", None):
        monkeypatch.setenv("HOME", "/home/somebody")
        monkeypatch.setenv(variable, unset) if unset is not None else monkeypatch.delenv(variable)
        assert folder("weights") == Path("/home/somebody") / usual / "veil" / "weights"
