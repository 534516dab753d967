"""Recurrent attention model (RAM): classifies an image from a sequence of glimpses."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from visattn.blocks.base import check_choice
from visattn.models.base import options_of
from visattn.models.ram.glimpse_model import GlimpseModel, GlimpseState

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
        return GlimpseState(core, core if backprop_policy_to_core else (core[0].detach(),))
