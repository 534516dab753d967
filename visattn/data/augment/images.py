"""Random augmentations of images and of whole batches, reproducible for each image."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2.functional import resize

from visattn.images.reader import ImageLike, read_rgb
from visattn.io.messages import did_you_mean

AugmentationSpec = str | Mapping[str, Mapping[str, Any]]
"""An augmentation in a config: `RandomHorizontalFlip`, or `RandomTranslate: {pixels: 4}`."""


_DCT_FILTERS = {
    InterpolationMode.BILINEAR: Image.Resampling.BILINEAR,
    InterpolationMode.BICUBIC: Image.Resampling.BICUBIC,
}


class Augmentation(ABC):
    """A random transform of a batch of images, with separate random numbers for each image.

    The result for an image depends on its own random numbers alone, not on its batch. Images may
    be on any device; their random numbers are on the CPU, so that nothing waits for a GPU.
    """

    num_uniforms: int
    """Random numbers per image."""

    @abstractmethod
    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return the transformed images.

        Args:
            images: Not modified.
            uniforms: For each image `num_uniforms` random numbers in [0, 1). Drawn from torch's
                global generator if None.
        """

    def _uniforms_first(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None
    ) -> Float[Tensor, "n b"]:
        """Return the random numbers as `[num_uniforms, batch]`, drawn now if not given."""
        if uniforms is None:
            return torch.rand(self.num_uniforms, len(images), dtype=torch.float64)
        return uniforms.T


