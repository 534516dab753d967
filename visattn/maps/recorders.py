"""Listen to a model while it runs, and keep every attention map that it makes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.taps import Tap, Wish
from visattn.maps.attention_maps import AttentionMap


@dataclass
class Recording:
    """What was seen.

    Args:
        maps: In the order in which they were made. Their first axis is that of the batch; `made`
            holds the number of the `call`, from 0, for sites that run several times, and, of
            attention among tokens, the roles of the tokens that stand `before` the grid, and which
            `queries` and `heads` the rows belong to.
        weights: The same as the model made them: of attention among tokens with the columns of
            those before the grid, which are no part of a map. They share the memory of the maps.
    """

    maps: list[AttentionMap] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)


@contextmanager
def record(
    model: nn.Module,
    *,
    queries: str | Sequence[int] = "all",
    layers: int | Sequence[int] | str | None = None,
    heads: Sequence[int] | None = None,
) -> Iterator[Recording]:
    """Record the attention maps of everything that runs inside the `with` block.

    The values are detached, and stay on their device. The model comes back as it was. Of a Vision
    Transformer only what is asked for is computed: the rows of its class token cost next to
    nothing, those of all tokens as many numbers as there are pairs of them. Gates and words have
    no queries and no heads, and are recorded whole.

    Args:
        model: What to listen to.
        queries: Whose rows of attention among tokens: of `all`, of the `patches`, of the `class`,
            `distillation` or `register` tokens, or of tokens by number, those before the patches
            counted first.
        layers: Which sites, by their number in the order of the model (-1 is the last one), or by a
            pattern of their names such as `blocks.1*`; None for all.
        heads: Which heads of attention among tokens, by number; None for all.

    Raises:
        ValueError: If the model holds no `Tap`, if it is compiled or scripted, so that listening
            would be in vain, if there are no such layers, tokens or heads, or a layer cannot show
            single ones, if weights over tokens come without a grid on which these lie, or if
            the block ended without any map having been made.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Sigmoid(), Tap("gate"))
        >>> with record(model) as seen:
        ...     _ = model(torch.zeros(1, 1, 2, 2))
        >>> seen.maps[0].site, seen.maps[0].values.unique()
        ('1', tensor([0.5000]))
    """
    _check_runs_hooks(model)
    taps = {site: module for site, module in model.named_modules() if isinstance(module, Tap)}
    if not taps:
        raise ValueError(
            f"{type(model).__name__} holds no Tap, so none of its attention can be seen; "
            "build it of visattn.blocks, or pass the weights through a visattn.blocks.taps.Tap"
        )
    wish = Wish(
        queries if isinstance(queries, str) else tuple(queries),
        None if heads is None else tuple(heads),
    )
    recording = Recording()
    calls: Counter[str] = Counter()
    with ExitStack() as hooks:
        for site in _chosen(list(taps), layers):
            hooks.enter_context(_listening(taps[site], site, wish, recording, calls))
        yield recording
    if not recording.maps:
        raise ValueError(
            f"{type(model).__name__} made no map while it was recorded; "
            f"run it inside the with block, and see that it uses its taps: {', '.join(taps)}"
        )


def _chosen(sites: list[str], layers: int | Sequence[int] | str | None) -> list[str]:
    """Return the sites that are to be listened to."""
    if layers is None:
        return sites
    if isinstance(layers, str):
        found = [site for site in sites if fnmatch(site, layers)]
    else:
        numbers = [layers] if isinstance(layers, int) else layers
        count = len(sites)
        found = [sites[number] for number in numbers if -count <= number < count]
        if len(found) < len(numbers):
            raise ValueError(f"there are {count} sites, counted from 0, got layers={layers}")
    if not found:
        raise ValueError(f"no site is called {layers!r}; there are {', '.join(sites)}")
    return found


@contextmanager
def _listening(
    tap: Tap, site: str, wish: Wish, recording: Recording, calls: Counter[str]
) -> Iterator[None]:
    def keep(tap: nn.Module, _: tuple[Tensor, ...], weights: Tensor) -> None:
        if isinstance(tap, Tap):
            made = {"call": calls[site], **_made(tap, wish)}
            calls[site] += 1
            own = _picked(weights.detach(), tap, wish, site)
            values = _on_grid(own, tap, site)
            recording.maps.append(AttentionMap(values, site, tap.kind, made=made))
            recording.weights.append(own)

    handle = tap.register_forward_hook(keep)
    tap.wishes.append(wish)
    try:
        yield
    finally:
        handle.remove()
        tap.wishes.remove(wish)


def _made(tap: Tap, wish: Wish) -> dict[str, Any]:
    """Return how the weights were made, and whose they are, of a block that tells."""
    if tap.shown is None:
        return dict(tap.notes)
    return {**tap.notes, "before": tap.roles, "queries": wish.queries, "heads": wish.heads}


def _picked(
    weights: Float[Tensor, "*axes"], tap: Tap, wish: Wish, site: str
) -> Float[Tensor, "*picked"]:
    """Return the rows that this listener wants, of those that the block showed to all."""
    if tap.kind != "tokens" or tap.lone or wish in (Wish(), tap.shown):
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
                "picture; if the tokens lie on one, set tap.grid = (height, width) before the tap "
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


def _check_runs_hooks(model: nn.Module) -> None:
    for site, module in model.named_modules():
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        wrapped = type(module).__name__ == "OptimizedModule"
        scripted = isinstance(module, torch.jit.ScriptModule)
        if compiled or wrapped or scripted:
            raise ValueError(
                f"{site or 'the model'} is compiled or scripted and does not show its maps; "
                "record the model that it was made from"
            )
