"""The documentation site: docs/*.md, filled from the code and the measured records, built by zensical and checked.

    python -m tools.docs_site -o site            build; ends with an error on a broken link, page or mark
    python -m tools.docs_site -o site --serve    and show it at http://127.0.0.1:8000

The pages are plain Markdown that can be read where the code is hosted. Marks in them are filled in a copy, when the
site is built, so that no number, parameter or line of code is written down twice::

    <!-- measured: SPAct; SPAct frozen -->       utility and leakage, from the records in docs/results
    <!-- measured features: paper; ours -->      the same of features
    <!-- protocol: utd-mhad -->                  how many videos a protocol has, what chance and raw video give
    <!-- parameters: blur, pixelate -->          the output of `veil list` for methods
    <!-- presets: splavu -->                     what a preset of a recipe sets
    <!-- file: recipes/spact.toml -->            a file of the repository
    <!-- commands -->                            the output of `veil COMMAND --help`, for all commands

Links to files outside docs lead to pages that show those files. zensical checks links between pages; what it lets pass
(pages that are not in the navigation, other links, anything that would be loaded from another host) is checked here.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".md": "markdown"}
MARK = re.compile(r"<!-- (\w[\w ]*?)(?:: (.*?))? -->")
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


class Broken(Exception):
    """What is wrong with the site; a line for each thing."""


# What the marks stand for


def measured(root: Path, names: str) -> str:
    """A table for each protocol under which one of the methods was evaluated."""
    from experiments import learned_report as report
    from experiments import records

    wanted, folder = _named(names), root / "docs" / "results"
    known = {name for names in (*report.PROTOCOLS.values(), *report.GROUPS.values()) for name in names}
    if unknown := [name for name in wanted if name not in known]:
        raise Broken(f"measured: there is no row '{unknown[0]}'")
    parts = []
    for protocol in report.PROTOCOLS:
        found = report.read(folder, protocol, wanted)
        if not found:
            continue
        private = report.private_target(protocol)
        lines = [
            f"| {TITLES[protocol]} | action | {private}, strongest attacker | attacker | {private}, oblivious attacker | seeds | measured at |",
            "|---|---:|---:|---|---:|---:|---|",
        ]
        found = [*report.read(folder, protocol, ["raw"]), *found]
        for one in found:
            cells = (
                one.method,
                report.mean_and_range(one.utility),
                report.mean_and_range(one.leakage),
                report.strongest(one),
                report.mean_and_range(one.best("leakage", ("oblivious",))),
                str(len(one.records)),
                records.measured_at(one.records, one.status),
            )
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines) + records.legend(one.status for one in found))
    none = [name for name in wanted if not report.read(folder, "utd-mhad", [name])]
    if none:
        parts.append(f"Not run yet on UTD-MHAD: {'; '.join(none)}.")
    return "\n\n".join(parts)


TITLES = {
    "utd-mhad": "UTD-MHAD",
    "ucf-sports-utkface": "UCF Sports, UTKFace",
    "utd-mhad-unseen": "UTD-MHAD, unseen",
    "utd-mhad-often": "UTD-MHAD, anonymized often",
    "utd-mhad-novel": "UTD-MHAD, novel actions",
    "ucf-sports-utkface-novel": "UCF Sports, UTKFace, novel attributes",
    "utd-mhad-others": "UTD-MHAD, other networks",
}


def measured_features(root: Path, names: str) -> str:
    """The table of features, of some rows."""
    from experiments import splavu

    wanted, rows = _named(names), splavu.read_rows(root / "docs" / "results")
    if strange := [name for name in wanted if name not in splavu.ROWS]:
        raise Broken(f"measured features: there is no row '{strange[0]}'")
    parts = []
    for protocol in sorted({protocol for protocol, _ in rows}):
        there = [name for name in wanted if (protocol, name) in rows]
        if there and (protocol, "raw") in rows:
            parts.append(f"**{protocol}**\n\n{splavu.table_of(rows, protocol, ['raw', *there])}")
    none = [name for name in wanted if not any(name == found for _, found in rows)]
    if none:
        parts.append(f"Not run yet: {'; '.join(none)}.")
    return "\n\n".join(parts)


def protocol(root: Path, name: str) -> str:
    """How large a protocol is, what chance and raw video give, and how many methods have records."""
    from experiments import learned_report as report

    folder = root / "docs" / "results"
    raw = report.read(folder, name, ["raw"])
    if name not in report.PROTOCOLS:
        raise Broken(f"protocol: there is no protocol '{name}'")
    if not raw:
        return "Nothing was evaluated under this protocol yet."
    lines = ["| target | chance | raw video | test videos or stills | metric |", "|---|---:|---:|---:|---|"]
    for one in (raw[0].utility, raw[0].leakage):
        cells = report.number(one[0].chance), report.mean_and_range(one), str(one[0].n), one[0].metric
        lines.append(f"| {one[0].target} | {' | '.join(cells)} |")
    count = len(report.read(folder, name, [n for n in report.PROTOCOLS[name] if n != "raw"]))
    data = raw[0].records[0].details["data"]
    return "\n".join([*lines, "", f"Data: {data}. Methods with records, besides raw video: {count}."])


def parameters(_: Path, names: str) -> str:
    """The output of `veil list` for some methods: presets and parameters."""
    from veil.methods import ANONYMIZERS
    from veil.methods import parameters as of

    kinds = {}
    for name in re.split(r",\s*", names):
        if name not in ANONYMIZERS:
            raise Broken(f"parameters: there is no method '{name}'")
        kinds[name] = ANONYMIZERS[name]
    every = [of(kind) for kind in kinds.values()]
    shared = [one for one in every[0] if len(every) > 1 and all(one in others for others in every)]
    parts = []
    for name, kind in kinds.items():
        lines = [f"**`{name}`** {(kind.__doc__ or '').splitlines()[0]}", ""]
        for preset, values in getattr(kind, "PRESETS", {}).items():
            settings = ", ".join(f"{key}={value}" for key, value in values.items())
            lines += [f"`{name}:{preset}` is `{settings}`.", ""]
        own = [one for one in of(kind) if one not in shared]
        parts.append("\n".join([*lines, *_parameters(own)]))
    if shared:
        parts.append("\n".join(["**All of them**", "", *_parameters(shared)]))
    return "\n\n".join(parts)


def _parameters(found: Sequence[Any]) -> list[str]:
    lines = ["| parameter | default | what it means | values |", "|---|---|---|---|"]
    for one in found:
        default = "" if one.default is None else f"`{one.default}`"
        lines.append(f"| `{one.name}` | {default} | {_cell(one.meaning)} | {_cell(one.type)} |")
    return lines


def presets(_: Path, name: str) -> str:
    """What each preset of a recipe sets."""
    from veil.apps.train import RECIPES

    if name not in RECIPES:
        raise Broken(f"presets: there is no recipe of method '{name}'")
    found: dict[str, dict[str, Any]] = getattr(RECIPES[name], "PRESETS", {})
    lines = ["| preset | sets |", "|---|---|"]
    lines += [
        f"| `{preset}` | {_cell(_flat(values)) or 'the defaults'} |" for preset, values in found.items()
    ]
    return "\n".join(lines) if found else "It has no presets."


def shown(root: Path, path: str) -> str:
    """A file of the repository as code."""
    file = root / path
    if not file.is_file():
        raise Broken(f"file: {path} is not there")
    text = file.read_text().rstrip("\n")
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f'{fence}{LANGUAGES.get(file.suffix, "text")} title="{path}"\n{text}\n{fence}'


def commands(_: Path, __: str) -> str:
    """The `--help` of every command."""
    from veil.cli import app

    text = app.generate_docs(output_format="markdown", recursive=True)
    text = re.sub(
        r"^(veil [\w ]+?) -m [\w.]+", r"\1", text, flags=re.M
    )  # cyclopts: how this program was started
    return text[text.index("\n## veil ") :].strip()


MARKS: dict[str, Callable[[Path, str], str]] = {
    "measured": measured,
    "measured features": measured_features,
    "protocol": protocol,
    "parameters": parameters,
    "presets": presets,
    "file": shown,
    "commands": commands,
}
# Of docs/results, whose tables their own scripts write.
THEIRS = re.compile(r"docs/results/")


def _named(names: str) -> list[str]:
    return [name.strip() for name in names.split(";")]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _flat(values: dict[str, Any], before: str = "") -> str:
    settings = []
    for key, value in values.items():
        if isinstance(value, dict):
            settings.append(_flat(value, f"{before}{key}."))
        else:
            settings.append(f"`{before}{key}={value}`")
    return ", ".join(filter(None, settings))


# The copy that is built


def stage(root: Path, folder: Path) -> None:
    """A copy of what the site is made of, with marks filled and links to other files made links to pages."""
    shutil.copytree(root / "docs", folder / "docs", ignore=shutil.ignore_patterns(".*"))
    shutil.copy(root / "zensical.toml", folder)
    (folder / "src").symlink_to(root / "src")
    wanted: set[Path] = set()
    wrong = []
    for page in sorted((folder / "docs").rglob("*.md")):
        name = page.relative_to(folder)
        text = page.read_text()
        try:
            if not THEIRS.match(name.as_posix()):
                text = MARK.sub(partial(_filled, root), text)
            page.write_text(LINK.sub(partial(_inside, root, name, wanted), text))
        except Broken as error:
            wrong.append(f"{name}: {error}")
    wrong += _listed(folder)
    for path in sorted(wanted):
        _show(root, folder, path)
    if wrong:
        raise Broken("\n".join(wrong))


def _filled(root: Path, mark: re.Match[str]) -> str:
    name, argument = mark.group(1), mark.group(2) or ""
    if name not in MARKS:
        raise Broken(f"there is no mark '{name}'; the marks are {', '.join(MARKS)}")
    return MARKS[name](root, argument)


def _inside(root: Path, page: Path, wanted: set[Path], link: re.Match[str]) -> str:
    """A link as it is; or, where it leaves docs or leads to a folder, to a page that shows what is there."""
    target = Path(os.path.normpath(page.parent / unquote(link.group(1))))
    if target.parts[0] == "docs" and not (root / target).is_dir():
        return link.group()
    if target.parts[0] == ".." or not (root / target).exists():
        raise Broken(f"the link {link.group(1)} leads nowhere")
    wanted.add(target)
    return os.path.relpath(_page_of(target), page.parent)


def _page_of(path: Path) -> Path:
    return Path("docs", "source", f"{path}.md")


def _show(root: Path, folder: Path, path: Path) -> None:
    """A page that shows a file, or names what is in a folder."""
    page = folder / _page_of(path)
    page.parent.mkdir(parents=True, exist_ok=True)
    if (root / path).is_dir():
        names = sorted(one.name for one in (root / path).iterdir() if not one.name.startswith((".", "__")))
        inside = path.parts[0] == "docs"
        lines = [
            f"- [{name}]({os.path.relpath(path / name, _page_of(path).parent)})" if inside else f"- `{name}`"
            for name in names
        ]
        text = "\n".join(lines)
    else:
        text = shown(root, path.as_posix())
    page.write_text(f"---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n# {path}\n\n{text}\n")


def _listed(folder: Path) -> list[str]:
    """What of the navigation is not there, and which pages are not in it."""
    nav = tomllib.loads((folder / "zensical.toml").read_text())["project"]["nav"]
    named = list(_pages(nav))
    there = {page.relative_to(folder / "docs").as_posix() for page in (folder / "docs").rglob("*.md")}
    wrong = [
        f"zensical.toml: the navigation names {name}, which is not there"
        for name in named
        if name not in there
    ]
    wrong += [f"docs/{name}: no entry of the navigation leads to it" for name in sorted(there - set(named))]
    twice = sorted({name for name in named if named.count(name) > 1})
    return wrong + [f"zensical.toml: the navigation names {name} twice" for name in twice]


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for one in nav.values() if isinstance(nav, dict) else nav:
            yield from _pages(one)


# The check of what was built


@dataclass
class Page(HTMLParser):
    """Where one page leads, what it loads, and its anchors."""

    links: set[str] = field(default_factory=set)
    loads: set[str] = field(default_factory=set)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        """See `HTMLParser`."""
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if "href" in given:
            quiet = tag == "link" and given.get("rel") in ("canonical", "prev", "next")
            (self.links if tag == "a" or quiet else self.loads).add(given["href"])
        self.loads |= {given[name] for name in ("src", "poster", "data") if name in given}


def check(site: Path) -> list[str]:
    """What is broken in a built site."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = Page()
        pages[path].feed(path.read_text())
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(site)
        if path.name == "404.html":  # may be shown in place of any page, so its links are absolute
            continue
        for url in sorted(page.links | page.loads):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                if url in page.loads and parts.scheme != "data":
                    wrong.append(f"{name}: loads {url} from another host")
                continue
            target = path if not parts.path else Path(os.path.normpath(path.parent / unquote(parts.path)))
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                wrong.append(f"{name}: {url} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                wrong.append(f"{name}: {url} leads to no place on its page")
    for path in sorted([*site.rglob("*.css"), *pages]):
        for url in re.findall(r"(?:@import\s+|url\()[\"']?((?:https?:)?//[^\"')\s]+)", path.read_text()):
            wrong.append(f"{path.relative_to(site)}: loads {url} from another host")
    return wrong


def build(root: Path, output: Path) -> Path:
    """Build the site of a checkout into a folder, which is replaced; or raise, and leave it as it was."""
    with tempfile.TemporaryDirectory(prefix="veil-docs-") as name:
        folder = Path(name)
        stage(root, folder)
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Broken(f"{done.stdout}\n{done.stderr}".strip())
        if wrong := check(folder / "site"):
            raise Broken("\n".join(wrong))
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(folder / "site", output)
    return output


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder of the site, replaced")
    parser.add_argument("--serve", action="store_true", help="show it at http://127.0.0.1:8000")
    given = parser.parse_args()
    try:
        site = build(ROOT, given.output)
    except Broken as error:
        sys.exit(str(error))
    print(f"{sum(1 for _ in site.rglob('*.html'))} pages in {site}")
    if given.serve:
        print("http://127.0.0.1:8000 (Ctrl-C ends it)")
        ThreadingHTTPServer(
            ("127.0.0.1", 8000), partial(SimpleHTTPRequestHandler, directory=site)
        ).serve_forever()


if __name__ == "__main__":
    main()