class RandomHorizontalFlip(Augmentation):
    """Flip each image left to right with a given probability.

    Args:
        p: Probability of a flip, between 0 and 1.

    Example:
        >>> row = torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)
        >>> RandomHorizontalFlip(1.0)(row).flatten().tolist()
        [3, 2, 1]
    """

    num_uniforms = 1

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p must lie between 0 and 1, got {p}")
        self.p = p

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return the images, some of them flipped."""
        (uniform,) = self._uniforms_first(images, uniforms)
        flipped = (uniform < self.p).to(images.device)[:, None, None, None]
        return torch.where(flipped, images.flip(-1), images)


class RandomTranslate(Augmentation):
    """Translate each image by whole pixels; uncovered pixels are black.

    Args:
        pixels: Largest translation in each direction.

    Example:
        >>> RandomTranslate(0)(torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)).flatten().tolist()
        [1, 2, 3]
    """

    num_uniforms = 2

    def __init__(self, pixels: int = 4) -> None:
        if pixels < 0:
            raise ValueError(f"pixels must be at least 0, got {pixels}")
        self.pixels = pixels

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return a random crop of each zero-padded image."""
        count, channels, height, width = images.shape
        padded = pad(images, (self.pixels,) * 4)
        corners = (self._uniforms_first(images, uniforms) * (2 * self.pixels + 1)).long()
        device = images.device
        top, left = corners.clamp(max=2 * self.pixels).to(device)[:, :, None]
        rows = top + torch.arange(height, device=device)
        columns = left + torch.arange(width, device=device)
        return padded[
            torch.arange(count, device=device)[:, None, None, None],
            torch.arange(channels, device=device)[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]


class Affine(Augmentation):
    """Rotate, scale and translate each image; uncovered pixels are black.

    Args:
        degrees: Largest rotation in either direction.
        scale: Smallest and largest scale factor; drawn uniformly.
        translate: Largest translation in each direction, as a fraction of the output size.
        canvas_size: Height and width of the output in pixels; None for those of the image.

    Example:
        >>> row = torch.tensor([[[[9]]]], dtype=torch.uint8)
        >>> Affine(scale=(1, 1), canvas_size=(1, 5))(row).tolist()
        [[[[0, 0, 9, 0, 0]]]]
    """

    num_uniforms = 4

    def __init__(
        self,
        degrees: float = 0.0,
        scale: Sequence[float] = (1.0, 1.0),
        translate: float = 0.0,
        canvas_size: Sequence[int] | None = None,
    ) -> None:
        if len(scale) != 2 or not 0 < scale[0] <= scale[1] or min(degrees, translate) < 0:
            raise ValueError(
                "scale must be a smallest and a largest factor above 0, degrees and translate at "
                f"least 0; got scale={scale}, degrees={degrees}, translate={translate}"
            )
        self.degrees = degrees
        self.scale = (scale[0], scale[1])
        self.translate = translate
        self.canvas_size = None if canvas_size is None else (canvas_size[0], canvas_size[1])

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return the transformed images, resampled bilinearly."""
        count, channels, height, width = images.shape
        output_size = self.canvas_size or (height, width)
        uniforms = self._uniforms_first(images, uniforms).float()
        grid = affine_grid(
            self._inverse_matrices(uniforms, (height, width), output_size).to(images.device),
            [count, channels, *output_size],
            align_corners=False,
        )
        return grid_sample(images.float(), grid, align_corners=False).round().to(torch.uint8)

    def _inverse_matrices(
        self, uniforms: Float[Tensor, "4 b"], size: tuple[int, int], output_size: tuple[int, int]
    ) -> Float[Tensor, "b 2 3"]:
        """Return, per image, the matrix that maps output to input, both from -1 to 1."""
        rotation, scale, right, down = uniforms
        angle = (2 * rotation - 1) * math.radians(self.degrees)
        scale = self.scale[0] + scale * (self.scale[1] - self.scale[0])
        cosine = angle.cos() / scale
        sine = angle.sin() / scale
        inverse = torch.stack([cosine, sine, -sine, cosine], -1).view(-1, 2, 2)
        translation = (2 * torch.stack([right, down], -1) - 1) * self.translate
        # `affine_grid` asks where each output pixel comes from, in coordinates from -1 to 1:
        #
        #     output, -1 to 1  ->  pixels from its middle     times half of the output's sides
        #                      ->  pixels of the input        rotated back, divided by the scale
        #                      ->  input, -1 to 1             divided by half of the input's sides
        #
        # The first factor stands at the columns of the matrix, the last at its rows. Scale 2 from
        # 10 x 10 to 20 high and 40 wide: (2, 0; 0, 1).
        half_size = torch.tensor([output_size[1], output_size[0]]) / 2
        inverse = inverse * half_size / torch.tensor([[size[1]], [size[0]]]) * 2
        return torch.cat([inverse, -(inverse @ (2 * translation)[:, :, None])], 2)


class PerImageTransform(Augmentation):
    """A torchvision transform, applied to one image at a time.

    Args:
        transform: Takes and returns uint8 tensors. It draws from torch's global generator, which
            is seeded for each image and restored afterwards.

    Example:
        >>> flip = PerImageTransform(v2.RandomHorizontalFlip(p=1.0))
        >>> flip(torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)).flatten().tolist()
        [3, 2, 1]
    """

    num_uniforms = 1

    def __init__(self, transform: v2.Transform) -> None:
        self.transform = transform

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return the transformed images.

        Raises:
            TypeError: If the transform does not return uint8.
        """
        (uniform,) = self._uniforms_first(images, uniforms)
        seeds = (uniform.double() * 2**53).long().tolist()
        pairs = zip(images, seeds, strict=True)
        with torch.random.fork_rng(devices=[]):
            transformed = torch.stack([self._transform_seeded(*pair) for pair in pairs])
        if transformed.dtype != torch.uint8:
            raise TypeError(
                f"{type(self.transform).__name__} returns {transformed.dtype}, but augmentations "
                "must return uint8; the classifier normalizes its input, so remove such transforms"
            )
        return transformed

    def _transform_seeded(self, image: UInt8[Tensor, "c y x"], seed: int) -> Tensor:
        torch.default_generator.manual_seed(seed)
        return self.transform(image)


