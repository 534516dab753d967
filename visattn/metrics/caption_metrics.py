"""All scores of a set of captions at once."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from visattn.metrics.bleus import bleu_scores
from visattn.metrics.ciders import cider_scores
from visattn.metrics.java_scores import VERSIONS, JavaScore, java_score
from visattn.metrics.ngrams import ORDER, ngram_counts
from visattn.metrics.rouges import rouge_score
from visattn.metrics.signatures import score_signature
from visattn.metrics.tokens import ptb_tokens

BLEUS = tuple(f"BLEU-{n}" for n in range(1, ORDER + 1))
FEW = 100  # pictures, below which CIDEr-D says little


@dataclass(frozen=True)
class CaptionScores:
    """What `caption_scores` found.

    Args:
        corpus: BLEU-1 to BLEU-4 and ROUGE-L, 0 to 1; CIDEr-D, 0 to 10; METEOR and SPICE, 0 to 1,
            where they were computed.
        per_picture: The same per picture. The BLEU of all is no mean of these.
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
    per_picture: dict[str, dict[str, float]]
    signature: str
    not_computed: dict[str, str]
    warnings: tuple[str, ...] = ()


def caption_scores(
    captions: Mapping[str, str], references: Mapping[str, Sequence[str]], *, java: bool = False
) -> CaptionScores:
    """Return BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D as the evaluation code of COCO computes them.

    Captions and references are raw strings; both are cut into tokens here.

    Args:
        captions: What a model said, by picture.
        references: What people said, all of it, by picture.
        java: Also METEOR and SPICE, through pycocoevalcap. Where that or Java is missing they are
            not computed, and nothing takes their place.

    Raises:
        ValueError: If captions and references are not of the same pictures, there are none, or a
            picture has no reference.

    Example:
        >>> captions = {"1": "A dog runs.", "2": "Two cars."}
        >>> scores = caption_scores(captions, {"1": ["a dog runs"], "2": ["a blue car"]})
        >>> round(scores.corpus["ROUGE-L"], 4), round(scores.per_picture["1"]["CIDEr-D"], 4)
        (0.5, 7.5)
        >>> scores.warnings
        ('CIDEr-D over 2 pictures says little: it counts how rare words are among them. ...',)

    Source:
        Chen et al. 2015, arXiv:1504.00325, section 3.
    """
    _check(captions, references)
    ours = {picture: " ".join(ptb_tokens(caption)) for picture, caption in captions.items()}
    theirs = {
        picture: [" ".join(ptb_tokens(told)) for told in references[picture]]
        for picture in captions
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
            picture: dict(zip(columns, row, strict=True))
            for picture, row in zip(ours, rows, strict=True)
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
    if untold := [picture for picture in captions if not references.get(picture)]:
        raise ValueError(
            f"every caption must have a reference, but {listed(untold)} have none; leave them out "
            "or give their references"
        )
    if unsaid := [picture for picture in references if picture not in captions]:
        raise ValueError(
            f"every picture must have a caption, but {listed(unsaid)} have none; leave their "
            "references out to score the others alone"
        )


def _plain_scores(
    captions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the scores of all captions, and a column of each score per picture."""
    ours = [ngram_counts(caption.split()) for caption in captions]
    theirs = [[ngram_counts(line.split()) for line in told] for told in references]
    together, rows = bleu_scores(ours, theirs)
    columns = {
        name: list(column) for name, column in zip(BLEUS, zip(*rows, strict=True), strict=True)
    }
    columns["ROUGE-L"] = [
        rouge_score(caption, told) for caption, told in zip(captions, references, strict=True)
    ]
    columns["CIDEr-D"] = cider_scores(ours, theirs)
    means = {name: math.fsum(column) / len(column) for name, column in columns.items()}
    return {**means, **dict(zip(BLEUS, together, strict=True))}, columns


def _warnings(
    captions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield what may make scores mean less than they seem to."""
    if len(captions) == 1:
        yield "CIDEr-D over one picture is 0, whatever the caption says."
    elif len(captions) < FEW:
        yield (
            f"CIDEr-D over {len(captions)} pictures says little: it counts how rare words are "
            f"among them. From {FEW} pictures on it begins to settle."
        )
    if empty := [picture for picture, caption in captions.items() if not caption]:
        yield f"Without a word that counts: the captions of {listed(empty)}."
    if blank := [picture for picture, told in references.items() if not all(told)]:
        yield f"Without a word that counts: a reference of {listed(blank)}."


def listed(ids: Sequence[str]) -> str:
    """Return the first of several ids, and how many there are more.

    Example:
        >>> listed(["a", "b", "c", "d", "e", "f"])
        'a, b, c and 3 more'
    """
    shown = ", ".join(ids[:3])
    return f"{shown} and {len(ids) - 3:,} more" if len(ids) > 3 else shown
