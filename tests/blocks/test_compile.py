"""Blocks and encoders compile as one graph with equal outputs."""

import pytest
import torch

from visattn.blocks.additive import AdditiveAttention
from visattn.models.base import SmallEncoder

pytestmark = pytest.mark.compile


def test_additive_attention_compiles_as_one_graph() -> None:
    attention = AdditiveAttention(11, query_dim=7, attention_dim=5)
    places, query = torch.randn(2, 13, 11), torch.randn(2, 3, 7)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    keys = attention.key(places).detach()  # dynamo reads the gradient of a non-leaf, which warns
    for got, wanted in zip(
        compiled(query, places, keys), attention(query, places, keys), strict=True
    ):
        torch.testing.assert_close(got, wanted)


def test_encoder_compiles_as_one_graph() -> None:
    encoder = SmallEncoder((24, 40), channels=12).eval()
    images = torch.randint(256, (2, 3, 24, 40), dtype=torch.uint8)
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), encoder(images))
