"""The separable first layer of a relation network against the joined one."""

import torch
from torch.nn.functional import linear

from visattn.models.vqa.baselines import pairwise_layer


def test_separable_layer_equals_the_joined_one() -> None:
    random = torch.Generator().manual_seed(0)
    objects = torch.randn(2, 5, 3, generator=random, dtype=torch.float64)
    question = torch.randn(2, 7, 4, generator=random, dtype=torch.float64)
    weight = torch.randn(11, 10, generator=random, dtype=torch.float64)
    bias = torch.randn(11, generator=random, dtype=torch.float64)
    pairs = pairwise_layer(objects, question, weight, bias)
    assert pairs.shape == (2, 7, 5, 5, 11)
    for b, m, i, j in ((0, 0, 0, 0), (1, 6, 4, 2), (0, 3, 1, 4)):
        joined = torch.cat((objects[b, i], objects[b, j], question[b, m]))
        torch.testing.assert_close(pairs[b, m, i, j], linear(joined, weight, bias))
