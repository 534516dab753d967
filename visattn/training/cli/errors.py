"""Errors of Lightning and its parser in fewer words: what is wrong, without what was tried."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.trainer.connectors import checkpoint_connector

from visattn.training.distributed.peers import peer_lost

_UNION = "Does not validate against any of the Union subtypes"
_SHORT = 60  # characters of a value that are worth repeating
_NOISE = re.compile(
    r"^\s*(?:- )?(?:Subtypes: |Errors:$|Given value type: |Expected a <class 'NoneType'>$"
    rf"|{_UNION}$|Given value: (?:Namespace\(|.{{{_SHORT}}}))"
)


@contextmanager
def errors_told() -> Iterator[None]:
    """Let mistakes of the user be `ValueError`s that say what is wrong, whoever finds them.

    Example:
        >>> with errors_told():
        ...     raise MisconfigurationException("No supported gpu backend found!")
        Traceback (most recent call last):
        ValueError: No supported gpu backend found!
    """
    try:
        yield
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error
    except ValueError as error:
        plain = plain_error(str(error))
        if plain == str(error):
            raise
        raise ValueError(plain) from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        if not _restoring(error):
            raise
        first = next(iter(str(error).splitlines()), "")
        raise ValueError(
            "the checkpoint cannot be restored: it was written by a run with other callbacks or "
            f"another optimizer, or it is damaged ({type(error).__name__}: {first})"
        ) from error


def _restoring(error: Exception) -> bool:
    """Return whether an error arose while the trainer took over what a checkpoint holds."""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return checkpoint_connector.__file__ in files and not peer_lost(error)


def plain_error(message: str) -> str:
    """Return an error of the parser without the types that it tried, and without what it was given.

    Args:
        message: As the parser says it.

    Example:
        >>> plain_error('''Does not validate against any of the Union subtypes
        ... Subtypes: [<class 'DataModule'>, <class 'NoneType'>]
        ... Errors:
        ...   - nowhere/train holds no folders
        ...   - Expected a <class 'NoneType'>
        ... Given value type: <class 'Namespace'>
        ... Given value: Namespace(root='nowhere')''')
        'nowhere/train holds no folders'
    """
    if (before := re.search(r"Unexpected config: (.*)", message)) is not None:
        first = before[1][:_SHORT]
        return f"a config is a mapping of names to values; this one begins with {first!r}"
    if _UNION not in message:
        return message
    kept = [line.strip() for line in message.splitlines() if not _NOISE.match(line)]
    kept = [re.sub(rf"(?:- )?{_UNION}", "", line).strip() for line in kept]
    kept = list(dict.fromkeys(line.removeprefix("- ") for line in kept if line))
    return "\n  ".join(kept) or message
