"""Tokens of the cells of a feature grid, which may attend to each other before a question reads."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.transformer.layer import EncoderLayer, FeedForward, run_layers
from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout
from visattn.models.encoder import cell_coordinates


class GridTokens(nn.Module):
    """One token per cell: its features, projected, with the place of the cell.

    All questions about an image share its tokens.

    Args:
        in_channels: Number of channels of the features.
        dim: Dimension of the tokens.
        grid_size: Rows and columns of the grid.
        tanh: Whether the projection ends with tanh, as in stacked attention.
        positions: Whether a learned embedding of each cell and a projection of its coordinates are
            added.
        num_layers: Number of self-attention layers among the cells.
        num_heads: Number of heads of these layers; it divides `dim`.

    Example:
        >>> GridTokens(7, 8, (2, 3), num_layers=1)(torch.zeros(1, 7, 2, 3)).shape
        torch.Size([1, 6, 8])
    """

    NO_WEIGHT_DECAY = ("cells",)

    def __init__(
        self,
        in_channels: int,
        dim: int,
        grid_size: tuple[int, int],
        *,
        tanh: bool = False,
        positions: bool = True,
        num_layers: int = 0,
        num_heads: int = 4,
    ) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.project = nn.Linear(in_channels, dim)
        self.act = nn.Tanh() if tanh else nn.Identity()
        cells = torch.empty(grid_size[0] * grid_size[1], dim) if positions else None
        self.cells = None if cells is None else nn.Parameter(nn.init.trunc_normal_(cells, std=0.02))
        self.coordinates = nn.Linear(2, dim, bias=False) if positions else None
        self.layers = nn.ModuleList(
            EncoderLayer(dim, TokenAttention(dim, num_heads=num_heads), FeedForward(dim, 2 * dim))
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim) if num_layers else nn.Identity()

    def forward(self, features: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        """Return the tokens, row by row."""
        tokens = self.act(self.project(features.flatten(2).mT))
        if self.coordinates is not None:
            places = cell_coordinates(features).flatten(2).mT
            tokens = tokens + self.coordinates(places) + self.cells
        return self.norm(run_layers(self.layers, tokens, TokenLayout(self.grid_size)))


def answer_head(dim: int, num_answers: int, hidden_size: int) -> nn.Module:
    """Return a linear classifier, or with a hidden size an MLP.

    Example:
        >>> answer_head(3, 5, 0)
        Linear(in_features=3, out_features=5, bias=True)
    """
    if not hidden_size:
        return nn.Linear(dim, num_answers)
    return nn.Sequential(
        nn.Linear(dim, hidden_size), nn.ReLU(), nn.Linear(hidden_size, num_answers)
    )
