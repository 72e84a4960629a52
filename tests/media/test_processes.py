"""A child process ends when its parent is gone, however that ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from veil.media.processes import end_with_parent

SPAWNED = """
    import multiprocessing, os, time
    from veil.media.processes import end_with_parent

    def work():
        end_with_parent()
        print(os.getpid(), flush=True)
        time.sleep(60)

    if __name__ == "__main__":
        multiprocessing.get_context("spawn").Process(target=work).start()
        time.sleep(60)
"""
PIPED = """
    import subprocess, sys, time
    code = "import os, time; from veil.media.processes import end_with_parent; end_with_parent(0, group=True); "
    code += "print(os.getpid(), flush=True); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
    time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]  # noqa: PTH123, SIM115
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("script", [SPAWNED, PIPED])
def test_a_child_ends_with_its_parent(script: str, tmp_path) -> None:
    (tmp_path / "parent.py").write_text(textwrap.dedent(script))
    parent = subprocess.Popen([sys.executable, tmp_path / "parent.py"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 30
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_without_a_parent_to_watch_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="pipe"):
        end_with_parent()