class RandomResizedCrop(PerImageTransform):
    """Random resized crop of torchvision, which as the first augmentation is part of the reading.

    `read` crops a photo before its pixels are copied, with the same result. A JPEG whose crop is at
    least twice as large as the output is decoded at 1/2, 1/4 or 1/8 of its size (DCT scaling of
    libjpeg), so that pixels differ slightly from those of `torchvision.transforms.v2`.

    Args:
        options: Those of `torchvision.transforms.v2.RandomResizedCrop`.

    Example:
        >>> crop = RandomResizedCrop(size=2, scale=(1, 1), ratio=(1, 1))
        >>> crop.read(np.full((3, 3, 3), 7, np.uint8), torch.tensor([0.5])).unique()
        tensor([7], dtype=torch.uint8)
    """

    transform: v2.RandomResizedCrop

    def __init__(self, **options: Any) -> None:
        super().__init__(v2.RandomResizedCrop(**options))

    def read(
        self, source: ImageLike, uniform: Float[Tensor, " 1"], *, dct_scaling: bool = True
    ) -> UInt8[Tensor, "3 y x"]:
        """Return the crop of a photo.

        Args:
            source: The photo, as `read_image` accepts it.
            uniform: Its random number in [0, 1).
            dct_scaling: Whether a JPEG may be decoded at a part of its size.

        Raises:
            ImageError: If the photo cannot be read.
        """
        crop: _Crop | None = None

        # Called when the header is read, and no pixel: what may be left out depends on the crop.
        def reduction(size: tuple[int, int]) -> int:
            nonlocal crop
            crop = self._draw(size, uniform)
            height, width = cast("Sequence[int]", self.transform.size)
            ratio = min(crop.height / height, crop.width / width)
            return next((factor for factor in (8, 4, 2) if ratio >= factor), 1)

        dct_scaling &= InterpolationMode(self.transform.interpolation) in _DCT_FILTERS
        image = read_rgb(source, reduction=reduction if dct_scaling else None)
        crop = crop or self._draw((image.height, image.width), uniform)
        return self._resize(image, crop)

    def _draw(self, size: tuple[int, int], uniform: Float[Tensor, " 1"]) -> "_Crop":
        """Return the crop that the transform draws for a photo of this size."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(uniform.double() * 2**53))
            # Of an image the transform asks for the size only; a meta tensor has no memory.
            box = self.transform.make_params([torch.empty(1, *size, device="meta")])
        return _Crop(size, box["top"], box["left"], box["height"], box["width"])

    def _resize(self, image: Image.Image, crop: "_Crop") -> UInt8[Tensor, "3 y x"]:
        """Return the crop of an image that was decoded in whole or in part."""
        transform = self.transform
        height, width = cast("Sequence[int]", transform.size)
        left, top, right, bottom = crop.edges((image.height, image.width))
        if (image.height, image.width) != crop.size:  # edges lie between pixels
            resampling = _DCT_FILTERS[InterpolationMode(transform.interpolation)]
            scaled = image.resize((width, height), resampling, box=(left, top, right, bottom))
            return torch.from_numpy(np.array(scaled).transpose(2, 0, 1).copy())
        # Cropped first and resized by torchvision, whose pixels these are to be.
        pixels = np.array(image.crop((int(left), int(top), int(right), int(bottom))))
        resized = resize(
            torch.from_numpy(pixels).permute(2, 0, 1),
            [height, width],
            interpolation=transform.interpolation,
            antialias=transform.antialias,
        )
        return resized.contiguous()


class _Crop(NamedTuple):
    """A crop of a photo, in its pixels."""

    size: tuple[int, int]
    top: int
    left: int
    height: int
    width: int

    def edges(self, decoded: tuple[int, int]) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom in the pixels of the decoded photo."""
        y = decoded[0] / self.size[0]
        x = decoded[1] / self.size[1]
        bottom = self.top + self.height
        right = self.left + self.width
        return self.left * x, self.top * y, right * x, bottom * y


_BATCH_AUGMENTATIONS: dict[str, type[Augmentation]] = {
    augmentation.__name__: augmentation
    for augmentation in (RandomHorizontalFlip, RandomTranslate, Affine, RandomResizedCrop)
}
TORCHVISION_TRANSFORMS: dict[str, type[v2.Transform]] = {
    name: member
    for name, member in vars(v2).items()
    if isinstance(member, type) and issubclass(member, v2.Transform)
}


