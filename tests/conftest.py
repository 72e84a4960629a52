"""What several tests use."""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TextIO

import pytest

if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # before torch is loaded: workers that spin for each other's cores take ten times as long
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in a background job of a script; commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder 'shared' with real videos is not beside the checkout"
)


_rendered: dict[tuple[object, ...], Any] = {}


@pytest.fixture(scope="module")
def rendered_once() -> Iterator[None]:
    """Synthetic videos are rendered only once, for tests of what is done with them."""
    import torch

    from veil.data.synthetic import dataset as synthetic

    render = synthetic.render_samples

    def cached(samples, device="cpu", *, size=112):
        keys = [(sample.id, sample.span, size) for sample in samples]
        new = {key: sample for key, sample in zip(keys, samples, strict=True) if key not in _rendered}
        if new:
            _rendered.update(zip(new, render([*new.values()], device, size=size), strict=True))
        return torch.stack([_rendered[key] for key in keys])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "render_samples", cached)
        yield


def veil(*arguments: object, cwd: Path | None = None, **more) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would."""
    command = [sys.executable, "-m", "veil", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "100", **more.pop("env", {})}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, **more
    )


def called(
    *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same in this process, for tests of what the command does: to start another takes seconds."""
    from veil.cli import main

    words = [str(argument) for argument in arguments]
    numbers = signal.SIGTERM, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    with pytest.MonkeyPatch.context() as patch, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        patch.chdir(cwd or Path.cwd())
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        code: object = None
        with _into(out, 1), _into(err, 2), redirect_stdout(out), redirect_stderr(err):
            try:
                main(words)
            except SystemExit as end:
                code = end.code
            except Exception:  # as Python does
                traceback.print_exc()
                code = 1
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        out.seek(0)
        err.seek(0)
        texts = out.read(), err.read()
    return subprocess.CompletedProcess(
        words, code if isinstance(code, int) else int(code is not None), *texts
    )


@contextmanager
def _into(file: TextIO, number: int) -> Iterator[None]:
    """What goes to a file descriptor, also from C, goes to a file."""
    saved = os.dup(number)
    os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        file.flush()
        os.dup2(saved, number)
        os.close(saved)
