"""Pages that are made from the code when the site is built: names, commands, blocks, methods."""

import ast
import contextlib
import importlib
import io
import shutil
from collections import defaultdict
from pathlib import Path

import visattn
from visattn import list_blocks
from visattn.attribution import METHODS
from visattn.cli import COMMANDS, main

PACKAGE = Path(visattn.__file__).parent
PACKAGES = sorted(stub.parent.name for stub in PACKAGE.glob("*/__init__.pyi"))
HERE = Path(__file__).parent
GALLERY = (
    "The same two photos for all methods, with `imagenet-classifier` and the classes that it "
    "predicts: Siamese cat and dining table. `make pictures` draws them."
)
WHEN = {
    "features": (
        "For CNNs",
        "Fast and coarse; for any model with a feature map. They show which parts of a photo "
        "support a class. Eigen-CAM and KPCA-CAM do not depend on the class.",
    ),
    "gradient": (
        "For any differentiable model",
        "Fine and noisy: they show single pixels. In signed maps, warm colors support the class "
        "and cold colors speak against it.",
    ),
    "scores": (
        "For any model, even without gradients",
        "Slow: they show how much the score falls when parts of the photo are covered.",
    ),
    "tokens": (
        "For transformers",
        "They need self-attention over image tokens. `attention` and `rollout` only use its "
        "weights; the others depend on the class. No pretrained ViT comes with visattn: here the "
        "mean over the 7 × 7 cells of `imagenet-classifier` is replaced by a class token that "
        "attends to them, trained for a minute on crops of the sample photos. With this single "
        "layer, rollout is the attention, up to a factor.",
    ),
    "gates": (
        "For inserted blocks",
        "The spatial gates themselves, here of four CBAM blocks in a MobileNetV2 whose blocks "
        "were trained on flowers for 75 steps. They do not depend on the class.",
    ),
    "pixels": (
        "Without a model",
        "A baseline that reads only the photo: any useful method should look different.",
    ),
}
"""Heading and text for the methods that need the same of a model."""
# matplotlib gives each subclass of its figures a `set` of its own, in roles that only it knows
MEMBERS = "   :members:\n   :exclude-members: set\n"


def write(folder: Path) -> None:
    """Write all pages into a folder, in place of those of an earlier build."""
    shutil.rmtree(folder / "api", ignore_errors=True)
    (folder / "api").mkdir(parents=True)
    packages = {"visattn": PACKAGE, **{f"visattn.{name}": PACKAGE / name for name in PACKAGES}}
    pages = {
        f"api/{name}": api_page(name, path / "__init__.pyi") for name, path in packages.items()
    }
    names = "\n".join(packages)
    pages["api/index"] = (
        "# Python API\n\nPublic names are imported from their package: "
        f"`from visattn.blocks import CBAM`.\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"
    )
    pages |= {"cli": cli_page(), "blocks": blocks_page(), "methods": methods_page()}
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def api_page(package: str, stub: Path) -> str:
    """Return the page of a package: the names that its stub exports, by module."""
    modules = defaultdict(list)
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            modules[f"{package}.{node.module}"] += [alias.name for alias in node.names]
    parts = [f"# {package}", first_paragraph(package)]
    for module, names in sorted(modules.items()):
        # Headings are what the sidebar lists; names are what readers look for.
        parts += [f"## {', '.join(sorted(names))}", f"`{module}`: {first_paragraph(module)}"]
        parts.append("```{eval-rst}")
        for name in sorted(names):
            kind, members = ("class", MEMBERS) if name[:1].isupper() else ("function", "")
            parts.append(f".. auto{kind}:: {module}.{name}\n{members}")
        parts.append("```")
    return "\n\n".join(parts) + "\n"


def first_paragraph(module: str) -> str:
    """Return the first paragraph of the docstring of a module."""
    return (importlib.import_module(module).__doc__ or "").strip().split("\n\n")[0]


def cli_page() -> str:
    """Return the page of the command line: what `--help` of each command prints."""
    parts = ["# Command line", "The `--help` of each command. Exit codes: 0: success; 1: an error "
        "or a partial result, with the reasons on stderr; 2: a usage error, nothing was done; 130: "
        "interrupted."]  # fmt: skip
    for word, (_, place) in COMMANDS.items():
        parts += [f"## visattn {word}", printed(word, "--help")]
        module, _, function = place.partition(":")
        several = getattr(importlib.import_module(module), function or "main")
        for name in several if isinstance(several, dict) else ():
            parts += [f"### visattn {word} {name}", printed(word, name, "--help")]
    return "\n\n".join(parts) + "\n"


def blocks_page() -> str:
    """Return the page of blocks: what `visattn blocks NAME` prints of each."""
    parts = ["# Blocks", "The output of `visattn blocks NAME` for each block."]
    for name in list_blocks():
        parts += [f"## {name}", printed("blocks", name)]
    return "\n\n".join(parts) + "\n"


def methods_page() -> str:
    """Return the page of attribution methods, one a row."""
    lines = ["# Attribution methods", "", "`va.methods_for(model)` lists those that fit a "
             "model.", "", "| method | needs | class-specific | options | paper |",
             "|---|---|---|---|---|"]  # fmt: skip
    for method in METHODS.values():
        of_class = "yes" if method.explains(None) else "no"
        options = "<br>".join(f"`{name}={each!r}`" for name, each in method.default_kwargs.items())
        name = f"{method.title}<br>`{method.name}`"
        cells = name, method.needs, of_class, options, method.paper
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Gallery", "", GALLERY]
    for needs, (title, when) in WHEN.items():
        lines += ["", f"### {title}", "", when]
        said = f"Maps of two photos by methods that need {needs}"
        pictures = sorted(HERE.glob(f"gallery_{needs}_*.jpg"))
        lines += ["", *(f"![{said}](../{picture.name})" for picture in pictures)]
    return "\n".join(lines) + "\n"


def printed(*words: str) -> str:
    """Return what a command prints, as a block of text."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main([*words])
    return f"```text\n{output.getvalue().strip()}\n```"