def build_augmentation(spec: AugmentationSpec) -> Augmentation:
    """Return the augmentation that a config names.

    Args:
        spec: A name, or a name with its options. `RandomHorizontalFlip`, `RandomTranslate` and
            `Affine` transform a whole batch at once; all other names are those of
            `torchvision.transforms.v2`.

    Raises:
        ValueError: If the name is unknown or does not accept these options.

    Example:
        >>> build_augmentation({"RandomTranslate": {"pixels": 2}}).pixels
        2
        >>> build_augmentation("RandomInvert").transform
        RandomInvert(p=0.5)
    """

    def per_image(transform: type[v2.Transform], **options: Any) -> Augmentation:
        return PerImageTransform(transform(**options))

    others = {
        name: partial(per_image, transform)
        for name, transform in TORCHVISION_TRANSFORMS.items()
        if name not in _BATCH_AUGMENTATIONS
    }
    return build_from_spec({**_BATCH_AUGMENTATIONS, **others}, spec, "augmentation")


Built = TypeVar("Built")


def build_from_spec(
    known: Mapping[str, Callable[..., Built]], spec: AugmentationSpec, kind: str
) -> Built:
    """Return what a config names among constructors, made with its options.

    Raises:
        ValueError: If the name is unknown or does not accept these options.
    """
    named = {spec: {}} if isinstance(spec, str) else dict(spec)
    if len(named) != 1:
        raise ValueError(f"the {kind} must be one name with its options, got {', '.join(named)}")
    ((name, options),) = named.items()
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}; {did_you_mean(name, known)}")
    try:
        return known[name](**options)
    except TypeError as error:
        raise ValueError(f"{name} does not accept these options: {error}") from error


_ATTEMPTS = 10  # of torchvision, to draw a rectangle that fits into the image


class RandAugment(Augmentation):
    """RandAugment of torchvision, for all images of a batch that draw the same operation at once.

    Args:
        options: Those of `torchvision.transforms.v2.RandAugment`.

    Example:
        >>> images = torch.zeros(5, 3, 4, 6, dtype=torch.uint8)
        >>> RandAugment(num_ops=1)(images).shape
        torch.Size([5, 3, 4, 6])

    Source:
        Cubuk et al. 2019, arXiv:1909.13719.
    """

    def __init__(self, **options: Any) -> None:
        self.transform = v2.RandAugment(**options)
        self.num_uniforms = 2 * self.transform.num_ops

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y x"]:
        """Return the images after `num_ops` operations each."""
        space = list(self.transform._AUGMENTATION_SPACE)  # noqa: SLF001 (has no public name)
        for kinds, signs in self._uniforms_first(images, uniforms).split(2):
            operations = (kinds * len(space)).long().clamp(max=len(space) - 1)
            # At most two calls per operation, each with many images, instead of one call per image.
            for number, name in enumerate(space):
                for negative in (False, True):
                    rows = ((operations == number) & ((signs <= 0.5) == negative)).nonzero()[:, 0]
                    if len(rows):
                        rows = rows.to(images.device, non_blocking=True)
                        images = images.index_copy(
                            0, rows, self._apply(images[rows], name, negative=negative)
                        )
        return images

    def _apply(
        self, images: UInt8[Tensor, "b c y x"], name: str, *, negative: bool
    ) -> UInt8[Tensor, "b c y x"]:
        """Return images after one operation at the configured magnitude."""
        transform = self.transform
        magnitudes, signed = transform._AUGMENTATION_SPACE[name]  # noqa: SLF001
        height, width = images.shape[-2:]
        values = magnitudes(transform.num_magnitude_bins, height, width)
        magnitude = 0.0 if values is None else float(values[transform.magnitude])
        result: Any = transform._apply_image_or_video_transform(  # noqa: SLF001
            images,
            name,
            -magnitude if signed and negative else magnitude,
            interpolation=transform.interpolation,
            fill=transform._fill,  # noqa: SLF001
        )
        return result


