"""Image tokens among the keys of a language model, and their positions on a photo.

Two probes, of the processor and of the model, trace the pixels of a photo:

    photo --processor--> pixel values --vision tower--> rows that words read

1. Photos that get brighter downwards, or to the right, show where on the photo each pixel value
   comes from: its level, from 0 to 1, is its position y or x.
2. Noise n on the pixel values changes each row by d, and n * y and n * x by d_y and d_x. The mean
   position of the pixels of a row is <d_y, d> / |d|^2 and <d_x, d> / |d|^2. Attention is replaced
   by the identity, so that each token keeps its own pixels.

Rows are those of `inputs_embeds`; if words read the photo by cross-attention, its values; if they
read learned queries, the values that these read.
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
)
from visattn.pipelines.words.lattice import Centers, Placement, draw, find_cells
from visattn.recording.attention_call import IDENTITY, AttentionCall
from visattn.recording.frozen import HALF, Float32, first_weight, without_grad
from visattn.recording.interception import attention_calls, in_this_run

_INPUTS = "inputs_embeds"
_KEYS = "keys"  # of the last self-attention of the text decoder
_AMPLITUDE = 1e-3  # of noise: small, so that rows change linearly, but above rounding error
_LEAST_RUNS, _MOST_RUNS = 4, 48
_FEW = 1024  # tokens; the fewer there are, the more runs may be needed to place each
_ESTIMATES = "positions of image tokens are estimates: they may be off by up to a token"
_STILL = 1e-4  # tokens; runs end if twice as many move positions by less
_SILENT = 1e-7  # relative to the largest squared change
_STEP = 1e-9  # squared sides of the photo: the smallest variance of the pixels of a token
_EQUAL = 1e-12  # relative to the largest squared change; rows of text do not change at all
_CLEAR, _MOVED = 1e-3, 1e-6  # of the same; rounding of keys is below
_PADDED = 1e-4  # relative to the squared change by the photo: less means no padding in a token
_SEVERAL = 0.1  # deviation from the index of a slice above which a token reads several slices
_EVERYWHERE = 0.7  # sides of the photo
_SHOWN = 0.5  # a pixel value shows the photo if this share of it does; the rest is padding
_BORDER = 0.01  # sides of the photo: edges of tiles closer to its border are moved there
_SMALLEST = 0.6  # pixels of the photo; smaller tokens cannot be distinguished
_MEDIAN, _MEAN = 3.0, 9.0  # gray levels by which a mix of photo and pattern may deviate
_TEXTURE = 64  # gray levels of noise in test photos, for processors that look for content


@dataclass(frozen=True, eq=False)
class ImageTokens:
    """Image tokens of a model for photos of one size.

    Args:
        placement: Their positions, or those of the tokens that learned queries read.
        sites: Attention layers in which words read them.
        columns: Keys that words read: image tokens or learned queries.
        between: Attention layers in which learned queries read the placed tokens.
        length: Number of keys of the prompt, including image tokens, before those of words; None if
            image tokens are the only keys, or follow the words.
        num_keys: Number of keys of the prompt and, if separate, of the photo.
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
        """Return the part of a row of attention that is on the image tokens.

        Args:
            row: Attention over all keys.
            words: Number of words among the keys. A sliding window has only the last keys.
        """
        count = row.shape[-1]
        shift = (
            count - self.num_keys if self.length is None else min(0, count - self.length - words)
        )
        keys = self.columns + shift
        return row[..., keys.clamp(min=0)] * (keys >= 0)


Kept = dict[Any, tuple[ImageTokens, "_Pixels"]]
"""Cached image tokens of one model, by all that they depend on: size and inputs of a photo."""


