"""A vocabulary, a grid and captions of several lengths for small captioners."""

import torch
from torch import Tensor

from visattn.results.kinds import SPECIAL_TOKENS, START

WORDS = (*SPECIAL_TOKENS, *"abcdefghi")
GRID = (2, 5)


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    """Captions of 5, 3, 3 and 1 words, padded."""
    captions = torch.randint(4, 13, (4, 5), generator=torch.Generator().manual_seed(seed))
    captions[:, 0] = START
    captions[1:3, 3:], captions[3, 1:] = 0, 0
    return captions, torch.tensor([5, 3, 3, 1])
