"""Allow-list of modules that a config or a command line may import by name."""

import importlib
import os
import sys
from types import ModuleType

TRUSTED_MODULES = (
    "visattn",
    "torch.optim",
    "torch.nn",
    "torchvision.transforms",
    "lightning.pytorch",
    "pytorch_lightning",
    "torchmetrics",
)
TRUST_VARIABLE = "VISATTN_TRUST_MODULES"
"""Environment variable in which users list their own modules, separated by commas."""


def user_trusted_modules() -> list[str]:
    """Return the modules that the user trusts in addition to `TRUSTED_MODULES`.

    Raises:
        ValueError: If the environment variable holds an invalid module name.

    Example:
        >>> getfixture("monkeypatch").setenv("VISATTN_TRUST_MODULES", "my_blocks, my_tasks.losses,")
        >>> user_trusted_modules()
        ['my_blocks', 'my_tasks.losses']
    """
    names = [name.strip() for name in os.environ.get(TRUST_VARIABLE, "").split(",") if name.strip()]
    for name in names:
        if not all(word.isidentifier() for word in name.split(".")):
            raise ValueError(
                f"{TRUST_VARIABLE} must hold module names separated by commas, such as "
                f"my_blocks,my_tasks; got {name!r}"
            )
    return names


def is_trusted_module(module: str) -> bool:
    """Return whether a module is on the allow-list or below a module on it.

    Raises:
        ValueError: If the environment variable holds an invalid module name.

    Example:
        >>> is_trusted_module("torch.nn.modules.conv"), is_trusted_module("torch")
        (True, False)
    """
    return any(
        f"{module}.".startswith(f"{name}.") for name in (*TRUSTED_MODULES, *user_trusted_modules())
    )


def import_trusted(module: str) -> ModuleType:
    """Import a module that the user trusts, also from the working directory."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    return importlib.import_module(module)
