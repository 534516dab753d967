"""What a config may import: our own classes, those of a few libraries, and what the user names."""

from jsonargparse import set_parsing_settings
from lightning.pytorch.cli import LightningCLI  # noqa: F401

from visattn.io.trusted_modules import TRUSTED, users_modules

# It opens what is closed below: reading configs from remote addresses. So it comes first.


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
    named = users_modules()
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
