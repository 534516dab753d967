"""Several photos in one prompt, and videos: rows, places on each image, frames, refusals."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_vlms import build
from torch import Tensor
from video_data import block_frame, write_clip
from vlm_runs import eager_rows, options, photo, sharp

from visattn.images.reader import LoadedImage
from visattn.images.video import VideoClip, VideoError, VideoFrame
from visattn.pipelines.word_source import with_word_maps
from visattn.pipelines.words.captions import caption_with_transformers
from visattn.pipelines.words.language_model import PhotoProcessor
from visattn.pipelines.words.methods import ReplayedWords
from visattn.pipelines.words.pixel_places import find_pixel_places
from visattn.pipelines.words.placement import shared_pixel_moments
from visattn.pipelines.words.prompts import PromptImages, read_prompts, read_video
from visattn.pipelines.words.replay import WordReplay, generate_and_replay
from visattn.recording.frozen import frozen
from visattn.recording.key_sources import KeySources

PHOTOS = PromptImages((photo((180, 300)), photo((120, 90), seed=1), photo((90, 200), seed=2)))
TOGETHER = [
    "llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "gemma3", "idefics3",
    "smolvlm", "internvl", "mllama", "qwen3_vl", "paligemma", "deepseek_vl", "ovis2", "mistral3",
    "aya_vision", "lfm2_vl", "video_llava", "t5gemma2",
]  # fmt: skip
VIDEOS = [
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_onevision", "smolvlm", "internvl",
    "llava_next_video", "video_llama_3", "video_llava",
]  # fmt: skip
PAIRS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Families whose tokens cover two frames."""
LEAST = 0.75  # change of the marked token, relative to the largest


def clip(count: int = 5, size: tuple[int, int] = (90, 150), *, still: bool = False) -> PromptImages:
    """Return every third frame of a video of noise."""
    pixels = [photo(size, seed=0 if still else number).pixels for number in range(count)]
    frames = [VideoFrame(3 * n, 0.3 * n, each) for n, each in enumerate(pixels)]
    video = VideoClip("clip.mp4", tuple(frames), 10.0, 3 * count)
    return PromptImages(tuple(LoadedImage(each, name="clip.mp4") for each in pixels), video)


@cache
def replayed(family: str, shown: PromptImages) -> WordReplay:
    model, processor = sharp(family)
    [[replay]] = generate_and_replay(model, [shown], processor=processor,
                                     **options(family))  # fmt: skip
    return replay


plain = cache(build)


def key_states(replay: WordReplay, family: str, images: list[np.ndarray]) -> Tensor:
    """Return what the keys of the image tokens are made from, without attention."""
    model, processor = plain(family)  # sharper layers carry small changes on to neighbors
    shown = replay.shown
    process = PhotoProcessor(model, processor, num_photos=len(shown.images), clip=shown.clip)
    name = replay.pixel_name
    pixels = process([[Image.fromarray(each) for each in images]])[name]
    sources = KeySources(model)
    with frozen(model), torch.no_grad(), sources.collecting():
        model(**{**replay.inputs, name: pixels})
    states = sources.sources[replay.sites[0]].states
    assert states is not None
    assert replay.states is not None
    return states[replay.states]


