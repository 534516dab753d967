"""Listen to a model while it runs, and keep every attention map that it makes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import MapKind, RecordRequest, Tap
from visattn.recording.attention_map import AttentionMap, shortened
from visattn.recording.module_calls import is_dry, is_foreign
from visattn.recording.select import check_runs_hooks, chosen_sites, perhaps_chosen
from visattn.recording.third_party import RecordedWeights, ThirdPartyRecorder


@dataclass(repr=False)
class Recording:
    """What was seen.

    Args:
        maps: In the order in which they were made. Their first axis is that of the batch; `made`
            holds the number of the `layer` among those that can be recorded and of the `call`,
            from 0, for sites that run several times, and, of attention among tokens, the roles of
            the tokens that stand `before` the grid, and which `queries` and `heads` the rows belong
            to.
        weights: The same as the model made them: of attention among tokens with the columns of
            those before the grid, which are no part of a map. They share the memory of the maps.
        refused: Attention that ran and cannot be shown, by its site, and why.
    """

    maps: list[AttentionMap] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return how many maps there are, and of which sites, in one line."""
        sites = shortened(", ".join(dict.fromkeys(one.site for one in self.maps)))
        refused = f", {len(self.refused)} refused" if self.refused else ""
        return f"Recording({len(self.maps)} maps{': ' if sites else ''}{sites}{refused})"


@contextmanager
def record(
    model: nn.Module,
    *,
    queries: str | Sequence[int] = "all",
    layers: int | str | Sequence[int | str] | None = None,
    heads: Sequence[int] | None = None,
    differentiable: bool = False,
) -> Iterator[Recording]:
    """Record the attention maps of everything that runs inside the `with` block.

    The values are detached, and stay on their device. The model comes back as it was, and gives
    what it always gives, to the bit. Of a transformer only what is asked for is computed: the rows
    of its class token cost next to nothing, those of all tokens as many numbers as there are pairs
    of them. Gates and words have no queries and no heads, and are recorded whole.

    Models that were not written to be recorded are listened to as well: their fused attention, each
    softmax that ends in a product with values, and `torch.nn.MultiheadAttention`. The first time on
    an image of some size they run once more, on zeros, so that it is known where their tokens lie.
    Every map is compared with what the layer put out. Attention whose place on the image is not
    known, or that is not among places, is in `refused`.

    Args:
        model: What to listen to.
        queries: Whose rows of attention among tokens: of `all`, of the `patches`, of the `class`,
            `distillation` or `register` tokens, or of tokens by number, those before the patches
            counted first.
        layers: Which sites, by their number in the order of the model (-1 is the last one), by
            name, or by a pattern of their names such as `blocks.1*`; None for all.
        heads: Which heads of attention among tokens, by number; None for all.
        differentiable: Whether the model is to compute with the weights that are recorded, and
            these stay in its graph, so that gradients with respect to them can be taken; its output
            then differs in the last bits. It needs all queries and heads.

    Raises:
        ValueError: If nothing in the model can attend to anything, if it is compiled or scripted,
            so that listening would be in vain, if there are no such layers, tokens or heads, or a
            layer cannot show single ones, if weights over tokens come without a grid on which these
            lie, if weights do not give what a layer put out, or if the block ended without any map
            having been made.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Sigmoid(), Tap("gate"))
        >>> with record(model) as seen:
        ...     _ = model(torch.zeros(1, 1, 2, 2))
        >>> seen.maps[0].site, seen.maps[0].values.unique()
        ('1', tensor([0.5000]))
    """
    check_runs_hooks(model)
    wish = _wish(queries, heads, woven=differentiable)
    taps = {site: module for site, module in model.named_modules() if isinstance(module, Tap)}
    others = any(map(is_foreign, model.modules()))
    if not taps and not others:
        raise ValueError(
            f"{type(model).__name__} holds no Tap, so none of its attention can be seen; "
            "build it of visattn.blocks, or pass the weights through a visattn.blocks.tap.Tap"
        )
    recording = Recording()
    keeper = _Keeper(recording, wish, layers, list(taps), open_end=others)
    foreign = ThirdPartyRecorder(
        model, wish, keeper.chosen, keeper.keep_foreign, not taps, recording.refused
    )
    with ExitStack() as stack:
        for site in keeper.chosen(()):
            if site in taps:
                stack.enter_context(_listening(taps[site], site, keeper))
        if others:
            stack.enter_context(foreign.listening())
        yield recording
    if not recording.maps:
        raise ValueError(_silence(model, taps, recording, foreign))


def _wish(
    queries: str | Sequence[int], heads: Sequence[int] | None, *, woven: bool
) -> RecordRequest:
    wish = RecordRequest(
        queries if isinstance(queries, str) else tuple(queries),
        None if heads is None else tuple(heads),
        woven,
    )
    if woven and not wish.whole:
        raise ValueError(
            "a model can only compute with whole weights, so differentiable=True needs "
            f"queries='all' and heads=None, got queries={queries!r} and heads={heads}; pick rows "
            "from their gradients"
        )
    return wish


