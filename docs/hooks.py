"""Makes pages of the Markdown files at the top of the repository, which are not written twice."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages; seen from `docs/`, their links have no `docs/` before them."""
    for source, page in _PAGES.items():
        with open(source, encoding="utf-8") as file:
            text = file.read().replace("](docs/", "](")
        files.append(File.generated(config, page, content=_with_links(text, "")))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Lets the other pages link to them as one does in the repository."""
    return _with_links(markdown, "../")


def _with_links(text: str, prefix: str) -> str:
    for source, page in _PAGES.items():
        text = text.replace(f"]({prefix}{source}", f"]({page}")
    return text
