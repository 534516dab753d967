"""What identifies the result of a command: digests of photos, weights and code."""

import hashlib
import sys
from pathlib import Path

from visattn.io.sources import Source
from visattn.models.model_files import bundled_models, find_model

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".json")  # files of a Hugging Face directory
DIGEST_LENGTH = 16  # hexadecimal digits


def file_digest(path: Source) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a file.

    Raises:
        OSError: If it cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "a"
        >>> file.write_bytes(b"abc")
        3
        >>> file_digest(file)
        'ba7816bf8f01cfea'
    """
    from visattn.io.safe_text import open_regular_file

    if not isinstance(path, Path):
        return path.digest()[:DIGEST_LENGTH]
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_LENGTH]


def weights_origin(weights: str) -> str | dict[str, str]:
    """Return the origin of the weights of a model, for records of results.

    Args:
        weights: As `Loaded.weights` names them.

    Returns:
        `random` or `pretrained`; for a file, a folder, a model that comes with visattn or one of
        the hub its name and digests of its content.

    Raises:
        OSError: If the file cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "a.safetensors"
        >>> file.write_bytes(b"abc")
        3
        >>> weights_origin("random"), weights_origin(str(file))
        ('random', {'file': 'a.safetensors', 'sha256': 'ba7816bf8f01cfea'})
    """
    path = Path(weights)
    name = path.name
    if weights.startswith("hf://"):
        path, name = find_model(weights), weights
    elif not path.exists() and weights in bundled_models():
        path = find_model(weights)
        name = path.name
    if path.is_dir():
        files = (
            file
            for file in sorted(path.iterdir())
            if file.suffix in _WEIGHT_SUFFIXES and file.is_file()
        )
        return {"folder": name, **{file.name: file_digest(file) for file in files}}
    if weights in ("random", "pretrained") or not path.is_file():
        return weights
    return {"file": name, "sha256": file_digest(path)}


def user_code_digest(model: str) -> str:
    """Return a digest of the user code that builds a model, and of the modules beside it.

    Of modules in the folder of the code, or in its package, those count that are loaded: call it
    when the model was built.

    Args:
        model: Value of `--model`, such as `my_net.py:Net`; "" is returned for library models.

    Raises:
        OSError: If a file cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "net.py"
        >>> file.write_text("abc")
        3
        >>> user_code_digest(f"{file}:Net"), user_code_digest("timm:resnet18")
        ('ba7816bf8f01cfea', '')
    """
    from visattn.models.backbones.names import user_code_file

    file = user_code_file(model)
    if file is None:
        return ""
    file = file.resolve()
    folder = file.parent
    while (folder / "__init__.py").is_file():  # the root of a package
        folder = folder.parent
    others = sorted(path for path in _loaded_files(folder) if path != file)
    digests = [file_digest(path) for path in (file, *others)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:DIGEST_LENGTH]


def _loaded_files(folder: Path) -> set[Path]:
    """Return the files of loaded modules in a folder, without those of installed packages."""
    files: set[Path] = set()
    own = Path(__file__).parents[1]
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str):
            continue
        path = Path(name)
        installed = {"site-packages", "dist-packages"} & {*path.parts}
        if path.is_relative_to(folder) and not path.is_relative_to(own) and not installed:
            files.add(path.resolve())
    return {path for path in files if path.is_file()}
