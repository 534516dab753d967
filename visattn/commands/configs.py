"""`visattn configs`: list the configs of experiments, or print one."""

from tyro.conf import Positional

from visattn.commands.streams import print_summaries
from visattn.training.command import find_config, list_configs


def configs(name: Positional[str] = "") -> int:
    """List the configs that come with visattn, each one an experiment, or print one to edit.

    visattn fit --config NAME trains one of them from any folder.

    Args:
        name: the config to print

    Example:
        >>> configs("scenes_demo")
        # Captioning on rendered scenes: ...
        0
    """
    if name:
        print(find_config(name).read_text(), end="")
    else:
        print_summaries(list_configs())
    return 0
