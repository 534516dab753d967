"""Caption metrics as in the COCO evaluation code, with a signature of their configuration."""

import importlib
import math
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from visattn.io.messages import format_names
from visattn.metrics.ngrams import BETA, MAX_ORDER, bleu_scores, cider_d, ngram_counts, rouge_l
from visattn.metrics.ptb_tokenizer import ptb_tokenize


def score_signature(images: int, references: Iterable[int], *, java: Iterable[str] = ()) -> str:
    """Return a line with tokenizer, metric variants, numbers of references and images, and version.

    Example:
        >>> score_signature(3, [5, 4, 5])  # doctest: +ELLIPSIS
        'tok:ptb-py|bleu:closest|rouge:1.2|cider:D|df:eval|refs:all(4-5)|n:3|visattn:...'
    """
    counts = {*references}
    minimum = min(counts)
    maximum = max(counts)
    count_range = f"{minimum}" if minimum == maximum else f"{minimum}-{maximum}"
    parts = ["tok:ptb-py", "bleu:closest", f"rouge:{BETA}", "cider:D", "df:eval", *java]
    parts += [f"refs:all({count_range})", f"n:{images}", f"visattn:{version('visattn')}"]
    return "|".join(parts)


BLEUS = tuple(f"BLEU-{n}" for n in range(1, MAX_ORDER + 1))
FEW = 100  # number of images below which CIDEr-D is unreliable


@dataclass(frozen=True)
class CaptionScores:
    """Caption metrics of a corpus and of each image.

    Args:
        corpus: BLEU-1 to BLEU-4 and ROUGE-L, 0 to 1; CIDEr-D, 0 to 10; METEOR and SPICE, 0 to 1,
            if they were computed.
        per_image: The same metrics of each image. Corpus BLEU is not the mean of these.
        signature: Configuration of the metrics in one line. Scores are comparable if their
            signatures are equal except for the version.
        not_computed: Reason why METEOR or SPICE was not computed, by metric.
        warnings: Reasons why scores may be unreliable, as sentences.

    Example:
        >>> scores = caption_scores({"1": "a dog"}, {"1": ["a cat", "one dog"]})
        >>> round(scores.corpus["BLEU-1"], 6), round(scores.corpus["ROUGE-L"], 6)
        (1.0, 0.5)
        >>> scores.not_computed["METEOR"]
        'not requested'
    """

    corpus: dict[str, float]
    per_image: dict[str, dict[str, float]]
    signature: str
    not_computed: dict[str, str]
    warnings: tuple[str, ...] = ()


def caption_scores(
    captions: Mapping[str, str], references: Mapping[str, Sequence[str]], *, java: bool = False
) -> CaptionScores:
    """Return BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D as the COCO evaluation code computes them.

    Captions and references are raw strings; both are tokenized here.

    Args:
        captions: Generated caption of each image.
        references: All human captions of each image.
        java: Whether to compute METEOR and SPICE too, by pycocoevalcap. If it or Java is not
            installed, they are reported as not computed.

    Raises:
        ValueError: If there are no captions, an image has no reference, or captions and references
            are of different images.

    Example:
        >>> captions = {"1": "A dog runs.", "2": "Two cars."}
        >>> scores = caption_scores(captions, {"1": ["a dog runs"], "2": ["a blue car"]})
        >>> round(scores.corpus["ROUGE-L"], 4), round(scores.per_image["1"]["CIDEr-D"], 4)
        (0.5, 7.5)
        >>> scores.warnings
        ('CIDEr-D over 2 images is unreliable: ...',)

    Source:
        Chen et al. 2015, arXiv:1504.00325, section 3.
    """
    _check_images(captions, references)
    tokenized = {image: " ".join(ptb_tokenize(caption)) for image, caption in captions.items()}
    tokenized_references = {
        image: [" ".join(ptb_tokenize(reference)) for reference in references[image]]
        for image in captions
    }
    corpus, columns = _python_scores(list(tokenized.values()), list(tokenized_references.values()))
    not_computed: dict[str, str] = {}
    for name in VERSIONS:
        result = java_score(name, tokenized, tokenized_references) if java else "not requested"
        if isinstance(result, JavaScore):
            corpus[name], columns[name] = result
        else:
            not_computed[name] = result
    rows = zip(*columns.values(), strict=True)
    return CaptionScores(
        corpus,
        {
            image: dict(zip(columns, row, strict=True))
            for image, row in zip(tokenized, rows, strict=True)
        },
        score_signature(
            len(tokenized),
            map(len, tokenized_references.values()),
            java=[VERSIONS[name] for name in VERSIONS if name in corpus],
        ),
        not_computed,
        tuple(_warnings(tokenized, tokenized_references)),
    )


def _check_images(captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> None:
    if not captions:
        raise ValueError("there must be at least one caption to score, got none")
    if without_references := [image for image in captions if not references.get(image)]:
        raise ValueError(
            f"every caption must have a reference, but {format_names(without_references)} have "
            "none; remove them or add references"
        )
    if without_captions := [image for image in references if image not in captions]:
        raise ValueError(
            f"every image must have a caption, but {format_names(without_captions)} have none; "
            "remove their references to score only the others"
        )


def _python_scores(
    captions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the corpus score of each metric without Java, and its scores of all images."""
    caption_counts = [ngram_counts(caption.split()) for caption in captions]
    reference_counts = [
        [ngram_counts(reference.split()) for reference in image_references]
        for image_references in references
    ]
    corpus_bleu, rows = bleu_scores(caption_counts, reference_counts)
    columns = {
        name: list(column) for name, column in zip(BLEUS, zip(*rows, strict=True), strict=True)
    }
    columns["ROUGE-L"] = [
        rouge_l(caption, image_references)
        for caption, image_references in zip(captions, references, strict=True)
    ]
    columns["CIDEr-D"] = cider_d(caption_counts, reference_counts)
    # Corpus scores are means over images, except for BLEU.
    means = {name: math.fsum(column) / len(column) for name, column in columns.items()}
    return {**means, **dict(zip(BLEUS, corpus_bleu, strict=True))}, columns


def _warnings(
    captions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield the reasons why scores may be unreliable."""
    if len(captions) == 1:
        yield "CIDEr-D over one image is 0 for every caption."
    elif len(captions) < FEW:
        yield (
            f"CIDEr-D over {len(captions)} images is unreliable: its document frequencies are "
            f"computed over these images. Use at least {FEW} images."
        )
    if empty := [image for image, caption in captions.items() if not caption]:
        yield f"The captions of {format_names(empty)} have no tokens besides punctuation."
    if empty := [image for image, lines in references.items() if not all(lines)]:
        yield f"Some references of {format_names(empty)} have no tokens besides punctuation."


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

    Captions and references are tokens, separated by single spaces, of the same images in the same
    order. Nothing is downloaded: SPICE needs models of 385 MB, which pycocoevalcap can download.

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
    scores = {
        image: float(result["All"]["f"] if isinstance(result, dict) else result)
        for image, result in zip(images, results, strict=True)
    }
    return JavaScore(float(corpus), [scores[image] for image in captions])
