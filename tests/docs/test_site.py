"""The documentation as a site: checks that need no build, and, after `make site`, every link of the built site."""

from __future__ import annotations

import ast
import os
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest

import penstock
from tests.docs.markdown import DOCS, REPOSITORY, links

CONFIGURATION = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
MADE = ("api/", "project/")  # pages that `site/hooks.py` makes


def hook(name: str) -> dict[str, object]:
    """Return a table of `site/hooks.py`, which imports mkdocs and so cannot be imported here."""
    tree = ast.parse((REPOSITORY / "site/hooks.py").read_text(encoding="utf-8"))
    values = [node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name]
    return dict(eval(compile(ast.Expression(values[0]), "hooks.py", "eval")))  # noqa: S307 - a literal of ours, with sums of lists


def test_every_page_is_in_the_navigation() -> None:
    """The navigation has each page of docs/ once, a directory for all of its pages, and nothing that does not exist."""
    named = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+(?:\.md|/))$", CONFIGURATION.partition("\nnav:")[2], re.MULTILINE)
    own = [page for page in named if not page.startswith(MADE)]
    assert len(set(named)) == len(named)
    top = {path.name for path in DOCS.glob("*.md")}
    folders = {f"{path.parent.name}/" for path in DOCS.glob("*/*.md")}
    assert set(own) == top | folders


def test_every_page_is_found_from_the_index() -> None:
    """A reader of docs/index.md reaches each page of docs/ by one link."""
    led = {target.partition("#")[0] for _, target in links(DOCS / "index.md")}
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("*.md")} - {"index.md"}
    assert pages | {"decisions/README.md", "formats/README.md"} <= led


def test_every_public_name_is_in_the_api() -> None:
    """The docstring of each name that `penstock` exports is on one page of the API."""
    pages = hook("API")
    names = [name for page in pages.values() for name in list(page)[2]]  # type: ignore[call-overload]
    modules = [*hook("MODULES")]
    assert sorted([*names, "PenstockError"]) == sorted({*penstock.__all__} - {"errors"})  # `errors` has PenstockError
    assert {"errors", "testing", "wal", "windows"} == set(modules)


def test_pictures_are_what_the_code_draws() -> None:
    """Each picture is what `site/draw.py` makes, is well-formed, and has a description for readers who cannot see it."""
    drawn = runpy.run_path(str(REPOSITORY / "site/draw.py"))["PICTURES"]
    assert {path.name for path in (DOCS / "pictures").iterdir()} == set(drawn)
    for name, draw in drawn.items():
        text = (DOCS / "pictures" / name).read_text(encoding="utf-8")
        assert text == draw(), f"docs/pictures/{name} is old: python site/draw.py"
        tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(text)}  # noqa: S314 - our own, which the line above has compared
        assert {"title", "desc"} <= tags


class Page(HTMLParser):
    """The links of a page of the site, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the targets and the anchor of an element."""
        for key, value in attrs:
            if key in {"href", "src"} and value:
                self.targets.append(value)
            if key == "id" and value:
                self.anchors.add(value)

    def dead(self, pages: dict[Path, Page]) -> list[str]:
        """Return the links that lead nowhere, and resources that would be loaded from elsewhere."""
        dead = []
        for target in self.targets:
            if target.startswith(("https://", "data:", "mailto:")):
                continue
            file, _, anchor = unquote(target).partition("#")
            there = (self.path.parent / file).resolve() if file else self.path
            page = pages.get(there)
            if not there.exists() or (anchor and page is not None and anchor not in page.anchors):
                dead.append(f"{self.path}: {target}")
        return dead


def test_links_of_the_site_lead_somewhere() -> None:
    """After `make site`, each link names a file of the site and an existing anchor; the site has each page."""
    place = os.environ.get("PENSTOCK_SITE")
    if not place:
        pytest.skip("no site was built; `make site` builds it and runs this")
    site = Path(place).resolve()
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    expected = {
        path.relative_to(DOCS).with_suffix(".html").as_posix().replace("README", "index") for path in DOCS.rglob("*.md")
    }
    assert expected <= {path.relative_to(site).as_posix() for path in pages}
    dead = [link for page in pages.values() for link in page.dead(pages)]
    assert not dead, "\n".join(["", *dead])
