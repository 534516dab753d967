"""Video models: each token lies on the frames and the place that it was made from."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models.video import r3d_18
from torchvision.models.video.mvit import MSBlockConfig, MViT
from torchvision.models.video.swin_transformer import SwinTransformer3d
from video_data import write_clip

import visattn
from visattn.images.video import VideoReader
from visattn.pipelines import VideoExplainer, overlay_video

WIDTHS = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "num_labels": 5, "num_frames": 8,
}  # fmt: skip


def huggingface(name: str, **config: Any) -> nn.Module:
    library: Any = pytest.importorskip("transformers")
    settings = getattr(library, f"{name}Config")(**{**WIDTHS, "image_size": 48, **config})
    return getattr(library, f"{name}ForVideoClassification")(settings)


def videomae(**config: Any) -> nn.Module:
    return huggingface("VideoMAE", patch_size=16, tubelet_size=2, **config)


def mvit() -> nn.Module:
    block = MSBlockConfig(1, 8, 8, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 1, 1])
    return MViT(
        (48, 48), 8, [block, block], num_classes=5, residual_pool=False,
        residual_with_cls_embed=False, rel_pos_embed=False, proj_after_attn=False,
    )  # fmt: skip


def swin() -> nn.Module:
    return SwinTransformer3d([2, 4, 4], 24, [2], [3], [4, 3, 3], num_classes=5)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "videomae": videomae,
    "videomae first token": lambda: videomae(use_mean_pooling=False),
    "vivit": lambda: huggingface("Vivit", tubelet_size=[2, 16, 16]),
    "timesformer divided": lambda: huggingface("Timesformer", patch_size=16),
    "timesformer joint": lambda: huggingface(
        "Timesformer", patch_size=16, attention_type="joint_space_time"
    ),
    "r3d": lambda: r3d_18(num_classes=5),
    "mvit": mvit,
    "swin3d": swin,
}


def explainer(name: str) -> VideoExplainer:
    torch.manual_seed(0)
    model, own = MODELS[name](), name in ("r3d", "mvit", "swin3d")
    return VideoExplainer(
        model, img_size=(48, 48) if own else None, num_frames=8 if own else None,
        class_names=[*"abcde"],
    )  # fmt: skip


def clip_with_block(frame: int | None, rows: slice, columns: slice) -> list[np.ndarray]:
    """Gray frames, one of which has a bright block."""
    frames = [np.full((48, 48, 3), 90, np.uint8) for _ in range(8)]
    if frame is not None:
        frames[frame][rows, columns] = 250
    return frames


@pytest.mark.parametrize(("frame", "row", "column"), [(0, 0, 2), (4, 2, 0), (6, 1, 2)])
@pytest.mark.parametrize("name", MODELS)
def test_features_change_most_where_and_when_the_block_is(
    name: str, frame: int, row: int, column: int
) -> None:
    explained = explainer(name)
    explained.model.eval()
    block = (slice(16 * row, 16 * row + 16), slice(16 * column, 16 * column + 16))
    volumes = []
    for frames in (clip_with_block(None, *block), clip_with_block(frame, *block)):
        inputs = explained.prepare(frames).inputs
        inputs = inputs if name not in ("r3d", "mvit", "swin3d") else inputs.transpose(0, 1)
        _, features, place = explained.features(inputs[None])
        volumes.append(place(features.detach()))
    change = (volumes[1] - volumes[0]).norm(dim=-1)
    times, rows, columns = change.shape
    t, y, x = np.unravel_index(int(change.argmax()), change.shape)
    assert t == frame * times // 8
    cells = 0.5 if name == "r3d" else 0.0  # whose kernels overlap: half a block beside it, at most
    assert (y + 0.5) * 3 / rows == pytest.approx(row + 0.5, abs=0.5 + cells)
    assert (x + 0.5) * 3 / columns == pytest.approx(column + 0.5, abs=0.5 + cells)


@pytest.mark.parametrize("name", MODELS)
def test_each_frame_has_the_map_of_its_tubelet(name: str) -> None:
    explained, generator = explainer(name), np.random.default_rng(2)
    frames = [generator.integers(0, 256, (61, 83, 3), np.uint8) for _ in range(7)]  # one repeats
    clip = explained.prepare(frames)
    for method in explained.methods:
        maps = explained.map(clip, method, "c")
        assert [each.metadata["target"] for each in maps] == [2] * 7
        assert all(each.geometry.image_size == (61, 83) for each in maps)  # pyright: ignore[reportOptionalMemberAccess]
        tubelets = [each.metadata["tubelet"] for each in maps]
        assert tubelets in [[i * count // 8 for i in range(7)] for count in (1, 4, 8)]
        for before, after in pairwise(maps):
            same = before.metadata["tubelet"] == after.metadata["tubelet"]
            assert torch.equal(before.values, after.values) == same or not before.values.any()


def test_attention_equals_that_of_the_model_frame_by_frame() -> None:
    explained = explainer("timesformer divided")
    clip = explained.prepare([np.full((48, 48, 3), 30 * i, np.uint8) for i in range(8)])
    recorded: list[torch.Tensor] = []
    attention: Any = explained.model.get_submodule(
        "timesformer.encoder.layer.1.attention.attention"
    )
    attention.register_forward_hook(lambda _, __, output: recorded.append(output[1]))
    maps = explained.map(clip, "attention")
    expected = recorded[-1].mean(1)[:, 0, 1:].view(8, 3, 3)
    torch.testing.assert_close(torch.stack([each.values for each in maps]), expected)


def test_a_movie_follows_the_block_of_each_tubelet(tmp_path: Path) -> None:
    class Loudest(VideoExplainer):
        """The pixels themselves as the map."""

        def _gradient(self, inputs: torch.Tensor, target: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tensor([0.0, 1.0]), (inputs[0].mean(1) - inputs.min()).pow(4)

    frames = []
    for i in range(20):  # two clips and a half
        frame = np.full((48, 48, 3), 40, np.uint8)
        frame[2 * i % 32 : 2 * i % 32 + 16, 16:32] = 250
        frames.append(frame)
    path = write_clip(tmp_path / "clip.avi", frames)
    explained = Loudest(MODELS["videomae"]())
    result = overlay_video(explained, path, tmp_path / "out", "input_gradient", cut_threshold=1.0)
    assert len(result.indices) == 20
    with VideoReader(result.movie) as movie:
        for i, frame in enumerate(movie):
            photo = frame.pixels[:48].astype(int)  # without the legend
            colorfulness = photo.max(-1) - photo.min(-1)
            rows = np.nonzero(colorfulness > 0.5 * colorfulness.max())[0]
            assert rows.mean() == pytest.approx(2 * i % 32 + 7.5, abs=2)


def test_what_is_no_video_classifier_is_refused_by_name() -> None:
    library: Any = pytest.importorskip("transformers")
    config = library.VideoMAEConfig(**WIDTHS, image_size=48)
    with pytest.raises(ValueError, match="got VideoMAEModel; for a model of images use"):
        VideoExplainer(library.VideoMAEModel(config))
    with pytest.raises(ValueError, match="takes clips of several frames: use visattn.pipelines"):
        visattn.explain(MODELS["videomae"](), np.zeros((48, 48, 3), np.uint8))
    with pytest.raises(ValueError, match="takes 8 frames per clip, got num_frames=4"):
        VideoExplainer(MODELS["videomae"](), num_frames=4)
    with pytest.raises(ValueError, match="keeps no order of frames"):
        VideoExplainer(huggingface("Timesformer", patch_size=16, attention_type="space_only"))
    explained = explainer("swin3d")
    clip = explained.prepare(clip_with_block(None, slice(0), slice(0)))
    with pytest.raises(ValueError, match="rollout does not fit the video model SwinTransformer3d"):
        explained.map(clip, "rollout")
