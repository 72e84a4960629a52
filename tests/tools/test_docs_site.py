"""The documentation: every mark can be filled, every link leads somewhere, and nothing is left out or loaded from elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from cyclopts import CycloptsError

import veil
from conftest import ROOT
from experiments import learned_report
from tools import docs_site
from veil.apps.train import RECIPES
from veil.cli import app
from veil.methods import ANONYMIZERS

zensical = pytest.mark.skipif(
    not importlib.util.find_spec("zensical"), reason="the extra 'docs' is not installed"
)


@pytest.fixture(scope="module")
def staged(tmp_path_factory) -> Path:
    """The pages as zensical gets them; to make them fails on an unknown mark, row, method or file."""
    folder = tmp_path_factory.mktemp("staged")
    docs_site.stage(ROOT, folder)
    return folder / "docs"


def words(staged: Path, page: str) -> str:
    return (staged / page).read_text()


def test_every_method_has_a_page(staged):
    pages = {"selective": "selective.md", "prototypes": "prototypes.md"}
    pages |= {"subspace": "methods/erase.md", "matching": "methods/splavu.md"}
    for name in ANONYMIZERS:
        text = words(staged, pages.get(name, "methods/filters.md"))
        assert f"**`{name}`**" in text or f"--method {name}" in text, name
    for name in RECIPES:
        if name not in ("recognize", "encoder"):  # which are attackers and encoders
            page = words(staged, pages.get(name, f"methods/{name}.md"))
            assert "```math" in page and f"veil train recipes/{name}" in page and "| seeds |" in page, name


def test_numbers_are_those_of_the_rows(staged):
    (spact,) = learned_report.read(ROOT / "docs" / "results", "utd-mhad", ["SPAct"])
    line = next(
        line for line in words(staged, "methods/spact.md").splitlines() if line.startswith("| SPAct |")
    )
    assert (
        f"| {learned_report.mean_and_range(spact.utility)} | {learned_report.mean_and_range(spact.leakage)} |"
        in line
    )
    assert "| raw |" in words(staged, "methods/splavu.md")
    assert "| chance |" in words(staged, "protocols/utd-mhad.md")


def test_what_was_not_run_is_listed(tmp_path):
    assert docs_site.measured(tmp_path, "SPAct") == "Not run yet on UTD-MHAD: SPAct."
    assert docs_site.measured_features(tmp_path, "ours; paper") == "Not run yet: ours; paper."
    assert docs_site.protocol(tmp_path, "utd-mhad").startswith("Nothing was evaluated")


def test_no_number_of_a_row_is_typed_by_hand():
    """Pages of methods and protocols have marks; the numbers come from there."""
    for page in [*(ROOT / "docs" / "methods").glob("*.md"), *(ROOT / "docs" / "protocols").glob("*.md")]:
        assert not re.search(r"\.\d{3} \[\.\d{3}–", page.read_text()), page


def test_the_code_shown_is_the_code_that_runs(staged):
    assert (ROOT / "examples" / "own_method.py").read_text() in words(staged, "add-a-method.md")


def test_all_public_names_and_commands_are_listed(staged):
    api = (ROOT / "docs" / "api.md").read_text()
    assert all(f"veil.{name}" in api for name in veil.__all__)
    for name in re.findall(r"^::: ([\w.]+)", api, re.M):  # each exists, and has a docstring
        module, _, thing = name.rpartition(".")
        assert hasattr(importlib.import_module(module), thing) or importlib.import_module(name), name
    commands = re.findall(r"^## veil (\w+)", words(staged, "commands.md"), re.M)
    assert {"anonymize", "audit", "batch", "live", "serve", "train", "features"} <= set(commands)


def test_the_usage_of_a_command_does_not_show_how_the_site_is_built(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", docs_site.__spec__)  # as with python -m
    monkeypatch.setattr(sys, "argv", [docs_site.__file__])
    text = docs_site.commands(ROOT, "")
    assert "docs_site" not in text and "\nveil anonymize --output STR [OPTIONS] INPUTS\n" in text


def parsed(command: str) -> None:
    app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)


def test_commands_on_the_pages_are_understood():
    """Each is read as the command line reads it, and not run."""
    count = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for line in re.findall(
            r"^(?:    |python examples/own_method\.py )?(veil .*)$", page.read_text(), re.M
        ):
            command = re.split(r"  +| #", line)[0]  # a description stands beside it
            try:
                parsed(command)
            except CycloptsError as error:
                pytest.fail(f"{page.name}: {command}: {error}")
            count += 1
    assert count > 50
    for wrong in (
        "veil anonymise a.mp4 -o b.mp4",
        "veil anonymize a.mp4 -o b.mp4 --hidden face",
        "veil live --to",
    ):
        with pytest.raises(CycloptsError):
            parsed(wrong)


def test_files_outside_are_shown(staged):
    assert "../source/src/veil/methods/spact.py.md" in words(staged, "methods/spact.md")
    assert "class SPAct" in words(staged, "source/src/veil/methods/spact.py.md")


def test_links_of_pages_and_readme_lead_somewhere_where_code_is_hosted():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in docs_site.LINK.finditer(page.read_text()):
            assert (page.parent / link.group(1)).exists(), f"{page.name}: {link.group(1)}"


@pytest.fixture
def small(tmp_path) -> Path:
    """A checkout with two pages."""
    (tmp_path / "docs" / "assets").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    config = (ROOT / "zensical.toml").read_text()
    nav = 'nav = [{ "One" = "index.md" }, { "Two" = "two.md" }]\n'
    config = re.sub(r"(?s)\nnav = \[.*?\n\]\n", f"\n{nav}", config)
    config = re.sub(r"(?s)\[project\.plugins.*?(?=\[project\.markdown)", "", config)
    (tmp_path / "zensical.toml").write_text(config)
    for name in ("veil.css", "logo.svg"):
        shutil.copy(ROOT / "docs" / "assets" / name, tmp_path / "docs" / "assets")
    (tmp_path / "docs" / "index.md").write_text(
        "# One\n\n[two](two.md#here)\n\n```math\na^2 &lt; \\sum_i b_i\n```\n"
    )
    (tmp_path / "docs" / "two.md").write_text("# Two\n\n## Here\n\n[one](index.md), [css](assets/veil.css)\n")
    return tmp_path


@zensical
def test_a_site_is_built_or_an_error_states_why(small):
    output = small / "out" / "site"
    site = docs_site.build(small, output)
    page = (site / "index.html").read_text()
    assert "<math" in page and 'href="two.html#here"' in page and "\\sum" not in page
    (small / "docs" / "index.md").write_text("# One\n\n[two](two.md#gone)\n")
    with pytest.raises(docs_site.Broken, match="anchor does not exist"):
        docs_site.build(small, output)
    assert (site / "index.html").read_text() == page  # what was there is left


@pytest.mark.parametrize(
    ("page", "text", "why"),
    [
        ("index.md", "[x](../src/gone.py)", "the link ../src/gone.py leads nowhere"),
        ("index.md", "[x](../../etc/passwd)", "leads nowhere"),
        ("index.md", "<!-- measures: SPAct -->", "there is no mark 'measures'"),
        ("index.md", "<!-- measured: SPECT -->", "there is no row 'SPECT'"),
        ("index.md", "<!-- measured features: theirs -->", "there is no row 'theirs'"),
        ("index.md", "<!-- protocol: utd -->", "there is no protocol 'utd'"),
        ("index.md", "<!-- parameters: blurr -->", "there is no method 'blurr'"),
        ("index.md", "<!-- presets: spect -->", "there is no recipe of method 'spect'"),
        ("index.md", "<!-- file: gone.py -->", "gone.py is not there"),
        ("three.md", "# Three", "docs/three.md: no entry of the navigation"),
        ("two.md", None, "the navigation names two.md, which is not there"),
    ],
)
def test_what_is_wrong_in_a_page_is_reported(small, tmp_path, page, text, why):
    if text is None:
        (small / "docs" / page).unlink()
    else:
        (small / "docs" / page).write_text(text)
    with pytest.raises(docs_site.Broken, match=re.escape(why)):
        docs_site.stage(small, tmp_path / "staged")


@pytest.mark.parametrize(
    ("html", "why"),
    [
        ('<a href="gone.html">', "gone.html leads nowhere"),
        ('<a href="two.html#gone">', "leads to no place on its page"),
        ('<img src="https://x.org/a.png">', "loads https://x.org/a.png from another host"),
        ('<script src="//x.org/a.js"></script>', "loads //x.org/a.js from another host"),
        ('<link rel="stylesheet" href="https://x.org/a.css">', "from another host"),
        ('<style>@import "https://x.org/a.css";</style>', "from another host"),
        ("<style>p { background: url(https://x.org/a.png) }</style>", "from another host"),
        (
            '<a href="https://x.org"><a href="two.html#there"><img src="data:image/png;base64,AA"><a href="#me" id="me">',
            None,
        ),
    ],
)
def test_what_is_wrong_in_a_built_site_is_reported(tmp_path, html, why):
    (tmp_path / "one.html").write_text(html)
    (tmp_path / "two.html").write_text('<h1 id="there">Two</h1>')
    wrong = docs_site.check(tmp_path)
    assert not wrong if why is None else len(wrong) == 1 and why in wrong[0], wrong


@zensical
def test_equations_and_docstrings():
    markdown = pytest.importorskip("tools.docs_markdown")
    mathml = markdown.fence("\\begin{aligned} a &= \\frac{1}{2} \\end{aligned}", "math", "math", {}, None)
    assert "<mfrac>" in mathml and "<mtable" in mathml
    with pytest.raises(Exception, match="cannot be converted"):
        markdown.fence("\\unheard{a}", "math", "math", {}, None)
    text = "What it does::\n\n    a = b\n\nname   what it is\nother  what that is\n\n>>> 1 + 1\n2"
    assert markdown.as_markdown(text) == (
        "What it does:\n\n    a = b\n\n- `name`: what it is\n- `other`: what that is\n\n```pycon\n>>> 1 + 1\n2\n```"
    )


def test_ci_builds_it():
    assert "\npython -m tools.docs_site -o" in (ROOT / ".ci" / "run").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
