"""What a config may import: our own classes, those of a few libraries, and what the user names."""

import os

from jsonargparse import set_parsing_settings

# It opens what is closed below: reading configs from remote addresses. So it comes first.
from lightning.pytorch.cli import LightningCLI  # noqa: F401

TRUSTED = (
    "visattn",
    "torch.optim",
    "torch.nn",
    "lightning.pytorch",
    "pytorch_lightning",
    "torchmetrics",
)
_VARIABLE = "VISATTN_TRUST_MODULES"
_named_before: set[str] = set()


def trust_only_known_packages() -> None:
    """Let configs import from `TRUSTED`, and from what `VISATTN_TRUST_MODULES` names.

    Nothing else is imported, whatever a class path or a function says; configs are read from this
    machine only; and a class path where any value may stand remains a text.

    Raises:
        ValueError: If the variable holds something that is no name of a module.

    Example:
        >>> getfixture("monkeypatch").setenv("VISATTN_TRUST_MODULES", "my_blocks, my_tasks")
        >>> trust_only_known_packages()
    """
    named = named_modules(os.environ.get(_VARIABLE, ""))
    # The parser adds up what it is told, also what an earlier command of this process trusted.
    forgotten = sorted(_named_before - set(named))
    _named_before.update(named)
    set_parsing_settings(
        import_path_denylist=["*", *forgotten],
        import_path_allowlist=[*TRUSTED, *named],
        instantiate_subclass_spec_in_any=False,
        config_read_mode_urls_enabled=False,
        config_read_mode_fsspec_enabled=False,
    )


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
                f"{_VARIABLE} must hold names of modules with commas between them, such as "
                f"my_blocks,my_tasks; got {name!r}"
            )
    return names
