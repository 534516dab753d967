"""Recording what models attend to that were not written to be listened to."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import torch
from torch import Tensor, nn

from visattn.blocks.tap import RecordRequest
from visattn.functional.attention.window import rolled_windows, unrolled_windows
from visattn.recording.attention_call import AttentionCall
from visattn.recording.module_calls import ModuleCall, ModuleCalls, first_image
from visattn.recording.multihead import hide, multihead_call, multihead_output, unhide
from visattn.recording.probe import ProbeResult, TokenPlace
from visattn.recording.probe_cache import Classifying, reading_of
from visattn.recording.torch_function import Interception, sums_to_one

_NO_IMAGE = "no image came in before it ran, so nobody knows its grid; record the whole model"


@dataclass(frozen=True)
class RecordedWeights:
    """One map of foreign attention.

    Args:
        site: Path of the module.
        weights: With the columns of the tokens before the grid.
        grid: Of the keys.
        made: How it was made.
    """

    site: str
    weights: Tensor
    grid: tuple[int, int]
    made: dict[str, Any]


@dataclass
class ThirdPartyRecorder:
    """Listens to all of a model that has no taps.

    Args:
        model: What is listened to.
        wish: Whose rows and which heads.
        chosen: Returns the sites that are wanted, of those that can be shown and those that cannot.
        keep: Takes what was seen.
        early: Whether to read the model before it runs on an image, and not when it first attends
            to something, which parts with taps may leave to others.
    """

    model: nn.Module
    wish: RecordRequest
    chosen: Callable[[Sequence[str], Sequence[str]], Sequence[str]]
    keep: Callable[[RecordedWeights], None]
    early: bool
    reasons: dict[str, str] = field(default_factory=dict)
    ran: bool = False

    def __post_init__(self) -> None:
        """Begin without an image."""
        self.calls = ModuleCalls()
        self.weaving = self.wish.woven
        self._image: Tensor | None = None
        self._way: tuple[ModuleCall, tuple[Any, ...], dict[str, Any]] | None = None
        self._reading: ProbeResult | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the block runs."""
        weave = self.woven if self.weaving else None
        with (
            self.calls.watching(self.model, self._entered, self._left),
            Interception(self.calls, self, weave),
        ):
            yield

    def _entered(self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(self.calls.stack) == 1:
            self.ran = True
            image = first_image(args, kwargs)
            if image is not None:
                known = self._image
                if known is None or known.shape != image.shape:
                    self._reading = None
                self._image, self._way = image.detach(), (call, args, kwargs)
                if self.early and self._reading is None:
                    self._reading = self._read(self._image)
        if isinstance(call.module, nn.MultiheadAttention):
            hide(call)

    def _left(
        self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        if len(self.calls.stack) == 1:
            self._way = None
        if not isinstance(call.module, nn.MultiheadAttention):
            return None
        try:  # still hidden, so that nobody hears what is computed here
            return None if output is None else self._multihead(call, args, kwargs, output)
        finally:
            unhide(call)

    def _multihead(
        self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        """Hear a layer of multi-head attention, and return what it is to give, if that changes."""
        layer = call.module
        if not isinstance(layer, nn.MultiheadAttention) or self._place(call) is None:
            return None
        with torch.set_grad_enabled(self.weaving and torch.is_grad_enabled()):
            attention = multihead_call(layer, args, kwargs, output)
        if isinstance(attention, str):
            self.refused(call, attention)
        elif not self.weaving:
            self.saw(call, attention)
        elif (weights := self.woven(call, attention)) is not None:
            return multihead_output(layer, attention, weights, output)
        return None

    def refused(self, place: ModuleCall, reason: str) -> None:
        """Remember why a layer has no map."""
        self.reasons.setdefault(place.site, reason)

    def saw(self, place: ModuleCall, attention: AttentionCall) -> None:
        """Keep the rows that are wanted."""
        tokens = self._place(place)
        if tokens is None:
            return
        with torch.no_grad():
            self._keep(place, tokens, attention)

    def woven(self, place: ModuleCall, attention: AttentionCall) -> Tensor | None:
        """Keep the weights, and return what the model is to go on with."""
        tokens = self._place(place)
        if tokens is None:
            return None
        if not self._counted(place, tokens, attention):
            return None
        weights = attention.rows(slice(None), slice(None))
        if not self._checked(place, weights):
            return None
        if tokens.windows is None:
            shown = weights.squeeze(2) if tokens.layer.lone else weights
            self.keep(self._shown(tokens, attention, shown, torch.nan))
            return shown.unsqueeze(2) if tokens.layer.lone else shown
        inside = _by_image(weights, tokens.windows)
        laid = unrolled_windows(inside, tokens.windows, _tokens(tokens))
        self.keep(self._shown(tokens, attention, laid, torch.nan))
        return rolled_windows(laid, inside, tokens.windows).transpose(1, 2).flatten(0, 1)

    def _keep(self, place: ModuleCall, tokens: TokenPlace, attention: AttentionCall) -> None:
        layer, wish = tokens.layer, self.wish
        if not self._counted(place, tokens, attention):
            return
        heads = wish.chosen_heads(attention.shape[1])
        rows = slice(None) if layer.lone else wish.rows(layer.roles, _tokens(tokens))
        direct = tokens.windows is None
        asked = rows if direct else slice(None)
        weights = attention.rows(heads, asked).detach()
        if not self._checked(place, weights):
            return
        off = attention.deviation(weights, heads, asked)
        if off > _tolerance(weights):
            raise ValueError(
                f"the weights found at {place.site} times its values miss what it put out by "
                f"{off:.1e}, so they are not what it attended to; please report this model"
            )
        if tokens.windows is not None:
            inside = _by_image(weights, tokens.windows)
            weights = unrolled_windows(inside, tokens.windows, _tokens(tokens), rows)
        elif layer.lone:
            weights = weights.squeeze(2)
        self.keep(self._shown(tokens, attention, weights, off))

    def _counted(self, place: ModuleCall, tokens: TokenPlace, attention: AttentionCall) -> bool:
        """Whether as many tokens came as when the model was read; else the reason is kept."""
        layer = tokens.layer
        rows, columns = layer.keys or layer.grid
        expected = 1 if layer.lone else _tokens(tokens), len(tokens.before) + rows * columns
        if tokens.windows is not None:
            expected = (tokens.windows.shape[1],) * 2
        if attention.shape[2:] == expected:
            return True
        self.refused(
            place,
            f"{attention.shape[3]} tokens came and not {expected[1]}, as when it was read; where "
            "tokens lie of which some were dropped or merged is not known; record it in evaluation "
            "mode",
        )
        return False

    def _checked(self, place: ModuleCall, weights: Tensor) -> bool:
        """Whether weights are such that they can be shown; else the reason is kept."""
        if not sums_to_one(weights):
            self.refused(place, "its weights do not sum to 1")
            return False
        return True

    def _shown(
        self, tokens: TokenPlace, attention: AttentionCall, weights: Tensor, off: float
    ) -> RecordedWeights:
        layer = tokens.layer
        told = None if isnan(off) else off  # the model itself multiplied by what it computed
        made: dict[str, Any] = {"deviation": told, "before": tokens.before}
        made |= {"queries": self.wish.queries, "heads": self.wish.heads}
        if layer.window is not None:
            made |= {"window": layer.window, "shift": layer.shift}
        if attention.mixed:
            made["mixed"] = "before the model mixed its heads"
        return RecordedWeights(layer.site, weights, layer.keys or layer.grid, made)

    def _place(self, place: ModuleCall) -> TokenPlace | None:
        """Return where the tokens of a layer lie; None if it is not wanted, or refused."""
        if self._image is None:
            self.refused(place, _NO_IMAGE)
            return None
        if self._reading is None:
            self._reading = self._read(self._image)
        reading = self._reading
        runs = reading.places.get(place.site)
        if not runs:
            self.refused(place, reading.failure or "it ran otherwise than when it was read")
            return None
        found = runs[place.number % len(runs)]
        if isinstance(found, str):
            self.refused(place, found)
            return None
        shown = [one.site for one in reading.layers]
        chosen = self.chosen(shown, [site for site, _ in reading.refused])
        return found if place.site in chosen else None

    def _read(self, image: Tensor) -> ProbeResult:
        size, channels = (image.shape[2], image.shape[3]), image.shape[1]
        own = self._way
        if own is None or (own[0].module is self.model and isinstance(self.model, Classifying)):
            return reading_of(self.model, size, len(getattr(self.model, "mean", ())) or channels)
        call, args, kwargs = own
        whole = call.module is self.model

        def run(others: Tensor) -> Any:
            given = tuple(_replaced(one, image, others) for one in args)
            named = {name: _replaced(one, image, others) for name, one in kwargs.items()}
            return call.module(*given, **named)

        if whole and len(args) == 1 and not kwargs:
            return reading_of(self.model, size, channels)
        if whole:
            plain = {name: one for name, one in kwargs.items() if not isinstance(one, Tensor)}
            return reading_of(self.model, size, channels, run, way=f"{len(args)} {plain}")
        first = reading_of(self.model, size, channels)
        if not first.failure:
            return first
        return reading_of(self.model, size, channels, run, way=call.site)


def _replaced(given: Any, image: Tensor, others: Tensor) -> Any:
    """Return other images in place of an image, and as many of what came with it."""
    if not isinstance(given, Tensor):
        return given
    if given.shape == image.shape:
        return others
    together = given.ndim > 0 and len(given) == len(image)
    return given[:1].expand(len(others), *given.shape[1:]) if together else given


def _by_image(weights: Tensor, windows: Tensor) -> Tensor:
    """Return weights of all windows, `[b * w, h, p, p]`, as `[b, h, w, p, p]`."""
    return weights.unflatten(0, (-1, len(windows))).transpose(1, 2)


def _tokens(place: TokenPlace) -> int:
    rows, columns = place.layer.grid
    return len(place.layer.roles) + rows * columns


def _tolerance(weights: Tensor) -> float:
    if weights.dtype not in (torch.float32, torch.float64):
        return 2e-2
    return 2e-6 if weights.device.type == "cpu" else 2e-3  # accelerators round factors first
