"""Prompts: the photos that they show, and the keys and values that are kept of them.

A replay then reads the words only, and the last token of the prompt, which chose the first of them.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.images.reader import ImageLike, LoadedImage, list_images, read_image
from visattn.images.sources import read_images
from visattn.images.video import VideoClip, is_video, read_clip, video_length

PromptLike = ImageLike | Sequence[ImageLike]
"""A photo, a video file, or a list of photos that one prompt shows together."""

_NUM_FRAMES = 8  # of a video, where the processor samples none itself
_NOT_OF_SAMPLING = ("do_sample_frames", "video_metadata", "device", "return_metadata")


@dataclass(frozen=True, eq=False)
class PromptImages:
    """The photos of a prompt, or the frames of its video.

    Args:
        clip: The video, if they are its frames.
    """

    images: tuple[LoadedImage, ...]
    clip: VideoClip | None = None

    @property
    def is_video(self) -> bool:
        """Whether the images are frames of a video."""
        return self.clip is not None

    @property
    def is_single_photo(self) -> bool:
        """Whether the prompt shows one photo, and no video."""
        return self.clip is None and len(self.images) == 1

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Height and width of each image."""
        return tuple(image.size for image in self.images)

    @property
    def orientations(self) -> tuple[int, ...]:
        """EXIF orientation of each image."""
        return tuple(image.orientation for image in self.images)

    @property
    def num_pixels(self) -> int:
        """Number of pixels of all images."""
        return sum(image.num_pixels for image in self.images)

    @property
    def name(self) -> str:
        """Name of the file, or names of the files."""
        return ", ".join(dict.fromkeys(image.name for image in self.images))


def read_prompts(
    images: "Iterable[PromptLike | PromptImages] | ImageLike",
    processor: Any = None,
    num_frames: int | None = None,
) -> Iterator[PromptImages]:
    """Read what each prompt shows, one after the other.

    Args:
        images: Photos and folders as for `visattn.caption`, video files, and lists of photos, each
            of which belongs to one prompt.
        processor: Processor of the model, which selects the frames of a video.
        num_frames: Number of frames of a video, evenly spaced; None for those that the processor
            samples.

    Raises:
        ImageError: If a photo cannot be read.
        VideoError: If a video cannot be read.
        ValueError: If a list of photos is empty, or holds a video.
    """
    listed: list[Any] = list_images(cast("Any", images))
    if not any(isinstance(item, (list, tuple, PromptImages)) or _is_video(item) for item in listed):
        yield from (PromptImages((image,)) for image in read_images(listed))
        return
    for item in listed:
        if isinstance(item, PromptImages):
            yield item
        elif isinstance(item, (list, tuple)):
            yield _photos_together(item)
        elif _is_video(item):
            yield read_video(item, processor, num_frames)
        else:
            yield from (PromptImages((image,)) for image in read_images(item))


def as_prompt_images(shown: "PromptImages | LoadedImage") -> PromptImages:
    """Return a photo as what a prompt shows."""
    return shown if isinstance(shown, PromptImages) else PromptImages((shown,))


def _is_video(item: Any) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(item, (str, os.PathLike)) and is_video(item)


def _photos_together(photos: Sequence[ImageLike]) -> PromptImages:
    if not len(photos):
        raise ValueError("a list of photos of one prompt must have at least one, got none")
    for photo in photos:
        if _is_video(photo):
            raise ValueError(
                f"a prompt shows photos or one video, got {photo} in a list of photos: pass the "
                "video alone"
            )
    return PromptImages(tuple(map(read_image, photos)))


