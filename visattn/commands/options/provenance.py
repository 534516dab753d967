"""Provenance of results: digests of images, weights and code, by which a run is resumed."""

import hashlib
from pathlib import Path

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".json")  # files of a Hugging Face directory
_DIGEST_LENGTH = 16  # hexadecimal digits


def file_digest(path: Path) -> str:
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

    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGEST_LENGTH]


def weights_origin(weights: str) -> str | dict[str, str]:
    """Return the origin of the weights of a model, for records of results.

    Args:
        weights: As `LoadedModel.weights` names them.

    Returns:
        `random` or `pretrained`; for a file, folder or model that comes with visattn its name and
        digests of its content; for a model on the hub its name.

    Raises:
        OSError: If the file cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "a.safetensors"
        >>> file.write_bytes(b"abc")
        3
        >>> weights_origin("random"), weights_origin(str(file))
        ('random', {'file': 'a.safetensors', 'sha256': 'ba7816bf8f01cfea'})
    """
    from visattn.io.bundled_models import find_bundled_model, list_bundled_models

    path = Path(weights)
    if not path.exists() and weights in list_bundled_models():
        path = find_bundled_model(weights)
    if path.is_dir():
        files = (
            file
            for file in sorted(path.iterdir())
            if file.suffix in _WEIGHT_SUFFIXES and file.is_file()
        )
        return {"folder": path.name, **{file.name: file_digest(file) for file in files}}
    if weights in ("random", "pretrained") or not path.is_file():
        return weights
    return {"file": path.name, "sha256": file_digest(path)}


def user_code_digest(model: str) -> dict[str, str]:
    """Return a digest of the user code that builds a model; empty for library models.

    Args:
        model: Value of `--model`, such as `my_net.py:Net`.

    Raises:
        OSError: If the file cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "net.py"
        >>> file.write_text("abc")
        3
        >>> user_code_digest(f"{file}:Net"), user_code_digest("timm:resnet18")
        ({'code': 'ba7816bf8f01cfea'}, {})
    """
    from visattn.models.backbones.user_code import user_code_file

    file = user_code_file(model)
    return {} if file is None else {"code": file_digest(file)}
