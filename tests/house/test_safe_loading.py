"""Untrusted files are never executed, nothing is downloaded unasked: what ruff cannot see.

Modules that run or fetch, and other doors to JSON and images, are `banned-api` in pyproject.toml.
"""

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = chain((ROOT / "visattn").rglob("*.py"), (ROOT / "tools").rglob("*.py"))
NEVER = {"weights_only": "False", "allow_pickle": "True", "trust_remote_code": "True"}
WITHOUT_WEIGHTS = ("Tokenizer", "Processor", "config_class")


def dangers(tree: ast.AST) -> Iterator[str]:
    """Yield calls that could execute the content of a file or fetch a URL."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            said = {word.arg: ast.unparse(word.value) for word in node.keywords}
            owner, _, last = name.rpartition(".")
            wanted = {"weights_only": "True"} if name == "torch.load" else {}
            if last == "from_pretrained":
                wanted = {"trust_remote_code": "False", "local_files_only": "True"}
                safe = owner.endswith(WITHOUT_WEIGHTS) or said.get("use_safetensors") == "True"
                wanted |= {} if safe else {"weights_only": "True"}
            yield from (f"{name} without {k}={v}" for k, v in wanted.items() if said.get(k) != v)
            if last != "save_checkpoint":
                yield from (f"{name}: {k}={v}" for k, v in NEVER.items() if said.get(k) == v)
            if last in ("load_from_checkpoint", "__import__"):
                yield name


def test_no_call_executes_files_or_fetches_urls() -> None:
    found = {str(path): [*dangers(ast.parse(path.read_text("utf-8")))] for path in OURS}
    assert len(found) > 200
    assert {path: calls for path, calls in found.items() if calls} == {}
