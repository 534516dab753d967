"""RAM: recurrent model of visual attention, which sees an image through glimpses.

    at each step   g = glimpse network(retina(image, l), l)     what is there, and where
                   h = core(g, h)                               its hidden state is classified
                   l ~ N(W h + b, std^2), clamped to the image  where to look next

The classification loss trains glimpse network and core; REINFORCE trains the policy
(`GlimpseTask`).

Source:
    Mnih et al. 2014, arXiv:1406.6247.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from visattn.models.base import ImageClassifier
from visattn.models.glimpses.retina import Retina

RNNType = Literal["rnn", "lstm", "gru"]
GlimpseEncoderType = Literal["linear", "conv"]
RNNState = tuple[Tensor, ...]
"""Hidden state; for an LSTM also the cell."""


class GlimpseNet(nn.Module):
    """Glimpse network: combines the content of a glimpse and its location into one vector.

    They are combined by their `sum`, as in RAM, or by their `product`, as in DRAM, where the
    location starts as a factor near 1. All scales of a glimpse are channels of its content. For the
    other options see `RecurrentAttentionModel`.

    Source:
        Mnih et al. 2014, arXiv:1406.6247, section 4: 128, 128 and 256; Ba et al. 2015,
        arXiv:1412.7755, section 3.1, for the product.
    """

    def __init__(
        self,
        in_channels: int,
        glimpse_size: int,
        *,
        encoder_type: GlimpseEncoderType,
        fusion: Literal["sum", "product"],
        what_dim: int,
        where_dim: int,
        out_dim: int,
    ) -> None:
        super().__init__()
        self.glimpse_encoder = (
            nn.Sequential(nn.Flatten(), nn.Linear(in_channels * glimpse_size**2, what_dim))
            if encoder_type == "linear"
            else conv_encoder(in_channels, glimpse_size, what_dim)
        )
        self.fusion = fusion
        self.location_encoder = nn.Linear(2, where_dim)
        self.what_proj = nn.Linear(what_dim, out_dim)
        self.where_proj = nn.Linear(where_dim, out_dim)
        if fusion == "product":
            nn.init.ones_(self.where_proj.bias)

    def forward(
        self, glimpses: Float[Tensor, "r s c g g"], locations: Float[Tensor, "r 2"]
    ) -> Float[Tensor, "r d"]:
        """Return one vector per glimpse; no gradient flows into the locations."""
        what = self.what_proj(self.glimpse_encoder(glimpses.flatten(1, 2)).relu())
        where = self.where_proj(self.location_encoder(locations.detach()).relu())
        return (what * where if self.fusion == "product" else what + where).relu()


def conv_encoder(in_channels: int, size: int, out_dim: int) -> nn.Sequential:
    """Return a network of two convolutions and a linear layer for square images."""
    side = (size + 1) // 2
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * side**2, out_dim),
    )


class GlimpseRNN(nn.Module):
    """Recurrent core: an RNN with ReLU, an LSTM or a GRU cell with one interface."""

    def __init__(self, rnn_type: RNNType, size: int) -> None:
        super().__init__()
        if rnn_type == "rnn":
            self.cell: nn.RNNCellBase = nn.RNNCell(size, size, nonlinearity="relu")
            # The paper does not specify the initialization; with random weights the core forgets or
            # diverges.
            nn.init.eye_(self.cell.weight_hh)
            self.cell.weight_hh.data *= 0.9
        else:
            self.cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[rnn_type](size, size)
        self.num_states = 2 if rnn_type == "lstm" else 1

    def forward(self, x: Float[Tensor, "r d"], state: RNNState) -> RNNState:
        """Return the next state."""
        return self.cell(x, state) if self.num_states == 2 else (self.cell(x, state[0]),)


class LocationPolicy(nn.Module):
    """Gaussian policy over locations on the image.

    The mean is a linear function of the hidden state without a squashing nonlinearity, so that its
    gradient never vanishes. A sample beyond the edge of the image is clamped; the clamping belongs
    to the environment, not to the policy.

    Source:
        Mnih et al. 2014, arXiv:1406.6247, section 4.
    """

    def __init__(self, hidden_size: int, std: float) -> None:
        super().__init__()
        self.mean = nn.Linear(hidden_size, 2)
        # A learned first location of earlier versions, kept for their files.
        self.init_mean = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.log_std = nn.Parameter(torch.tensor(math.log(std)), requires_grad=False)

    @property
    def std(self) -> Float[Tensor, ""]:
        """Standard deviation; the side of the image has length 2."""
        return self.log_std.exp()

    def forward(
        self, hidden_state: Float[Tensor, "r d"], noise: Float[Tensor, "r 2"]
    ) -> tuple[Float[Tensor, "r 2"], Float[Tensor, "r 2"]]:
        """Return the mean, and the sample for the noise, which may be outside the image."""
        mean = self.mean(hidden_state)
        # A non-finite mean makes the loss non-finite; the sample stays inside the image.
        return mean, (mean + self.std * noise).detach().nan_to_num()


@dataclass(frozen=True, eq=False)
class GlimpseRollout:
    """Results of m rollouts of t glimpses on each of b images.

    An action is the choice of a location; a random or given first location is not an action.

    Args:
        locations: x and y of each glimpse, in [-1, 1], the first one included.
        logits: Class logits after each glimpse.
        policy_states: Hidden state of the policy before each action.
        policy_means: Mean of the policy for each action, not clamped.
        policy_samples: Sample of the policy for each action, before clamping to the image.
    """

    locations: Float[Tensor, "b m t 2"]
    logits: Float[Tensor, "b m t k"]
    policy_states: Float[Tensor, "b m a d"]
    policy_means: Float[Tensor, "b m a 2"]
    policy_samples: Float[Tensor, "b m a 2"]


class RecurrentAttentionModel(ImageClassifier):
    """Recurrent model of visual attention.

    At each step the retina extracts a glimpse, the recurrent core updates its hidden state, and the
    location policy chooses the next location: a sample from a Gaussian during training, its mean
    (greedy) at test time. The first location is random. `model(images)` returns the logits after
    the last glimpse; `rollout` returns the scan paths.

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
        policy_std: Standard deviation of the location policy; the side of the image has length 2.
        pad_value: Value outside the image, in [0, 1].

    Example:
        >>> digits = "0 1 2".split()
        >>> model = RecurrentAttentionModel(digits, (28, 40), [0.1], [0.3], num_glimpses=4).eval()
        >>> rollout = model.rollout(torch.zeros(5, 1, 28, 40))
        >>> rollout.locations.shape, rollout.logits.shape
        (torch.Size([5, 1, 4, 2]), torch.Size([5, 1, 4, 3]))

    Source:
        Mnih et al. 2014, arXiv:1406.6247. Deviation: the `rnn` is initialized near the identity.
    """

    fusion: ClassVar[Literal["sum", "product"]] = "sum"
    """How content and location of a glimpse are combined."""
    random_start: ClassVar[bool] = True
    """Whether the first location is random; otherwise the policy chooses it."""
    num_labels: int = 1
    """Number of labels that the model reads per image: label i after glimpse `(i + 1) *
    num_glimpses_per_label`."""
    end_class: str | None = None
    """Name of the class that ends a sequence of labels; None if all have the same length."""

    def __init__(
        self,
        class_names: Sequence[str],
        img_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        *,
        glimpse_size: int = 8,
        num_scales: int = 1,
        num_glimpses: int = 6,
        rnn_type: RNNType = "rnn",
        hidden_size: int = 256,
        glimpse_encoder: GlimpseEncoderType = "linear",
        what_dim: int = 128,
        where_dim: int = 128,
        policy_std: float = 0.1,
        pad_value: float = 0.0,
    ) -> None:
        super().__init__(class_names, img_size, mean, std)
        self.num_glimpses = num_glimpses
        self.policy_std = policy_std
        self.pad_value = pad_value
        self.hidden_size = hidden_size
        padding = (pad_value - torch.tensor(self.mean)) / torch.tensor(self.std)
        self.retina = Retina(glimpse_size, num_scales, padding)
        self.glimpse_net = GlimpseNet(
            len(self.mean) * num_scales,
            glimpse_size,
            encoder_type=glimpse_encoder,
            fusion=self.fusion,
            what_dim=what_dim,
            where_dim=where_dim,
            out_dim=hidden_size,
        )
        self.rnn = GlimpseRNN(rnn_type, hidden_size)
        self.classifier = nn.Linear(hidden_size, len(self.class_names))
        self.policy = LocationPolicy(hidden_size, policy_std)

    @property
    def num_glimpses_per_label(self) -> int:
        """Number of glimpses after which a label is read."""
        return self.num_glimpses // self.num_labels

    @property
    def head(self) -> nn.Module:
        """The final classification layer."""
        return self.classifier

    @property
    def policy_modules(self) -> Mapping[str, nn.Module]:
        """The modules of the location policy, which only the policy loss trains."""
        return {"policy": self.policy}

    def initial_state(
        self, images: Float[Tensor, "b c y x"], image_indices: Int[Tensor, " r"]
    ) -> tuple[RNNState, RNNState]:
        """Return the states of core and policy before the first glimpse, both zero.

        Args:
            images: Normalized images.
            image_indices: Image of each rollout.
        """
        zeros = images.new_zeros(len(image_indices), self.hidden_size)
        state = (zeros,) * self.rnn.num_states
        return state, state

    def next_state(
        self,
        glimpse: Float[Tensor, "r d"],
        core: RNNState,
        policy: RNNState,  # noqa: ARG002
        *,
        backprop: bool,
    ) -> tuple[RNNState, RNNState]:
        """Return both states after a glimpse: the policy reads the hidden state of the core.

        Its gradient flows into the core only if `backprop` is true.
        """
        core = self.rnn(glimpse, core)
        return core, core if backprop else (core[0].detach(),)

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits after the last glimpse of the greedy policy."""
        return self.rollout(images).logits[:, 0, -1]

    def rollout(
        self,
        images: Float[Tensor, "b c y x"],
        *,
        num_rollouts: int = 1,
        sample: bool = False,
        backprop_policy_to_core: bool = False,
        init_locations: Float[Tensor, "b 2"] | Float[Tensor, "b m 2"] | None = None,
        locations: Float[Tensor, "b t 2"] | None = None,
        noise: Float[Tensor, "b m t 2"] | None = None,
        samples: Float[Tensor, "b m t 2"] | None = None,
    ) -> GlimpseRollout:
        """Return scan paths on normalized images, and the logits after each glimpse.

        Args:
            images: Normalized images.
            num_rollouts: Number of rollouts per image.
            sample: Whether to sample from the policy instead of using its mean.
            backprop_policy_to_core: Whether the gradient of the policy flows into the core.
            init_locations: First location of each image, or of each rollout; by default random, or
                chosen by the policy.
            locations: All locations of each image; the policy is not used.
            noise: Standard normal noise of the action that leads to each glimpse; by default
                sampled. The first entry is used only if the policy chooses the first location.
            samples: Samples in place of those of the policy, for supervised training of the policy.
        """
        num_glimpses = self.num_glimpses if locations is None else locations.shape[1]
        index = torch.arange(len(images), device=images.device).repeat_interleave(num_rollouts)
        if noise is None:
            shape = (len(images), num_rollouts, num_glimpses, 2)
            draw = torch.randn if sample else torch.zeros
            noise = draw(shape, device=images.device, dtype=images.dtype)
        noise = noise.flatten(0, 1)
        pyramid = self.retina.pyramid(images)
        core, policy = self.initial_state(images, index)
        steps: list[tuple[Tensor, Tensor]] = []
        actions: list[tuple[Tensor, Tensor, Tensor]] = []
        for step in range(num_glimpses):
            if locations is not None:
                location = locations[index, step]
            elif not step and init_locations is not None:
                per_image = init_locations.ndim == 2
                location = init_locations[index] if per_image else init_locations.flatten(0, 1)
            elif not step and self.random_start:
                location = torch.rand_like(noise[:, 0]) * 2 - 1
            else:
                mean, chosen = self.policy(policy[0], noise[:, step])
                if samples is not None:
                    chosen = samples.flatten(0, 1)[:, step]
                actions.append((policy[0], mean, chosen))
                location = chosen.clamp(-1, 1)
            glimpse = self.glimpse_net(self.retina(pyramid, location, index), location)
            core, policy = self.next_state(glimpse, core, policy, backprop=backprop_policy_to_core)
            steps.append((location, core[0]))
        path, hidden = (torch.stack(each, 1) for each in zip(*steps, strict=True))
        if actions:
            chosen = [torch.stack(each, 1) for each in zip(*actions, strict=True)]
        else:
            chosen = [hidden[:, :0], path[:, :0], path[:, :0]]
        results = (path, self.classifier(hidden), *chosen)
        return GlimpseRollout(*(each.unflatten(0, (-1, num_rollouts)) for each in results))

    def patches(
        self,
        images: UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"],
        locations: Float[Tensor, "b t 2"],
    ) -> UInt8[Tensor, "b t s c g g"]:
        """Return the glimpses at x and y in [-1, 1] as uint8 images."""
        pyramid = self.retina.pyramid(self.normalize(images))
        index = torch.arange(len(images), device=images.device)
        index = index.repeat_interleave(locations.shape[1])
        patches = self.retina(pyramid, locations.flatten(0, 1), index)
        pixels = (patches * self.scale + self.shift).round().clamp(0, 255).to(torch.uint8)
        return pixels.unflatten(0, tuple(locations.shape[:2]))
