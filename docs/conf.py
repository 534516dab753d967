"""Configuration of the documentation: Sphinx with MyST, gallery and reference generated."""

import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

project = "visattn"
copyright = "The visattn authors"  # noqa: A001 (Sphinx reads this name)
release = metadata.version("visattn")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "result_tables",
    "mathml",
    "live_pages",
]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath"]
suppress_warnings = ["myst.xref_missing"]  # links into the checkout, such as LICENSE
autodoc_typehints = "none"
autodoc_member_order = "bysource"
default_role = "code"
toc_object_entries = False  # the sidebar of each page copies all entries: half of the build
napoleon_google_docstring = True
napoleon_custom_sections = [("Source", "notes")]

html_math_renderer = "mathml"  # equations without JavaScript and without fonts of others
html_theme = "furo"
html_title = "visattn"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["figures.js"]


def write_pages(app: object) -> None:
    """Write the pages that are made from the code."""
    import gallery
    import live_pages
    import reference_pages

    gallery.write(HERE / "gallery", draft=app.config.gallery_draft)
    reference_pages.write(HERE / "reference")
    live_pages.write(HERE / "_static" / "live")


def escape_bars(
    app: object, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Escape vertical bars, which reStructuredText would take for substitutions."""
    lines[:] = [
        line if line.lstrip().startswith(">>>") else line.replace("|", "\\|") for line in lines
    ]


def setup(app: object) -> None:
    """Connect the generated pages to the build."""
    app.add_config_value("gallery_draft", default=False, rebuild="env")
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", escape_bars)
