"""The report of an audit: what is on the page, in the text and in the data, for one method and for several."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from errors import refuses
from veil.audit import html_report, summary
from veil.audit.report import markdown, table_markdown, write
from veil.audit.result import KNOWLEDGE, Picture, Result, Row
from veil.audit.summary import cautions, percent, share, state, underfitted
from veil.audit.trade_off import trade_offs
from veil.core import VeilError
from veil.media.draft import Draft

SAME, CROSS = "same dataset: utd-mhad", "cross-dataset: utkface"
ATTRIBUTES = {
    "gender": (0.93, 0.52),
    "skin tone": (0.81, 0.31),
    "face": (0.97, 0.64),
    "age over 60": (0.58, 0.12),
}


def row(role, target, value, chance, *, spread=0.012, error=0.02, n=431, **more) -> Row:
    """A row with three seeds around a value."""
    defaults = {
        "by": "r3d-18 on clips",
        "knowledge": "adaptive",
        "encoding": "8-bit",
        "protocol": SAME,
        "metric": "top-1",
        "train_loss": (0.04, 0.03, 0.05),
    }
    values = tuple(min(v, 1.0) for v in (value - spread, value, value + spread))
    interval = None if math.isnan(value) else (max(0.0, value - error), min(1.0, value + error))
    return Row(role, target, values=values, chance=chance, n=n, interval=interval, **(defaults | more))


def parts(share: float) -> dict[str, tuple[float, float]]:
    return {name: (chance + share * (raw - chance), chance) for name, (raw, chance) in ATTRIBUTES.items()}


def rows(action: float, identity: float, attributes: float, face: float | None = None) -> tuple[Row, ...]:
    """All questions; each share lies between 0, chance, and 1, what raw video gives."""

    def leak(target: str, share: float, raw: float, chance: float, **more) -> Row:
        return row("leakage", target, chance + share * (raw - chance), chance, **more)

    found = [
        row("utility", "action", 0.037 + action * (0.953 - 0.037), 0.037),
        row("utility", "action", 0.037 + action * 0.61, 0.037, knowledge="oblivious", by="r3d-18 on clips"),
        leak("identity", identity, 0.984, 0.125, by="resnet18 on frames"),
        leak(
            "identity",
            0.8 * identity,
            0.984,
            0.125,
            by="r3d-18 on clips",
            encoding="h264",
            train_loss=(1.4, 1.6),
        ),
        leak("identity", 0.2 * identity, 0.984, 0.125, by="resnet18 on frames", knowledge="oblivious"),
        leak("identity", 0.7 * identity, 0.984, 0.125, by="u-net, then resnet18", knowledge="reconstruction"),
    ]
    more = {"protocol": CROSS, "metric": "cMAP", "n": 2400, "by": "resnet18 on frames"}
    found.append(leak("attributes", attributes, 0.8225, 0.3975, parts=parts(attributes), **more))
    if face is not None:
        note = "stills of 8 people; the gallery is small"
        seen = {
            "metric": "rank-1",
            "by": "sface",
            "knowledge": "embedding",
            "train_loss": (),
            "notes": (note,),
        }
        found.append(leak("face", face, 0.71, 0.125, **seen))
    gap = {"metric": "top-1 gap", "parts": {"female": (0.8, 0.05), "male": (0.8 + 0.06 * action, 0.05)}}
    return (*found, row("bias", "action", 0.06 * action, 0.0, **gap))


RAW = rows(1, 1, 1, 1)
UNTESTED = (
    "People who walk, filmed from far away: gait was not attacked.",
    "Attackers that know a victim's clothes.",
)


def picture(caption: str, seed: int, reconstructed: bool = True) -> Picture:
    """A moment with a synthetic person in it, blurred and badly reconstructed."""
    grid_y, grid_x = np.mgrid[0:120, 0:160] / 120
    centre = 0.4 + 0.25 * seed
    body = ((grid_x - centre) / 0.18) ** 2 + ((grid_y - 0.75) / 0.4) ** 2 < 1
    head = (grid_x - centre) ** 2 + (grid_y - 0.28) ** 2 < 0.012
    raw = np.full((120, 160, 3), (205, 214, 208), np.uint8)
    raw[body], raw[head] = (60, 90, 130), (214, 170, 140)
    coarse = raw[::20, ::20].repeat(20, 0).repeat(20, 1)
    soft = (0.5 * coarse + 0.5 * raw).astype(np.uint8)
    return Picture(caption, raw, coarse, soft if reconstructed else None)


def result(method: str, *shares: float, **more) -> Result:
    given = {
        "params": {"size": 16},
        "data": "utd-mhad: 861 videos of 8 people, 112×112, 16 frames; utkface: 2400 stills",
        "rows": rows(*shares),
        "raw": RAW,
        "settings": {"suite": {"size": 112, "budgets": {"frames": {"steps": 900}}}, "seeds": [0, 1, 2]},
        "untested": UNTESTED,
        "command": f"veil audit {method} --data utd-mhad --seeds 3",
        "seconds": 3724.0,
        "device": "NVIDIA H200",
        "version": "0.1.0",
    }
    return Result(method, **(given | more))


def single(**more) -> Result:
    pictures = (picture("swipe left, subject 3", 0), picture("a jump of subject 5", 1))
    return result("pixelate:16", 0.82, 0.31, 0.22, 0.04, pictures=pictures, **more)


def at_chance() -> Result:
    return result("spact", 0.93, 0.002, 0.003, -0.004)


def comparison() -> list[Result]:
    shares = {
        "raw": (1, 1, 1, 1),
        "blur:kernel=51,sigma=25": (0.9, 0.86, 0.78, 0.4),
        "pixelate:16": (0.82, 0.31, 0.22, 0.04),
        "downsample:4x": (0.78, 0.66, 0.6, 0.3),
        "blacken:region=face": (0.985, 0.94, 0.71, 0.0),
        "blacken:region=person": (0.33, 0.05, 0.08, -0.01),
        "spact": (0.93, 0.012, 0.003, -0.004),
        "spact:epochs=120": (0.92, 0.002, 0.001, -0.002),
    }
    moments = picture("swipe left, subject 3", 0), picture("a jump of subject 5", 1)
    return [
        result(name, *given, pictures=moments, raw=() if name == "raw" else RAW, params={})
        for name, given in shares.items()
    ]


def without_numbers() -> Result:
    """An attacker that gave nothing, and a question that raw video does not answer either."""
    nothing = row(
        "leakage", "body", math.nan, 0.125, train_loss=(math.nan,) * 3, notes=("no body was found",)
    )
    lost = row("leakage", "attributes", 0.4, math.nan, metric="cMAP", parts={"hat": (math.nan, 0.5)})
    useless = row("leakage", "age", 0.5, 0.5)
    more = (nothing, replace(lost, chance=0.5, interval=None), useless)
    return result("odd", 0.5, 0.0, 0.0, rows=(*rows(0.5, 0.001, 0.001), *more), raw=(*RAW[:-1], useless))


ALL = {
    "single": lambda: [single()],
    "comparison": comparison,
    "at chance": lambda: [at_chance()],
    "odd": lambda: [without_numbers()],
    "odd among others": lambda: [*comparison()[:3], without_numbers()],
    "raw": lambda: [comparison()[0]],
    "nothing": lambda: [Result("none", {}, "", (), (), {}, ())],
}


class Outline(HTMLParser):
    """What a browser reads: complains of a tag that is not closed where it should be."""

    VOID = ("img", "meta", "wbr")

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing, at {self.getpos()}"

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(params=ALL)
def results(request) -> list[Result]:
    return ALL[request.param]()


def html_of(results: list[Result], folder: Path) -> str:
    return write(results, folder).html.read_text(encoding="utf-8")


def tables_of(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown text as lists of cells."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def test_three_files_are_written_and_replaced(tmp_path, results):
    folder = tmp_path / "made" / "on the way"
    written = write(results, folder)
    assert write(results, folder) == written
    assert sorted(path.name for path in folder.iterdir()) == ["audit.html", "audit.json", "audit.md"]
    assert (written.html.name, written.json.name, written.markdown.name) == (
        "audit.html",
        "audit.json",
        "audit.md",
    )


def test_without_results_there_is_nothing_to_write(tmp_path):
    with refuses("report-empty"):
        write([], tmp_path)


def test_on_failure_what_was_there_stays(tmp_path, monkeypatch):
    write([single()], tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(
        Draft, "publish", lambda _: (_ for _ in ()).throw(VeilError("no space", code="no-space"))
    )
    with refuses("no-space"):
        write(comparison(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with refuses("unwritable"):
        write([single()], tmp_path / "file")


def test_json_gives_the_results_back(tmp_path, results):
    data = json.loads(write(results, tmp_path).json.read_text())
    back = [Result.from_json(plain) for plain in data["results"]]
    assert [result.to_json() for result in back] == [result.to_json() for result in results]
    if not any(math.isnan(row.value) for result in results for row in result.rows):
        assert back == [replace(result, pictures=()) for result in results]
    known = [None if math.isnan(off.hypervolume) else off.hypervolume for off in trade_offs(results)]
    assert [off["hypervolume"] for off in data["trade_offs"]] == known


def test_page_is_well_formed_and_loads_nothing(tmp_path, results):
    text = html_of(results, tmp_path)
    outline = Outline(text)
    assert not re.search(r"https?:|//|url\(|@import", re.sub(r'src="data:[^"]*"', "", text))
    assert not {tag for tag, _ in outline.tags} & {"script", "link", "iframe", "object", "base", "form"}
    assert all((image["src"] or "").startswith("data:image/") for image in outline.of("img"))
    policy = next(meta["content"] for meta in outline.of("meta") if meta.get("http-equiv"))
    assert policy and policy.startswith("default-src 'none'")
    assert not any(name.startswith("on") for _, attributes in outline.tags for name in attributes)


def test_page_can_be_read_aloud_and_walked_by_keyboard(tmp_path, results):
    outline = Outline(html_of(results, tmp_path))
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(attributes.get("scope") for attributes in outline.of("th"))
    assert all(image.get("alt") for image in outline.of("img"))
    assert len(outline.of("table")) == len(outline.of("caption"))
    drawings = [svg for svg in outline.of("svg") if svg.get("aria-hidden") != "true"]
    assert all(svg["role"] == "img" for svg in drawings) and len(drawings) == len(outline.of("desc"))
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {(a["href"] or "").removeprefix("#") for a in outline.of("a")}
    named = {key for svg in drawings for key in (svg["aria-labelledby"] or "").split()}
    assert links | named <= set(ids)
    scrolling = [div for div in outline.of("div") if div.get("class") == "scroll"]
    assert all(div["tabindex"] == "0" and div["aria-label"] for div in scrolling)


def test_each_number_and_sentence_is_on_the_page_and_in_the_text(tmp_path, results):
    written = write(results, tmp_path)
    words = Outline(written.html.read_text()).text
    paper = written.markdown.read_text()
    for result in results:
        for part in html_report.sentences(result.verdict()):
            assert part in words
        assert all(
            sentence in words and sentence in paper for sentence in (*result.untested, *cautions(result))
        )
        assert result.command in words and result.command in paper
        for row in result.rows:
            known = () if row.role == "bias" else (share(row.chance), share(result.excess(row)))
            numbers = share(row.value), *known, summary.span(row.interval)
            for number in (*numbers, summary.spread(row), str(row.n), summary.loss(row), row.by):
                assert number in words and number in paper
            assert all(note in words and note in paper for note in row.notes)
            assert KNOWLEDGE[row.knowledge] in words.replace(
                KNOWLEDGE[row.knowledge].capitalize(), KNOWLEDGE[row.knowledge]
            )
            counts = result.headline(*row.question) is row  # type: ignore[arg-type]
            assert all(
                part in words and share(value) in words for part, (value, _) in row.parts.items() if counts
            )
    for off in trade_offs(results):
        volume = f"Normalised hypervolume {share(off.hypervolume)}"
        assert ("no hypervolume" if math.isnan(off.hypervolume) else volume) in words
        assert f"| {share(off.hypervolume)} |" in paper


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "a|b\nc `d` **e** [f](g) & \"h\" 'i'", "\ud800"]
)
def test_names_are_escaped(tmp_path, name):
    row_ = replace(
        RAW[2], by=name, target=name, protocol=name, metric=name, notes=(name,), parts={name: (0.5, 0.2)}
    )
    picture_ = replace(picture("", 0), caption=name)
    odd = result(
        name, 0.5, 0.5, 0.5, rows=(row_, RAW[0]), raw=(row_, RAW[0]), pictures=(picture_,), data=name
    )
    odd = replace(
        odd, untested=(name,), command=name, device=name, settings={name: name}, params={name: name}
    )
    for some in ([odd], [odd, replace(odd)], [single(), odd]):
        written = write(some, tmp_path)
        text = written.html.read_text(encoding="utf-8")
        assert {tag for tag, _ in Outline(text).tags} <= {
            tag for tag, _ in Outline(html_of(comparison(), tmp_path)).tags
        } | {"pre"}
        paper = markdown(some, trade_offs(some))
        assert "<script>" not in text and not re.search(r"(?<!\\)<script", paper.replace(f"`{name}`", ""))
        assert all(len({len(line) for line in table}) == 1 for table in tables_of(paper))


def test_tables_of_the_text_are_rectangular(results):
    text = markdown(results, trade_offs(results))
    assert "nan" not in text and "None" not in text
    for table in tables_of(text):
        assert len({len(line) for line in table}) == 1
        assert all(re.fullmatch(r"-{3}:?", cell) for cell in table[1])


def test_table_for_results_marks_the_best_and_shows_raw_and_chance():
    (table,) = tables_of(table_markdown(comparison()))
    assert [line[0] for line in table[2:4]] == ["raw", "blur:kernel=51,sigma=25"] and table[-1][0] == "chance"
    assert table[0][1] == "action ↑ top-1 (same dataset: utd-mhad)"
    bold = {line[0] for line in table if line[1].startswith("**")}
    assert bold == {"blacken:region=face"}  # of use, and raw video is no method
    assert {line[0] for line in table if line[2].startswith("**")} == {"spact:epochs=120"}
    (alone,) = tables_of(table_markdown([single()]))
    assert [line[0] for line in alone[2:]] == ["pixelate:16", "raw video", "chance"]
    assert alone[2][1] == ".788 [.768–.808]" and alone[3][1] == ".953" and alone[4][1] == ".037"


def test_no_nan_is_shown(tmp_path):
    for some in (ALL["odd"](), ALL["odd among others"]()):
        words = Outline(html_of(some, tmp_path)).text
        assert not re.search(r"\b(nan|None|inf)\b", words)
    assert (share(math.nan), share(None), percent(math.nan), share(-0.0001)) == ("–", "–", "–", ".000")
    assert (share(0.9534), share(1.0), share(-0.25)) == (".953", "1.000", "−.250")
    assert (percent(0.953), percent(0.004), percent(0.0), percent(-0.03), percent(1.0)) == (
        "95%",
        "0.4%",
        "0%",
        "−3%",
        "100%",
    )


def test_state_is_the_worst_that_any_attacker_finds():
    assert state(at_chance()) == "safe" and not cautions(at_chance())
    assert state(single()) == "some"
    assert state(result("blur", 0.9, 0.86, 0.1)) == "much"
    assert state(Result("none", {}, "", (), (), {}, ())) == "unknown"


def test_a_kind_verdict_is_doubted():
    safe = at_chance()
    small = tuple(replace(r, n=9, interval=(0.0, 0.6)) if r.target == "face" else r for r in safe.rows)
    assert "is small (n 9)" in cautions(replace(safe, rows=small))[0]
    blind = tuple(replace(r, train_loss=(2.0, 2.1)) if r.target == "identity" else r for r in safe.rows)
    assert "underfitted" in cautions(replace(safe, rows=blind))[0]
    sure = row("leakage", "identity", 0.1265, 0.125, error=0.001, protocol="stills", metric="rank-1")
    missed = replace(safe, rows=(*safe.rows, sure), raw=(*RAW, replace(sure, values=(0.9,))))
    assert state(missed) == "some" and missed.headline("leakage", "identity") == sure
    same = replace(safe, raw=safe.rows)
    assert state(same) == "unknown" and "was at chance, too" in cautions(same)[0]
    odd = without_numbers()
    assert state(odd) == "unknown" and any("No attacker on body" in caution for caution in cautions(odd))


def test_weak_witnesses():
    guess = math.log(1 / 0.125)
    assert underfitted(replace(RAW[2], train_loss=(0.51 * guess,))) and not underfitted(
        replace(RAW[2], train_loss=(0.49 * guess,))
    )
    attributes = RAW[6]
    entropy = np.mean([-p * np.log(p) - (1 - p) * np.log(1 - p) for _, p in attributes.parts.values()])
    assert underfitted(replace(attributes, train_loss=(0.51 * entropy,)))
    assert not underfitted(replace(attributes, train_loss=(0.49 * entropy,)))
    assert not underfitted(replace(RAW[2], train_loss=())) and not underfitted(
        replace(RAW[2], train_loss=(math.nan,))
    )


def test_a_gap_between_groups_has_neither_chance_nor_verdict(tmp_path):
    gap = single().rows[-1]
    assert (gap.role, summary.chance_of(gap), summary.excess_of(single(), gap)) == ("bias", None, None)
    words = Outline(html_of([single()], tmp_path)).text
    assert "Between the groups with the highest and the lowest accuracy; 6% on raw video." in words
    line = next(line for line in markdown([single()], []).splitlines() if "| bias |" in line)
    assert [cell.strip() for cell in line.split("|")][13:16] == ["–", ".060", "–"]
    assert state(replace(at_chance(), rows=(gap, *at_chance().rows))) == "safe"


def test_several_methods_in_a_sentence():
    kind, lead, more = summary.summary(comparison())
    assert kind == "some"
    assert lead.startswith(
        "Against 2 of 7 methods no attacker did better than chance: spact and spact:epochs=120."
    )
    assert (
        more
        == "Of the methods at chance spact has the highest utility: action is recognized in 89% (raw 95%, chance 4%)."
    )
    kind, lead, more = summary.summary(comparison()[:5])
    assert (kind, lead) == ("some", "All 4 methods still leak something private.")
    assert summary.summary(comparison()[:3])[1] == "Both methods still leak something private."
    assert more.startswith("pixelate:16 leaks least: at worst 31% of what raw video leaks; action is")
    assert summary.summary([at_chance(), at_chance()])[0] == "safe"


def test_pictures_are_grouped_by_moment(tmp_path):
    images = Outline(html_of(comparison(), tmp_path)).of("img")
    assert len(images) == 2 * (1 + 7 + 7)  # raw once; of each method, anonymized and reconstructed
    assert len(Outline(html_of([single()], tmp_path)).of("img")) == 6
    bare = replace(single(), pictures=(replace(picture("x", 0), reconstructed=None),))
    assert len(Outline(html_of([bare], tmp_path)).of("img")) == 2
    assert "protect it" not in html_of([replace(single(), pictures=())], tmp_path)


def test_what_differs_between_methods_is_listed_for_each():
    facts = dict(summary.facts([single(), replace(at_chance(), device="CPU")]))
    assert facts["device"] == [("pixelate:16", "NVIDIA H200"), ("spact", "CPU")]
    assert facts["data"] == [("", single().data)] and facts["seeds"] == [("", "0, 1, 2")]
    assert facts["time"] == [("", "1 h 2 min")]
    assert facts["suite: size"] == [("", "112")] and facts["suite: budgets"] == [("", "(frames=(steps=900))")]


def test_text_stands_out_in_light_and_dark():
    """WCAG: at least 4.5 to 1 for text."""
    css = (Path(html_report.__file__).parent / "templates" / "report.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in css.split("@media")[:2]
    )
    assert set(light) == set(dark)

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colours in (light, dark):
        tones = ("use", "safe", "some", "much", "unknown")
        pairs = [(ink, ground) for ink in ("ink", "soft", "link", "some-ink") for ground in ("page", "card")]
        pairs += [("ink", "track"), *(("ink", f"{tone}-tint") for tone in tones)]
        pairs += [(f"{tone}-ink", ground) for tone in tones for ground in (f"{tone}-tint", "card")]
        pairs += [("some-ink", f"{tone}-tint") for tone in tones] + [
            ("link", f"{tone}-tint") for tone in tones
        ]
        for ink, ground in pairs:
            high, low = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, ground)


def test_without_an_interval_a_value_near_chance_is_at_chance():
    def row(value: float, n: int) -> Row:
        return Row(
            "leakage", "face", "face embedding", "embedding", "8-bit", "gallery", "rank-1", (value,), 0.5, n
        )

    assert row(0.55, 42).at_chance and not row(0.55, 4200).at_chance and not row(0.95, 42).at_chance


def test_what_was_not_measured_is_not_claimed(tmp_path):
    leaks = tuple(row for row in at_chance().rows if row.role == "leakage")
    uses = tuple(row for row in at_chance().rows if row.role == "utility")
    assert "Utility: not measured." in replace(at_chance(), rows=leaks).verdict()
    assert "Leakage: not measured." in replace(at_chance(), rows=uses).verdict()
    assert "Keeps" not in html_of([at_chance()], tmp_path)


def test_without_an_interval_none_is_shown_and_no_bound_is_given(tmp_path):
    bare = replace(at_chance(), rows=tuple(replace(row, interval=None, n=4) for row in at_chance().rows))
    bare = replace(bare, raw=tuple(replace(row, interval=None) for row in RAW))
    for some in ([bare], [bare, bare]):
        text = html_of(some, tmp_path)
        assert "95% intervals" not in text and "is the 95% interval" not in text
        assert 'class="range"' not in text and "<i style" not in text.split("Part by part")[0]
    assert "was not measured" in Outline(html_of([bare], tmp_path)).text
    assert any("no confidence interval" in sentence for sentence in cautions(bare))


def test_one_seed_has_no_whiskers_and_the_report_states_it(tmp_path):
    once = replace(single(), rows=tuple(replace(row, values=(row.value,)) for row in single().rows))
    assert "one seed, so there are no whiskers" in Outline(html_of([once], tmp_path)).text
    assert "least to the greatest seed" in Outline(html_of([single()], tmp_path)).text


def test_the_title_of_every_plot_is_its_own(tmp_path):
    """The same targets under two protocols and two metrics."""
    other = tuple(
        replace(row, protocol="another protocol", metric="F1") for row in single().rows if row.role != "bias"
    )
    two = replace(single(), rows=(*single().rows, *other), raw=(*RAW, *other))
    text = html_of([two], tmp_path)
    titles = re.findall(r'<title id="plot-\d+">(.*?)</title>', text)
    headings = re.findall(r"<figure><h3>(.*?)</h3>", text)
    assert len(titles) == len(set(titles)) == len(headings) == len(set(headings)) > 4
