"""`veil list`: show what can be named on the command line."""

from __future__ import annotations

from collections import Counter

from rich.table import Table
from rich.text import Text

from veil.apps.listing import LISTS, Entry, Kind, first_line
from veil.cli.terminal import out, print_result
from veil.core import VeilError, extras_required
from veil.methods import ANONYMIZERS, DEFAULT, parameters
from veil.methods import Parameter as Described


def list_(kind: Kind | None = None, /) -> int:
    """Show the anonymizers of pixels and of features, recipes, datasets, encoders and attackers, or one kind of them.

    Parameters
    ----------
    kind
        Only this kind; `veil list methods` shows all parameters of the methods as well.
    """
    if kind == "methods":
        _show_methods()
        return 0
    for name, entries in LISTS.items():
        if kind not in (None, name):
            continue
        heading = f"[bold]{name}[/]  {first_line(entries)}"
        try:
            with extras_required():
                rows = entries()
        except VeilError as error:
            if kind:
                raise
            out.print(heading)
            print_result(f"    {error}")
        else:
            out.print(heading)
            _show(rows)
    return 0


def _show(entries: list[Entry]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for entry in entries:
        table.add_row(f"    {entry.name}", Text(entry.description))
    out.print(table)


def _show_methods() -> None:
    """Every method with its presets and parameters; parameters that most methods share are shown once."""
    rows = {name: parameters(kind) for name, kind in ANONYMIZERS.items()}
    often = Counter((p.name, p.type, p.meaning) for parameters in rows.values() for p in parameters)
    shared = {parameter for parameter, count in often.items() if 2 * count > len(rows)}
    for name, kind in ANONYMIZERS.items():
        default = " (the default)" if name == DEFAULT else ""
        out.print(f"[bold]{name}[/]{default}  {first_line(kind)}")
        for preset, values in getattr(kind, "PRESETS", {}).items():
            out.print(
                f"    {name}:{preset} is {', '.join(f'{k}={v}' for k, v in values.items())}", markup=False
            )
        own = [p for p in rows[name] if (p.name, p.type, p.meaning) not in shared or p.name == "region"]
        _show_parameters(own)
    sharing = {
        name: described
        for name, described in rows.items()
        if shared <= {(p.name, p.type, p.meaning) for p in described}
    }
    out.print(f"[bold]{', '.join(sharing)}[/]: all of these")
    common = next(iter(sharing.values()), [])
    _show_parameters([p for p in common if (p.name, p.type, p.meaning) in shared and p.name != "region"])


def _show_parameters(rows: list[Described]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        default = "" if row.default is None else f"={row.default}"
        table.add_row(f"    {row.name}{default}", row.type, Text(row.meaning))
    out.print(table)
