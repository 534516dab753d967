"""Base of glimpse models: location policy, and the rollout of a scan path."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.models.base import ImageClassifier
from visattn.models.glimpses.retina import (
    Backend,
    GlimpseEncoderType,
    GlimpseFusion,
    GlimpseNet,
    GlimpseRNN,
    Retina,
    RNNState,
    RNNType,
    glimpse_boxes,
)


@dataclass(frozen=True, eq=False)
class GlimpseRollout:
    """Results of m rollouts of t glimpses on each of b images.

    An action is the choice of the next location, so the last glimpse has none; if the first
    location is chosen by the policy too, there are as many actions as glimpses.

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


@dataclass(frozen=True, eq=False)
class Glimpse:
    """One glimpse of all rollouts.

    Args:
        location: x and y, in [-1, 1].
        hidden_state: Hidden state of the core after the glimpse, which is classified.
        policy_state: Hidden state of the policy before the glimpse.
        action: Mean and sample of the policy that chose the location; None if it was not chosen.
    """

    location: Float[Tensor, "r 2"]
    hidden_state: Float[Tensor, "r d"]
    policy_state: Float[Tensor, "r d"]
    action: tuple[Tensor, Tensor] | None


def stack_glimpses(
    glimpses: Sequence[Glimpse], logits: Float[Tensor, "r t k"], num_rollouts: int
) -> GlimpseRollout:
    """Stack successive glimpses, in which rollouts of the same image are adjacent rows.

    Example:
        >>> glimpse = Glimpse(torch.zeros(6, 2), torch.zeros(6, 5), torch.zeros(6, 5), None)
        >>> rollout = stack_glimpses([glimpse, glimpse], torch.zeros(6, 2, 3), num_rollouts=2)
        >>> rollout.logits.shape, rollout.policy_means.shape
        (torch.Size([3, 2, 2, 3]), torch.Size([3, 2, 0, 2]))
    """
    locations = torch.stack([glimpse.location for glimpse in glimpses], 1)
    chosen = [(glimpse.policy_state, *glimpse.action) for glimpse in glimpses if glimpse.action]
    if chosen:
        actions = tuple(torch.stack(tensors, 1) for tensors in zip(*chosen, strict=True))
    else:
        no_states = glimpses[0].policy_state[:, None][:, :0]
        actions = (no_states, locations[:, :0], locations[:, :0])
    tensors = (locations, logits, *actions)
    return GlimpseRollout(*(tensor.unflatten(0, (-1, num_rollouts)) for tensor in tensors))


InitLocation = Literal["random", "center", "learned", "context"]
Action = tuple[Tensor, Tensor]
"""Mean and sample of the Gaussian policy, before clamping to the image."""


class LocationPolicy(nn.Module):
    """Gaussian policy over locations on the image.

    The mean is a linear function of the hidden state without a squashing nonlinearity, so that its
    gradient never vanishes. A sample beyond the edge of the image is clamped; the clamping belongs
    to the environment, not to the policy. For the options see `GlimpseModel`.

    Example:
        >>> policy = LocationPolicy(5, "center", 0.1, learn_std=False)
        >>> location, (mean, sample) = policy(torch.zeros(3, 5), torch.full((3, 2), 99.0))
        >>> location.max(), bool((sample - mean).min() > 9)
        (tensor(1.), True)

    Source:
        Mnih et al. 2014, arXiv:1406.6247, section 4.
    """

    def __init__(
        self, hidden_size: int, init_location: InitLocation, std: float, *, learn_std: bool
    ) -> None:
        super().__init__()
        self.init_location: InitLocation = init_location
        self.mean = nn.Linear(hidden_size, 2)
        self.init_mean = nn.Parameter(torch.zeros(2), requires_grad=init_location == "learned")
        self.log_std = nn.Parameter(torch.tensor(math.log(std)), requires_grad=learn_std)

    @property
    def std(self) -> Float[Tensor, ""]:
        """Standard deviation; the side of the image has length 2."""
        return self.log_std.exp()

    def initial_locations(self, noise: Float[Tensor, "r 2"]) -> tuple[Tensor, Action | None]:
        """Return the first locations, and the action if they are sampled from the policy.

        The noise is standard normal, and used only if the first location is learned.
        """
        if self.init_location == "learned":
            return self._sample(self.init_mean.expand_as(noise), noise)
        if self.init_location == "center":
            return torch.zeros_like(noise), None
        return torch.rand_like(noise) * 2 - 1, None

    def forward(
        self, hidden_state: Float[Tensor, "r d"], noise: Float[Tensor, "r 2"]
    ) -> tuple[Tensor, Action]:
        """Return the next locations and the action; noise of zeros gives the mean of the policy.

        Raises:
            ValueError: If a mean is not finite, in eval mode.
        """
        return self._sample(self.mean(hidden_state), noise)

    def _sample(self, mean: Tensor, noise: Tensor) -> tuple[Tensor, Action]:
        # In training a check would wait for the GPU at each glimpse: the loss is not finite either.
        checked = not (self.training or torch.compiler.is_compiling())
        if checked and not mean.isfinite().all():
            raise ValueError(
                "the location policy returns NaN or infinity, because the weights hold NaN or "
                "infinity: go back to an earlier checkpoint, and train with a lower learning rate "
                "or with gradient clipping"
            )
        sample = (mean + self.std * noise).detach().nan_to_num()
        return sample.clamp(-1, 1), (mean, sample)


