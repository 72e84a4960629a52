"""The command line: one file a verb, with argument types and messages and nothing else."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from cyclopts import App, CycloptsError

from veil.cli import (
    anonymize,
    audit,
    batch,
    data,
    demo,
    doctor,
    export,
    features,
    fetch,
    live,
    serve,
    template,
    train,
)
from veil.cli import list as list_
from veil.cli.terminal import print_error
from veil.core import VeilError, __version__, extras_required

app = App(
    name="veil",
    help="Veil keeps the action and loses the person.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `main` reports what Ctrl-C has left
)
app.command(anonymize.anonymize)
app.command(batch.batch)
app.command(live.live)
app.command(export.export)
app.command(list_.list_, name="list")
app.command(audit.audit)
app.command(train.train)
app.command(data.app)
app.command(features.app)
app.command(template.app)
app.command(serve.serve)
app.command(demo.demo)
app.command(doctor.doctor)
app.command(fetch.fetch)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 on success, 2 when the input was bad."""
    stopped: list[int] = []

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        sys.exit(128 + number)  # leaves every `with` on the way out, so that drafts are removed

    for name in ("SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):
            signal.signal(number, stop)
    try:
        with extras_required():
            code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (VeilError, CycloptsError) as error:
        print_error(error)
        code = 2
    except KeyboardInterrupt as interrupt:
        print_error(" ".join(["interrupted; nothing half-written was left.", *interrupt.args]))
        code = 130
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:
        if error.filename is None:
            raise
        print_error(f"{error.filename} cannot be used ({error.strerror}): name another file or folder.")
        code = 2
    except Exception:
        if not stopped:
            raise
        code = 128 + stopped[0]  # a library raised another error of the exit that interrupted it
    sys.exit(code)
