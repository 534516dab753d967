"""An object that tells whether a pickle of it was loaded."""

import os
from collections.abc import Callable
from pathlib import Path


class Trap:
    """Makes a folder when its pickle is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.mark),)
