"""The report: whole, self-contained, escaped, and honest about what is missing."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from draftproof.cli import main
from draftproof.report import charts
from tests.builders.results import Truth, write_results

HOSTILE = "<script>alert(1)</script>\" onload='x' $\\frac$ & {{ 7*7 }}"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Collects references, ids, tags and text; notices tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.faults: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "demo"
    write_results(folder, Truth(cost=2.5, hostile=HOSTILE, changed_by_spec=[2]))
    assert main(["diagnose", "--results", str(folder)]) == 0
    assert main(["report", "--results", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return (folder / "report/report.html").read_text()


def test_the_verdict_comes_first(html: str) -> None:
    body = html[html.index("<body>") :]
    assert body.index('class="verdict"') < body.index("<h2>")
    assert "The draft is wired right" in body


def test_every_section_is_there(html: str) -> None:
    ids = re.findall(r'<section id="(\w+)"', html)
    assert ids == [
        "tested",
        "findings",
        "acceptance",
        "speed",
        "text",
        "wiring",
        "checkpoint",
        "servers",
        "files",
        "again",
    ]
    assert html.count("<svg") == 4


def test_nothing_is_fetched(html: str) -> None:
    reader = Reader(html)
    for tag, attributes in reader.tags:
        for name in ("href", "src", "xlink:href", "data", "poster", "action"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), (tag, name, value)
    assert not re.search(r"url\((?!#)", html)
    assert "@import" not in html
    assert not reader.all("script")


def test_hostile_text_stays_text(html: str) -> None:
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "{{ 7*7 }}" in html
    assert not [attributes for _, attributes in Reader(html).tags if "onload" in attributes]


def test_the_page_is_well_formed_and_accessible(html: str) -> None:
    reader = Reader(html)
    assert not reader.faults
    assert not reader.open
    assert reader.all("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for svg in reader.all("svg"):
        assert svg["role"] == "img"
        assert len(svg["aria-label"] or "") > 30
    anchors = {(each["href"] or "").removeprefix("#") for each in reader.all("a")}
    assert anchors <= set(ids)
    assert all(each.get("scope") in {"row", "col"} for each in reader.all("th"))


def test_colours_follow_the_page(html: str) -> None:
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        assert not re.findall(r"#0[1-6]0[1-6]0[1-6]", svg)
        assert "var(--ink)" in svg
        assert not re.search(r"#[0-9a-f]{6}\b(?![-\w])", re.sub(r"#[\w-]+-\w+", "", svg))


def test_the_page_is_the_same_when_made_again(folder: Path, html: str) -> None:
    assert main(["report", "--results", str(folder)]) == 0
    assert (folder / "report/report.html").read_text() == html


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        (["diagnosis.json"], "diagnosis.json"),
        (["diagnosis.json", "benchmark", "serving"], "benchmark/&lt;server&gt;.json"),
        (
            ["diagnosis.json", "benchmark", "serving", "accuracy", "capture"],
            "capture/manifest.json",
        ),
    ],
)
def test_a_part_of_the_chain_is_shown_with_what_is_missing(
    folder: Path, tmp_path: Path, removed: list[str], said: str
) -> None:
    copy = tmp_path / "demo"
    shutil.copytree(folder, copy)
    for name in removed:
        shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
    assert main(["report", "--results", str(copy)]) == 0
    html = (copy / "report/report.html").read_text()
    assert "No verdict yet" in html
    assert said in html[html.index("Missing so far") :][:400]
    assert not Reader(html).faults


def test_an_empty_folder_is_no_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--results", str(tmp_path)]) == 2
    assert main(["report", "--results", str(tmp_path / "none")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert ["holds no result" in lines[0], "does not exist" in lines[1]] == [True, True]


def test_a_scan_of_a_draft_that_cannot_be_computed_is_drawn_without_a_configured_wiring(
    tmp_path: Path,
) -> None:
    write_results(tmp_path, Truth())
    scan = json.loads((tmp_path / "accuracy/wiring.json").read_text())
    scan |= {"configured": None, "fault": "d2t leads astray", "candidates": scan["candidates"][1:]}
    drawn = charts.wiring(scan)
    assert "Dot chart of 2 wirings" in drawn
    assert "boundaries (1, 14, 26), one lower" in drawn
