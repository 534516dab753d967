"""Reference pages that are written from the code: one per room of the API, and the command line."""

import argparse
import ast
import contextlib
import importlib
import io
from collections import defaultdict
from pathlib import Path

import visattn
from visattn.cli import COMMANDS

ROOMS = [
    "geometry",
    "results",
    "images",
    "functional",
    "blocks",
    "insertion",
    "recording",
    "attribution",
    "models",
    "metrics",
    "data",
    "viz",
    "pipelines",
    "training",
]
PACKAGE = Path(visattn.__file__).parent
EXIT_CODES = """\
| exit code | meaning |
|---|---|
| 0 | success |
| 1 | error, or partial result: the reasons are printed on stderr, the rest is done |
| 2 | usage error: invalid command line or config; nothing was done |
| 130 | interrupted by Ctrl-C; finished files are kept |
| 141 | the reader of stdout has closed it, as `head` does |
| 143 | training received SIGTERM, as schedulers send it; a checkpoint was saved first |

Results are printed on stdout, messages on stderr; `visattn --debug COMMAND ...` adds the traceback
of an error.

Commands over images write a record per result, `STEM.json`, whose `provenance` names command,
image, settings, and each file with a digest: by it a result is resumed and its files are replaced.
Files without a record, edited ones, and results of another photo or command are refused;
`--overwrite` replaces them."""


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    api = folder / "api"
    api.mkdir(parents=True, exist_ok=True)
    (api / "visattn.md").write_text(api_page("visattn", PACKAGE / "__init__.pyi"))
    for room in ROOMS:
        (api / f"{room}.md").write_text(
            api_page(f"visattn.{room}", PACKAGE / room / "__init__.pyi")
        )
    rows = "\n".join(["visattn", *ROOMS])
    (api / "index.md").write_text(
        "# Python API\n\nPublic names are imported from their package: "
        "`from visattn.blocks import CBAM`.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{rows}\n```\n"
    )
    (folder / "cli.md").write_text(cli_page())


def api_page(room: str, stub: Path) -> str:
    """Return the page of a room: the names that its stub exports, by module."""
    modules = defaultdict(list)
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            modules[f"{room}.{node.module}"] += [alias.name for alias in node.names]
    docstring = (importlib.import_module(room).__doc__ or "").strip().split("\n\n")[0]
    parts = [f"# {room}", docstring]
    for module, names in sorted(modules.items()):
        summary = (importlib.import_module(module).__doc__ or "").strip().split("\n\n")[0]
        # Headings are what the sidebar lists; names are what readers look for.
        parts += [f"## {', '.join(sorted(names))}", f"`{module}`: {summary}", "```{eval-rst}"]
        for name in sorted(names):
            kind = "autoclass" if name[:1].isupper() else "autofunction"
            members = "   :members:\n" if kind == "autoclass" else ""
            index = "   :no-index:\n" if room == "visattn" else ""
            parts.append(f".. {kind}:: {module}.{name}\n{members}{index}")
        parts.append("```")
    return "\n\n".join(parts) + "\n"


def cli_page() -> str:
    """Return the page of the command line: what `--help` of each command prints."""
    parts = ["# Command line", EXIT_CODES, "## Help", "What `--help` of each command prints."]
    for word in COMMANDS:
        parts += [f"### visattn {word}", f"```text\n{help_text(word)}\n```"]
        parts += [
            f"#### visattn {word} {sub}\n\n```text\n{help_text(word, sub)}\n```"
            for sub in subcommands(word)
        ]
    return "\n\n".join(parts) + "\n"


def subcommands(word: str) -> list[str]:
    """Return the words that a command takes in turn, as `visattn score captions`."""
    parser = getattr(importlib.import_module(COMMANDS[word][1]), "build_parser", None)
    actions = parser()._actions if parser else []
    return [
        name for a in actions if isinstance(a, argparse._SubParsersAction) for name in a.choices
    ]


def help_text(*words: str) -> str:
    """Return what a command prints for `--help`."""
    from visattn.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return printed.getvalue().strip()
