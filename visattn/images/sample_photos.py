"""Photos that come with visattn, to try models on."""

from pathlib import Path

_FOLDER = Path(__file__).parent / "samples"
_NAMES = ("skateboarder", "cat", "dinner", "tennis", "phone_call", "laptop")


def sample_photos() -> list[Path]:
    """Return the files of six COCO photos; `ATTRIBUTION.md` in their folder names the authors.

    Example:
        >>> [photo.stem for photo in sample_photos()][:2]
        ['skateboarder', 'cat']
    """
    return [_FOLDER / f"{name}.jpg" for name in _NAMES]
