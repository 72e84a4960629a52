"""Imports point one way (the contract is in pyproject.toml), and a filter runs without torch."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_imports_point_one_way():
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    checked = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_anonymizing_with_a_filter_never_loads_torch():
    code = (
        "import sys, veil, veil.cli; list(veil.make('blacken').stream([])); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
