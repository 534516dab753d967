"""The documentation builds without warnings, and every snippet on its pages runs."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
from PIL import Image

from visattn.blocks import registry

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FENCED = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GENERATED = ("gallery", "_build", "api")


def written_pages() -> list[Path]:
    """Return the pages that are written by hand, README and CONTRIBUTING among them."""
    pages = [page for page in DOCS.rglob("*.md") if not {*GENERATED} & {*page.parts}]
    return sorted([*pages, *ROOT.glob("*.md"), *(ROOT / "configs").glob("*.md")])


def snippets(page: Path) -> list[str]:
    """Return the Python snippets of a page; those marked `data` need files or a cluster."""
    blocks = FENCED.findall(page.read_text())
    return [text for language, mark, text in blocks if language == "python" and "data" not in mark]


PAGES = [page for page in written_pages() if snippets(page)]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch, own_methods: None) -> None:
    """Blocks and methods that a snippet registers are unknown to other tests."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for snippet in snippets(page):
        exec(compile(snippet, str(page), "exec"), {"__name__": "__main__"})


def commands() -> list[tuple[str, list[str]]]:
    """Return page and words of each command of visattn in a block of shell."""
    rows = []
    for page in written_pages():
        for language, _, text in FENCED.findall(page.read_text()):
            lines = text.replace("\\\n", " ").splitlines() if language == "bash" else []
            words = [shlex.split(line, comments=True) for line in lines]
            rows += [
                (page.name, each[1:]) for each in words if each[:1] == ["visattn"] and each[1:]
            ]
    return rows


LIGHTNING = {"--config", "--ckpt_path", "--seed_everything", "--dry-run"}
"""Options of training commands beside those of visattn."""


def test_commands_of_the_pages_have_options_that_exist() -> None:
    lines = (ROOT / "tests" / "house" / "options.txt").read_text().splitlines()
    known = {
        f"{line.partition(' --')[0]} {option}"
        for line in lines
        for option in line.split()
        if option[0] == "-"
    } | LIGHTNING
    shown = {
        (page, words[0], words[1], word.partition("=")[0])
        for page, words in commands()
        for word in words
        if word.startswith("--") and "." not in word and words[1:]
    }
    assert len(shown) > 100
    unknown = [
        f"{page}: {command} {option}"
        for page, command, second, option in sorted(shown)
        if not {f"{command} {option}", f"{command} {second} {option}", option} & known
    ]
    assert unknown == []


@pytest.fixture(scope="module", params=["basic", pytest.param("furo", marks=pytest.mark.slow)])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; methods with random masks take few of them.

    The basic theme of Sphinx has the content of all pages, without the navigation of each.
    """
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-D", "gallery_draft=1", "-D", f"html_theme={request.param}", str(DOCS), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_the_site_builds_without_warnings(site: Path) -> None:
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    expected = {"index.html", "start.html", "gallery/blocks/cbam.html", "gallery/methods/rise.html"}
    expected |= {"gallery/models/ShowAttendTell.html", "reference/cli.html", "benchmarks.html"}
    assert expected <= pages


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"(https?:)?//")
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())] == []


def test_live_pages_are_framed_and_linked(site: Path) -> None:
    framed = {}
    for page in site.rglob("*.html"):
        for address in re.findall(r'<iframe class="live" src="([^"]+)"', page.read_text()):
            assert f'<a href="{address}"' in page.read_text()
            framed[(page.parent / address).resolve()] = page.name
    assert {file.stem for file in framed} == {"caption", "explorer", "question"}
    assert all(file.read_text().startswith("<!doctype html>") for file in framed)


def test_every_page_of_the_gallery_has_figure_source_and_snippet(site: Path) -> None:
    from visattn.attribution import METHODS
    from visattn.blocks.registry import BLOCKS

    for room, names in (("blocks", BLOCKS), ("methods", METHODS)):
        for name in names:
            page = DOCS / "gallery" / room / f"{name}.md"
            text = page.read_text()
            [figure] = re.findall(r"^!\[.*\]\((.*)\)$", text, re.MULTILINE)
            assert (page.parent / figure).is_file(), name
            assert "| paper |" in text, name
            [source] = re.findall(r'^\| code \| <a href="(.*)"><code>visattn/', text, re.MULTILINE)
            assert (site / "gallery" / room / source).is_file(), name
            assert snippets(page), name


def test_equations_of_blocks_are_typeset(site: Path) -> None:
    from visattn.blocks.registry import BLOCKS

    pages = {name: (site / "gallery" / "blocks" / f"{name}.html").read_text() for name in BLOCKS}
    assert [name for name, text in pages.items() if '<div class="equation"><math' not in text] == []


SMALL = {"resnet18": "test_resnet", "vit_tiny_patch16_224": "test_vit"}


@pytest.mark.parametrize(
    "small", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["small models", "as printed"]
)
def test_snippets_of_the_gallery_run(
    small: bool, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = timm.create_model

    def create_small(name: str, *arguments: Any, **options: Any) -> Any:
        """Take a small model of the same kind where the snippet depends on no other property."""
        return create(name if options else SMALL.get(name, name), *arguments, **options)

    if small:
        monkeypatch.setattr(timm, "create_model", create_small)
    monkeypatch.chdir(tmp_path)
    pages = sorted((DOCS / "gallery").rglob("*.md"))
    for page in pages:
        for snippet in snippets(page):
            exec(compile(snippet, str(page), "exec"), {"__name__": "__main__"})


def test_figures_differ_and_are_not_blank(site: Path) -> None:
    drawn = [*(DOCS / "gallery" / "blocks").iterdir(), *(DOCS / "gallery" / "methods").iterdir()]
    figures = sorted(f for f in drawn if f.suffix == ".jpg" and "thumbnail" not in f.name)
    arrays = [np.asarray(Image.open(figure).convert("RGB")) for figure in figures]
    assert len(figures) >= 30
    below = [array[264:] for array in arrays]  # the maps, without the scenes
    assert [f.name for f, a in zip(figures, below, strict=True) if a.std() < 10] == []
    assert len({array.tobytes() for array in below}) == len(below)


def exists(path: str) -> bool:
    """Whether a module, class, function or method has this path below `visattn`."""
    thing: Any = importlib.import_module("visattn")
    for position, name in enumerate(parts := path.split(".")):
        module = ".".join(["visattn", *parts[: position + 1]])
        if not hasattr(thing, name) and importlib.util.find_spec(module) is None:
            return False
        thing = getattr(thing, name) if hasattr(thing, name) else importlib.import_module(module)
    return True


def test_names_of_the_package_in_the_text_of_pages_exist() -> None:
    name = re.compile(r"`(?:va|visattn)\.([a-z]\w*(?:\.\w+)*)[(`]")
    pages = [page for page in written_pages() if page.name != "CHANGELOG.md"]
    named = {(page.name, path) for page in pages for path in name.findall(page.read_text())}
    assert len(named) > 20
    assert sorted(each for each in named if not exists(each[1])) == []
