"""Configs that come with visattn, found by name from any directory."""

from pathlib import Path

from visattn.io.messages import did_you_mean

_PACKAGE = Path(__file__).resolve().parents[1]


def config_directory() -> Path:
    """Return the directory of the configs: inside the installed package, or of the checkout.

    Example:
        >>> (config_directory() / "scenes_demo.yaml").is_file()
        True
    """
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def list_configs() -> dict[str, str]:
    """Return the names of all configs with the first line of their heads.

    Example:
        >>> list_configs()["scenes_demo"].startswith("Captioning on rendered scenes")
        True
    """
    files = sorted(config_directory().glob("*.yaml"))
    return {file.stem: file.read_text().partition("\n")[0].removeprefix("# ") for file in files}


def find_config(name: str) -> Path:
    """Return the file of a config that comes with visattn.

    Args:
        name: Its name without `.yaml`, as `list_configs` gives it.

    Raises:
        FileNotFoundError: If there is none; the message lists close matches.

    Example:
        >>> find_config("scenes_demo").name
        'scenes_demo.yaml'
    """
    configs = list_configs()
    if name in configs:
        return config_directory() / f"{name}.yaml"
    hint = did_you_mean(name, configs, otherwise="visattn configs lists all")
    raise FileNotFoundError(f"there is no config {name!r}; {hint}")
