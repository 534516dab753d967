"""The transformer captioner against torch's decoder, its equations and its own cached steps."""

from typing import Any, cast

import torch
from random_numbers import numbers
from small_captions import GRID, WORDS, batch as captions
from torch import Tensor, nn

from visattn.models.base import SmallEncoder
from visattn.models.captioning.transformer import CaptionDecoderLayer, TransformerCaptioner
from visattn.results.kinds import START


def captioner(**options: Any) -> TransformerCaptioner:
    torch.manual_seed(0)
    encoder = SmallEncoder((16, 40), channels=12)
    options = {"embed_dim": 22, "num_heads": 11, "num_layers": 2, "dropout": 0.0} | options
    return TransformerCaptioner(WORDS, encoder, **options).double()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Captions of 5, 3, 3 and 1 words, padded; the third image has no caption."""
    return *captions(), torch.tensor([3, 0, 0, 1])


def torch_decoder(model: TransformerCaptioner) -> nn.TransformerDecoder:
    """Return torch's decoder with the weights of our decoder."""
    layer = nn.TransformerDecoderLayer(
        22, 11, 88, 0.0, "gelu", batch_first=True, norm_first=True, dtype=torch.float64
    )
    peer = nn.TransformerDecoder(layer, 2, norm=nn.LayerNorm(22, dtype=torch.float64))
    cast("Any", peer.norm).load_state_dict(model.decoder.norm.state_dict())
    for theirs, ours in zip(cast("Any", peer.layers), model.decoder.layers, strict=True):
        ours = cast("CaptionDecoderLayer", ours)
        cross = ours.cross_attn
        pairs: list[tuple[Any, Tensor]] = [
            (theirs.self_attn.in_proj_weight, ours.self_attn.qkv.weight),
            (theirs.self_attn.in_proj_bias, ours.self_attn.qkv.bias),
            (theirs.multihead_attn.in_proj_weight, torch.cat(
                (cross.query.weight, cross.key_value.weight))),
            (theirs.multihead_attn.in_proj_bias, torch.cat(
                (cross.query.bias, cross.key_value.bias))),
        ]  # fmt: skip
        parts: list[tuple[Any, Any]] = [
            (ours.self_attn.proj, theirs.self_attn.out_proj),
            (cross.proj, theirs.multihead_attn.out_proj),
            (ours.mlp.fc1, theirs.linear1),
            (ours.mlp.fc2, theirs.linear2),
            *((getattr(ours, f"norm{i}"), getattr(theirs, f"norm{i}")) for i in (1, 2, 3)),
        ]
        for source, target in parts:
            pairs += [(target.weight, source.weight), (target.bias, source.bias)]
        with torch.no_grad():
            for target, source in pairs:
                target.copy_(source)
    return peer


def test_layers_equal_those_of_torch_in_values_and_gradients() -> None:
    model, (captions, lengths, images) = captioner(), batch()
    with torch.no_grad():
        for parameter in model.decoder.parameters():  # norms and biases that matter
            parameter.add_(0.3 * torch.randn_like(parameter))
    features = numbers(4, 12, *GRID).requires_grad_()
    read, decoder, peer = (
        model.teacher_force(features, captions, lengths, images),
        model.decoder,
        torch_decoder(model),
    )
    places = decoder.feature_proj(features.flatten(2).mT) + decoder.grid_positions
    angles = torch.arange(5)[:, None] * 10000.0 ** (-torch.arange(11) / 11)
    positions = torch.cat((angles.sin(), angles.cos()), 1)  # of float32, as ours
    words = decoder.embedding(captions) * 22**0.5 + positions
    hidden = peer(words, places[images], tgt_mask=nn.Transformer.generate_square_subsequent_mask(5))
    logits = decoder.output_proj(hidden) @ decoder.embedding.weight.mT + decoder.output_bias
    packed = logits[read.rows, read.steps]
    torch.testing.assert_close(read.logits, packed, rtol=1e-6, atol=1e-6)
    weight = numbers(*packed.shape)
    for ours, theirs in zip(
        torch.autograd.grad((read.logits * weight).sum(), [features, decoder.embedding.weight]),
        torch.autograd.grad((packed * weight).sum(), [features, decoder.embedding.weight]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        assert theirs.abs().sum() > 0


def test_a_map_cell_is_the_feature_cell_of_the_same_place() -> None:
    model = captioner(maps="last", num_heads=1, num_layers=1)
    features, token = numbers(1, 12, *GRID), torch.tensor([[START]])
    plain = model.step(model.start(features), token)[2].weights.view(GRID).log()
    for y in range(GRID[0]):
        for x in range(GRID[1]):
            marked = features.clone()
            marked[0, :, y, x] = numbers(12, seed=7)
            change = model.step(model.start(marked), token)[2].weights.view(GRID).log() - plain
            others = torch.ones(GRID, dtype=torch.bool)
            others[y, x] = False
            # Only the score of the marked place changes; all others change by the same constant.
            assert change[others].std() < 1e-12
            assert (change[y, x] - change[others].mean()).abs() > 1e-3


def test_maps_of_one_head() -> None:
    (captions, lengths, images), features = batch(), numbers(4, 12, *GRID)
    every = captioner(maps="all").teacher_force(features, captions, lengths, images)
    chosen = captioner(maps=[1, 6])  # a list, as in a config
    single = chosen.teacher_force(features, captions, lengths, images)
    assert every.attention.heads is not None
    assert torch.equal(single.attention.weights, every.attention.heads[:, 1, 6])
    assert torch.equal(single.logits, every.logits)
    assert single.attention.heads is None
    assert every.attention.heads.shape == (12, 2, 11, 10)
    torch.testing.assert_close(every.attention.heads.mean((1, 2)), every.attention.weights)
    assert chosen.attention_site == "decoder.layers.1.cross_attn.tap"
    chosen.maps = "all"
    again = chosen.teacher_force(features, captions, lengths, images)
    torch.testing.assert_close(again.attention.heads, every.attention.heads, rtol=0, atol=0)