def find_image_tokens(
    process: PhotoProcessor, photo: LoadedImage, inputs: dict[str, Any], kept: Kept
) -> ImageTokens:
    """Return the image tokens that words of a model read, with their positions on the photo.

    Args:
        process: Preprocessing of the model, with the prompt.
        photo: The photo.
        inputs: Its inputs.
        kept: Cached tokens of earlier photos.

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
    """Positions on the photo of the pixel values that a processor returns, for one size.

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
        # noise in all test photos, so that processors that crop plain margins crop nothing
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
            return position(axis, near, far)  # a crop, in which the ramp has only few gray levels

        def steps(side: int) -> tuple[float, float]:
            """Return the ends of a ramp with a whole number of gray levels per pixel."""
            return (0.5 / side, 0.5 / side + 128 / side / (128 // side)) if side <= 128 else (0, 1)

        found = [position(axis, *steps(side)) for axis, side in zip((y, x), size, strict=True)]
        self.places: Float[Tensor, 2 * shape] = torch.stack(found)
        self._pattern = 127.5 + 127.5 * np.sin(16 * np.pi * y) * np.sin(16 * np.pi * x)
        self._processed = self._read(self._pattern)
        self._level = float(span.abs().max()) / 128

    def _read(self, gray: np.ndarray) -> Tensor:
        """Return the unnormalized pixel values of a photo."""
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
        """Check that the pixels of a photo are at the same positions as those of the test photos.

        A processor whose resampling does not depend on the content is linear: the mean of photo and
        pattern must give the mean of both results.

        Raises:
            ValueError: If the positions depend on the content of the photo.
        """
        mixed = np.rint((photo.pixels + self._pattern[..., None]) / 2)
        mean = (self._read(photo.pixels) + self._processed) / 2
        error = (self._read(mixed) - mean)[self.shown].abs() / self._level
        if float(error.median()) > _MEDIAN or float(error.mean()) > _MEAN:
            raise ValueError(
                "the processor must place pixels by their position only, but it crops or places "
                "this photo by its content, such as its margins; turn that off in the image "
                "processor (do_crop_margin=False in Nougat), or crop the photo yourself"
            )

    def slices(self) -> tuple[Int[Tensor, " *shape"], Float[Tensor, "2 s 2 2"]]:
        """Return the tile of each pixel value, and edges of each tile without and with padding."""
        lead = self.shape[: -3 if len(self.shape) > 3 else -2]
        count = lead.numel()
        numbers = torch.arange(count).view(*lead, *[1] * (len(self.shape) - len(lead)))
        edges = torch.zeros(count, 2, 2, dtype=torch.float64)
        for number in range(count):
            own = self.shown.reshape(count, -1)[number]
            seen = self.places.reshape(2, count, -1)[:, number, own]
            if seen.numel():  # it shows a uniform rectangle, whose sides follow from its variance
                half = 3**0.5 * seen.std(1, correction=0)
                edges[number] = torch.stack([seen.mean(1) - half, seen.mean(1) + half])
        edges = torch.where(edges < _BORDER, 0.0, torch.where(edges > 1 - _BORDER, 1.0, edges))
        patches = self.shown.reshape(count, -1, self.shape[-1])  # either whole or padding
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
    """Raised to end a run that has read what is needed."""


class _Shortcut(TorchFunctionMode):
    """Lets linear layers return zeros in blocks whose attention is replaced by the identity.

    Most time of a run is spent in these layers, and a token shows the same pixels without them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.blocks: dict[str, set[int]] = {}
        self.undone = False
        self._called: set[int] = set()

    def take(self, site: str, *, whole: bool) -> None:
        """Skip the linear layers around an attention layer: all, or those after its attention."""
        name = _block(site)
        if name and name not in self.blocks:
            parts, own = (list(self.model.get_submodule(each).modules()) for each in (name, site))
            weights, within = ({id(each.weight) for each in chosen if isinstance(each, nn.Linear)}
                               for chosen in (parts, own if whole else ()))  # fmt: skip
            mixing = any(isinstance(each, nn.modules.conv._ConvNd) for each in parts)  # noqa: SLF001
            self.blocks[name] = set() if mixing else weights - (self._called - within)

    def leave(self, site: str) -> None:
        """Leave a block unchanged, since tokens read others there."""
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
    """Reads the rows that words attend to, as functions of the pixel values, without attention.

    Args:
        model: The model.
        inputs: Its inputs.
    """

    def __init__(self, model: nn.Module, inputs: dict[str, Any]) -> None:
        self.model, self.inputs = model, inputs
        self.decoder_name, self.decoder = text_decoder(model)
        self.shapes: dict[str, tuple[int, int, int, int]] = {}
        self.dtype = torch.promote_types(first_weight(model).dtype, torch.float32)
        self.shortcut = _Shortcut(model)
        self.is_half = any(weight.dtype in HALF for weight in model.parameters())

    def read(self, pixels: Tensor, until: str = "", *, layers: bool = True) -> dict[str, Tensor]:
        """Return the rows `n c` of the decoder's input, and the values of attention by layer.

        Args:
            pixels: The pixel values.
            until: Name of the rows after which the run ends.
            layers: Whether to keep the values of each layer of the decoder, not only the last keys.
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
            call.heads_mixed = False  # tokens keep their content even if heads are mixed
            _, _, num_queries, num_keys = self.shapes[call.name] = call.shape
            values = call.inputs[2]
            if values.shape[1] == 1:  # bmm has the heads on the batch axis
                values = values.transpose(0, 1)
            if self.in_decoder(call.name) or num_queries != num_keys:
                read = values.transpose(1, 2).flatten(2).flatten(0, 1)
                if _INPUTS in rows and self.in_decoder(call.name) and num_queries == num_keys:
                    rows[_KEYS] = read  # earlier layers may have moved them
                if layers or not self.in_decoder(call.name):
                    keep(call.name, read)
            if num_queries == num_keys:
                self.shortcut.take(call.site, whole=not self.in_decoder(call.site))
                return IDENTITY
            self.shortcut.leave(call.site)
            # words must keep their content, too
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
        """Whether an attention layer belongs to the text decoder."""
        return site.startswith(self.decoder_name)


def _locate(model: nn.Module, given: dict[str, Any], pixels: _Pixels) -> ImageTokens:
    """Return the image tokens that words read directly or through learned queries."""
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
    else:  # words read the photo by cross-attention, or the decoder concatenates both
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
        """Return the change of the rows for a change of the pixels."""
        after = rows.read(base + change, site)
        return {name: (after[name] - before[name]).double() for name in measured}

    plain = {name: (after[name] - before[name]).double() for name in measured}
    by_part = read(first * (part + 1.0) / len(edges)) if len(edges) > 1 else plain
    # positive, since Pix2Struct rounds down the row and column numbers next to its pixels
    hidden = _AMPLITUDE * noise().abs() * ~pixels.shown
    padding = read(hidden) if bool(hidden.any()) else None

    def placed(name: str) -> tuple[Placement, bool] | None:
        """Return the placement of rows, and whether it is certain."""
        energy, y, x, yy, xx = measured[name]
        own = (energy > _SILENT * energy.max()).nonzero()[:, 0]
        d, d_part = (each[name][own.to(each[name].device)].cpu() for each in (plain, by_part))
        mean = torch.stack([y, x], 1)[own] / energy[own, None]
        variance = torch.stack([yy, xx], 1)[own] / energy[own, None] - mean**2
        if bool((variance < _STEP).all(1).any()):
            return None  # discrete codes, which change in steps or not at all
        extent = (12 * variance.clamp(min=1e-12)).sqrt()  # sides of a uniform box
        number = (d_part * d).sum(1) / (d * d).sum(1) * len(edges) - 1
        parts = number.round().long().clamp(0, len(edges) - 1)
        whole = torch.ones_like(parts, dtype=torch.bool)
        if padding is not None:
            whole = padding[name].square().sum(1).cpu()[own] <= _PADDED * d.square().sum(1)
        # all slices are one tile if each patch is a slice, or if tokens read several
        one = len(own) < 2 * len(parts.unique()) or bool(((number - parts).abs() > _SEVERAL).any())
        limits = torch.stack([edges[:, 0].amin(0), edges[:, 1].amax(0)])[None] if one else edges
        ends = limits if one else frames
        if name == site and between and float(extent.median()) > _EVERYWHERE:
            return None  # learned queries read the whole photo
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
        for name in measured:  # the tokens that words read, else those that learned queries read
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
    if site == _INPUTS or num_queries == num_keys:  # in GIT words follow the photo
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
    """Return the rows whose squared change is above a fraction of the largest."""
    if name not in before:
        return torch.empty(0, dtype=torch.long)
    energy = (after[name] - before[name]).double().square().sum(1).cpu()
    return (energy > least * energy.max()).nonzero()[:, 0]


def _check_keys(model: nn.Module, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Check that the keys of a decoder, up to its last layer, correspond to its input rows.

    Hybrid decoders move content of the photo to later keys between their attention layers.
    """
    if _KEYS not in before:
        return
    given, clear = (_changed(before, after, _INPUTS, least) for least in (_EQUAL, _CLEAR))
    keys = _changed(before, after, _KEYS, _MOVED)
    kept = torch.isin(clear, keys).all() and torch.isin(keys[:1], given).all()
    if len(before[_KEYS]) != len(before[_INPUTS]) or not kept:
        raise ValueError(
            f"the decoder of {type(model).__name__} moves image tokens to other keys, which makes "
            "their positions unknown; such models are not supported"
        )


def _no_image_tokens(model: nn.Module) -> str:
    return (
        f"the words of {type(model).__name__} attend to no token with a position on the photo: it "
        "mixes image tokens first, or uses discrete codes; such models are not supported"
    )


def _check_large_enough(placement: Placement, size: tuple[int, int]) -> None:
    """Check that a photo does not have fewer pixels than tokens."""
    (width, _, _), (_, height, _), _ = placement.geometry.matrix
    smallest = min(width, height)
    if smallest < _SMALLEST:
        raise ValueError(
            f"the photo is too small to place image tokens on it: it has {size[1]} x {size[0]} "
            f"pixels (width x height), and a token covers {smallest:.2g} of a pixel; enlarge it"
        )
