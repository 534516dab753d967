"""Image tokens among the keys of a language model, and their positions on a photo.

Two probes, of the processor and of the model, follow the pixels of a photo:

    photo --processor--> pixel values --vision tower--> rows that words read

1. Photos that grow brighter downwards and to the right show which part of the photo each pixel
   value is: its level, from 0 to 1, is its position y or x.
2. Noise n on the pixel values changes each row by d, and n * y and n * x by d_y and d_x. The mean
   position of the pixels of a row is <d_y, d> / |d|^2 and <d_x, d> / |d|^2. Meanwhile attention
   is the identity, so that each token keeps its own pixels.

Rows are those of `inputs_embeds`; where words read the photo by cross-attention, the values that it
reads; where they read learned queries, the values that these read.
"""

import re
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from visattn.images.reader import LoadedImage
from visattn.pipelines.words.language_model import (
    ONE_TEXT,
    PhotoProcessor,
    pixel_name,
    run_generate,
    text_decoder,
    weight_dtype,
)
from visattn.pipelines.words.lattice import Centers, Placement, draw, find_cells
from visattn.recording.attention_call import IDENTITY, AttentionCall
from visattn.recording.frozen import HALF, Float32, without_grad
from visattn.recording.interception import attention_calls, in_this_run

_INPUTS = "inputs_embeds"
_KEYS = "keys"  # of the last self-attention of the text decoder
_AMPLITUDE = 1e-3  # of noise: small, so that rows change linearly, but more than rounding
_LEAST_RUNS, _MOST_RUNS = 4, 48
_FEW = 1024  # tokens; the fewer they are, the more noise may be needed to place each
_ESTIMATES = "positions of image tokens are estimates: they may be off by up to a token"
_STILL = 1e-4  # of a token: noise ends if twice as much gives the same patches
_SILENT = 1e-7  # of the largest squared change
_STEP = 1e-9  # of the photo, squared: the least variance of the pixels of a token
_EQUAL = 1e-12  # of the same; rows of text do not change at all
_CLEAR, _MOVED = 1e-3, 1e-6  # of the same; rounding of keys is below
_PADDED = 1e-4  # of the squared change by the photo: the least by padding that a token sees
_SEVERAL = 0.1  # of the number of its slice: so far off is a token that reads several
_EVERYWHERE = 0.7  # of the photo
_SHOWN = 0.5  # a pixel value shows the photo if this share of it does; the rest is padding
_BORDER = 0.01  # of the photo: a tile that begins or ends so close to its border does so there
_SMALLEST = 0.6  # pixels of the photo; smaller tokens cannot be told apart
_MEDIAN, _MEAN = 3.0, 9.0  # gray levels by which half photo, half pattern may be off
_TEXTURE = 64  # gray levels of noise in test photos, for processors that look for content


@dataclass(frozen=True, eq=False)
class ImageTokens:
    """Image tokens of a model for photos of one size.

    Args:
        placement: Their positions; of those that learned queries read if there are any.
        sites: Attention layers in which words read them.
        columns: Keys that words read, if these are learned queries.
        between: Attention layers in which the queries read the placed tokens.
        length: Keys of the prompt, image tokens among them, behind which those of words stand; None
            where image tokens are keys alone, or stand behind the words.
        num_keys: Keys of the prompt and, where they are others, of the photo.
        notes: How the tokens were placed, if not by their own pixels.
    """

    placement: Placement
    sites: tuple[str, ...]
    columns: Int[Tensor, " l"]
    between: tuple[str, ...] = ()
    length: int | None = None
    num_keys: int = 0
    notes: tuple[str, ...] = ()

    def of_row(self, row: Float[Tensor, "*h m"], words: int) -> Float[Tensor, "*h l"]:
        """Return what the row of a layer gives the image tokens.

        Args:
            row: Its attention over all keys.
            words: Number of words among the keys. A sliding window holds the last keys only.
        """
        count = row.shape[-1]
        shift = (
            count - self.num_keys if self.length is None else min(0, count - self.length - words)
        )
        keys = self.columns + shift
        return row[..., keys.clamp(min=0)] * (keys >= 0)


