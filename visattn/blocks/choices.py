"""Options that are one of a few words."""


def check_choice(option: str, given: str, choices: tuple[str, ...]) -> None:
    """Let one of the choices pass.

    Raises:
        ValueError: If it is none of them.

    Example:
        >>> check_choice("combine", "add", ("add", "mul"))
    """
    if given not in choices:
        raise ValueError(f"{option} must be one of {', '.join(choices)}, got {given!r}")


def check_odd(option: str, given: int) -> None:
    """Let a size pass that has a middle.

    Raises:
        ValueError: If it is even or below 1.

    Example:
        >>> check_odd("kernel", 7)
    """
    if given < 1 or given % 2 == 0:
        raise ValueError(f"{option} must be odd, so that the map keeps its size, got {given}")
