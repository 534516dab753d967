"""RAM and DRAM: recurrent models of glimpses."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from visattn.blocks.base import check_choice
from visattn.models.configurable import options_of
from visattn.models.glimpses.glimpse_model import GlimpseModel, GlimpseState
from visattn.models.glimpses.retina import (
    Backend,
    GlimpseEncoderType,
    GlimpseRNN,
    RNNState,
    RNNType,
    conv_encoder,
)

_INIT_LOCATIONS = ("random", "center", "learned")


class RecurrentAttentionModel(GlimpseModel):
    """Recurrent model of visual attention.

    At each step the retina extracts a glimpse, the recurrent core updates its hidden state, and the
    location policy chooses the next location: a sample from a Gaussian during training, its mean
    (greedy) at test time. `model(images)` returns the logits after the last glimpse; `scanpath`
    returns the whole rollout.

    Args:
        class_names: Names of the classes, in the order of the logits.
        img_size: Height and width of the input images, in pixels.
        mean: Mean of each color channel, in [0, 1]; one channel for gray images, else three.
        std: Standard deviation of each color channel, in [0, 1].
        glimpse_size: Side of a glimpse, in cells.
        num_scales: Number of windows per glimpse, each twice as wide as the one before.
        num_glimpses: Number of glimpses per image.
        rnn_type: Recurrent core: the paper's `rnn`, an `lstm` or a `gru`.
        hidden_size: Hidden size of the core.
        glimpse_encoder: Encoder of a glimpse: a `linear` layer, as in the paper, or a small `conv`
            network.
        what_dim: Dimension of the encoded content of a glimpse.
        where_dim: Dimension of the encoded location of a glimpse.
        init_location: First location: uniformly `random`, the `center`, or one `learned` location
            for all images.
        policy_std: Standard deviation of the location policy; the side of the image has length 2.
        learn_std: Whether the standard deviation is trained.
        pad_value: Value outside the image, in [0, 1].
        backend: `crop` snaps windows to pixels; `bilinear` interpolates.
        dropout: Dropout rate on the encoded content of a glimpse.

    Raises:
        ValueError: If an argument is out of range or an option is unknown.

    Example:
        >>> digits = "0 1 2".split()
        >>> model = RecurrentAttentionModel(digits, (28, 40), [0.1], [0.3], num_glimpses=4).eval()
        >>> rollout = model.scanpath(torch.zeros(5, 1, 28, 40, dtype=torch.uint8))
        >>> rollout.locations.shape, rollout.logits.shape
        (torch.Size([5, 1, 4, 2]), torch.Size([5, 1, 4, 3]))

    Source:
        Mnih et al. 2014, arXiv:1406.6247. Deviation: the `rnn` is initialized near the identity.
    """

    @options_of(GlimpseModel)
    def __init__(
        self,
        class_names: Sequence[str],
        img_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        **options: Any,
    ) -> None:
        super().__init__(class_names, img_size, mean, std, **options)
        check_choice("init_location", self.init_location, _INIT_LOCATIONS)

    def initial_state(
        self, images: Float[Tensor, "b c y x"], indices: Int[Tensor, " r"]
    ) -> GlimpseState:
        """Return the zero state; the policy shares the state of the core."""
        state = self.rnn.initial_state(indices.shape[0], images)
        return GlimpseState(state, state)

    def next_state(
        self, glimpse: Float[Tensor, "r d"], state: GlimpseState, *, backprop_policy_to_core: bool
    ) -> GlimpseState:
        """Advance the core; the policy shares its state, detached if no gradient may flow."""
        core = self.rnn(glimpse, state.core)
        # The policy reads the hidden state alone, also that of an LSTM.
        return GlimpseState(core, core if backprop_policy_to_core else (core[0].detach(),))


class DRAM(GlimpseModel):
    """Deep recurrent attention model for one or several objects.

    Two recurrent layers share the work. The lower one receives the glimpses, content times
    location, and is classified; the upper one receives the lower one's state and chooses the next
    location. A context network sees the whole image at low resolution and initializes the upper
    layer alone, so that it suggests where to look first, but cannot classify. After every
    `num_glimpses_per_object` glimpses the model reads a label.

    `model(images)` returns the logits of each label in order, or those of the only label;
    `scanpath` returns the whole rollout.

    Args:
        class_names: Names of the classes, in the order of the logits. `end_class` is appended if it
            is missing.
        img_size: Height and width of the input images, in pixels.
        mean: Mean of each color channel, in [0, 1]; one channel for gray images, else three.
        std: Standard deviation of each color channel, in [0, 1].
        max_objects: Largest number of labels per image, `end_class` not counted; 1 for a single
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
        context_size: Side of the downsampled image that the context network sees, in pixels; 0 for
            no context, which makes the first location the same for all images.
        policy_std: Standard deviation of the location policy; the side of the image has length 2.
        learn_std: Whether the standard deviation is trained.
        pad_value: Value outside the image, in [0, 1].
        backend: `crop` snaps windows to pixels; `bilinear` interpolates.
        dropout: Dropout rate on the encoded content of a glimpse.

    Raises:
        ValueError: If an argument is out of range or an option is unknown.

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

    glimpse_fusion = "product"

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
        learn_std: bool = False,
        pad_value: float = 0.0,
        backend: Backend = "crop",
        dropout: float = 0.0,
    ) -> None:
        if max_objects < 1 or num_glimpses_per_object < 1 or context_size < 0:
            raise ValueError(
                "max_objects and num_glimpses_per_object must be at least 1, context_size at least "
                f"0; got {max_objects}, {num_glimpses_per_object} and {context_size}"
            )
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
            init_location="context",
            policy_std=policy_std,
            learn_std=learn_std,
            pad_value=pad_value,
            backend=backend,
            dropout=dropout,
        )
        self.num_labels = num_labels
        self.end_class = end_class
        self.num_glimpses_per_object = num_glimpses_per_object
        self.context_size = context_size
        self.upper_rnn = GlimpseRNN(rnn_type, hidden_size, hidden_size)
        num_states = len(self.upper_rnn.initial_state(1, torch.zeros(1)))
        self.context_net = (
            conv_encoder(len(self.mean), context_size, num_states * hidden_size)
            if context_size
            else None
        )

    @property
    def policy_modules(self) -> Mapping[str, nn.Module]:
        """The modules that choose locations, and that only the policy loss trains."""
        modules = {"policy": self.policy, "upper_rnn": self.upper_rnn}
        return modules if self.context_net is None else {**modules, "context_net": self.context_net}

    def forward(
        self, images: UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"]
    ) -> Float[Tensor, "b *s k"]:
        """Return the logits of each label, or of the only one; raises what `normalize` raises."""
        return self.classify(self.normalize(images))

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b *s k"]:
        """Return the logits of each label, or of the only one, with the greedy policy."""
        step = self.num_glimpses_per_object
        logits = self.rollout(images).logits[:, 0, step - 1 :: step]
        return logits[:, 0] if self.num_labels == 1 else logits

    def initial_state(
        self, images: Float[Tensor, "b c y x"], indices: Int[Tensor, " r"]
    ) -> GlimpseState:
        """Return zeros for the lower layer, and what the context suggests for the upper one."""
        lower = self.rnn.initial_state(indices.shape[0], images)
        return GlimpseState(lower, self._upper_state(images, indices))

    def next_state(
        self, glimpse: Float[Tensor, "r d"], state: GlimpseState, *, backprop_policy_to_core: bool
    ) -> GlimpseState:
        """Advance the lower layer, then the upper one, which receives the lower one's state."""
        lower = self.rnn(glimpse, state.core)
        received = lower[0] if backprop_policy_to_core else lower[0].detach()
        return GlimpseState(lower, self.upper_rnn(received, state.policy))

    def _upper_state(self, images: Tensor, indices: Tensor) -> RNNState:
        if self.context_net is None:
            return self.upper_rnn.initial_state(indices.shape[0], images)
        thumbnails = adaptive_avg_pool2d(images, self.context_size)
        states = self.context_net(thumbnails)[indices].split(self.hidden_size, 1)
        # The hidden state of an LSTM or GRU lies between -1 and 1; a cell has no bounds.
        return (states[0].tanh(), *states[1:])