Kept = dict[Any, tuple[ImageTokens, "_Pixels"]]
"""Image tokens by what decides on them: size and inputs of a photo, for one model."""


def find_image_tokens(
    process: PhotoProcessor, photo: LoadedImage, inputs: dict[str, Any], kept: Kept
) -> ImageTokens:
    """Return the image tokens that words of a model read, with their positions on the photo.

    Args:
        process: Preprocessing of the model, with the prompt.
        photo: The photo.
        inputs: Its inputs.
        kept: Tokens of earlier photos.

    Raises:
        ValueError: If words read no image tokens, or the tokens cannot be placed.
    """
    name = pixel_name(inputs)
    tensors = {key: value for key, value in inputs.items() if isinstance(value, Tensor)}
    integers = {key: v.cpu().numpy().tobytes() for key, v in tensors.items()
                if not v.is_floating_point()}  # fmt: skip
    key = (photo.size, tensors[name].shape, process.text, *integers.items())
    if key not in kept:
        pixels = _Pixels(process, name, photo.size, tensors[name].shape)
        with torch.autocast(tensors[name].device.type, enabled=False):
            kept[key] = _locate(process.model, inputs, pixels), pixels
    tokens, pixels = kept[key]
    pixels.check(photo)
    return tokens


class _Pixels:
    """Where the pixel values of a photo of one size lie on it.

    Args:
        process: Preprocessing of the model.
        name: Input of the model that holds the pixel values.
        size: Height and width of the photo.
        shape: Shape of the pixel values.
    """

    def __init__(
        self, process: PhotoProcessor, name: str, size: tuple[int, int], shape: torch.Size
    ) -> None:
        self.process, self.name, self.size, self.shape = process, name, size, shape
        y, x = ((np.arange(side) + 0.5) / side for side in size)
        y = y[:, None]
        # Some noise in all test photos, so that processors which crop plain margins crop none.
        texture = np.random.default_rng(0).uniform(32, 32 + _TEXTURE, size)
        dark, bright = (self._read(texture + level) for level in (0 * y, 0 * y + 128))
        span = bright - dark
        self.shown = span.abs() > _SHOWN * span.abs().max()

        def position(axis: np.ndarray, low: float, high: float) -> Tensor:
            ramp = self._read(texture + 128 * ((axis - low) / (high - low)).clip(0, 1))
            places = low + (high - low) * (ramp - dark) / torch.where(self.shown, span, 1.0)
            seen = places[self.shown]
            near, far = float(seen.min()) - 0.02, float(seen.max()) + 0.02
            if far - near > 0.5 * (high - low):
                return places * self.shown
            return position(axis, near, far)  # of a crop, whose ramp has a few gray levels only

        def steps(side: int) -> tuple[float, float]:
            """Return from where to where a ramp of a small photo has whole gray levels a pixel."""
            return (0.5 / side, 0.5 / side + 128 / side / (128 // side)) if side <= 128 else (0, 1)

        found = [position(axis, *steps(side)) for axis, side in zip((y, x), size, strict=True)]
        self.places: Float[Tensor, 2 * shape] = torch.stack(found)
        self._pattern = 127.5 + 127.5 * np.sin(16 * np.pi * y) * np.sin(16 * np.pi * x)
        self._processed = self._read(self._pattern)
        self._level = float(span.abs().max()) / 128

    def _read(self, gray: np.ndarray) -> Tensor:
        """Return the pixel values of a photo, not normalized."""
        photo = np.broadcast_to(np.rint(gray), self.size) if gray.ndim < 3 else gray
        rgb = photo[..., None].repeat(3, 2) if photo.ndim < 3 else photo
        values = self.process.unnormalized(Image.fromarray(rgb.astype(np.uint8)))[self.name]
        if values.shape != self.shape:
            raise ValueError(
                "the processor must return pixels of one shape for photos of "
                f"{self.size[0]} x {self.size[1]} pixels, got {tuple(self.shape)} and "
                f"{tuple(values.shape)}; if it crops photos by their content, turn that off"
            )
        return values.float().cpu()

    def check(self, photo: LoadedImage) -> None:
        """Refuse a photo whose pixels lie elsewhere than those of the test photos.

        A processor that treats every pixel by its position alone is linear: the mean of photo and
        pattern must give the mean of both results.

        Raises:
            ValueError: If the positions depend on the content of the photo.
        """
        mixed = np.rint((photo.pixels + self._pattern[..., None]) / 2)
        mean = (self._read(photo.pixels) + self._processed) / 2
        error = (self._read(mixed) - mean)[self.shown].abs() / self._level
        if float(error.median()) > _MEDIAN or float(error.mean()) > _MEAN:
            raise ValueError(
                "the processor positions photos by their content, for example because it crops "
                "margins, so the pixels of this photo are not where those of the test photos of "
                "its size are; turn that off in the image processor (do_crop_margin=False "
                "in Nougat), or crop the photo yourself"
            )

    def slices(self) -> tuple[Int[Tensor, " *shape"], Float[Tensor, "2 s 2 2"]]:
        """Return the tile of each pixel value, what each tile shows, and where its padding ends."""
        lead = self.shape[: -3 if len(self.shape) > 3 else -2]
        count = lead.numel()
        numbers = torch.arange(count).view(*lead, *[1] * (len(self.shape) - len(lead)))
        edges = torch.zeros(count, 2, 2, dtype=torch.float64)
        for number in range(count):
            own = self.shown.reshape(count, -1)[number]
            seen = self.places.reshape(2, count, -1)[:, number, own]
            if seen.numel():  # it shows an even rectangle, whose sides its variance tells
                half = 3**0.5 * seen.std(1, correction=0)
                edges[number] = torch.stack([seen.mean(1) - half, seen.mean(1) + half])
        edges = torch.where(edges < _BORDER, 0.0, torch.where(edges > 1 - _BORDER, 1.0, edges))
        patches = self.shown.reshape(count, -1, self.shape[-1])  # whole ones, or padding
        frames = edges * (patches.all(2) == patches.any(2)).all(1)[:, None, None]
        if len(self.shape) > 3:
            shown = self.shown.reshape(count, *self.shape[-3:])
            for frame, edge, own in zip(frames, edges, shown, strict=True):
                for axis, side in enumerate(own.shape[1:]):
                    lines = own.any(0).any(1 - axis).nonzero()[:, 0]
                    if len(lines):
                        low, high = edge[:, axis]
                        step = (high - low) / (lines[-1] + 1 - lines[0])
                        frame[0, axis] = low - lines[0] * step
                        frame[1, axis] = high + (side - 1 - lines[-1]) * step
        return numbers.expand(self.shape), torch.stack([edges, frames])


class _Found(Exception):  # noqa: N818 (it ends a run)
    """The run has what it was made for."""


class _Shortcut(TorchFunctionMode):
    """Blocks whose attention is the identity hand on their tokens: their linear layers give zeros.

    Most of a run is in these layers, and a token shows the same pixels without them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.blocks: dict[str, set[int]] = {}
        self.undone = False
        self._called: set[int] = set()

    def take(self, site: str, *, whole: bool) -> None:
        """Cut short the block around an attention layer: `whole`, or behind its attention."""
        name = _block(site)
        if name and name not in self.blocks:
            parts, own = (list(self.model.get_submodule(each).modules()) for each in (name, site))
            weights, within = ({id(each.weight) for each in chosen if isinstance(each, nn.Linear)}
                               for chosen in (parts, own if whole else ()))  # fmt: skip
            mixing = any(isinstance(each, nn.modules.conv._ConvNd) for each in parts)  # noqa: SLF001
            self.blocks[name] = set() if mixing else weights - (self._called - within)

    def leave(self, site: str) -> None:
        """Leave a block as it is, since tokens read others there."""
        name = _block(site)
        self.undone |= bool(self.blocks.get(name))
        self.blocks[name] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function, or return zeros."""
        if func is F.linear:
            states, weight = args[:2]
            self._called.add(id(weight))
            if any(id(weight) in each for each in self.blocks.values()):
                return states.new_zeros(*states.shape[:-1], len(weight))
        return func(*args, **kwargs or {})


def _block(site: str) -> str:
    """Return the name of the numbered module around an attention layer; "" if there is none."""
    match = re.match(r".*\.\d+(?=\.)", site)
    return match[0] if match else ""


class _Rows:
    """What the words of a model read of pixel values, without attention on the way.

    Args:
        model: The model.
        inputs: Its inputs.
    """

    def __init__(self, model: nn.Module, inputs: dict[str, Any]) -> None:
        self.model, self.inputs = model, inputs
        self.decoder_name, self.decoder = text_decoder(model)
        self.shapes: dict[str, tuple[int, int, int, int]] = {}
        self.dtype = torch.promote_types(weight_dtype(model), torch.float32)
        self.shortcut = _Shortcut(model)
        self.is_half = any(weight.dtype in HALF for weight in model.parameters())

    def read(self, pixels: Tensor, until: str = "", *, layers: bool = True) -> dict[str, Tensor]:
        """Return the rows `n c` of the decoder's input, and the values of attention by layer.

        Args:
            pixels: The pixel values.
            until: Rows with which the run ends.
            layers: Whether the values of each layer of the decoder are kept, besides the last keys.
        """
        rows: dict[str, Tensor] = {}

        def keep(name: str, values: Tensor) -> None:
            rows.setdefault(name, values)
            if name == until:
                raise _Found

        def enter(_: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
            states = kwargs.get(_INPUTS)
            if isinstance(states, Tensor):
                keep(_INPUTS, states.flatten(0, -2))

        def on_call(call: AttentionCall) -> Tensor | None:
            if call.unsupported:
                return None
            call.heads_mixed = False  # tokens keep their content also where heads are mixed
            _, _, num_queries, num_keys = self.shapes[call.name] = call.shape
            values = call.inputs[2]
            if values.shape[1] == 1:  # bmm has the heads on the batch axis
                values = values.transpose(0, 1)
            if self.in_decoder(call.name) or num_queries != num_keys:
                read = values.transpose(1, 2).flatten(2).flatten(0, 1)
                if _INPUTS in rows and self.in_decoder(call.name) and num_queries == num_keys:
                    rows[_KEYS] = read  # layers before may have moved them
                if layers or not self.in_decoder(call.name):
                    keep(call.name, read)
            if num_queries == num_keys:
                self.shortcut.take(call.site, whole=not self.in_decoder(call.site))
                return IDENTITY
            self.shortcut.leave(call.site)
            # words keep their content, too
            return values.new_zeros(num_queries, num_keys) if self.in_decoder(call.name) else None

        name = pixel_name(self.inputs)
        handle = self.decoder.register_forward_pre_hook(in_this_run(enter), with_kwargs=True)
        try:
            with (
                suppress(_Found), without_grad(self.model),
                Float32() if self.is_half else nullcontext(), self.shortcut,
                attention_calls(self.model, on_call),
            ):  # fmt: skip
                changed = pixels.to(self.inputs[name].device, self.dtype)
                options = {**ONE_TEXT, "max_new_tokens": 1}
                run_generate(self.model, {**self.inputs, name: changed}, options)
        finally:
            handle.remove()
        again, self.shortcut.undone = self.shortcut.undone, False
        return self.read(pixels, until, layers=layers) if again else rows

    def in_decoder(self, site: str) -> bool:
        """Whether an attention layer is one of the text decoder."""
        return site.startswith(self.decoder_name)


def _locate(model: nn.Module, given: dict[str, Any], pixels: _Pixels) -> ImageTokens:
    """Return the image tokens that words read, or that learned queries before them read."""
    rows = _Rows(model, given)
    original = given[pixels.name]
    random = torch.Generator().manual_seed(0)

    def noise() -> Tensor:
        return torch.randn(pixels.shape, generator=random, dtype=torch.float64).float()

    base = torch.where(pixels.shown, noise(), original.float().cpu())
    first = _AMPLITUDE * noise() * pixels.shown
    before, after = (rows.read(each, layers=False) for each in (base, base + first))
    site, changed = _INPUTS, _changed(before, after, _INPUTS)
    sites = tuple(filter(rows.in_decoder, rows.shapes))
    if len(changed):
        _check_keys(model, before, after)
    else:  # words read the photo by cross-attention, or the decoder joins both
        before, after = rows.read(base), rows.read(base + first)
        *_, last = (shape for name, shape in rows.shapes.items() if rows.in_decoder(name))
        reading = {name: _changed(before, after, name) for name, shape in rows.shapes.items()
                   if rows.in_decoder(name) and shape[2] == last[2]}  # fmt: skip
        site = next((name for name, own in reading.items() if len(own)), "")
        if not site:
            raise ValueError(_no_image_tokens(model))
        changed = reading[site]
        sites = tuple(name for name, own in reading.items() if torch.equal(own, changed))
    between = tuple(
        name
        for name, shape in rows.shapes.items()
        if not rows.in_decoder(name) and shape[0] * shape[2] == len(changed)
        and shape[2] != shape[3] and name in after
    )  # fmt: skip
    part, (edges, frames) = pixels.slices()
    measured = {name: torch.zeros(5, len(before[name]), dtype=torch.float64)
                for name in (site, *between[:1])}  # fmt: skip

    def read(change: Tensor) -> dict[str, Tensor]:
        """Return by how much rows change with the pixels."""
        after = rows.read(base + change, site)
        return {name: (after[name] - before[name]).double() for name in measured}

    plain = {name: (after[name] - before[name]).double() for name in measured}
    by_part = read(first * (part + 1.0) / len(edges)) if len(edges) > 1 else plain
    # upwards, as Pix2Struct has numbers of rows and columns beside the pixels, and rounds them down
    hidden = _AMPLITUDE * noise().abs() * ~pixels.shown
    padding = read(hidden) if bool(hidden.any()) else None

    def placed(name: str) -> tuple[Placement, bool] | None:
        """Return the placement, and whether it is certain."""
        energy, y, x, yy, xx = measured[name]
        own = (energy > _SILENT * energy.max()).nonzero()[:, 0]
        d, d_part = (each[name][own.to(each[name].device)].cpu() for each in (plain, by_part))
        mean = torch.stack([y, x], 1)[own] / energy[own, None]
        variance = torch.stack([yy, xx], 1)[own] / energy[own, None] - mean**2
        if bool((variance < _STEP).all(1).any()):
            return None  # discrete codes, which change by steps or not at all
        extent = (12 * variance.clamp(min=1e-12)).sqrt()  # of an even box
        number = (d_part * d).sum(1) / (d * d).sum(1) * len(edges) - 1
        parts = number.round().long().clamp(0, len(edges) - 1)
        whole = torch.ones_like(parts, dtype=torch.bool)
        if padding is not None:
            whole = padding[name].square().sum(1).cpu()[own] <= _PADDED * d.square().sum(1)
        # the photo is all slices if each patch is one, or tokens read several
        one = len(own) < 2 * len(parts.unique()) or bool(((number - parts).abs() > _SEVERAL).any())
        limits = torch.stack([edges[:, 0].amin(0), edges[:, 1].amax(0)])[None] if one else edges
        ends = limits if one else frames
        if name == site and between and float(extent.median()) > _EVERYWHERE:
            return None  # learned queries read all of the photo
        parts = torch.zeros_like(parts) if one else parts
        height, width = pixels.shape[-2:] if len(pixels.shape) > 3 and not one else (0, 0)
        centers = Centers(mean, extent, whole, parts, limits, ends, (height, width))
        cells = find_cells(centers)
        if cells is None:
            return None
        return draw(cells, own[cells.members], pixels.size), cells.certain

    placement, certain, name = None, False, site
    most = max(_LEAST_RUNS, min(_MOST_RUNS, _FEW // len(changed)))
    for count in range(1, most + 1):
        change = _AMPLITUDE * noise() * pixels.shown if count > 1 else first
        d = plain if count == 1 else read(change)
        d_y, d_x = (read(change * each) for each in pixels.places)
        for name, total in measured.items():
            pairs = ((d, d), (d_y, d), (d_x, d), (d_y, d_y), (d_x, d_x))
            total += torch.stack([(one[name] * other[name]).sum(1) for one, other in pairs]).cpu()
        if count.bit_count() > 1 and count < most:
            continue  # the noise has not doubled
        last, placement = placement, None
        for name in measured:  # if not the tokens that words read, then those that these read
            if (found := placed(name)) is not None:
                placement, certain = found
                break
        near = placement and last and placement.is_near(last, _STILL)
        if placement is not None and (certain or near):
            notes: tuple[str, ...] = ()
            break
    else:
        notes = (_ESTIMATES,)
    if placement is None:
        raise ValueError(_no_image_tokens(model))
    _check_large_enough(placement, pixels.size)
    _, _, num_queries, num_keys = rows.shapes.get(site, (0, 0, 0, 0))
    length = None
    if site == _INPUTS or num_queries == num_keys:  # in GIT words stand behind the photo
        length = len(before[site])
    if name == site:
        return ImageTokens(placement, sites, placement.columns, (), length, num_keys, notes)
    note = (
        f"words read {len(changed)} learned queries; each is replaced by its attention to image "
        f"tokens, mean over the layers and heads of {name}: an approximation"
    )
    return ImageTokens(placement, sites, changed, between, length, num_keys, (note, *notes))


def _changed(
    before: dict[str, Tensor], after: dict[str, Tensor], name: str, least: float = _EQUAL
) -> Int[Tensor, " i"]:
    """Return the rows that changed by more than this share of the largest squared change."""
    if name not in before:
        return torch.empty(0, dtype=torch.long)
    energy = (after[name] - before[name]).double().square().sum(1).cpu()
    return (energy > least * energy.max()).nonzero()[:, 0]


def _check_keys(model: nn.Module, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Refuse a decoder whose keys, up to its last layer, are not the rows that it is given.

    Hybrid decoders carry the photo on to later keys between their attention layers.
    """
    if _KEYS not in before:
        return
    given, clear = (_changed(before, after, _INPUTS, least) for least in (_EQUAL, _CLEAR))
    keys = _changed(before, after, _KEYS, _MOVED)
    kept = torch.isin(clear, keys).all() and torch.isin(keys[:1], given).all()
    if len(before[_KEYS]) != len(before[_INPUTS]) or not kept:
        raise ValueError(
            f"the decoder of {type(model).__name__} reads image tokens at other keys than it is "
            "given: their positions are not known; such models are not supported"
        )


def _no_image_tokens(model: nn.Module) -> str:
    return (
        f"the words of {type(model).__name__} read no token with a position on the photo: it mixes "
        "the image before, or turns it into discrete codes; such models are not supported"
    )


def _check_large_enough(placement: Placement, size: tuple[int, int]) -> None:
    """Refuse a photo with fewer pixels than tokens."""
    (width, _, _), (_, height, _), _ = placement.geometry.matrix
    smallest = min(width, height)
    if smallest < _SMALLEST:
        raise ValueError(
            f"the photo is too small to place image tokens on it: it has {size[1]} x {size[0]} "
            f"pixels (width x height), and a token covers {smallest:.2g} of a pixel; enlarge it"
        )
