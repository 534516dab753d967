"""METEOR and SPICE, which exist in Java only: computed by pycocoevalcap, or not at all."""

import importlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

VERSIONS = {"METEOR": "meteor:1.5", "SPICE": "spice:1.0"}

_SPICE_JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")


class JavaScore(NamedTuple):
    """A score that a program in Java gave."""

    corpus: float
    per_image: list[float]  # in the order of the captions


def java_score(
    name: str, captions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> JavaScore | str:
    """Return METEOR or SPICE, 0 to 1, or why it was not computed.

    Nothing is downloaded: SPICE needs models of 385 MB, which pycocoevalcap fetches when it is
    used by itself.

    Args:
        name: `METEOR` or `SPICE`.
        captions: Tokens of each caption with single blanks between them.
        references: The same, for the same images in the same order.

    Source:
        Denkowski and Lavie 2014, Meteor Universal; Anderson et al. 2016, arXiv:1607.08822.
    """
    if shutil.which("java") is None:
        return "no java"
    try:
        module: Any = importlib.import_module(f"pycocoevalcap.{name.lower()}.{name.lower()}")
    except ImportError:
        return "no pycocoevalcap"
    folder = Path(module.__file__).parent
    if name == "SPICE" and not all((folder / "lib" / jar).exists() for jar in _SPICE_JARS):
        return "no models; pycocoevalcap.spice.get_stanford_models fetches them (385 MB)"
    given = {image: list(told) for image, told in references.items()}
    ours = {image: [caption] for image, caption in captions.items()}
    try:
        corpus, rows = getattr(module, name.capitalize())().compute_score(given, ours)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"its program failed: {error}"
    # SPICE answers in the order of the sorted ids, METEOR in that of the captions.
    order = sorted(ours) if name == "SPICE" else list(ours)
    scores = {image: _number(row) for image, row in zip(order, rows, strict=True)}
    return JavaScore(float(corpus), [scores[image] for image in ours])


def _number(row: Any) -> float:
    return float(row["All"]["f"]) if isinstance(row, dict) else float(row)
