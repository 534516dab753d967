"""Names of the environment in a config: what differs from machine to machine stays out of it."""

import os
import re
from typing import Any

_NAMED = re.compile(r"\$\{(\w+)\}")


def expanded(value: Any) -> Any:
    """Return a value of a config with each `${NAME}` in its texts replaced from the environment.

    Raises:
        ValueError: If the environment has no such name.

    Example:
        >>> os.environ["PHOTOS"] = "/data/photos"
        >>> expanded({"photos": "${PHOTOS}/2026", "sizes": [1, 2]})
        {'photos': '/data/photos/2026', 'sizes': [1, 2]}
    """
    if isinstance(value, str):
        return _NAMED.sub(_named, value)
    if isinstance(value, dict):
        return {key: expanded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(expanded, value))
    return value


def _named(found: re.Match[str]) -> str:
    name = found.group(1)
    if name not in os.environ:
        raise ValueError(
            f"the config says ${{{name}}}, but the environment does not: "
            f"export {name}=... first, or say the path on the command line"
        )
    return os.environ[name]
