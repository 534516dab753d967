"""`visattn models`: list the models that come with visattn, or print the card of one."""

import re

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
    summaries = bundled_models()
    if not name:
        print_summaries({each: f"{_terms(each)}  {text}" for each, text in summaries.items()})
        return 0
    if name not in summaries:
        raise FileNotFoundError(f"no model is named {name!r}; {did_you_mean(name, summaries)}")
    print(_card(name), end="")
    return 0


def _card(name: str) -> str:
    return (BUNDLED / f"{name}.md").read_text(encoding="utf-8")


def _terms(name: str) -> str:
    """Return size and license of a model.

    Example:
        >>> _terms("scenes-captioner")
        '1.7 MB, apache-2.0'
    """
    size = (BUNDLED / f"{name}.safetensors").stat().st_size / 1e6
    found = re.search("^license: (.+)$", _card(name), re.MULTILINE)
    return f"{size:.1f} MB, {found[1] if found else 'license unknown'}"
