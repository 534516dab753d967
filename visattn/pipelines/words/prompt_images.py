"""Photos that a prompt shows: one, several, or the sampled frames of a video."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import numpy as np

from visattn.images.reader import ImageLike, LoadedImage, list_images, read_image, read_images
from visattn.images.video import VideoClip, is_video, read_clip, video_length

PromptLike = ImageLike | Sequence[ImageLike]
"""A photo, a video file, or a list of photos that one prompt shows together."""

_NUM_FRAMES = 8  # of a video, where the processor samples none itself
_NOT_OF_SAMPLING = ("do_sample_frames", "video_metadata", "device", "return_metadata")


@dataclass(frozen=True, eq=False)
class PromptImages:
    """The photos of a prompt, or the frames of its video.

    Args:
        images: The photos or frames, upright.
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
        return tuple(each.size for each in self.images)

    @property
    def orientations(self) -> tuple[int, ...]:
        """EXIF orientation of each image."""
        return tuple(each.orientation for each in self.images)

    @property
    def num_pixels(self) -> int:
        """Number of pixels of all images."""
        return sum(each.num_pixels for each in self.images)

    @property
    def name(self) -> str:
        """Name of the file, or names of the files."""
        return ", ".join(dict.fromkeys(each.name for each in self.images))


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
    if not any(isinstance(each, (list, tuple, PromptImages)) or _is_video(each) for each in listed):
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
    """Read the frames of a video that a model gets.

    Args:
        path: Video file.
        processor: Processor of the model, which selects the frames.
        num_frames: Number of frames, evenly spaced; None for those that the processor samples, or 8
            if it samples none.

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
    frames = (LoadedImage(each.pixels, name=clip.name) for each in clip.frames)
    return PromptImages(tuple(frames), clip)


def _sampled_by(processor: Any, total: int, fps: float, size: tuple[int, int]) -> list[int] | None:
    """Return the frames that a video processor samples; None if it takes all that it gets."""
    settings = {
        name: getattr(processor, name, None)
        for name in getattr(getattr(processor, "valid_kwargs", None), "__annotations__", ())
        if name not in _NOT_OF_SAMPLING
    }
    if not (settings.get("num_frames") or settings.get("fps")):
        return None
    metadata = video_metadata(total, fps, size)
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
    """Return what processors of transformers know of a video.

    Args:
        total: Number of frames.
        fps: Frames per second.
        size: Height and width.
        indices: Numbers of the selected frames.
    """
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(
        total_num_frames=total, fps=fps, width=size[1], height=size[0], duration=total / fps,
        frames_indices=None if indices is None else list(indices),
    )  # fmt: skip
