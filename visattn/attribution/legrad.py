"""LeGrad: gradients of attention, at the tokens that each block of a transformer gives on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import grad

from visattn.attribution.layer_weights import (
    check_have_gradients,
    single_grid_error,
    with_query_axis,
)
from visattn.attribution.registry import method
from visattn.attribution.targets import Target, target_values
from visattn.recording.frozen import frozen, with_grad
from visattn.recording.interception import in_this_run
from visattn.recording.model_info import ModelInfo
from visattn.recording.recorder import record_sites
from visattn.recording.subject import Subject

_INSTEAD = "use relevance or gradient_rollout"


def block_names(info: ModelInfo) -> list[str]:
    """Return the names of the blocks around the attention layers, without attention pooling.

    Raises:
        ValueError: If the layers are not one to a block.

    Example:
        >>> from visattn.recording.model_info import AttentionLayer
        >>> layers = tuple(AttentionLayer(f"blocks.{i}.attn", (3, 5)) for i in range(2))
        >>> block_names(ModelInfo("tiny", "timm", (6, 10), (0.5,), (0.5,), "class", layers))
        ['blocks.0', 'blocks.1']
    """
    sites = [layer.site.split(".") for layer in info.attention_layers if not layer.single_query]
    # The names of blocks are those of layers up to the first part in which these differ; of a
    # single layer up to the number that a container gives.
    pairs = enumerate(zip(*sites, strict=False))
    end = next(
        (
            at
            for at, parts in pairs
            if len({*parts}) > 1 or (len(sites) == 1 and parts[0].isdecimal())
        ),
        0 if not sites else len(sites[0]) - 1,
    )
    names = [".".join(parts[: end + 1]) for parts in sites]
    if not names or len({*names}) < len(names):
        listed = ", ".join(".".join(parts) for parts in sites[:3])
        raise ValueError(f"{info.name} must have one attention layer in each block, got {listed}")
    return names


@contextmanager
def _returning(blocks: Sequence[nn.Module], outputs: Sequence[Any]) -> Iterator[None]:
    """Let blocks return these outputs, or what these functions return, without being computed.

    A block with None is computed.
    """
    given = [pair for pair in zip(blocks, outputs, strict=True) if pair[1] is not None]
    for block, output in given:
        block.forward = lambda *_, _output=output, **__: _output() if callable(_output) else _output
    try:
        yield
    finally:
        for block, _ in given:
            del block.forward  # the function of the class is seen again


class _Tokens:
    """Reads and replaces the tokens in what a block returns: `[b, m, d]` or `[m, b, d]`."""

    def __init__(self, info: ModelInfo) -> None:
        layer = info.attention_layers[0]
        self.name = info.name
        self.count = len(layer.prefix_tokens) + layer.grid[0] * layer.grid[1]

    def read(self, output: Any) -> Float[Tensor, "b m d"]:
        """Return the tokens, batch first."""
        hidden = output[0] if isinstance(output, tuple) else output
        if isinstance(hidden, Tensor) and hidden.ndim == 3 and self.count in hidden.shape[:2]:
            return hidden if hidden.shape[1] == self.count else hidden.transpose(0, 1)
        raise ValueError(f"the blocks of {self.name} must give on {self.count} tokens, [b, m, d]")

    def replace(self, output: Any, tokens: Float[Tensor, "b m d"]) -> Any:
        """Return an output with other tokens."""
        hidden = output[0] if isinstance(output, tuple) else output
        tokens = tokens if hidden.shape[1] == self.count else tokens.transpose(0, 1)
        return (tokens, *output[1:]) if isinstance(output, tuple) else tokens

    def chain(self, blocks: Sequence[nn.Module], run: Callable[[], Tensor]) -> tuple[Any, ...]:
        """Return the result of a run, and the outputs of the blocks.

        Raises:
            ValueError: If the model runs them otherwise than one after the other on tokens.
        """
        outputs: list[Any] = []

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            hidden = args[0] if args else next(x for x in kwargs.values() if isinstance(x, Tensor))
            if outputs and not torch.equal(self.read(hidden), self.read(outputs[-1])):
                raise ValueError(
                    f"{self.name} must pass the tokens of each block on to the next one, "
                    f"unchanged; block {len(outputs)} got others"
                )
            outputs.append(output)

        with ExitStack() as hooks:
            for block in blocks:
                hooks.callback(
                    block.register_forward_hook(in_this_run(hook), with_kwargs=True).remove
                )
            result = run()
        if len(outputs) != len(blocks):
            raise ValueError(f"each block of {self.name} must run once, got {len(outputs)} runs")
        return result, outputs


def _no_chain(explained: Subject, _target: object) -> str:
    """Return why a model is no chain of blocks with one token grid; "" if it may be."""
    layers = explained.info.attention_layers
    if layers and all(layer.single_query or layer.pools for layer in layers):
        return "its only attention is a pool, and LeGrad reads the tokens after each block"
    return single_grid_error(explained.info)


@method("legrad", title="LeGrad", paper="arXiv:2404.03214", needs="tokens", check=_no_chain)
def legrad(
    explained: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    start_layer: int = 0,
) -> Float[Tensor, "b gy gx"]:
    """LeGrad: the gradient of each layer's own score for its own attention, summed over layers.

    The score of a layer is what the head of the model gives for the mean of the tokens after that
    layer. Its gradient for the layer's attention is clipped at 0 and averaged over heads and
    queries. A model with attention pooling gets the tokens of each layer instead, and the gradient
    is that for the weights of the pool.

    Args:
        start_layer: First layer that is included.

    Raises:
        ValueError: If there is no such layer, or the layers are not a chain of blocks of which the
            scores read the last one alone.

    Source:
        Bousselham et al. 2024, arXiv:2404.03214, section 3; the authors pool the mean of all
        tokens. Deviations: the map is not scaled to 0 and 1, so that those of several texts can
        be compared; with attention pooling, patches that an empty text also marks are kept.
    """
    info = explained.info
    model = explained.model
    names = block_names(info)
    if not -len(names) <= start_layer < len(names):
        raise ValueError(
            f"start_layer must be an index below the number of blocks of {info.name}, "
            f"{len(names)}; got {start_layer}"
        )
    last = info.attention_layers[-1]
    blocks = [model.get_submodule(name) for name in names]
    reader = _Tokens(info)
    total = images.new_zeros(())
    with frozen(model):
        with torch.no_grad():
            values, outputs = reader.chain(blocks, lambda: target_values(explained, images, target))
            empty = [reader.replace(each, 0 * reader.read(each)) for each in outputs[:-1]]
            with _returning(blocks, [*empty, outputs[-1]]):
                other = target_values(explained, torch.zeros_like(images), target)
        if not torch.allclose(values, other, rtol=1e-3, atol=1e-5):
            raise ValueError(
                f"the scores of {info.name} must be computed from the output of its last block, "
                f"{names[-1]}, alone, but they also read others; {_INSTEAD}"
            )
        for index in range(start_layer % len(names), len(names)):
            score, weights = _own_score(explained, images, target, reader, blocks, outputs, index)
            check_have_gradients([score, weights], info)
            [gradient] = grad(score.sum(), weights, allow_unused=True)
            if gradient is None:
                raise ValueError(
                    f"the target must depend on the attention of {names[index]}; {_INSTEAD}"
                )
            total = total + with_query_axis(gradient).clamp(min=0).mean((1, 2))
    return total[:, len(last.prefix_tokens) :].unflatten(1, info.attention_layers[0].grid)


def _own_score(
    explained: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    reader: _Tokens,
    blocks: Sequence[nn.Module],
    outputs: Sequence[Any],
    index: int,
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b *axes m"]]:
    """Return the score of the tokens after a block, and the attention that it is explained by."""
    # Only this block is computed: those before it return what they did, and the last one its tokens
    #
    #     images --> (block 1) --> block 2 --> (block 3) --> head --> score
    #                    |            +- mean -----+
    #                 as before
    layers = explained.info.attention_layers
    pool = layers[-1].single_query
    kept: list[Any] = []

    def own_tokens(output: Any) -> Any:
        tokens = reader.read(output)
        # Of equal tokens any pooling, also of the patches alone, gives this one.
        return tokens if pool else tokens.mean(1, keepdim=True).expand_as(tokens)

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        kept.append(output)
        return reader.replace(output, own_tokens(output)) if index == len(blocks) - 1 else None

    given = [reader.replace(each, with_grad(reader.read(each))) for each in outputs]
    given[-1] = lambda: reader.replace(outputs[-1], own_tokens(kept[0]))
    given[index] = None
    site = layers[-1 if pool else index].site
    # before the hooks of others, which may collect the outputs of blocks
    handle = blocks[index].register_forward_hook(in_this_run(hook), prepend=True)
    try:
        with (
            _returning(blocks, given),
            record_sites(
                explained.model, [site], differentiable=True, probed=explained.probe
            ) as recording,
        ):
            score = target_values(explained, with_grad(images), target)
    finally:
        handle.remove()
    return score, recording.weights[0]
