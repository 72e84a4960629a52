"""`veil list`: show the methods."""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from veil.cli.terminal import out
from veil.methods import ANONYMIZERS, DEFAULT, parameters
from veil.methods import Parameter as Described


def list_() -> int:
    """Show the methods with their parameters, defaults and meaning."""
    rows = {name: parameters(kind) for name, kind in ANONYMIZERS.items()}
    often = Counter((p.name, p.type, p.meaning) for parameters in rows.values() for p in parameters)
    shared = {parameter for parameter, count in often.items() if 2 * count > len(rows)}
    for name, kind in ANONYMIZERS.items():
        default = " (the default)" if name == DEFAULT else ""
        out.print(f"[bold]{name}[/]{default}  {(kind.__doc__ or '').splitlines()[0]}")
        for preset, values in getattr(kind, "PRESETS", {}).items():
            out.print(
                f"    {name}:{preset} is {', '.join(f'{k}={v}' for k, v in values.items())}", markup=False
            )
        own = [p for p in rows[name] if (p.name, p.type, p.meaning) not in shared or p.name == "region"]
        _table(own)
    sharing = {
        name: described
        for name, described in rows.items()
        if shared <= {(p.name, p.type, p.meaning) for p in described}
    }
    out.print(f"[bold]{', '.join(sharing)}[/]: all of these")
    common = next(iter(sharing.values()), [])
    _table([p for p in common if (p.name, p.type, p.meaning) in shared and p.name != "region"])
    return 0


def _table(rows: list[Described]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 4))
    for row in rows:
        default = "" if row.default is None else f"={row.default}"
        table.add_row(f"{row.name}{default}", row.type, row.meaning.replace("[", "\\["))
    out.print(table)
