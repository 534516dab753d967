"""The documentation builds without warnings, and every snippet on its pages runs."""

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from reference_pages import cli_page, printed

from visattn import list_blocks
from visattn.blocks import registry
from visattn.cli import main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
WHOLE = re.MULTILINE | re.DOTALL
FENCED = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", WHOLE)
GENERATED = {"_build", "api", "blocks.md", "methods.md", "cli.md"}


def written_pages() -> list[Path]:
    """Return the pages that are written by hand, README and CONTRIBUTING among them."""
    pages = [page for page in DOCS.rglob("*.md") if not GENERATED & {*page.parts}]
    return sorted([*pages, *ROOT.glob("*.md"), *(ROOT / "configs").glob("*.md")])


def snippets(page: Path) -> list[str]:
    """Return the Python snippets of a page; marked ones need files, a cluster or FastAPI."""
    blocks = FENCED.findall(page.read_text())
    return [text for language, mark, text in blocks if language == "python" and not mark.strip()]


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
    """Return page and words of each command of visattn, and of options alone in the text."""
    rows = []
    for page in written_pages():
        text = page.read_text()
        shell = [block for language, _, block in FENCED.findall(text) if language == "bash"]
        lines = "\n".join(shell).replace("\\\n", " ").splitlines()
        if page.name != "CHANGELOG.md":  # which names what was removed
            inline = INLINE.findall(FENCED.sub("", text))
            lines += [f"visattn {each.removeprefix('visattn ')}" for each in inline]
        words = [shlex.split(line, comments=True) for line in lines]
        rows += [(page.name, each[1:]) for each in words if each[:1] == ["visattn"] and each[1:]]
    return rows


INLINE = re.compile(r"`(visattn [^`]+|--[^`]+)`")
OTHERS = {"--ckpt_path", "--seed_everything", "--save_minutes", "--print_config",
          "--nproc_per_node", "--nnodes", "--node_rank", "--master_addr", "--master_port",
          "--max-restarts"}  # fmt: skip
"""Options of LightningCLI and torchrun."""


def test_commands_of_the_pages_have_options_that_exist() -> None:
    parts = {"data", "score"}  # commands of commands
    shown = [
        (page, tuple(words[:first]), word.partition("=")[0])
        for page, words in commands()
        for first in [words[0][0] != "-" and 1 + (words[0] in parts)]
        for word in words
        if word.startswith("--") and "." not in word
    ]
    assert len(shown) > 200
    helps = {words: printed(*words, "--help") if words else cli_page() for _, words, _ in shown}
    known = {words: {*re.findall(r"--[a-z][\w-]*", text)} for words, text in helps.items()}
    unknown = [row for row in shown if row[2] not in known[row[1]] | OTHERS]
    assert unknown == []


def test_training_commands_of_the_pages_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VISATTN_DATA", "data")
    for text in (page.read_text() for page in written_pages()):
        for name, config in re.findall(r"^```yaml\n# (\w+\.yaml)(.*?)^```$", text, WHOLE):
            (tmp_path / name).write_text(f"#{config}")
    shown = [words for _, words in commands() if words[0] == "fit" and len(words) > 3]
    own = re.compile(r"FILE.yaml|mine.yaml| \w+\.[A-Z]")  # files and classes of the reader
    named = [words for words in shown if not own.search(" ".join(words))]
    assert len(named) > 30
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    assert [words for words in named if main([*words, "--print_config"]) != 0] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run([*command, DOCS, out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    assert {"index.html", "benchmarks.html", "reference/cli.html"} <= pages
    loaded = re.compile(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"(https?:)?//")
    assert [page for page in sorted(pages) if loaded.search((site / page).read_text())] == []
    text = (site / "reference" / "blocks.html").read_text()
    assert all(f'id="{name}"' in text for name in list_blocks())


@pytest.mark.slow
def test_the_live_page_is_a_page_of_captions(site: Path) -> None:
    for page in (site / "index.html", site / "guides" / "captions.html"):
        [address] = re.findall(r'<iframe class="live" src="([^"]+)"', page.read_text())
        text = (page.parent / address).read_text()
        assert text.startswith("<!doctype html>")
        assert 'href="index.html"' not in text


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


def test_the_first_page_lists_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    listed = re.findall(r"^\| `(\w+)` \|", (DOCS / "start.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(extras.keys() - {"dev"})
