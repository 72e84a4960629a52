"""What the command line prints: results to standard output, errors and progress bars to standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from veil.core import Progress

out, err = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False, soft_wrap=True)


def print_result(text: object) -> None:
    """Print to standard output, as it is."""
    out.print(str(text), markup=False)


def print_message(text: object) -> None:
    """Print to standard error, as it is."""
    err.print(str(text), markup=False)


def print_error(error: object) -> None:
    """Print one error to standard error, marked as Veil's."""
    err.print(f"veil: {error}", markup=False, style="red" if err.is_terminal else None)


def print_sentences(sentences: list[str]) -> int:
    """Print a summary, and the failures after it as errors; returns the exit code."""
    summary, *failures = sentences
    print_result(summary)
    if failures:
        print_error("\n".join(failures))
    return 2 if failures else 0


@contextmanager
def progress_bar(message: str, unit: str = "frames") -> Iterator[Progress]:
    """A progress bar on the terminal while the context is open; yields the callback that moves it."""
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(message, total=None, rate="")
        current = message

        def show(done: int, total: int | None, message: str | None = None) -> None:
            nonlocal current
            if message and message != current:
                current = message
                bar.reset(task, description=message)
            elapsed = bar.tasks[0].elapsed or 0
            rate = f"{done / elapsed:.0f} {unit}/s" if elapsed and unit else ""
            bar.update(task, completed=done, total=total, rate=rate)

        yield show
