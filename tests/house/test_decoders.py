"""Images are decoded in a single module, never by torchvision, whose decoder can crash."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    path for room in ("visattn", "tools", "tests") for path in sorted((ROOT / room).rglob("*.py"))
]
DECODERS = {
    "read_image", "decode_image", "decode_png", "decode_jpeg", "decode_gif", "decode_webp",
    "decode_avif", "decode_heic", "read_video", "set_image_backend", "ImageFolder", "DatasetFolder",
}  # fmt: skip
READER = ROOT / "visattn" / "images" / "reader.py"


def used(tree: ast.AST) -> Iterator[str]:
    """Yield every imported name and every dotted name of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def decoders(source: str) -> list[str]:
    """Return the uses of torchvision's decoders in a module."""
    names = used(ast.parse(source))
    return [
        name
        for name in names
        if name.startswith("torchvision")
        and (name.split(".")[1:2] == ["io"] or DECODERS & set(name.split(".")))
    ]


def test_no_module_decodes_images_with_torchvision() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in FILES}
    candidates = {path: source for path, source in sources.items() if "torchvision" in source}
    violations = {
        str(path): names for path, source in candidates.items() if (names := decoders(source))
    }
    assert violations == {}


def test_images_are_opened_by_the_checked_reader_only() -> None:
    for path in (ROOT / "visattn").rglob("*.py"):
        opened = "Image.open(" in path.read_text(encoding="utf-8")
        assert not opened or path == READER, f"{path} opens images itself; read_image checks"
