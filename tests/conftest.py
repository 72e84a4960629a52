"""What several tests use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # before torch is loaded: workers that spin for each other's cores take ten times as long
    os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder 'shared' with real videos is not beside the checkout"
)


def veil(*arguments: object, cwd: Path | None = None, **more) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would."""
    command = [sys.executable, "-m", "veil", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "100", **more.pop("env", {})}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, **more
    )
