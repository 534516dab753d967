"""Configuration of the documentation: Sphinx with MyST, reference pages made from the code."""

import contextlib
import io
import re
import sys
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

project = "visattn"
copyright = "The visattn authors"  # noqa: A001 (Sphinx reads this name)
release = metadata.version("visattn")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "result_tables"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.xref_missing"]  # links into the checkout, such as LICENSE
autodoc_typehints = "none"
autodoc_member_order = "bysource"
default_role = "code"
toc_object_entries = False  # the sidebar of each page copies all entries: half of the build
napoleon_google_docstring = True
napoleon_custom_sections = [("Source", "notes")]

html_theme = "furo"
html_title = "visattn"
html_static_path = ["_static"]
html_css_files = ["site.css"]


def write_pages(_: object) -> None:
    """Write the pages that are made from the code."""
    import reference_pages

    reference_pages.write(HERE / "reference")
    write_caption_page(HERE / "_static" / "live")


def write_caption_page(folder: Path) -> None:
    """Write the page of a sample photo with its caption, without its links."""
    import visattn as va
    from visattn.cli import main

    folder.mkdir(parents=True, exist_ok=True)
    quiet = io.StringIO()
    with (
        TemporaryDirectory() as work,
        contextlib.redirect_stdout(quiet),
        contextlib.redirect_stderr(quiet),
    ):
        main(["caption", str(va.sample_photos()[0]), "--out", work])
        [page] = [page for page in Path(work).glob("*.html") if page.stem != "index"]
        text = page.read_text(encoding="utf-8")
    links = r'<a class="back".*?</a>|<noscript>.*?</noscript>'
    (folder / "caption.html").write_text(re.sub(links, "", text, flags=re.DOTALL), encoding="utf-8")


def escape_bars(
    app: object, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Escape vertical bars, which reStructuredText would take for substitutions."""
    lines[:] = [
        line if line.lstrip().startswith(">>>") else line.replace("|", "\\|") for line in lines
    ]


def setup(app: object) -> None:
    """Connect the generated pages to the build."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", escape_bars)
