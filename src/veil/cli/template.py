"""`veil template`: templates of what is to be hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table

from veil.cli.arguments import Flag, Output, pixel
from veil.cli.terminal import out, print_result
from veil.core import VeilError

app = App(name="template", help="Templates: what is to be hidden, pointed at in pictures.")


@app.command(name="add")
def add_template(
    name: str,
    picture: str,
    /,
    *,
    at: Annotated[tuple[str, ...], Parameter(negative="", allow_leading_hyphen=True)],
    extend: Flag = False,
    overwrite: Flag = False,
    descriptor: str = "lite0",
) -> int:
    """Make a template of something in a picture: what looks like it can be hidden in any video.

    Parameters
    ----------
    name
        What to call it: small letters, digits, - and _.
    picture
        A picture that shows it.
    at
        X,Y: a pixel of the picture that is on it, counted from the top left; may be given several times.
    extend
        Add these clicks to a template that exists: another picture of the same thing.
    overwrite
        Replace a template that exists.
    descriptor
        What compares templates with videos: lite0, which comes with Veil, or one of dino-s8, dino-s16, dinov2-s14 and
        dinov3-s16, which need weights.
    """
    from veil.people import descriptors as dense
    from veil.people import templates

    made = templates.add(
        name, picture, [*map(pixel, at)], dense.descriptor(descriptor), extend=extend, overwrite=overwrite
    )
    clicks, files = len(made.origins), len({origin.checksum for origin in made.origins})
    counted = f"{clicks} click{'s' * (clicks > 1)} in {files} picture{'s' * (files > 1)}"
    print_result(f"{name}: {counted}, compared by {made.descriptor}.")
    return 0


@app.command(name="list")
def list_templates() -> int:
    """Show the templates there are, the groups of them, and what is found without any."""
    from rich.text import Text

    from veil.people import templates
    from veil.people.parts import GROUPS

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("template", "from", "descriptor", "clicks", "pictures"):
        table.add_column(column)
    for name, whose, descriptor, clicks, pictures in templates.table():
        table.add_row(name, whose, descriptor, str(clicks), Text(pictures))
    out.print(table)
    known = {*templates.names()}
    out.print("\n[bold]groups of templates[/]")
    for name, members in templates.GROUPS.items():
        print_result(f"{name:<9} {', '.join(member for member in members if member in known)}")
    out.print("\n[bold]found by the part network, which needs no template and comes first[/]")
    print_result(", ".join(GROUPS))
    return 0


@app.command(name="show")
def show_template(
    name: str,
    pictures: tuple[str, ...] = (),
    /,
    *,
    output: Output,
    descriptor: str | None = None,
    overwrite: Flag = False,
) -> int:
    """Draw what a template matches: bright where a picture looks like it, a line around what would be hidden.

    Parameters
    ----------
    name
        A template, or one of hair, face, skin, clothes, body and person, which the part network finds.
    pictures
        Pictures to look for it in [its own where it is built in, else the photograph of an astronaut].
    output
        The picture to write.
    descriptor
        What compares [what the template was made with].
    overwrite
        Replace a picture that exists.
    """
    from veil.apps.sheets import draw_sheet, save_picture
    from veil.people.overlays import draw_matches

    if Path(output).exists() and not overwrite:
        raise VeilError(
            f"{output} exists already: name another picture, or pass --overwrite.", code="output-exists"
        )
    save_picture(draw_sheet(draw_matches(name, pictures, descriptor), 1), Path(output))
    print_result(output)
    return 0


@app.command(name="remove")
def remove_template(name: str, /) -> int:
    """Remove a template of your own.

    Parameters
    ----------
    name
        One of the templates that `veil template list` calls own.
    """
    from veil.people import templates

    templates.remove(name)
    print_result(f"{name} is removed.")
    return 0