def assert_marks(family: str, replay: WordReplay, image: int, tokens: Tensor) -> None:
    """Paint inside the boxes of tokens on one image: these change most, and no others."""
    placement = replay.placements[0 if replay.shown.is_video else image]
    originals = [each.pixels for each in replay.shown.images]
    before = key_states(replay, family, originals)
    for token in tokens[:: max(1, len(tokens) // 2)].tolist():
        left, top, right, bottom = placement.boxes[token].round().int().tolist()
        images = [each.copy() for each in originals]
        images[image][max(0, top) : bottom, max(0, left) : right] = 255
        change = (key_states(replay, family, images) - before).norm(dim=1)
        assert float(change[token]) >= LEAST * float(change[tokens].max())
        others = torch.ones_like(change, dtype=torch.bool)
        others[tokens] = False
        near = placement.visible > 0 if not replay.shown.is_video else torch.zeros_like(others)
        assert float((change * (others & ~near)).max()) <= 1e-5 * float(change.max())


@pytest.mark.parametrize("family", [*TOGETHER, "idefics2"])
def test_rows_and_maps_of_several_photos(family: str) -> None:
    replay = replayed(family, PHOTOS)
    torch.testing.assert_close(replay.rows, eager_rows(family, replay), atol=2e-6, rtol=0)
    caption = replay.caption()
    assert len(caption.image_maps) == 3
    sums = torch.stack([each.values.flatten(1).sum(1) for each in caption.image_maps], 1)
    torch.testing.assert_close(sums.sum(1), torch.tensor(caption.gates), atol=1e-5, rtol=0)
    rows = replay.word_rows()[0]
    on_photos = torch.stack([rows @ each.visible for each in replay.placements], 1)
    torch.testing.assert_close(sums, on_photos, atol=1e-5, rtol=0)
    shares = torch.tensor(caption.maps.metadata["photo_shares"])
    torch.testing.assert_close(sums, shares, atol=1e-6, rtol=0)
    for maps, image in zip(caption.image_maps, PHOTOS.images, strict=True):
        assert maps.geometry is not None
        assert maps.geometry.image_size == image.size
    visible = torch.stack([each.visible for each in replay.placements])
    assert float(visible.sum(0).max()) <= 1 + 1e-5
    assert caption.gate_symbol == "on photos"


@pytest.mark.parametrize("family", TOGETHER)
def test_marks_on_one_of_several_photos_change_its_tokens(family: str) -> None:
    replay = replayed(family, PHOTOS)
    for number, placement in enumerate(replay.placements):
        area = (placement.boxes[:, 2:] - placement.boxes[:, :2]).prod(1)
        area[placement.visible < 0.5] = torch.inf
        smallest = (area < 1.3 * area.min()).nonzero()[:, 0]  # of tiles, not of the whole photo
        assert_marks(family, replay, number, smallest)


@pytest.mark.parametrize("family", VIDEOS)
def test_rows_and_marks_of_a_video(family: str) -> None:
    replay = replayed(family, clip())
    torch.testing.assert_close(replay.rows, eager_rows(family, replay), atol=2e-6, rtol=0)
    maps = replay.caption().maps
    assert maps.values.shape[1] == 5
    sums = maps.values.flatten(1).sum(1)
    torch.testing.assert_close(sums, torch.tensor(replay.caption().gates), atol=1e-5, rtol=0)
    frames = replay.placement.cells.unflatten(0, (5, -1)).sum(1)
    covered = (frames > 0).sum(0)
    assert int(covered.max()) == (2 if family in PAIRS else 1)
    for frame in (0, 4):
        assert_marks(family, replay, frame, (frames[frame] > 0).nonzero()[:, 0])
    assert maps.metadata["frames"] == [0, 3, 6, 9, 12]
    assert maps.metadata["seconds"] == pytest.approx([0, 0.3, 0.6, 0.9, 1.2])
    notes = replay.caption().notes
    assert ("cover 2 frames" in notes) == (family in PAIRS)
    assert ("the last frame is repeated" in notes) == (family in PAIRS)


def test_mass_of_tokens_of_two_frames_is_divided() -> None:
    replay = replayed("qwen2_vl", clip(4))
    sums = replay.caption().maps.values.flatten(2).sum(2)
    torch.testing.assert_close(sums[:, ::2], sums[:, 1::2], atol=1e-4, rtol=0)
    assert "repeated" not in replay.caption().notes


def test_tokens_that_a_model_leaves_out_have_no_mass() -> None:
    replay = replayed("video_llama_3", clip(4, still=True))
    cells = (replay.caption().maps.values > 0).flatten(2).sum(2)
    assert cells[:, 0].unique().tolist() == [math.prod(replay.placement.grid_size)]
    assert cells[:, 1:].unique().tolist() == [1]  # of frames that repeat the first, one is kept
    assert replay.placement.grid_size == replayed("video_llama_3", clip(4)).placement.grid_size


def test_gradients_of_shared_pixels_tell_the_frame() -> None:
    pixels = torch.rand(8, requires_grad=True)
    states = torch.stack([pixels[:3].sum(), pixels[2:6].sum()])[:, None].expand(2, 3)
    points = torch.arange(8.0)[:, None].expand(8, 2)
    shown = torch.ones(8, dtype=torch.bool)
    frames = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    _, shares = shared_pixel_moments(states, pixels, points, shown, frames)
    assert shares.tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_pixels_of_several_images_are_refused() -> None:
    def average(images: Any) -> Tensor:
        return torch.from_numpy(np.mean([np.asarray(each) for each in images], 0))

    with pytest.raises(ValueError, match="the processor mixes several"):
        find_pixel_places(average, average, [(32, 48)] * 2, torch.Size((32, 48, 3)))


def test_gradient_maps_lie_on_all_photos() -> None:
    replay = replayed("qwen2_vl", PHOTOS)
    for method in ("gradient_attention", "gradcam"):
        result = with_word_maps(replay.caption(), ReplayedWords(replay), method)
        shapes = [each.values.shape for each in result.image_maps]
        assert shapes == [each.values.shape for each in replay.caption().image_maps]
        assert result.maps.kind == "gradient"
        assert sum(float(each.values.abs().sum()) for each in result.further_maps) > 0
    with pytest.raises(ValueError, match="occlusion is for one photo"):
        with_word_maps(replay.caption(), ReplayedWords(replay), "occlusion")


def test_sinks_name_their_photo() -> None:
    replay = replayed("llava", PHOTOS)
    token = int((replay.placements[1].visible > 0).nonzero()[0])
    sink = replay._sink(token, torch.ones(2))
    assert sink["photo"] == 1
    assert sink["box"] == replay.placements[1].boxes[token].tolist()


@pytest.mark.parametrize(
    ("family", "match"),
    [
        ("blip", "BlipProcessor has no place for several photos"),
        ("florence2", "Florence2ForConditionalGeneration and its processor must take 3 photos"),
        ("kosmos2", "Kosmos2ForConditionalGeneration and its processor must take 3 photos"),
    ],
)
def test_families_of_one_photo_are_refused_by_name(family: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        replayed(family, PHOTOS)


def test_prompts_say_where_photos_and_videos_stand() -> None:
    model, processor = sharp("qwen2_vl")
    parts = [{"type": "image"}, {"type": "text", "text": "w1"}, {"type": "image"}]
    [together] = caption_with_transformers(
        model, [list(PHOTOS.images[:2])], processor=processor,
        prompt=[{"role": "user", "content": parts}], **options("qwen2_vl"),
    )  # fmt: skip
    assert len(together.image_maps) == 2
    for shown, prompt, match in (
        (PHOTOS, [{"role": "user", "content": parts}], "got 2 photos in the messages for 3"),
        (PHOTOS, "<|image_pad|> w1", "got 1 times <|image_pad|> for 3"),
        (clip(2), [{"role": "user", "content": parts}], "show a photo, but a video is passed"),
        (clip(2), [{"role": "user", "content": parts[1:2]}], "where the video stands"),
    ):
        with pytest.raises(ValueError, match=match.replace("|", r"\|")):
            generate_and_replay(model, [shown], processor=processor, prompt=prompt,
                                **options("qwen2_vl"))  # fmt: skip
    with pytest.raises(ValueError, match="LlavaProcessor processes no videos"):
        replayed("llava", clip(2))


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    frames = [block_frame(2 * number, 8) for number in range(23)]
    return write_clip(tmp_path_factory.mktemp("videos") / "clip.avi", frames)


def test_frames_are_those_that_the_processor_samples(video: Path) -> None:
    def indices(processor: Any = None, num_frames: int | None = None) -> list[int]:
        read = read_video(video, processor, num_frames).clip
        assert read is not None
        assert read.num_frames == 23
        assert read.seconds == pytest.approx([index / 10 for index in read.indices])
        return read.indices

    assert indices() == [0, 2, 5, 8, 11, 14, 17, 20]
    assert indices(num_frames=3) == [0, 7, 15]
    assert indices(num_frames=50) == list(range(23))
    _, processor = build("qwen3_vl")  # 2 frames a second, at least 4
    assert indices(processor) == [0, 7, 15, 22]
    assert indices(processor, num_frames=2) == [0, 11]
    with pytest.raises(ValueError, match="num_frames must be at least 1"):
        read_video(video, None, 0)
    broken = video.with_name("broken.mp4")
    broken.write_bytes(video.read_bytes()[:300])
    with pytest.raises(VideoError, match=r"broken\.mp4"):
        read_video(broken)


def test_lists_of_photos_are_prompts(video: Path) -> None:
    single = photo((30, 50))
    shown = list(read_prompts([single, [single, single], video], num_frames=2))
    assert [len(each.images) for each in shown] == [1, 2, 2]
    assert [each.is_video for each in shown] == [False, False, True]
    with pytest.raises(ValueError, match="at least one, got none"):
        list(read_prompts([[]]))
    with pytest.raises(ValueError, match="photos or one video"):
        list(read_prompts([[single, video]]))


def test_a_batch_keeps_photos_of_one_prompt_apart() -> None:
    model, processor = sharp("llava")
    mixed = [PHOTOS.images[0], PHOTOS.images[1], PHOTOS, PHOTOS.images[2]]
    captions = caption_with_transformers(model, mixed, processor=processor, batch_size=2,
                                         **options("llava"))  # fmt: skip
    assert [len(each.image_maps) for each in captions] == [1, 1, 3, 1]
    [alone] = caption_with_transformers(model, [PHOTOS], processor=processor, **options("llava"))
    assert captions[2].words == alone.words
    torch.testing.assert_close(captions[2].further_maps[1].values, alone.further_maps[1].values)
