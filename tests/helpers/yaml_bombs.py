"""Short YAML documents that expand beyond any memory."""


def bomb(levels: int = 9, width: int = 9) -> str:
    """Return a few lines that expand to `width ** levels` texts."""
    lines = ["a0: &a0 [" + ", ".join(["lol"] * width) + "]"]
    lines += [
        f"a{level}: &a{level} [" + ", ".join([f"*a{level - 1}"] * width) + "]"
        for level in range(1, levels)
    ]
    return "\n".join(lines)


BOMB = bomb()