class GlimpseState(NamedTuple):
    """Recurrent state of a glimpse model."""

    core: RNNState
    """Its hidden part is classified."""
    policy: RNNState
    """Its hidden part chooses the next location."""


class GlimpseModel(ImageClassifier):
    """Image classifier that sees an image through glimpses at locations that it chooses itself.

    Subclasses define how the state of the core and that of the policy start and advance. A model
    reads `num_labels` labels per image, in order: label i is the prediction after glimpse
    `(i + 1) * num_glimpses_per_label`.

    Args:
        class_names: Names of the classes, in the order of the logits.
        img_size: Height and width of the input images, in pixels.
        mean: Mean of each color channel, in [0, 1].
        std: Standard deviation of each color channel, in [0, 1].
        glimpse_size: For this and the other options see `RecurrentAttentionModel`, which has these
            defaults; `init_location` may also be `context`: a location chosen as all others, from
            a state that knows the image.

    Raises:
        ValueError: If an argument is out of range or an option is unknown.
    """

    glimpse_fusion: ClassVar[GlimpseFusion] = "sum"
    """How content and location of a glimpse are combined."""

    num_labels: int = 1
    """Number of labels that the model reads per image."""

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
        init_location: InitLocation = "random",
        policy_std: float = 0.1,
        learn_std: bool = False,
        pad_value: float = 0.0,
        backend: Backend = "crop",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(class_names, img_size, mean, std)
        counts = (glimpse_size, num_scales, num_glimpses, hidden_size, what_dim, where_dim)
        if min(counts) < 1 or not policy_std > 0 or not 0 <= dropout < 1:
            raise ValueError(
                "glimpse_size, num_scales, num_glimpses, hidden_size, what_dim and where_dim must "
                f"be at least 1, policy_std above 0 and dropout in [0, 1); got {counts}, "
                f"{policy_std} and {dropout}"
            )
        check_choice("rnn_type", rnn_type, get_args(RNNType))
        check_choice("glimpse_encoder", glimpse_encoder, get_args(GlimpseEncoderType))
        check_choice("init_location", init_location, get_args(InitLocation))
        check_choice("backend", backend, get_args(Backend))
        self.glimpse_size = glimpse_size
        self.num_scales = num_scales
        self.num_glimpses = num_glimpses
        self.hidden_size = hidden_size
        self.init_location: InitLocation = init_location
        self.policy_std = policy_std
        self.pad_value = pad_value
        self.dropout = dropout
        padding = (pad_value - torch.tensor(self.mean)) / torch.tensor(self.std)
        self.retina = Retina(glimpse_size, num_scales, padding, backend)
        self.glimpse_net = GlimpseNet(
            len(self.mean) * num_scales,
            glimpse_size,
            encoder_type=glimpse_encoder,
            fusion=self.glimpse_fusion,
            what_dim=what_dim,
            where_dim=where_dim,
            out_dim=hidden_size,
            dropout=dropout,
        )
        self.rnn = GlimpseRNN(rnn_type, hidden_size, hidden_size)
        self.classifier = nn.Linear(hidden_size, len(self.class_names))
        self.policy = LocationPolicy(hidden_size, init_location, policy_std, learn_std=learn_std)

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
        """The modules that choose locations, and that only the policy loss trains."""
        return {"policy": self.policy}

    @abstractmethod
    def initial_state(
        self, images: Float[Tensor, "b c y x"], indices: Int[Tensor, " r"]
    ) -> GlimpseState:
        """Return the state before the first glimpse.

        Args:
            images: Normalized images.
            indices: Image of each rollout.
        """

    @abstractmethod
    def next_state(
        self, glimpse: Float[Tensor, "r d"], state: GlimpseState, *, backprop_policy_to_core: bool
    ) -> GlimpseState:
        """Return the state after a glimpse; the gradient of the policy may flow into the core."""

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits after the last glimpse of the greedy policy."""
        return self.rollout(images).logits[:, 0, -1]

    def scanpath(
        self,
        images: UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"],
        *,
        num_rollouts: int = 1,
        sample: bool = False,
        init_locations: Float[Tensor, "b 2"] | None = None,
        locations: Float[Tensor, "b t 2"] | None = None,
    ) -> GlimpseRollout:
        """Return the glimpse locations and the logits after each glimpse.

        Args:
            images: uint8, or normalized floats.
            num_rollouts: Number of rollouts per image.
            sample: Whether to sample from the policy instead of using its mean.
            init_locations: First location of each image; by default as `init_location` says.
            locations: All locations of each image; the policy is not used.

        Raises:
            TypeError: If the images are neither uint8 nor floats.
            ValueError: If images or locations are invalid, or the policy returns a location that is
                not finite.
        """
        _check_rollout_inputs(images, num_rollouts, init_locations, locations)
        return self.rollout(
            self.normalize(images),
            num_rollouts=num_rollouts,
            sample=sample,
            init_locations=init_locations,
            locations=locations,
        )

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
        """Run the model on normalized images, for training; `scanpath` also checks its inputs.

        Args:
            images: Normalized images; for further arguments see `scanpath`.
            num_rollouts: As in `scanpath`.
            sample: As in `scanpath`.
            backprop_policy_to_core: Whether the gradient of the policy flows into the core.
            init_locations: As in `scanpath`, or one for each rollout.
            locations: As in `scanpath`.
            noise: Standard normal noise of the action that leads to each glimpse; by default
                sampled. The first entry is used only if the policy chooses the first location.
            samples: Samples that take the place of those of the policy, to train it by supervision.

        Raises:
            ValueError: If the policy returns a location that is not finite.
        """
        pyramid = self.retina.build_pyramid(images)
        indices = torch.arange(images.shape[0], device=images.device).repeat_interleave(
            num_rollouts
        )
        num_steps = self.num_glimpses if locations is None else locations.shape[1]
        if noise is None:
            noise = self._noise(images, num_rollouts, num_steps, sample=sample)
        step_noise = noise.flatten(0, 1).unbind(1)
        step_samples = (None,) * num_steps if samples is None else samples.flatten(0, 1).unbind(1)
        state = self.initial_state(images, indices)
        glimpses: list[Glimpse] = []
        for step in range(num_steps):
            action = None
            if locations is not None:
                location = locations[indices, step]
            elif not step and init_locations is not None:
                per_image = init_locations.ndim == 2
                location = init_locations[indices] if per_image else init_locations.flatten(0, 1)
            else:
                location, action = self._choose_location(
                    step, state, step_noise[step], step_samples[step]
                )
            patches = self.retina(pyramid, location, indices)
            glimpse = self.glimpse_net(patches, location)
            policy_state = state.policy[0]  # from which the location was chosen
            state = self.next_state(glimpse, state, backprop_policy_to_core=backprop_policy_to_core)
            glimpses.append(Glimpse(location, state.core[0], policy_state, action))
        logits = self.classifier(torch.stack([glimpse.hidden_state for glimpse in glimpses], 1))
        return stack_glimpses(glimpses, logits, num_rollouts)

    def _choose_location(
        self,
        step: int,
        state: GlimpseState,
        noise: Float[Tensor, "r 2"],
        sample: Float[Tensor, "r 2"] | None,
    ) -> tuple[Tensor, Action | None]:
        """Return the location of a glimpse, and the action if the policy chose it."""
        if step or self.init_location == "context":
            location, action = self.policy(state.policy[0], noise)
        else:
            location, action = self.policy.initial_locations(noise)
        if sample is None or action is None:
            return location, action
        return sample.clamp(-1, 1), (action[0], sample)

    def patches(
        self,
        images: UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"],
        locations: Float[Tensor, "b t 2"],
    ) -> UInt8[Tensor, "b t s c g g"]:
        """Return the glimpses at some locations as uint8 images.

        Args:
            images: uint8, or normalized floats.
            locations: x and y of each glimpse of each image, in [-1, 1].
        """
        _check_rollout_inputs(images, 1, None, locations)
        pyramid = self.retina.build_pyramid(self.normalize(images))
        indices = torch.arange(images.shape[0], device=images.device)
        indices = indices.repeat_interleave(locations.shape[1])
        patches = self.retina(pyramid, locations.flatten(0, 1), indices)
        pixels = (patches * self.scale + self.shift).round().clamp(0, 255).to(torch.uint8)
        return pixels.unflatten(0, tuple(locations.shape[:2]))

    def boxes(self, locations: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n s 4"]:
        """Return left, top, right and bottom of the windows, in pixels of `img_size`."""
        return glimpse_boxes(
            locations, self.img_size, glimpse_size=self.glimpse_size, num_scales=self.num_scales
        )

    @staticmethod
    def _noise(images: Tensor, num_rollouts: int, num_steps: int, *, sample: bool) -> Tensor:
        shape = (images.shape[0], num_rollouts, num_steps, 2)
        return torch.randn(shape, device=images.device) if sample else images.new_zeros(shape)


def _check_rollout_inputs(
    images: Tensor, num_rollouts: int, init_locations: Tensor | None, locations: Tensor | None
) -> None:
    """Check the number of rollouts, and that all locations lie on the image."""
    if num_rollouts < 1:
        raise ValueError(f"num_rollouts must be at least 1, got {num_rollouts}")
    for values in (init_locations, locations):
        if values is None:
            continue
        has_all_images = len(values) == len(images) and 0 not in values.shape
        if not (has_all_images and bool((values.abs() <= 1).all())):
            raise ValueError(
                "locations must be x and y in [-1, 1], with at least one location per image; got "
                f"shape {list(values.shape)} for {len(images)} images, with a largest absolute "
                f"value of {float(values.abs().max()) if values.numel() else None}"
            )
