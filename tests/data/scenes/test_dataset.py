"""Scenes data set: reproducible in any order and process."""

import pickle

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from visattn.data.captions.batch import CaptionSample
from visattn.data.scenes.dataset import Scenes, SingleCaptionScenes
from visattn.data.scenes.world import WorldConfig


def shown(sample: CaptionSample) -> Tensor:
    assert sample.image is not None
    return sample.image


@given(index=st.integers(0, 10), order=st.permutations(range(5)), more=st.integers(11, 10**6))
def test_scene_depends_on_seed_split_and_index_only(
    index: int, order: list[int], more: int
) -> None:
    fresh = Scenes(11, size=31, seed=3)[index]
    used = Scenes(more, size=31, seed=3)
    for other in order:
        used[other]
    assert torch.equal(shown(used[index]), shown(fresh))
    assert used[index].captions == fresh.captions
    assert used[index].id == fresh.id == f"train-{index}"
    assert used.world(index) == Scenes(11, size=89, seed=3).world(index)


def test_scenes_differ_between_seeds_and_splits() -> None:
    worlds = [Scenes(3, seed=seed).world(1) for seed in range(5)]
    worlds += [Scenes(3, split=split).world(1) for split in ("validation", "test", "novel")]
    worlds += [Scenes(3).world(2)]
    assert len(set(worlds)) == len(worlds)


def test_sample_has_image_captions_and_world() -> None:
    scenes = Scenes(7, size=41, split="test")
    sample = scenes[5]
    image = shown(sample)
    assert torch.equal(image, scenes.image(5))
    assert image.shape == (3, 41, 41)
    assert image.dtype == torch.uint8
    assert sample.captions == tuple(content.text for content in scenes.captions(5))
    assert sample.world == scenes.world(5)
    assert scenes.masks(5).shape == (len(scenes.world(5).objects), 41, 41)
    assert scenes.masks(5).any((1, 2)).all()


def test_single_caption_scenes_repeat_each_scene_five_times() -> None:
    scenes = Scenes(3, size=16)
    content = SingleCaptionScenes(scenes)
    assert len(content) == 15
    assert [content[i].captions for i in range(15)] == [
        (caption,) for i in range(3) for caption in scenes[i].captions
    ]
    assert torch.equal(shown(content[7]), scenes.image(1))


@pytest.mark.parametrize("index", [3, -1, 10**9])
def test_index_beyond_the_end_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=r"index must lie in \[0, 3\)"):
        Scenes(3)[index]


def test_dataset_can_be_pickled() -> None:
    scenes = Scenes(3, size=16, config=WorldConfig(colors=("red", "cyan")))
    again = pickle.loads(pickle.dumps(SingleCaptionScenes(scenes)))
    assert torch.equal(shown(again[4]), scenes.image(0))
