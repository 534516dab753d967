"""Untrusted files are never executed, and nothing is downloaded implicitly."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = sorted([*(ROOT / "visattn").rglob("*.py"), *(ROOT / "tools").rglob("*.py")])
RUNNING = {"pickle", "cPickle", "dill", "joblib", "cloudpickle", "marshal", "shelve"}
FETCHING = {"urllib.request", "requests", "httpx", "http.client", "ftplib", "fsspec"}
READS_URLS = ("visattn/io/sources.py",)
"""The modules that read URLs, of which the user names each."""

CALLED = {"yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "torch.jit.load"}
CALLED |= {"eval", "exec", "os.system", "os.popen", "__import__"}
NO_WEIGHTS = ("Tokenizer", "Processor", "config_class")
TELLING = {
    "weights_only",
    "allow_pickle",
    "trust_remote_code",
    "local_files_only",
    "use_safetensors",
    "shell",
}


def dangers(source: str) -> list[str]:
    """Return calls and imports that could execute file content or fetch URLs."""
    violations: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            violations += [f"{node.lineno}: {danger}" for danger in call_dangers(node)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = [f"{module}{alias.name}" for alias in node.names]
            violations += [
                f"{node.lineno}: import {name}"
                for name in names
                if name != "pickle.UnpicklingError"  # an exception, which reads nothing
                and (
                    name.split(".")[0] in RUNNING
                    or any(name.startswith(prefix) for prefix in FETCHING)
                )
            ]
    return violations


def call_dangers(node: ast.Call) -> Iterator[str]:
    """Yield what is dangerous in a call."""
    name = dotted(node.func)
    last = name.split(".")[-1]
    arguments = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg in TELLING}
    wanted: dict[str, str] = {}
    if name == "torch.load":
        wanted = {"weights_only": "True"}
    elif name in ("np.load", "numpy.load"):
        wanted = {"allow_pickle": "False"}
    elif last == "from_pretrained" and name.split(".")[-2].endswith(NO_WEIGHTS):
        wanted = {"trust_remote_code": "False", "local_files_only": "True"}  # reads no weights
    elif last == "from_pretrained":
        wanted = {"trust_remote_code": "False", "local_files_only": "True"}
        if arguments.get("weights_only") != "True":
            wanted |= {"use_safetensors": "True"}
    yield from (f"{name} without {k}={v}" for k, v in wanted.items() if arguments.get(k) != v)
    if name in CALLED or name.startswith(("torch.hub.", "torch.package")):
        yield name
    less = last != "save_checkpoint" and arguments.get("weights_only", "True") != "True"
    if last == "load_from_checkpoint" or less:
        yield f"{name} reads more than weights"
    if arguments.get("shell", "False") != "False":
        yield f"{name} starts a shell"


def dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression, as far as it consists of names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def loose_parsers(source: str) -> list[str]:
    """Return calls that parse JSON without the limits of `parse_json`, or import other parsers.

    What the module itself has just written as JSON is plain.
    """
    loose: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name, argument = dotted(node.func), ast.unparse(node.args[0]) if node.args else ""
            if name in ("json.load", "json.loads") and not argument.startswith("json.dumps("):
                loose.append(f"{node.lineno}: {name}({argument})")
        elif isinstance(node, ast.ImportFrom) and node.module in ("json", "yaml"):
            loose += [f"{node.lineno}: from {node.module} import {n.name}" for n in node.names]
    return loose


def test_json_goes_through_one_parser() -> None:
    violations = {
        str(path.relative_to(ROOT)): loose
        for path in (ROOT / "visattn").rglob("*.py")
        if path.name != "safe_text.py" and (loose := loose_parsers(path.read_text("utf-8")))
    }
    assert violations == {}, "parse_json of visattn.io.safe_text reads JSON"


def test_no_module_executes_files_or_fetches_urls() -> None:
    violations = {
        str(path.relative_to(ROOT)): dangers(path.read_text(encoding="utf-8")) for path in OURS
    }
    allowed = tuple(f"import {name}" for name in FETCHING)
    for path in READS_URLS:
        lines = violations[path]
        violations[path] = [
            line for line in lines if not line.partition(": ")[2].startswith(allowed)
        ]
    assert {path: lines for path, lines in violations.items() if lines} == {}


def test_urls_are_read_where_photos_are_named_and_nowhere_else() -> None:
    functions = re.compile(r"\b(remote_files|photo_source)\b")
    readers = [path for path in OURS if functions.search(path.read_text(encoding="utf-8"))]
    names = [str(path.relative_to(ROOT)) for path in readers]
    assert [name.removeprefix("visattn/") for name in names] == [
        "images/sources.py",
        "io/sources.py",
        "pipelines/image_functions.py",
    ]
