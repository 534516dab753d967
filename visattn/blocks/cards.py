"""What a block is: its paper, its equation, and where ours differs."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["channel", "spatial", "both", "branches", "grid", "other"]


@dataclass(frozen=True)
class Card:
    """What somebody wants to know of a block before using it.

    Args:
        name: In the catalogue.
        kind: What it weighs: each `channel`, each place (`spatial`), `both`, the `branches` of
            several convolutions, or, on a `grid`, what each place takes from the others; `other`
            for a registered block that does not say.
        title: Its name in the literature.
        paper: Authors, year, and where to find it.
        equation: What it computes, in a line or a few; x is the input, y the output, s the sigmoid.
        parameters: How many there are at C channels, in closed form.
        deviations: Where it differs from the paper or from code that people know, a line each.
        weights: Whose weights fit as they are or by a converter, a line each.
        aliases: Other names under which it is known. Case, spaces, hyphens and underscores do not
            matter, and the name of its class is known anyway.
    """

    name: str
    kind: Kind
    title: str
    paper: str
    equation: str
    parameters: str
    deviations: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