@dataclass
class _Keeper:
    """Makes maps of what is heard.

    Args:
        recording: Where they go.
        wish: Whose rows.
        layers: Which sites are wanted.
        taps: Sites of taps.
        open_end: Whether there may be more sites, of which one knows when the model runs.
    """

    recording: Recording
    wish: RecordRequest
    layers: int | str | Sequence[int | str] | None
    taps: list[str]
    open_end: bool
    calls: Counter[str] = field(default_factory=Counter)
    _sites: list[str] = field(default_factory=list)
    _known: dict[tuple[str, ...], list[str]] = field(default_factory=dict)

    def chosen(self, others: Sequence[str], refused: Sequence[str] = ()) -> list[str]:
        """Return the sites that are to be listened to, taps and others."""
        key = tuple(others)
        if key not in self._known:
            self._sites = [*self.taps, *key]
            if self.taps and key:
                self._check_counted()
            hidden = perhaps_chosen(refused, self._names())
            waiting = self.open_end and not key
            choose = perhaps_chosen if waiting or hidden else chosen_sites
            self._known[key] = choose(self._sites, self.layers)
        return self._known[key]

    def _names(self) -> str | list[str]:
        """Return the names or the pattern among what is wanted."""
        if isinstance(self.layers, str):
            return self.layers
        several = [] if self.layers is None or isinstance(self.layers, int) else self.layers
        return [one for one in several if isinstance(one, str)]

    def _check_counted(self) -> None:
        """Let layers pass that do not count from the end of what was not known at the start."""
        given = [self.layers] if isinstance(self.layers, int) else self.layers or ()
        if not isinstance(given, str) and any(isinstance(one, int) and one < 0 for one in given):
            raise ValueError(
                f"layers={self.layers} counts from the end, which is not known before a model runs "
                "that has taps and other attention too; count from the start, or give names: "
                + ", ".join(self._sites)
            )

    def keep(self, site: str, kind: MapKind, values: Tensor, weights: Tensor, made: Any) -> None:
        """Keep one map."""
        layer = {"layer": self._sites.index(site)} if site in self._sites else {}
        made = {"call": self.calls[site], **layer, **made}
        self.calls[site] += 1
        self.recording.maps.append(AttentionMap(values, site, kind, made=made))
        self.recording.weights.append(weights)

    def keep_foreign(self, shown: RecordedWeights) -> None:
        """Keep attention among tokens that was heard in passing."""
        cells = shown.grid[0] * shown.grid[1]
        values = shown.weights[..., shown.weights.shape[-1] - cells :].unflatten(-1, shown.grid)
        self.keep(shown.site, "tokens", values, shown.weights, shown.made)


def _silence(
    model: nn.Module, taps: dict[str, Tap], recording: Recording, foreign: ThirdPartyRecorder
) -> str:
    """Return why there is no map."""
    said = f"{type(model).__name__} made no map while it was recorded; "
    if recording.refused:
        reasons = dict.fromkeys(recording.refused.values())
        told = "; ".join(f"{_first(recording.refused, reason)}: {reason}" for reason in reasons)
        return f"{said}{told}; ask for gradients instead, or record another model"
    if taps:
        return f"{said}run it inside the with block, and see that it uses its taps: " + ", ".join(
            taps
        )
    if not foreign.ran:
        return f"{said}run it inside the with block"
    return (
        f"{said}neither scaled_dot_product_attention nor a softmax that weighs values nor "
        "torch.nn.MultiheadAttention ran in it. If it has no attention, ask for gradients instead; "
        "if that runs in kernels of xformers, flash or flex attention, switch it to sdpa or eager"
    )


def _first(refused: dict[str, str], reason: str) -> str:
    sites = [site or "the model" for site, why in refused.items() if why == reason]
    return sites[0] if len(sites) == 1 else f"{sites[0]} and {len(sites) - 1} more"


@contextmanager
def _listening(tap: Tap, site: str, keeper: _Keeper) -> Iterator[None]:
    wish = keeper.wish

    def keep(tap: nn.Module, _: tuple[Tensor, ...], weights: Tensor) -> None:
        if isinstance(tap, Tap) and not is_dry():
            own = _picked(weights if wish.woven else weights.detach(), tap, wish, site)
            keeper.keep(site, tap.kind, _on_grid(own, tap, site), own, _made(tap, wish))

    handle = tap.register_forward_hook(keep)
    tap.wishes.append(wish)
    try:
        yield
    finally:
        handle.remove()
        tap.wishes.remove(wish)


def _made(tap: Tap, wish: RecordRequest) -> dict[str, Any]:
    """Return how the weights were made, and whose they are, of a block that tells."""
    if tap.shown is None:
        return dict(tap.notes)
    return {**tap.notes, "before": tap.roles, "queries": wish.queries, "heads": wish.heads}


def _picked(
    weights: Float[Tensor, "*axes"], tap: Tap, wish: RecordRequest, site: str
) -> Float[Tensor, "*picked"]:
    """Return the rows that this listener wants, of those that the block showed to all."""
    if tap.kind != "tokens" or tap.lone or wish.whole or wish == tap.shown:
        return weights
    if tap.shown is None:
        raise ValueError(
            f"the attention at {site or 'the tap'} cannot show the rows of single tokens or heads; "
            "record it with queries='all' and heads=None, or leave it out by layers="
        )
    own = weights[:, wish.chosen_heads(weights.shape[1])]
    return own[:, :, wish.rows(tap.roles, weights.shape[2])]


def _on_grid(weights: Float[Tensor, "*axes"], tap: Tap, site: str) -> Float[Tensor, "*shaped"]:
    """Return weights over a flattened grid as weights over rows and columns."""
    if tap.grid is None:
        if tap.kind in ("tokens", "words"):
            raise ValueError(
                f"the weights at {site or 'the tap'}, {list(weights.shape)}, run over a row "
                f"of {weights.shape[-1]} tokens whose grid nobody said, so they are no map of a "
                "image; if the tokens lie on one, set tap.grid = (height, width) before the tap "
                "is used; if not, record another part of the model"
            )
        return weights
    rows, columns = tap.grid
    weights = weights[..., len(tap.roles) :]
    if weights.shape[-1] != rows * columns:
        raise ValueError(
            f"the last axis at {site} must run over its grid of {rows} x {columns} cells, "
            f"got {tuple(weights.shape)}; the block sets tap.grid before it uses its tap"
        )
    return weights.unflatten(-1, (rows, columns))
