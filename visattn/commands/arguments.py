"""Types of options, and how their defaults appear in the help."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from visattn.results.kinds import ResizeMode


def _unless_empty(default: str) -> str:
    return "" if default in ("", "''", "None", "False") else f"(default: {default})"


EMPTY = arg(help_behavior_hint=_unless_empty)
"""An empty default is not shown; the help of the option describes what happens then."""

Photos = Annotated[Positional[tuple[str, ...]], EMPTY, arg(metavar="PHOTO ...")]
Word = Annotated[str, EMPTY]
Words = Annotated[tuple[str, ...], EMPTY]
Integers = Annotated[tuple[int, ...], EMPTY]
Numbers = Annotated[tuple[float, ...], EMPTY]
Flag = Annotated[bool, EMPTY]
File = Annotated[Path | None, EMPTY, arg(metavar="FILE")]
Values = Annotated[tuple[str, ...], EMPTY, arg(metavar="NAME=VALUE ...")]
Figures = Literal["png", "svg", "pdf"]
FiguresOrNone = Annotated[Figures | None, EMPTY, arg(metavar="{png,svg,pdf}")]
ResizeModeOrNone = Annotated[ResizeMode | None, EMPTY, arg(metavar="{crop,squash,pad}")]
Models = Annotated[UseAppendAction[tuple[str, ...]], EMPTY, arg(metavar="SPEC")]
"""An option that is passed once for each model."""
