"""How far a command has come, for those who wait."""

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def progress_bar(count: int, *, alone: bool = False) -> "Progress | nullcontext[None]":
    """Return a bar on stderr; none where nobody sees it or the results themselves go by.

    Args:
        count: Of the images; one alone needs no bar.
        alone: Nothing else is said meanwhile: the bar is seen wherever stderr is.
    """
    if count < 2 or not sys.stderr.isatty() or (sys.stdout.isatty() and not alone):
        return nullcontext()
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True), transient=True, redirect_stdout=False)
