"""Checks of a config.json of transformers before a model is built from it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from visattn.io.safe_text import short_repr
from visattn.models.serialization.state_dicts import read_state_dict
from visattn.models.serialization.weight_files import open_safetensors, tensor_shapes

_OWN_ATTENTION = ("eager", "sdpa", "flex_attention", None)
_ATTENTION_KEYS = ("attn_implementation", "_attn_implementation")
_MAX_CLASSES = 10_000_000
# Modules that transformers makes one by one; each of them has a tensor of its own.
_NUMBERS_OF_MODULES = re.compile(r"(layers?|depths?|blocks|stages|experts)$")
_FEW_MODULES = 1_000  # made within seconds
_SIZES = re.compile(r"(?<!vocab_)(sizes?|dims?|channels|heads|width|features)$")
_SMALL_SIZE = 20_000  # of a weight matrix that fits into memory
_CLASSES = re.compile(r"num_labels|vocab_size")


def weight_shapes(directory: Path) -> list[tuple[int, ...]]:
    """Return the shapes of the weights of a directory, from the headers if possible.

    Args:
        directory: Directory as written by `save_pretrained`.

    Raises:
        ValueError: If a file is damaged, or a pickle that would execute code.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        return [tuple(each.shape) for each in read_state_dict(directory).tensors.values()]
    shapes: list[tuple[int, ...]] = []
    for file in files:
        with open_safetensors(file) as opened:
            shapes += tensor_shapes(opened).values()
    return shapes


def check_config(config: Mapping[str, Any], directory: Path) -> None:
    """Refuse a config of far more or larger modules than the weights: to build them takes hours.

    Args:
        config: Content of config.json.
        directory: Directory of config and weights.

    Raises:
        ValueError: If a number of layers, a size or a number of classes is too large, or a weight
            file is damaged.
    """
    shapes = weight_shapes(directory)
    largest = max((side for shape in shapes for side in shape), default=0)
    limits = {
        _CLASSES: _MAX_CLASSES,
        _NUMBERS_OF_MODULES: max(_FEW_MODULES, len(shapes)),
        _SIZES: max(_SMALL_SIZE, largest),
    }
    for key, value in _numbers(config):
        for pattern, limit in limits.items():
            if pattern.search(key) and value > limit:
                raise ValueError(
                    f"{directory / 'config.json'}: {short_repr(key)} must be at most {limit:,}, "
                    f"got {short_repr(value)}: the weight files have {len(shapes):,} tensors with "
                    f"sides of up to {largest:,}"
                )


def names_other_attention(config: object) -> bool:
    """Return whether a config names an attention that transformers would download and run.

    Args:
        config: Content of config.json.

    Example:
        >>> names_other_attention({"vision_config": {"attn_implementation": "user/kernel"}})
        True
        >>> names_other_attention({"attn_implementation": "sdpa"})
        False
    """
    if isinstance(config, list):
        return any(map(names_other_attention, config))
    if not isinstance(config, dict):
        return False
    return any(
        _is_other(value) if key in _ATTENTION_KEYS else names_other_attention(value)
        for key, value in config.items()
    )


def _is_other(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_is_other, value.values()))
    return value not in _OWN_ATTENTION


def _numbers(config: object, key: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a config, each with the key that it stands under."""
    if isinstance(config, dict):
        for name, value in config.items():
            yield from _numbers(value, name)
    elif isinstance(config, list):
        for value in config:
            yield from _numbers(value, key)
    elif isinstance(config, int | float):
        yield key, config
