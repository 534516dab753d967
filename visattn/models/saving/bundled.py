"""Trained models that come with visattn: files and cards, found by name."""

import os
from pathlib import Path

from visattn.io.messages import did_you_mean

_DIRECTORY = Path(__file__).resolve().parents[2] / "models" / "bundled"


def list_bundled_models() -> dict[str, str]:
    """Return the names of the models that come with visattn, with the summaries of their cards.

    Example:
        >>> list(list_bundled_models())
        ['scenes-captioner', 'scenes-glimpses']
    """
    files = sorted(_DIRECTORY.glob("*.safetensors"))
    return {file.stem: _summary(file.with_suffix(".md")) for file in files}


def find_bundled_model(name: str) -> Path:
    """Return the file of a model that comes with visattn; its card has the suffix `.md`.

    Args:
        name: Its name, as `list_bundled_models` gives it.

    Raises:
        FileNotFoundError: If there is none; the message lists close matches.

    Example:
        >>> find_bundled_model("scenes-captioner").name
        'scenes-captioner.safetensors'
        >>> find_bundled_model("scene-captioner")
        Traceback (most recent call last):
        FileNotFoundError: no file or model is named 'scene-captioner'; did you mean ...
    """
    models = list_bundled_models()
    if name in models:
        return _DIRECTORY / f"{name}.safetensors"
    hint = did_you_mean(name, models, otherwise="visattn models lists those that come with it")
    raise FileNotFoundError(f"no file or model is named {name!r}; {hint}")


def is_model_name(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a bare word that is no file, and so names a bundled model.

    Example:
        >>> is_model_name("scenes-captioner"), is_model_name("a/b"), is_model_name("m.safetensors")
        (True, False, False)
    """
    word = Path(path)
    return len(word.parts) == 1 and not word.suffix and not word.exists()


def _summary(card: Path) -> str:
    """Return the first line of text below the heading of a card."""
    lines = card.read_text(encoding="utf-8").split("\n# ", 1)[-1].splitlines()[1:]
    return next(filter(None, lines), "")
