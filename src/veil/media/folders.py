"""The user's folders: a cache that may be deleted at any time, and data that is kept.

On Linux these are ``~/.cache/veil`` and ``~/.local/share/veil``, or under ``XDG_CACHE_HOME`` and ``XDG_DATA_HOME``.
"""

from __future__ import annotations

from pathlib import Path

import platformdirs


def cache_folder(name: str) -> Path:
    """The folder of that name in the user's cache; it need not exist."""
    return platformdirs.user_cache_path("veil", appauthor=False) / name


def data_folder(name: str) -> Path:
    """The folder of that name among the user's data; it need not exist."""
    return platformdirs.user_data_path("veil", appauthor=False) / name
