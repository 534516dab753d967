"""Stems, MLPs, layers, drop path and pooling of transformers against timm."""

from typing import Any

import pytest
import torch
from timm.layers.mlp import Mlp
from timm.layers.norm import LayerNorm
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from visattn.blocks.transformer.layer import DropPath, EncoderLayer, FeedForward
from visattn.blocks.transformer.pooling import SequencePool
from visattn.blocks.transformer.stems import (
    ConvStem,
    ConvTokenizer,
    PatchEmbedding,
    ShiftedPatchEmbedding,
)
from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout
from visattn.recording.recorder import record


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def test_patch_embedding_matches_a_loop_over_pixels() -> None:
    embed, images = PatchEmbedding(3, 5, patch_size=(2, 7)), numbers(2, 3, 6, 21)
    actual = embed(images)
    assert actual.shape[2:] == embed.grid_size((6, 21)) == (3, 3)
    cut = images[:, :, 2:4, 14:21].flatten(1)
    expected = nn.functional.linear(cut, embed.proj.weight.flatten(1), embed.proj.bias)
    torch.testing.assert_close(actual[:, :, 1, 2], expected)


def test_shifted_patch_receptive_field_includes_half_of_the_neighbors() -> None:
    embed = ShiftedPatchEmbedding(1, 5, patch_size=(4, 4))
    assert embed.norm.normalized_shape == (5 * 16,)
    grown = numbers(1, 1, 12, 12).requires_grad_()
    embed(grown)[0, 0, 1, 1].backward()
    assert grown.grad is not None
    receptive_field = grown.grad[0, 0] != 0
    assert receptive_field[2:10, 2:10].all()
    assert receptive_field.sum() == 64


def test_shifted_patch_embedding_matches_norm_and_linear() -> None:
    embed, images = ShiftedPatchEmbedding(1, 3, patch_size=(2, 2)), numbers(1, 1, 4, 4)
    wide = nn.functional.pad(images, (1, 1, 1, 1))[0, 0]
    copies = [images[0, 0], *(wide[y : y + 4, x : x + 4] for y in (0, 2) for x in (0, 2))]
    pixels = torch.stack([copy[2:4, :2].flatten() for copy in copies]).flatten()
    torch.testing.assert_close(embed(images)[0, :, 1, 0], embed.proj(embed.norm(pixels)))


@pytest.mark.parametrize("size", [(32, 40), (28, 28), (31, 17)])
def test_stems_report_their_grid_size(size: tuple[int, int]) -> None:
    images = numbers(1, 3, *size)
    for layers, stride in ((1, 1), (2, 1), (2, 2)):
        stem = ConvTokenizer(3, 8, num_layers=layers, stride=stride)
        assert stem(images).shape[2:] == stem.grid_size(size)
    whole = numbers(1, 3, 32, 40)
    assert ConvStem(3, 8, patch_size=(8, 8))(whole).shape == (1, 8, 4, 5)


def test_invalid_stems_are_refused() -> None:
    with pytest.raises(ValueError, match=r"patch_size of 2, 4, 8, 16, \.\.\.; got 6 x 6"):
        ConvStem(3, 8, patch_size=(6, 6))
    with pytest.raises(ValueError, match=r"must be a multiple of 16 .* got 24"):
        ConvStem(3, 24, patch_size=(16, 16))
    with pytest.raises(ValueError, match="needs square patches, got 2 x 4"):
        ShiftedPatchEmbedding(3, 8, patch_size=(2, 4))
    with pytest.raises(ValueError, match="at least 1, and kernel_size odd, got 1, 4 and 1"):
        ConvTokenizer(3, 8, kernel_size=4)


def test_mlp_matches_timm() -> None:
    x = numbers(2, 5, 12)
    ours, theirs = FeedForward(12, 31), Mlp(12, 31)
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x), theirs(x))


def layer(**options: Any) -> EncoderLayer:
    return EncoderLayer(12, TokenAttention(12, num_heads=3), FeedForward(12, 31), **options)


def test_layer_matches_timm() -> None:
    x, ours = numbers(2, 6, 12), layer()
    theirs = Block(12, 3, 31 / 12 + 0.01, qkv_bias=True, norm_layer=LayerNorm)
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x, TokenLayout((2, 3))), theirs(x))


def test_layer_with_dropped_branches_is_the_identity() -> None:
    x = numbers(2, 6, 12)
    assert torch.equal(layer(drop_path=1.0)(x, TokenLayout((2, 3))), x)


def test_drop_path_drops_whole_samples_at_its_rate() -> None:
    torch.manual_seed(3)
    drop, x = DropPath(0.25), torch.ones(8000, 2, 3)
    result = drop(x).flatten(1)
    assert torch.equal(result.amin(1), result.amax(1))
    values, counts = result[:, 0].unique(return_counts=True)
    torch.testing.assert_close(values, torch.tensor([0, 4 / 3]))
    assert abs(int(counts[0]) - 2000) < 4 * (8000 * 0.25 * 0.75) ** 0.5
    assert drop.eval()(x) is x
    with pytest.raises(ValueError, match=r"must be in \[0, 1\], got 1\.5"):
        DropPath(1.5)


def test_sequence_pooling_matches_its_recorded_map() -> None:
    pool, x = SequencePool(7), numbers(2, 15, 7)
    with record(pool, queries="class") as recording:  # it has a single query row
        result = pool(x, TokenLayout((3, 5)))
    weights = recording.maps[0].values.flatten(1)
    torch.testing.assert_close(weights.sum(1), torch.ones(2))
    torch.testing.assert_close((weights[..., None] * x).sum(1), result)
    torch.testing.assert_close(weights, pool.score(x).squeeze(-1).softmax(-1))