class RandomErasing(Augmentation):
    """Random erasing of torchvision, for a whole batch.

    Args:
        p: Probability that a rectangle of an image is erased.
        scale: Smallest and largest share of the image that is erased.
        ratio: Smallest and largest ratio of height to width.
        value: Value of erased pixels, 0 to 255: a number, or one per channel.

    Example:
        >>> images = torch.full((2, 1, 8, 8), 9, dtype=torch.uint8)
        >>> RandomErasing(p=1.0, value=3)(images).unique()
        tensor([3, 9], dtype=torch.uint8)

    Source:
        Zhong et al. 2017, arXiv:1708.04896.
    """

    num_uniforms = 1 + 2 * _ATTEMPTS + 2

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] = 0,
    ) -> None:
        self.values = torch.tensor([value] if isinstance(value, int | float) else list(value))
        fits = 0 <= scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1] and 0 <= p <= 1
        if (
            not fits
            or self.values.ndim != 1
            or not bool(((self.values >= 0) & (self.values <= 255)).all())
        ):
            raise ValueError(
                "p must lie between 0 and 1, scale be a smallest and a largest share of the image, "
                "ratio a smallest and a largest ratio above 0, and value from 0 to 255; got "
                f"p={p}, scale={tuple(scale)}, ratio={tuple(ratio)}, value={value}"
            )
        self.p = p
        self.scale = (scale[0], scale[1])
        self.ratio = (ratio[0], ratio[1])

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y x"]:
        """Return the images, some of them with an erased rectangle."""
        device = images.device
        height, width = images.shape[-2:]
        boxes = self._boxes(self._uniforms_first(images, uniforms), (height, width))
        top, left, bottom, right = boxes.to(device, non_blocking=True)[:, :, None, None, None]
        rows = torch.arange(height, device=device)[:, None]
        columns = torch.arange(width, device=device)
        inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
        values = self.values.to(images.dtype)[:, None, None].to(device, non_blocking=True)
        return torch.where(inside, values, images)

    def _boxes(self, uniforms: Float[Tensor, "n b"], size: tuple[int, int]) -> Tensor:
        """Return top, left, bottom and right of the rectangles; empty where nothing is erased."""
        (chosen,), areas, ratios, places = uniforms.split((1, _ATTEMPTS, _ATTEMPTS, 2))
        low, high = map(math.log, self.ratio)
        ratio = (low + ratios * (high - low)).exp()
        area = size[0] * size[1] * (self.scale[0] + areas * (self.scale[1] - self.scale[0]))
        heights = (area * ratio).sqrt().round()
        widths = (area / ratio).sqrt().round()
        fits: Bool[Tensor, "a b"] = (heights < size[0]) & (widths < size[1])
        # torchvision draws again until a rectangle fits. Here all attempts are drawn ahead, so that
        # an image always takes as many numbers, and argmax finds the first that fits.
        first = fits.int().argmax(0, keepdim=True)
        erased = (chosen < self.p) & fits.any(0)
        height, width = (sides.gather(0, first)[0] * erased for sides in (heights, widths))
        top = (places[0] * (size[0] - height + 1)).floor()
        left = (places[1] * (size[1] - width + 1)).floor()
        return torch.stack((top, left, top + height, left + width))


_BATCH_TRANSFORMS: dict[str, type[Augmentation]] = {
    transform.__name__: transform
    for transform in (RandomHorizontalFlip, RandomTranslate, Affine, RandAugment, RandomErasing)
}


def build_batch_transform(spec: AugmentationSpec) -> Augmentation:
    """Return the augmentation of a batch that a config names.

    Args:
        spec: A name, or a name with its options: `RandomHorizontalFlip`, `RandomTranslate`,
            `Affine`, `RandAugment` or `RandomErasing`.

    Raises:
        ValueError: If the name is unknown or does not accept these options.

    Example:
        >>> build_batch_transform({"RandomErasing": {"p": 0.25}}).p
        0.25
    """
    return build_from_spec(_BATCH_TRANSFORMS, spec, "transform of a batch")
