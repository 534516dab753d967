"""One line that says how scores were computed, so that two are compared only if they may be."""

from collections.abc import Iterable
from importlib.metadata import version

from visattn.metrics.rouges import BETA


def score_signature(pictures: int, references: Iterable[int], *, java: Iterable[str] = ()) -> str:
    """Return tokenizer, variants of the scores, references, pictures and version in one line.

    Args:
        pictures: How many were scored.
        references: How many each picture has.
        java: The scores that came from Java, as `meteor:1.5`.

    Example:
        >>> score_signature(3, [5, 4, 5])  # doctest: +ELLIPSIS
        'tok:ptb-py|bleu:closest|rouge:1.2|cider:D|df:eval|refs:all(4-5)|n:3|visattn:...'
    """
    counts = {*references}
    least, most = min(counts), max(counts)
    spread = f"{least}" if least == most else f"{least}-{most}"
    parts = ["tok:ptb-py", "bleu:closest", f"rouge:{BETA}", "cider:D", "df:eval", *java]
    parts += [f"refs:all({spread})", f"n:{pictures}", f"visattn:{version('visattn')}"]
    return "|".join(parts)
