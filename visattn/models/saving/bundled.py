"""Trained models that come with visattn: files and cards, found by name."""

import os
from pathlib import Path

from visattn.io.messages import did_you_mean

_DIRECTORY = Path(__file__).resolve().parents[1] / "bundled"


def list_bundled_models() -> dict[str, str]:
    """Return the names of the models that come with visattn, with the summaries of their cards.

    Example:
        >>> list(list_bundled_models())
        ['scenes-captioner', 'scenes-glimpses']
    """
    summaries: dict[str, str] = {}
    for file in sorted(_DIRECTORY.glob("*.safetensors")):
        card = file.with_suffix(".md").read_text(encoding="utf-8")
        lines = card.split("\n# ", 1)[-1].splitlines()[1:]  # below the heading
        summaries[file.stem] = next(filter(None, lines), "")
    return summaries


def find_bundled_model(name: str) -> Path:
    """Return the file of a model that comes with visattn; its card has the suffix `.md`.

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
