"""Which modules may be imported because a text names them, in a config or on a command line."""

import os

TRUSTED = (
    "visattn",
    "torch.optim",
    "torch.nn",
    "lightning.pytorch",
    "pytorch_lightning",
    "torchmetrics",
)
VARIABLE = "VISATTN_TRUST_MODULES"
"""The environment variable in which users name modules of their own."""


def named_modules(text: str) -> list[str]:
    """Return the modules that a comma-separated text names.

    Raises:
        ValueError: If one of them is no name of a module.

    Example:
        >>> named_modules("my_blocks, my_tasks.losses,")
        ['my_blocks', 'my_tasks.losses']
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(
                f"{VARIABLE} must hold names of modules with commas between them, such as "
                f"my_blocks,my_tasks; got {name!r}"
            )
    return names


def users_modules() -> list[str]:
    """Return the modules that the user trusts, besides `TRUSTED`.

    Raises:
        ValueError: If the variable holds something that is no name of a module.

    Example:
        >>> getfixture("monkeypatch").setenv("VISATTN_TRUST_MODULES", "my_blocks")
        >>> users_modules()
        ['my_blocks']
    """
    return named_modules(os.environ.get(VARIABLE, ""))


def is_trusted(module: str) -> bool:
    """Return whether a module is one of those that may be imported, or lies below one.

    Raises:
        ValueError: If the variable holds something that is no name of a module.

    Example:
        >>> is_trusted("torch.nn.modules.conv"), is_trusted("torch"), is_trusted("os")
        (True, False, False)
    """
    return any(f"{module}.".startswith(f"{name}.") for name in (*TRUSTED, *users_modules()))
