"""Keys and values of a prompt that are kept from the generation.

A replay then reads the words only, and the last token of the prompt, which chose the first of them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

_MASKS = ("attention_mask",)
_MIN_QUERIES = 2  # with one, some models pack the heads on the axis of the queries


@dataclass(frozen=True, eq=False)
class CachedPrompt:
    """Keys and values of the tokens before the first generated one.

    Args:
        layers: Keys and values of each layer.
        positions: Positions of the tokens, as the model got them; None if it counts them itself.
    """

    layers: tuple[tuple[Float[Tensor, "1 _h n _d"], Float[Tensor, "1 _h n _e"]], ...]
    positions: Int[Tensor, "*axes n"] | None

    def without_padding(self, count: int) -> "CachedPrompt":
        """Return the prompt without the first `count` tokens."""
        layers = tuple((keys[:, :, count:], values[:, :, count:]) for keys, values in self.layers)
        positions = None if self.positions is None else self.positions[..., count:]
        return replace(self, layers=layers, positions=positions)

    def replay_inputs(self, inputs: dict[str, Any], num_generated: int) -> dict[str, Any] | None:
        """Return the inputs of a forward pass over the tokens that follow the cached ones.

        Args:
            inputs: Inputs of a forward pass over prompt and words, as for the whole replay.
            num_generated: Number of generated tokens.

        Returns:
            None if the prompt is another one, or too short.
        """
        ids = inputs["input_ids"]
        length = ids.shape[1]
        prompt = length + 1 - num_generated
        first = min(prompt - 1, length - _MIN_QUERIES)
        if first < 1 or prompt != self.layers[0][0].shape[2]:
            return None
        replayed = {
            name: value[:, first:] if name not in _MASKS and isinstance(value, Tensor) else value
            for name, value in inputs.items()
            if not isinstance(value, Tensor) or _is_text(value, length)
        }
        if self.positions is not None:
            last = self.positions[..., -1:] + torch.arange(1, num_generated).to(self.positions)
            replayed["position_ids"] = torch.cat([self.positions, last], -1)[..., first:]
        replayed["past_key_values"] = self._cache(first)
        replayed["use_cache"] = True
        return replayed

    def _cache(self, length: int) -> Any:
        """Return a cache of the first tokens, which stores no others."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        cache: Any = DynamicCache()
        cache.layers = []
        for keys, values in self.layers:
            layer: Any = DynamicLayer()
            layer.keys, layer.values = keys[:, :, :length], values[:, :, :length]
            layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
            layer.update = partial(_joined, layer.keys, layer.values)
            cache.layers.append(layer)
        return cache


def _joined(
    keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    return torch.cat([keys, new_keys], 2), torch.cat([values, new_values], 2)


def _is_text(value: Tensor, length: int) -> bool:
    """Whether an input has one entry per token."""
    return value.ndim > 1 and value.shape[1] == length and not value.is_floating_point()


@dataclass(eq=False)
class PromptWatch:
    """Finds the keys and values of prompts after a generation.

    Args:
        model: The model that generates.
    """

    model: nn.Module
    _positions: list[Tensor | None] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Store the positions of the prompt, which the first call of the model inside gets."""

        def hook(_: nn.Module, __: Any, kwargs: dict[str, Any]) -> None:
            if not self._positions:
                self._positions.append(kwargs.get("position_ids"))

        handle = self.model.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def prompts(self, output: Any, inputs: Mapping[str, Any]) -> list[CachedPrompt] | None:
        """Return the prompt of each sequence of a generation.

        Those of one photo, such as beams, share it.

        Args:
            output: What `generate` returned.
            inputs: Its inputs, one row per photo.

        Returns:
            None if its cache does not hold the keys of all tokens in their order.
        """
        if "input_ids" not in inputs:
            return None
        photos, length = inputs["input_ids"].shape
        layers = _complete_layers(getattr(output, "past_key_values", None),
                                  length + len(output.logits) - 1)  # fmt: skip
        if layers is None or not self._positions:
            return None
        positions = self._positions[0]
        if positions is not None and positions.shape[-1] != length:
            return None
        prompts: list[CachedPrompt] = []
        for number in range(len(output.sequences)):
            row = number * photos // len(output.sequences) * (len(layers[0].keys) // photos)
            kept = slice(row, row + 1)
            own = positions
            if own is not None and own.ndim > 1 and own.shape[-2] > 1:
                own = own[..., kept, :]
            prompts.append(CachedPrompt(
                tuple((each.keys[kept, :, :length], each.values[kept, :, :length])
                      for each in layers), own))  # fmt: skip
        return prompts


def _complete_layers(cache: Any, length: int) -> list[Any] | None:
    """Return the layers of a cache if each holds the keys of all tokens, from the first on.

    Caches that are quantized, offloaded or of another kind are left alone, and so are those of
    sliding windows that have moved on.
    """
    layers = getattr(cache, "layers", None)
    if not layers or getattr(cache, "offloading", False):
        return None
    for layer in layers:
        known = type(layer).__name__ in _PLAIN_LAYERS
        if not known or not getattr(layer, "is_initialized", False) or layer.keys is None:
            return None
        if int(layer.get_seq_length()) != length or layer.keys.shape[-2] < length:
            return None
    return list(layers)


_PLAIN_LAYERS = ("DynamicLayer", "DynamicSlidingWindowLayer", "StaticLayer",
                 "StaticSlidingWindowLayer")  # fmt: skip
