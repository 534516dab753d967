"""The documentation builds without warnings, and every snippet on its pages runs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm

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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; figures of blocks are drawn after one step of training."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-D", "gallery_steps=1", str(DOCS), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_the_site_builds_without_warnings(site: Path) -> None:
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    expected = {"index.html", "start.html", "gallery/blocks/cbam.html", "gallery/methods/rise.html"}
    expected |= {"gallery/models/ShowAttendTell.html", "reference/cli.html", "benchmarks.html"}
    assert expected <= pages


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|link)[^>]+(?:src|href)=\"(https?:)?//")
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())] == []


def test_every_page_of_the_gallery_has_figure_source_and_snippet(site: Path) -> None:
    from visattn.attribution import METHODS
    from visattn.blocks.registry import BLOCKS

    explain_classes = [name for name, method in METHODS.items() if method.needs != "boxes"]
    for room, names in (("blocks", BLOCKS), ("methods", explain_classes)):
        for name in names:
            page = DOCS / "gallery" / room / f"{name}.md"
            text = page.read_text()
            assert page.with_suffix(".png").is_file(), name
            assert "| paper |" in text, name
            assert "| code | `visattn/" in text, name
            assert snippets(page), name


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
    from PIL import Image

    drawn = [*(DOCS / "gallery" / "blocks").iterdir(), *(DOCS / "gallery" / "methods").iterdir()]
    figures = sorted(f for f in drawn if f.suffix == ".png" and "thumbnail" not in f.name)
    arrays = [np.asarray(Image.open(figure).convert("RGB")) for figure in figures]
    assert len(figures) >= 38
    assert [f.name for f, a in zip(figures, arrays, strict=True) if a.std() < 10] == []
    # Where features are averaged before a linear classifier, as in the CNN of the gallery, HiResCAM
    # and XGrad-CAM are Grad-CAM, and Smooth Grad-CAM++ is Grad-CAM++.
    equal = {"hirescam.png", "xgradcam.png", "smoothgradcam++.png"}
    pairs = zip(figures, arrays, strict=True)
    below = [array[len(array) // 2 :].tobytes() for file, array in pairs if file.name not in equal]
    assert len(set(below)) == len(below)