def read_video(
    path: str | os.PathLike[str], processor: Any = None, num_frames: int | None = None
) -> PromptImages:
    """Read `num_frames` of a video, evenly spaced; by default those that the processor samples.

    If it samples none, these are 8.

    Raises:
        VideoError: If the video cannot be read.
        ValueError: If `num_frames` is below 1, or the processor cannot sample the video.
    """
    if num_frames is not None and num_frames < 1:
        raise ValueError(f"num_frames must be at least 1, got {num_frames}")
    total, fps, size = video_length(path)
    own = getattr(processor, "video_processor", None)
    indices = _sampled_by(own, total, fps, size) if num_frames is None else None
    if indices is None:
        count = min(num_frames or _NUM_FRAMES, total)
        if num_frames is None and total > 1:  # whole tokens, where these cover several frames
            count -= count % min(getattr(own, "temporal_patch_size", None) or 1, total)
        indices = [number * total // count for number in range(count)]
    clip = read_clip(path, indices, total)
    frames = (LoadedImage(frame.pixels, name=clip.name) for frame in clip.frames)
    return PromptImages(tuple(frames), clip)


def _sampled_by(processor: Any, total: int, fps: float, size: tuple[int, int]) -> list[int] | None:
    """Return the frames that a video processor samples; None if it takes all that it gets."""
    # The processor is called as it calls itself: `sample_frames` gets all of its settings, among
    # them those that only its own kind has, such as `max_frames` of Qwen2-VL.
    settings = {
        name: getattr(processor, name, None)
        for name in getattr(getattr(processor, "valid_kwargs", None), "__annotations__", ())
        if name not in _NOT_OF_SAMPLING
    }
    if not (settings.get("num_frames") or settings.get("fps")):
        return None
    metadata = video_metadata(total, fps, size)
    # transformers refuses to sample more frames than there are, where a short clip has to do.
    if settings["num_frames"] is not None and settings["num_frames"] > total:
        settings["num_frames"] = total
    try:
        indices = processor.sample_frames(metadata=metadata, **settings)
    except ValueError as error:
        raise ValueError(
            f"{type(processor).__name__} cannot sample {total} frames at {fps:g} per second "
            f"({error}); pass num_frames"
        ) from error
    return [int(index) for index in np.asarray(indices)]


def video_metadata(
    total: int, fps: float, size: tuple[int, int], indices: Sequence[int] | None = None
) -> Any:
    """Return what processors of transformers know of a video."""
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(
        total_num_frames=total, fps=fps, width=size[1], height=size[0], duration=total / fps,
        frames_indices=None if indices is None else list(indices),
    )  # fmt: skip


_MASKS = ("attention_mask",)
_MIN_QUERIES = 2  # with one, some models pack the heads on the axis of the queries


@dataclass(frozen=True, eq=False)
class CachedPrompt:
    """Keys and values of the tokens before the first generated one.

    Args:
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

        Returns:
            None if the prompt is another one, or too short.
        """
        # A prompt of 5 tokens (p), and 3 generated ones (a b c). The last of them is no input, and
        # the last token of the prompt is read again, since it chooses the first:
        #
        #     position     0 1 2 3 4 5 6
        #     token        p p p p p a b
        #     from cache   0 1 2 3
        #     read                 4 5 6
        #     chooses              a b c
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
            # `generate` counts on from the last position of the prompt, on every axis.
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
            layer.keys = keys[:, :, :length]
            layer.values = values[:, :, :length]
            layer.dtype = keys.dtype
            layer.device = keys.device
            layer.is_initialized = True
            # `update` of transformers keeps the new keys: a second pass would read them, too.
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
    """Finds the keys and values of prompts after a generation."""

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
            # The cache has a row per beam or sample, perhaps more than texts are returned. Of 2
            # photos with 4 beams and 3 texts each, texts 0 to 2 take row 0 and texts 3 to 5 row 4:
            # all rows of a photo have the same keys for the prompt.
            row = number * photos // len(output.sequences) * (len(layers[0].keys) // photos)
            kept = slice(row, row + 1)
            own = positions
            if own is not None and own.ndim > 1 and own.shape[-2] > 1:
                own = own[..., kept, :]
            cached = [
                (layer.keys[kept, :, :length], layer.values[kept, :, :length]) for layer in layers
            ]
            prompts.append(CachedPrompt(tuple(cached), own))
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
        # A static cache has room for more keys; a sliding window that moved on holds fewer.
        if int(layer.get_seq_length()) != length or layer.keys.shape[-2] < length:
            return None
    return list(layers)


_PLAIN_LAYERS = ("DynamicLayer", "DynamicSlidingWindowLayer", "StaticLayer",
                 "StaticSlidingWindowLayer")  # fmt: skip
