"""METEOR and SPICE, computed by the Java programs of pycocoevalcap."""

import importlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

VERSIONS = {"METEOR": "meteor:1.5", "SPICE": "spice:1.0"}

_SPICE_JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")


class JavaScore(NamedTuple):
    """Score that a Java program computed."""

    corpus: float
    per_image: list[float]  # in the order of the captions


def java_score(
    name: str, captions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> JavaScore | str:
    """Return METEOR or SPICE, 0 to 1, or the reason why it was not computed.

    Nothing is downloaded: SPICE needs models of 385 MB, which pycocoevalcap can download.

    Args:
        name: `METEOR` or `SPICE`.
        captions: Tokens of each caption, separated by single spaces.
        references: Tokens of the references of the same images, in the same order.

    Source:
        Denkowski and Lavie 2014, Meteor Universal; Anderson et al. 2016, arXiv:1607.08822.
    """
    if shutil.which("java") is None:
        return "Java is not installed"
    try:
        module: Any = importlib.import_module(f"pycocoevalcap.{name.lower()}.{name.lower()}")
    except ImportError:
        return "pycocoevalcap is not installed"
    folder = Path(module.__file__).parent
    if name == "SPICE" and not all((folder / "lib" / jar).exists() for jar in _SPICE_JARS):
        return "no models; pycocoevalcap.spice.get_stanford_models downloads them (385 MB)"
    reference_lists = {image: list(lines) for image, lines in references.items()}
    caption_lists = {image: [caption] for image, caption in captions.items()}
    try:
        scorer = getattr(module, name.capitalize())()
        corpus, results = scorer.compute_score(reference_lists, caption_lists)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"the Java program failed: {error}"
    # SPICE returns scores in the order of the sorted ids, METEOR in that of the captions.
    images = sorted(captions) if name == "SPICE" else list(captions)
    scores = {image: _score_value(result) for image, result in zip(images, results, strict=True)}
    return JavaScore(float(corpus), [scores[image] for image in captions])


def _score_value(result: Any) -> float:
    return float(result["All"]["f"]) if isinstance(result, dict) else float(result)
