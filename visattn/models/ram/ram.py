"""A network that looks at images piece by piece, and decides where to look next."""

from collections.abc import Sequence
from typing import get_args

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from visattn.functional.glimpses.retina import glimpse_boxes
from visattn.models.classifier import ImageClassifier
from visattn.models.normalization import MAX_PIXELS
from visattn.models.ram.location_policy import LocationPolicy, Start
from visattn.models.ram.networks import Backend, Core, GlimpseNet, GlimpseRNN, Retina, Sight
from visattn.models.ram.rollout import Glimpse, GlimpseRollout, gathered

_MAX_GLIMPSES = 4096  # each is kept with its state and its patches


class RecurrentAttentionModel(ImageClassifier):
    """A recurrent model of visual attention.

    At each step a retina takes a glimpse of the image, a core remembers, and a policy says where
    to look next: at a sample from a Gaussian around its mean while it learns, at the mean itself
    when it is used. `model(images)` gives the scores after the last glimpse; `look` tells all.

    Args:
        classes: Names of the classes, in the order of the scores.
        size: Height and width, in pixels, of the images.
        mean: Mean of each color channel, in [0, 1]; one channel for gray images, else three.
        std: Spread of each color channel, in [0, 1].
        glimpse: Cells along a side of a glimpse.
        scales: Windows of a glimpse, each twice as wide as the one before.
        glimpses: How many glimpses an image gets.
        core: What remembers: the paper's `rnn`, an `lstm` or a `gru`.
        width: Numbers that are remembered.
        sight: How a glimpse is read: by a `linear` layer, as the paper does, or by a small `conv`.
        what: Numbers for what a glimpse shows.
        where: Numbers for its place.
        start: Where the first glimpse lies: anywhere (`random`), in the `center`, or at a place
            that is `learned`, the same for all images.
        spread: Standard deviation of the policy; 2 is a side of the image.
        learn_spread: Let training change the spread.
        background: What lies around the image, in [0, 1].
        backend: `crop` snaps windows to pixels; `bilinear` looks between them.
        dropout: Share of what a glimpse shows that training leaves out.

    Raises:
        ValueError: If a number makes no sense, or a word is not one of those above.

    Example:
        >>> digits = "0 1 2".split()
        >>> model = RecurrentAttentionModel(digits, (28, 40), [0.1], [0.3], glimpses=4).eval()
        >>> looks = model.look(torch.zeros(5, 1, 28, 40, dtype=torch.uint8))
        >>> looks.places.shape, looks.scores.shape
        (torch.Size([5, 1, 4, 2]), torch.Size([5, 1, 4, 3]))

    Source:
        Mnih et al. 2014, arXiv:1406.6247. Deviation: the `rnn` starts near the identity.
    """

    def __init__(
        self,
        classes: Sequence[str],
        size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        *,
        glimpse: int = 8,
        scales: int = 1,
        glimpses: int = 6,
        core: Core = "rnn",
        width: int = 256,
        sight: Sight = "linear",
        what: int = 128,
        where: int = 128,
        start: Start = "random",
        spread: float = 0.1,
        learn_spread: bool = False,
        background: float = 0.0,
        backend: Backend = "crop",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(classes, size, mean, std)
        counts = (glimpse, scales, glimpses, width, what, where)
        if min(counts) < 1 or not spread > 0 or not 0 <= dropout < 1:
            raise ValueError(
                "glimpse, scales, glimpses, width, what and where must be at least 1, spread above "
                f"0 and dropout in [0, 1); got {counts}, {spread} and {dropout}"
            )
        _check_extent(size, scales, glimpses)
        _check_words(core=core, sight=sight, start=start, backend=backend)
        self.glimpse, self.scales, self.glimpses = glimpse, scales, glimpses
        self.core: Core = core
        self.sight: Sight = sight
        self.start: Start = start
        self.width, self.what, self.where = width, what, where
        self.spread, self.learn_spread = spread, learn_spread
        self.background, self.dropout = background, dropout
        self.backend: Backend = backend
        around = (background - torch.tensor(self.mean)) / torch.tensor(self.std)
        self.retina = Retina(glimpse, scales, around, backend)
        self.glimpse_net = GlimpseNet(
            len(self.mean) * scales,
            glimpse,
            sight=sight,
            what=what,
            where=where,
            width=width,
            dropout=dropout,
        )
        self.memory = GlimpseRNN(core, width, width)
        self.classifier = nn.Linear(width, len(self.classes))
        self.policy = LocationPolicy(width, start, spread, learn_spread=learn_spread)

    @property
    def head(self) -> nn.Module:
        """The layer that knows the classes."""
        return self.classifier

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the scores after the last glimpse; the eye goes where the policy means it to."""
        return self.roll_out(images).scores[:, 0, -1]

    def look(
        self,
        images: UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"],
        *,
        rollouts: int = 1,
        sampled: bool = False,
        start: Float[Tensor, "b 2"] | None = None,
        path: Float[Tensor, "b t 2"] | None = None,
    ) -> GlimpseRollout:
        """Return where the model looks on images, and what it thinks after each glimpse.

        Args:
            images: uint8, or floats that are normalized.
            rollouts: How often each image is looked at anew.
            sampled: Look at samples of the policy instead of its means.
            start: The first place of each image; as the model starts if left out.
            path: All places of each image; the policy is not asked.

        Raises:
            TypeError: If the images are neither uint8 nor floats.
            ValueError: If images, start or path are not what the model takes, or the policy gives
                a place that is no number.
        """
        _check_looks(images, rollouts, start, path)
        return self.roll_out(
            self.normalized(images), rollouts=rollouts, sampled=sampled, start=start, path=path
        )

    def roll_out(
        self,
        images: Float[Tensor, "b c y x"],
        *,
        rollouts: int = 1,
        sampled: bool = False,
        reaching: bool = False,
        start: Float[Tensor, "b 2"] | Float[Tensor, "b m 2"] | None = None,
        path: Float[Tensor, "b t 2"] | None = None,
        noise: Float[Tensor, "b m t 2"] | None = None,
    ) -> GlimpseRollout:
        """Do as `look` does, for normalized images and for learning.

        Args:
            images: Normalized.
            rollouts: How often each image is looked at anew.
            sampled: Look at samples of the policy instead of its means.
            reaching: Let the gradient of the policy reach the core.
            start: The first place of each image, or of each of its rollouts; as the model starts
                if left out.
            path: All places of each image; the policy is not asked.
            noise: How far the sample that leads to each glimpse is off its mean, in spreads; drawn
                if left out. The first counts only where the start is learned.

        Raises:
            ValueError: If the policy gives a place that is no number.
        """
        shown = self.retina.show(images)
        which = torch.arange(len(images), device=images.device).repeat_interleave(rollouts)
        steps = self.glimpses if path is None else path.shape[1]
        drawn = self._noise(images, rollouts, steps, sampled) if noise is None else noise
        off = drawn.flatten(0, 1).unbind(1)
        memory = self.memory.start(len(which), images)
        seen: list[Glimpse] = []
        for step in range(steps):
            if path is not None:
                place, action = path[which, step], None
            elif step:
                read = memory[0] if reaching else memory[0].detach()
                place, action = self.policy(read, off[step])
            elif start is not None:
                place = start[which] if start.ndim == 2 else start.flatten(0, 1)
                action = None
            else:
                place, action = self.policy.begin(off[0])
            memory = self.memory(self.glimpse_net(self.retina(shown, place, which), place), memory)
            seen.append(Glimpse(place, memory[0], action))
        scores = self.classifier(torch.stack([one.state for one in seen], 1))
        return gathered(seen, scores, rollouts)

    def patches(
        self,
        images: UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"],
        places: Float[Tensor, "b t 2"],
    ) -> UInt8[Tensor, "b t s c g g"]:
        """Return what the network sees at places, as bytes.

        Args:
            images: uint8, or floats that are normalized.
            places: x and y of each glimpse of each image, in [-1, 1].

        Raises:
            TypeError: If the images are neither uint8 nor floats.
            ValueError: If images or places are not what the model takes.
        """
        _check_looks(images, 1, None, places)
        shown = self.retina.show(self.normalized(images))
        which = torch.arange(len(images), device=images.device)
        seen = self.retina(shown, places.flatten(0, 1), which.repeat_interleave(places.shape[1]))
        pixels = (seen * self.scale + self.shift).round().clamp(0, 255).to(torch.uint8)
        return pixels.unflatten(0, tuple(places.shape[:2]))

    def boxes(self, places: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n s 4"]:
        """Return the windows at places: left, top, right, bottom, in pixels of `size`."""
        return glimpse_boxes(places, self.size, glimpse=self.glimpse, scales=self.scales)

    @staticmethod
    def _noise(images: Tensor, rollouts: int, steps: int, sampled: bool) -> Tensor:
        shape = (len(images), rollouts, steps, 2)
        return torch.randn(shape, device=images.device) if sampled else images.new_zeros(shape)


def _check_extent(size: tuple[int, int], scales: int, glimpses: int) -> None:
    """Refuse numbers whose product takes memory that no weight shows."""
    margin = 2 ** min(scales, 64)  # of the pyramid, on both sides together
    if (size[0] + margin) * (size[1] + margin) > MAX_PIXELS:
        raise ValueError(
            f"the widest window of {scales} scales reaches 2^{scales} pixels, too far beyond "
            f"images of {size[0]} x {size[1]}: both may hold at most {MAX_PIXELS:,} pixels"
        )
    if glimpses > _MAX_GLIMPSES:
        raise ValueError(f"glimpses must be at most {_MAX_GLIMPSES:,}, got {glimpses:,}")


def _check_words(**given: str) -> None:
    known = {"core": Core, "sight": Sight, "start": Start, "backend": Backend}
    for name, word in given.items():
        if word not in get_args(known[name]):
            raise ValueError(f"{name} must be one of {get_args(known[name])}, got {word!r}")


def _check_looks(images: Tensor, rollouts: int, start: Tensor | None, path: Tensor | None) -> None:
    """Refuse what would be looked at in silence and mean nothing."""
    if rollouts < 1:
        raise ValueError(f"rollouts must be at least 1, got {rollouts}")
    for given in (start, path):
        fits = given is None or (len(given) == len(images) and 0 not in given.shape)
        if given is not None and not (fits and bool((given.abs() <= 1).all())):
            raise ValueError(
                "places must be x and y in [-1, 1], for each image at least one; got "
                f"{list(given.shape)} for {len(images)} images, the farthest at "
                f"{float(given.abs().max()) if given.numel() else None}"
            )
