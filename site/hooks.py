"""What the site has besides the pages of docs/: the API from docstrings, the repository's own pages, and programs that pages link to.

The pages of docs/ are written for a reader of the repository. Their links to files outside of docs/ become links to pages that are made
here, so that the site needs no address of the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parent.parent
PROJECT = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
LINK = re.compile(r"(\]\()(?!https?://|#)([^)#\s]+)")

# The pages of the API, and what is on each: by task, and every public name once.
API = {
    "ingest": (
        "Files to files",
        "Source, transform and sink in one stage, and what is asked before and after it.",
        [
            "ingest",
            "Ingested",
            "dry_run",
            "DryRun",
            "late",
            "Late",
            "NotRead",
            "reset",
            "Reset",
            "retry",
            "adopt",
            "Adopted",
            "catalog",
            "Catalogued",
        ],
    ),
    "spark": (
        "Queries of Spark",
        "A session, and what a query of Spark's needs beside `readStream` and `writeStream`.",
        ["local_session", "progress_bar", "register", "serve_metrics", "read_files", "replayable", "split_bad"],
    ),
    "async": (
        "Asynchronous calls",
        "A service is called for the rows of a stream.",
        [
            "async_map",
            "AsyncMap",
            "AsyncFunction",
            "Call",
            "Context",
            "Retry",
            "retry_after",
            "Cache",
            "in_threads",
            "split_errors",
            "call_counts",
            "CallFailed",
        ],
    ),
}
MODULES = {
    "errors": "All errors, as a tree.",
    "wal": "The write-ahead log.",
    "windows": "What a finished window read, kept.",
    "testing": "A disk that loses power, and every crash tried.",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every page of a directory where the navigation names the directory, its README first."""
    made = sorted(f"api/{name}.md" for name in (*API, *MODULES))
    for group in config.nav or []:
        for item in next(iter(group.values())) if isinstance(group, dict) else []:
            ((title, target),) = item.items()
            if target.endswith("/"):
                pages = sorted(
                    path.relative_to(REPOSITORY / "docs").as_posix()
                    for path in (REPOSITORY / "docs" / target).glob("*.md")
                )
                item[title] = [
                    f"{target}README.md",
                    *(page for page in pages or made if not page.endswith("README.md")),
                ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    made = dict(api_pages())
    for name, page in PROJECT.items():
        made[page] = relinked((REPOSITORY / name).read_text(encoding="utf-8"), name, page)
    for file in list(files.documentation_pages()):
        text = file.content_string
        for path in sorted(outside(text, f"docs/{file.src_uri}")):
            if path.endswith(".py"):
                made[code_page(path)] = f"# {path}\n\n```python\n{(REPOSITORY / path).read_text(encoding='utf-8')}```\n"
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - what mkdocs gives
    """Turn links out of docs/ into links to the pages that are made for them."""
    if page.file.generated_by:
        return markdown
    return relinked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def relinked(text: str, path: str, page: str) -> str:
    """Return the text of the repository's file `path` with links that hold on the page `page` of the site."""

    def target(match: re.Match[str]) -> str:
        named = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        inside = named.removeprefix("docs/") if named.startswith("docs/") else PROJECT.get(named, code_page(named))
        if named == "README.md":
            inside = "index.md"
        if inside in {"decisions", "formats"}:
            inside += "/README.md"
        return match[1] + posixpath.relpath(inside, posixpath.dirname(page) or ".")

    return "".join(part if part.startswith("```") else LINK.sub(target, part) for part in parts(text))


def parts(text: str) -> list[str]:
    """Return a text cut into fenced blocks and what is between them."""
    return re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)


def outside(text: str, path: str) -> set[str]:
    """Return the repository's files outside of docs/ that a page links to."""
    links = [match[2] for part in parts(text) if not part.startswith("```") for match in LINK.finditer(part)]
    named = {posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) for link in links}
    return {name for name in named if not name.startswith("docs/")}


def code_page(path: str) -> str:
    """Return the page that shows a program."""
    return f"project/code/{path.removesuffix('.py')}.md"


def api_pages() -> dict[str, str]:
    """Return the pages of the API: their texts name what mkdocstrings puts there."""
    homes = dict(
        re.findall(
            r'^    "(\w+)": "(penstock\.[\w.]+)",$',
            (REPOSITORY / "src/penstock/__init__.py").read_text("utf-8"),
            re.MULTILINE,
        )
    )
    pages = {f"api/{name}.md": section(*page, homes) for name, page in API.items()}
    for name, text in MODULES.items():
        options = "options: {show_root_heading: false, show_root_toc_entry: false}"
        pages[f"api/{name}.md"] = f"# penstock.{name}\n\n{text}\n\n::: penstock.{name}\n    {options}\n"
    rows = [f"- [{title}]({name}.md): `{'`, `'.join(names)}`" for name, (title, _, names) in API.items()]
    rows += [f"- [penstock.{name}]({name}.md): {text}" for name, text in MODULES.items()]
    rows += ['- [Options](../options.md): what `spark.readStream.format("penstock")` and `writeStream` take.']
    pages["api/README.md"] = (
        "# API\n\nWhat `penstock` exports. Everything else may change with any version.\n\n" + "\n".join(rows) + "\n"
    )
    return pages


def section(title: str, text: str, names: list[str], homes: dict[str, str]) -> str:
    """Return a page with the docstrings of public names."""
    return f"# {title}\n\n{text}\n\n" + "\n".join(f"::: {homes[name]}.{name}\n" for name in names)
