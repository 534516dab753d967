"""DRAM: deep recurrent attention model, for one or several objects.

    upper layer   u = RNN(h, u), starts from the context network          where to look
    lower layer   h = RNN(g, h), g = content * location of the glimpse    what is there

Source:
    Ba et al. 2015, arXiv:1412.7755.
"""

from collections.abc import Mapping, Sequence

from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from visattn.models.glimpses.ram import (
    GlimpseEncoderType,
    GlimpseRNN,
    RecurrentAttentionModel,
    RNNState,
    RNNType,
    conv_encoder,
)


class DRAM(RecurrentAttentionModel):
    """Deep recurrent attention model for one or several objects.

    There are two recurrent layers. The lower one receives the glimpses, content times location, and
    its state is classified; the upper one receives that state and selects the next location. A
    context network sees the whole image at low resolution and initializes only the upper layer, so
    it can guide the first glimpse but not classify. After every `num_glimpses_per_object` glimpses
    the model reads a label.

    `model(images)` returns the logits of each label in order, or those of the only label; `rollout`
    returns the scan paths.

    Args:
        class_names: Names of the classes, in the order of the logits. `end_class` is appended if it
            is missing.
        img_size: Height and width of the input images, in pixels.
        mean: Mean of each color channel, in [0, 1]; one channel for gray images, else three.
        std: Standard deviation of each color channel, in [0, 1].
        max_objects: Maximum number of labels per image, without `end_class`; 1 for a single
            label, such as the sum of all digits.
        num_glimpses_per_object: Glimpses before each label.
        end_class: Name of the class that ends a sequence, for images with different numbers of
            objects; None if all have `max_objects`.
        glimpse_size: Side of a glimpse, in cells.
        num_scales: Number of windows per glimpse, each twice as wide as the one before.
        rnn_type: Recurrent layers: the paper's `lstm`, a `gru` or an `rnn`.
        hidden_size: Hidden size of both layers.
        glimpse_encoder: Encoder of a glimpse: a small `conv` network or a `linear` layer.
        what_dim: Dimension of the encoded content of a glimpse.
        where_dim: Dimension of the encoded location of a glimpse.
        context_size: Side of the downsampled image that the context network sees, in pixels.
        policy_std: Standard deviation of the location policy; the side of the image has length 2.
        pad_value: Value outside the image, in [0, 1].

    Example:
        >>> digits = "0 1 2".split()
        >>> model = DRAM(digits, (28, 40), [0.1], [0.3], max_objects=2, end_class="end").eval()
        >>> model.class_names, model.num_glimpses
        (('0', '1', '2', 'end'), 9)
        >>> model(torch.zeros(5, 1, 28, 40, dtype=torch.uint8)).shape
        torch.Size([5, 3, 4])

    Source:
        Ba et al. 2015, arXiv:1412.7755. Deviations: two convolutions instead of three in the
        glimpse and context networks; the context sets the hidden state and the cell of the upper
        layer.
    """

    fusion = "product"
    random_start = False

    def __init__(
        self,
        class_names: Sequence[str],
        img_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        *,
        max_objects: int = 2,
        num_glimpses_per_object: int = 3,
        end_class: str | None = None,
        glimpse_size: int = 12,
        num_scales: int = 2,
        rnn_type: RNNType = "lstm",
        hidden_size: int = 256,
        glimpse_encoder: GlimpseEncoderType = "conv",
        what_dim: int = 128,
        where_dim: int = 128,
        context_size: int = 12,
        policy_std: float = 0.1,
        pad_value: float = 0.0,
    ) -> None:
        if end_class is not None and end_class not in class_names:
            class_names = (*class_names, end_class)
        num_labels = max_objects + (end_class is not None)
        super().__init__(
            class_names,
            img_size,
            mean,
            std,
            glimpse_size=glimpse_size,
            num_scales=num_scales,
            num_glimpses=num_labels * num_glimpses_per_object,
            rnn_type=rnn_type,
            hidden_size=hidden_size,
            glimpse_encoder=glimpse_encoder,
            what_dim=what_dim,
            where_dim=where_dim,
            policy_std=policy_std,
            pad_value=pad_value,
        )
        self.num_labels = num_labels
        self.context_size = context_size
        self.upper_rnn = GlimpseRNN(rnn_type, hidden_size)
        self.context_net = conv_encoder(
            len(self.mean), context_size, self.upper_rnn.num_states * hidden_size
        )

    @property
    def policy_modules(self) -> Mapping[str, nn.Module]:
        """The modules of the location policy, which only the policy loss trains."""
        names = ("policy", "upper_rnn", "context_net")
        return {name: self.get_submodule(name) for name in names}

    def forward(
        self, images: UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"]
    ) -> Float[Tensor, "b *s k"]:
        """Return the logits of each label, or of the single one."""
        return self.classify(self.normalize(images))

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b *s k"]:
        """Return the logits of each label, or of the single one, with the greedy policy."""
        step = self.num_glimpses_per_label
        logits = self.rollout(images).logits[:, 0, step - 1 :: step]
        return logits[:, 0] if self.num_labels == 1 else logits

    def initial_state(
        self, images: Float[Tensor, "b c y x"], image_indices: Int[Tensor, " r"]
    ) -> tuple[RNNState, RNNState]:
        """Return zeros for the lower layer, and the context for the upper one."""
        lower, _ = super().initial_state(images, image_indices)
        context = self.context_net(adaptive_avg_pool2d(images, self.context_size))
        hidden, *cell = context[image_indices].split(self.hidden_size, 1)
        # Hidden states of LSTM and GRU are between -1 and 1; LSTM cells are unbounded.
        return lower, (hidden.tanh(), *cell)

    def next_state(
        self, glimpse: Float[Tensor, "r d"], core: RNNState, policy: RNNState, *, backprop: bool
    ) -> tuple[RNNState, RNNState]:
        """Update the lower layer, then the upper one, which receives the lower one's state."""
        core = self.rnn(glimpse, core)
        return core, self.upper_rnn(core[0] if backprop else core[0].detach(), policy)
