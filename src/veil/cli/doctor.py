"""`veil doctor`: what is installed and what is missing."""

from __future__ import annotations

from veil.cli.terminal import out


def doctor() -> int:
    """List what is installed, which weights and devices are at hand, what is missing and how to get it."""
    from veil.apps.doctor import examine

    healthy = True
    for item in examine():
        mark = {"good": "[green]✓[/]", "optional": "[yellow]-[/]", "bad": "[red]✗[/]"}[item.state]
        out.print(f"{mark} {item.name:<28} ", end="")
        out.print(item.message, markup=False)
        healthy &= item.state != "bad"
    return 0 if healthy else 2
