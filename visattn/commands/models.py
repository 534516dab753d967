"""`visattn models`: list the models that come with visattn, or print the card of one."""

from tyro.conf import Positional

from visattn.commands.streams import print_summaries
from visattn.io.messages import did_you_mean
from visattn.models.model_files import BUNDLED, bundled_models


def models(name: Positional[str] = "") -> int:
    """List the trained models that come with visattn, or print the card of one.

    va.load(NAME) loads a model; --model NAME uses it in a command.

    Args:
        name: the card to print: data, training config, test scores, limits

    Example:
        >>> models("scenes-captioner")
        ---
        library_name: visattn
        ...
        0
    """
    if not name:
        print_summaries(bundled_models())
        return 0
    if name not in bundled_models():
        raise FileNotFoundError(
            f"no model is named {name!r}; {did_you_mean(name, bundled_models())}"
        )
    print((BUNDLED / f"{name}.md").read_text(encoding="utf-8"), end="")
    return 0
