"""Untrusted files are never executed, nothing is downloaded unasked, one reader decodes images."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8"))
    for room in ("visattn", "tools")
    for path in sorted((ROOT / room).rglob("*.py"))
}
# What these modules do alone: read URLs that a user names, parse JSON, and open images.
URLS, JSON, IMAGES = (
    f"visattn/{name}.py" for name in ("io/sources", "io/safe_text", "images/reader")
)
EXECUTING = re.compile(
    r"c?pickle|dill|joblib|cloudpickle|marshal|shelve|c?pickle\.(?!UnpicklingError)\w+"
    r"|(dill|joblib|cloudpickle|marshal|shelve)\..*",
    re.IGNORECASE,
)
FETCHING = re.compile(r"(urllib\.request|requests|httpx|http\.client|ftplib|fsspec)\b.*")
CALLS = re.compile(
    r"eval|exec|__import__|os\.(system|popen)|yaml\.(load|load_all|unsafe_load|full_load)"
    r"|torch\.(jit\.load|hub\.(?!get_dir$).*|package\..*)|(.*\.)?load_from_checkpoint"
)
DECODERS = re.compile(
    r"torchvision\.(io\b.*|.*\b(read_(image|video)|decode_\w+|set_image_backend|ImageFolder"
    r"|DatasetFolder))"
)
MUST_SAY = {
    "torch.load": {"weights_only": "True"},
    "np.load": {"allow_pickle": "False"},
    "from_pretrained": {"trust_remote_code": "False", "local_files_only": "True"},
}
WITHOUT_WEIGHTS = ("Tokenizer", "Processor", "config_class")


def dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression, as far as it consists of names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    kinds = (ast.Call, ast.Import, ast.ImportFrom, ast.Attribute)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def imports(tree: ast.AST) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            room = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            yield from (f"{room}{alias.name}" for alias in node.names)


def calls(tree: ast.AST) -> Iterator[tuple[str, dict[str | None, str], str]]:
    """Yield the name of each call, its named arguments and its first argument."""
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            named = {word.arg: ast.unparse(word.value) for word in node.keywords}
            yield dotted(node.func), named, ast.unparse(node.args[0]) if node.args else ""


def dangers(path: str, tree: ast.AST) -> Iterator[str]:
    """Yield what could execute the content of a file or fetch a URL."""
    for name in imports(tree):
        if EXECUTING.fullmatch(name) or (path != URLS and FETCHING.fullmatch(name)):
            yield f"import {name}"
    for name, said, _ in calls(tree):
        owner, _, last = name.rpartition(".")
        wanted = dict(MUST_SAY.get(name.replace("numpy.", "np."), MUST_SAY.get(last, {})))
        with_weights = last == "from_pretrained" and not owner.endswith(WITHOUT_WEIGHTS)
        if with_weights and said.get("weights_only") != "True":
            wanted |= {"use_safetensors": "True"}
        yield from (f"{name} without {k}={v}" for k, v in wanted.items() if said.get(k) != v)
        if CALLS.fullmatch(name) or said.get("shell", "False") != "False":
            yield name
        if last != "save_checkpoint" and said.get("weights_only", "True") != "True":
            yield f"{name} reads more than weights"


def test_no_module_executes_files_or_fetches_urls() -> None:
    assert {
        path: [*dangers(path, tree)] for path, tree in OURS.items() if [*dangers(path, tree)]
    } == {}
    readers = {path for path, tree in OURS.items() for name in imports(tree)
               if re.search(r"\.(remote_files|photo_source)$", name)}  # fmt: skip
    assert readers == {"visattn/images/sources.py", "visattn/pipelines/image_functions.py"}


def test_json_of_strangers_goes_through_one_parser() -> None:
    """What the module itself has just written as JSON is plain."""
    loose = {
        f"{path}: {name}({first})"
        for path, tree in OURS.items()
        if path.startswith("visattn/") and path != JSON
        for name, _, first in calls(tree)
        if re.fullmatch(r"json\.loads?", name) and not first.startswith("json.dumps(")
    }
    loose |= {f"{path}: {name}" for path, tree in OURS.items() for name in imports(tree)
              if re.match(r"(json|yaml)\.", name)}  # fmt: skip
    assert loose == set()


def test_images_are_opened_by_one_reader_and_never_by_torchvision() -> None:
    """Decoders of torchvision can crash."""
    opened = {
        path for path, tree in OURS.items() for name, *_ in calls(tree) if name == "Image.open"
    }
    assert {path for path in opened if path.startswith("visattn/")} == {IMAGES}
    trees = OURS | {
        str(path): ast.parse(text)
        for path in (ROOT / "tests").rglob("*.py")
        if "torchvision" in (text := path.read_text("utf-8"))
    }
    used = {
        f"{path}: {name}"
        for path, tree in trees.items()
        for name in (
            *imports(tree),
            *(dotted(n) for n in nodes(tree) if isinstance(n, ast.Attribute)),
        )
        if DECODERS.fullmatch(name)
    }
    assert used == set()
