"""One line that says how scores were computed, so that two are compared only if they may be."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from visattn.metrics.captioning.bleu import MAX_ORDER, bleu_scores, ngram_counts
from visattn.metrics.captioning.cider import cider_d
from visattn.metrics.captioning.java import VERSIONS, JavaScore, java_score
from visattn.metrics.captioning.ptb_tokenizer import ptb_tokenize
from visattn.metrics.captioning.rouge import BETA, rouge_l


def score_signature(images: int, references: Iterable[int], *, java: Iterable[str] = ()) -> str:
    """Return tokenizer, variants of the scores, references, images and version in one line.

    Args:
        images: How many were scored.
        references: How many each image has.
        java: The scores that came from Java, as `meteor:1.5`.

    Example:
        >>> score_signature(3, [5, 4, 5])  # doctest: +ELLIPSIS
        'tok:ptb-py|bleu:closest|rouge:1.2|cider:D|df:eval|refs:all(4-5)|n:3|visattn:...'
    """
    counts = {*references}
    least, most = min(counts), max(counts)
    spread = f"{least}" if least == most else f"{least}-{most}"
    parts = ["tok:ptb-py", "bleu:closest", f"rouge:{BETA}", "cider:D", "df:eval", *java]
    parts += [f"refs:all({spread})", f"n:{images}", f"visattn:{version('visattn')}"]
    return "|".join(parts)


BLEUS = tuple(f"BLEU-{n}" for n in range(1, MAX_ORDER + 1))
FEW = 100  # images, below which CIDEr-D says little


@dataclass(frozen=True)
class CaptionScores:
    """What `caption_scores` found.

    Args:
        corpus: BLEU-1 to BLEU-4 and ROUGE-L, 0 to 1; CIDEr-D, 0 to 10; METEOR and SPICE, 0 to 1,
            where they were computed.
        per_image: The same per image. The BLEU of all is no mean of these.
        signature: How they were computed, in one line. Scores are comparable if all of it but the
            version agrees.
        not_computed: Why METEOR and SPICE are missing, if they are.
        warnings: What a reader must know, in sentences.

    Example:
        >>> scores = caption_scores({"1": "a dog"}, {"1": ["a cat", "one dog"]})
        >>> round(scores.corpus["BLEU-1"], 6), round(scores.corpus["ROUGE-L"], 6)
        (1.0, 0.5)
        >>> scores.not_computed["METEOR"]
        'not asked for'
    """

    corpus: dict[str, float]
    per_image: dict[str, dict[str, float]]
    signature: str
    not_computed: dict[str, str]
    warnings: tuple[str, ...] = ()


def caption_scores(
    captions: Mapping[str, str], references: Mapping[str, Sequence[str]], *, java: bool = False
) -> CaptionScores:
    """Return BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D as the evaluation code of COCO computes them.

    Captions and references are raw strings; both are cut into tokens here.

    Args:
        captions: What a model said, by image.
        references: What people said, all of it, by image.
        java: Also METEOR and SPICE, through pycocoevalcap. Where that or Java is missing they are
            not computed, and nothing takes their place.

    Raises:
        ValueError: If captions and references are not of the same images, there are none, or an
            image has no reference.

    Example:
        >>> captions = {"1": "A dog runs.", "2": "Two cars."}
        >>> scores = caption_scores(captions, {"1": ["a dog runs"], "2": ["a blue car"]})
        >>> round(scores.corpus["ROUGE-L"], 4), round(scores.per_image["1"]["CIDEr-D"], 4)
        (0.5, 7.5)
        >>> scores.warnings
        ('CIDEr-D over 2 images says little: it counts how rare words are among them. ...',)

    Source:
        Chen et al. 2015, arXiv:1504.00325, section 3.
    """
    _check(captions, references)
    ours = {image: " ".join(ptb_tokenize(caption)) for image, caption in captions.items()}
    theirs = {
        image: [" ".join(ptb_tokenize(told)) for told in references[image]] for image in captions
    }
    corpus, columns = _plain_scores(list(ours.values()), list(theirs.values()))
    not_computed: dict[str, str] = {}
    for name in VERSIONS:
        found = java_score(name, ours, theirs) if java else "not asked for"
        if isinstance(found, JavaScore):
            corpus[name], columns[name] = found
        else:
            not_computed[name] = found
    rows = zip(*columns.values(), strict=True)
    return CaptionScores(
        corpus,
        {
            image: dict(zip(columns, row, strict=True))
            for image, row in zip(ours, rows, strict=True)
        },
        score_signature(
            len(ours),
            map(len, theirs.values()),
            java=[VERSIONS[name] for name in VERSIONS if name in corpus],
        ),
        not_computed,
        tuple(_warnings(ours, theirs)),
    )


def _check(captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> None:
    if not captions:
        raise ValueError("there must be at least one caption to score, got none")
    if without_references := [image for image in captions if not references.get(image)]:
        raise ValueError(
            f"every caption must have a reference, but {format_ids(without_references)} have none; "
            "leave them out or add their references"
        )
    if without_captions := [image for image in references if image not in captions]:
        raise ValueError(
            f"every image must have a caption, but {format_ids(without_captions)} have none; "
            "leave their references out to score only the others"
        )


def _plain_scores(
    captions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the scores of all captions, and a column of each score per image."""
    ours = [ngram_counts(caption.split()) for caption in captions]
    theirs = [[ngram_counts(line.split()) for line in told] for told in references]
    together, rows = bleu_scores(ours, theirs)
    columns = {
        name: list(column) for name, column in zip(BLEUS, zip(*rows, strict=True), strict=True)
    }
    columns["ROUGE-L"] = [
        rouge_l(caption, told) for caption, told in zip(captions, references, strict=True)
    ]
    columns["CIDEr-D"] = cider_d(ours, theirs)
    means = {name: math.fsum(column) / len(column) for name, column in columns.items()}
    return {**means, **dict(zip(BLEUS, together, strict=True))}, columns


def _warnings(
    captions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield what may make scores mean less than they seem to."""
    if len(captions) == 1:
        yield "CIDEr-D over one image is 0, whatever the caption says."
    elif len(captions) < FEW:
        yield (
            f"CIDEr-D over {len(captions)} images says little: it counts how rare words are "
            f"among them. From {FEW} images on it begins to settle."
        )
    if empty := [image for image, caption in captions.items() if not caption]:
        yield f"Without a word that counts: the captions of {format_ids(empty)}."
    if blank := [image for image, told in references.items() if not all(told)]:
        yield f"Without a word that counts: a reference of {format_ids(blank)}."


def format_ids(ids: Sequence[str]) -> str:
    """Return the first of several ids, and how many there are more.

    Example:
        >>> format_ids(["a", "b", "c", "d", "e", "f"])
        'a, b, c and 3 more'
    """
    shown = ", ".join(ids[:3])
    return f"{shown} and {len(ids) - 3:,} more" if len(ids) > 3 else shown
