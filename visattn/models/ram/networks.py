"""Networks of the recurrent attention model: retina, glimpse network and recurrent core."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

RNNType = Literal["rnn", "lstm", "gru"]
GlimpseEncoderType = Literal["linear", "conv"]
GlimpseFusion = Literal["sum", "product"]
RNNState = tuple[Tensor, ...]


class GlimpseNet(nn.Module):
    """Glimpse network: combines the content of a glimpse and its location into one vector.

    Args:
        in_channels: Number of image channels times number of scales.
        glimpse_size: Side of a glimpse, in cells.
        encoder_type: Encoder of the content: a `linear` layer, as in the paper, or a `conv` network
            of two convolutions with all scales as channels.
        fusion: How content and location are combined: their `sum`, as in RAM, or their `product`,
            as in DRAM, where the location starts as a factor near 1.
        what_dim: Dimension of the encoded content.
        where_dim: Dimension of the encoded location.
        out_dim: Dimension of the output.
        dropout: Dropout rate on the encoded content.

    Example:
        >>> net = GlimpseNet(3, 8, out_dim=7)
        >>> net(torch.zeros(5, 1, 3, 8, 8), torch.zeros(5, 2)).shape
        torch.Size([5, 7])

    Source:
        Mnih et al. 2014, arXiv:1406.6247, section 4: 128, 128 and 256; Ba et al. 2015,
        arXiv:1412.7755, section 3.1, for the product.
    """

    def __init__(
        self,
        in_channels: int,
        glimpse_size: int,
        *,
        encoder_type: GlimpseEncoderType = "linear",
        fusion: GlimpseFusion = "sum",
        what_dim: int = 128,
        where_dim: int = 128,
        out_dim: int = 256,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.glimpse_encoder = (
            nn.Sequential(nn.Flatten(), nn.Linear(in_channels * glimpse_size**2, what_dim))
            if encoder_type == "linear"
            else conv_encoder(in_channels, glimpse_size, what_dim)
        )
        self.fusion: GlimpseFusion = fusion
        self.location_encoder = nn.Linear(2, where_dim)
        self.what_proj = nn.Linear(what_dim, out_dim)
        self.where_proj = nn.Linear(where_dim, out_dim)
        if fusion == "product":
            nn.init.ones_(self.where_proj.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, glimpses: Float[Tensor, "r s c g g"], locations: Float[Tensor, "r 2"]
    ) -> Float[Tensor, "r d"]:
        """Return one vector per glimpse; no gradient flows into the locations."""
        what = self.dropout(self.glimpse_encoder(glimpses.flatten(1, 2)).relu())
        where = self.location_encoder(locations.detach()).relu()
        what, where = self.what_proj(what), self.where_proj(where)
        return (what * where if self.fusion == "product" else what + where).relu()


class GlimpseRNN(nn.Module):
    """Recurrent core: an RNN, LSTM or GRU cell with one interface.

    Args:
        rnn_type: `rnn` with ReLU, as in the paper, `lstm` or `gru`.
        input_size: Dimension of the glimpse vector.
        hidden_size: Hidden size.

    Example:
        >>> rnn = GlimpseRNN("lstm", 5, 7)
        >>> hidden, cell = rnn(torch.ones(3, 5), rnn.initial_state(3, torch.zeros(3, 5)))
        >>> hidden.shape
        torch.Size([3, 7])
    """

    def __init__(self, rnn_type: RNNType, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        cells = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}
        self.cell = (
            cells[rnn_type](input_size, hidden_size)
            if rnn_type in cells
            else _relu_rnn_cell(input_size, hidden_size)
        )

    def initial_state(self, batch_size: int, like: Tensor) -> RNNState:
        """Return the zero state.

        Args:
            batch_size: Number of sequences.
            like: Tensor with the dtype and device of the state.
        """
        hidden = like.new_zeros(batch_size, self.hidden_size)
        return (hidden, hidden) if isinstance(self.cell, nn.LSTMCell) else (hidden,)

    def forward(self, glimpse: Float[Tensor, "r d"], state: RNNState) -> RNNState:
        """Return the next state; its first entry is the hidden state."""
        if isinstance(self.cell, nn.LSTMCell):
            return self.cell(glimpse, (state[0], state[1]))
        return (self.cell(glimpse, state[0]),)


def _relu_rnn_cell(input_size: int, hidden_size: int) -> nn.RNNCell:
    """Return the paper's core, whose recurrent weights are initialized close to the identity.

    The paper does not specify the initialization; with random weights a ReLU core forgets or
    diverges.
    """
    cell = nn.RNNCell(input_size, hidden_size, nonlinearity="relu")
    nn.init.eye_(cell.weight_hh)
    with torch.no_grad():
        cell.weight_hh *= 0.9
    return cell


def conv_encoder(in_channels: int, size: int, out_dim: int) -> nn.Sequential:
    """Return a network of two convolutions and a linear layer for square images.

    Args:
        in_channels: Channels of the images.
        size: Their side.
        out_dim: Dimension of the output.

    Example:
        >>> conv_encoder(1, 7, 5)(torch.zeros(2, 1, 7, 7)).shape
        torch.Size([2, 5])
    """
    side = (size + 1) // 2
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * side**2, out_dim),
    )
