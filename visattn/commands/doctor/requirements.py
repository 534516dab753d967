"""Versions that are installed, and those that are needed, as packages say them themselves."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[[^]]*\])?\s*\(?(?P<bounds>[^();]*)\)?\s*(?:;(?P<marker>.*))?"
)
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")
_COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Requirement:
    """A package that another needs.

    Args:
        name: As its maker writes it.
        bounds: Of its version, as in `>=2.6,<3`.
        extra: The option for which it is needed; nothing if it always is.
    """

    name: str
    bounds: str
    extra: str = ""


def requirements_of(package: str) -> list[Requirement]:
    """Return what an installed package needs, its extras included.

    Raises:
        importlib.metadata.PackageNotFoundError: If it is not installed.

    Example:
        >>> "torch" in [one.name for one in requirements_of("visattn")]
        True
    """
    return [requirement(text) for text in metadata.requires(package) or []]


def requirement(text: str) -> Requirement:
    """Return a requirement from the way in which packages write them.

    Example:
        >>> requirement("torch (>=2.14.0)")
        Requirement(name='torch', bounds='>=2.14.0', extra='')
        >>> requirement("onnx>=1.17; extra == 'onnx'")
        Requirement(name='onnx', bounds='>=1.17', extra='onnx')
    """
    match = _REQUIREMENT.match(text.strip())
    if match is None:
        return Requirement(text, "")
    extra = _EXTRA.search(match["marker"] or "")
    return Requirement(match["name"], match["bounds"].strip(), extra[1] if extra else "")


def installed(name: str) -> str:
    """Return the version of an installed package, or nothing if it is not there.

    Example:
        >>> installed("no-such-package")
        ''
    """
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def within(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds; what comes after its numbers does not count.

    Example:
        >>> within("2.6.6", ">=2.6.6,<2.7"), within("2.15.0+cpu", "==2.15.0"), within("1", ">=2")
        (True, True, False)
    """
    for bound in filter(None, map(str.strip, bounds.split(","))):
        match = re.match(r"(>=|<=|==|!=|>|<|~=)\s*([\w.*+!-]+)", bound)
        if match is None or match[1] == "~=":
            continue  # nobody we depend on is bounded so
        wanted, own = _numbers(match[2]), _numbers(version)
        if match[2].endswith(".*"):
            own = own[: len(wanted)]
        width = max(len(wanted), len(own))
        padded = [(*numbers, *(0,) * (width - len(numbers))) for numbers in (own, wanted)]
        if not _COMPARISONS[match[1]](padded[0], padded[1]):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
