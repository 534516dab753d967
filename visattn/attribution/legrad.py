"""LeGrad: gradients of attention, at the tokens that each block of a transformer gives on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
from visattn.attribution.targets import Target
from visattn.recording.frozen import frozen
from visattn.recording.gradient_graph import GradientGraph, gradient_edge
from visattn.recording.model_info import ExplainedModel, ModelInfo
from visattn.recording.recorder import record

Replace = Callable[[list[Float[Tensor, "b m d"]]], Float[Tensor, "s m2 d"]]


def block_names(info: ModelInfo) -> list[str]:
    """Return the names of the blocks around the attention layers, without attention pooling.

    A block is the outermost module with one attention layer inside.

    Raises:
        ValueError: If the layers do not share one grid, or are not one to a block.

    Example:
        >>> from visattn.recording.model_info import AttentionLayer
        >>> layers = tuple(AttentionLayer(f"blocks.{i}.attn", (3, 5)) for i in range(2))
        >>> block_names(ModelInfo("tiny", "timm", (6, 10), (0.5,), (0.5,), "class", layers))
        ['blocks.0', 'blocks.1']
    """
    if reason := single_grid_error(info):
        raise ValueError(f"{info.name} has no chain of blocks with one token grid: {reason}")
    sites = [layer.site for layer in info.attention_layers if not layer.single_query]
    names = [_outermost(site, sites) for site in sites]
    if not sites or len({name.rpartition(".")[0] for name in names}) > 1:
        raise ValueError(
            f"{info.name} must have one attention layer in each block, got the layers "
            f"{', '.join(sites[:3])}"
        )
    return names


def _outermost(site: str, sites: list[str]) -> str:
    """Return the outermost module around a layer that contains no other one."""
    parts = site.split(".")
    paths = [".".join(parts[: end + 1]) for end in range(len(parts))]
    for path in paths:
        alone = sum(other == path or other.startswith(f"{path}.") for other in sites) == 1
        # the only layer of a model: the module that a container lists by number
        if alone and (len(sites) > 1 or path.rpartition(".")[2].isdecimal()):
            return path
    return site


@dataclass
class BlockChain:
    """Hooks of the blocks of a model, and their output tokens in one forward pass, batch first.

    Args:
        replace: From the outputs of the blocks to what the layers after the last one get.
        cut: Whether the input of each block is detached.
        num_images: Images that enter the first block of the model; None for all.
        tokens: Outputs of the blocks.
        outputs: The same tensors as the blocks returned them.
        replaced: What the layers after the last block get.
    """

    name: str
    num_tokens: int
    names: list[str]
    replace: Replace
    cut: bool
    num_images: int | None
    tokens: list[Float[Tensor, "b m d"]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    replaced: Tensor | None = None

    def keep_first_images(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Shorten the batch of a block."""

        def shorten(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.ndim != 3:
                return value
            first = slice(self.num_images)
            return value[first] if value.shape[1] == self.num_tokens else value[:, first]

        return tuple(map(shorten, args)), {key: shorten(arg) for key, arg in kwargs.items()}

    def enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Check that a block gets the output of the block before, and detach it."""
        # A block may get its tokens by keyword.
        key = next((name for name, value in kwargs.items() if isinstance(value, Tensor)), "")
        hidden = args[0] if args else kwargs[key]
        if self.tokens and not _same_tokens(hidden, self.tokens[-1], self.num_tokens):
            raise ValueError(
                f"{self.name} must pass the tokens of each block on to the next one, unchanged; "
                f"{self.names[len(self.tokens)]} got others"
            )
        if not self.cut:
            return None
        inner = hidden.detach().requires_grad_()
        return ((inner, *args[1:]), kwargs) if args else (args, {**kwargs, key: inner})

    def leave(self, _: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        """Store the output of a block; replace that of the last one."""
        hidden = output[0] if isinstance(output, tuple) else output
        self.tokens.append(_batch_first(hidden, self.num_tokens, self.name))
        self.outputs.append(hidden)
        if len(self.tokens) < len(self.names):
            return None
        replaced = self.replace(self.tokens)
        # A model that has its tokens before its batch gets them back like that.
        replaced = replaced if self.tokens[-1] is hidden else replaced.transpose(0, 1)
        self.replaced = replaced
        return (replaced, *output[1:]) if isinstance(output, tuple) else replaced

    def check_only_last_is_read(self, scores: Tensor) -> None:
        """Check that scores are computed from the output of the last block alone.

        Raises:
            ValueError: If they are also computed from that of another block.
        """
        if self.replaced is None or not (scores.requires_grad and self.replaced.requires_grad):
            return
        graph = GradientGraph([gradient_edge(scores)])
        behind = graph.between([gradient_edge(scores)], [gradient_edge(self.replaced)])
        for name, output in zip(self.names, self.outputs, strict=True):
            if gradient_edge(output) in behind:
                raise ValueError(
                    f"the scores of {self.name} must be computed from the output of its last "
                    f"block, {self.names[-1]}, alone, but they are also computed from {name}; use "
                    "relevance or gradient_rollout"
                )


@contextmanager
def replaced_last_block(
    explained: ExplainedModel,
    names: list[str],
    replace: Replace,
    *,
    cut: bool = False,
    num_images: int | None = None,
) -> Iterator[BlockChain]:
    """Let the layers after the last block run on other tokens, inside the `with` block.

    Args:
        explained: The model.
        names: Blocks to listen to, in order; the last one is the last of the model.
        replace: From the outputs of these blocks to what the layers after the last block get.
        cut: Detach the input of each block, so that a gradient reaches its own layers only.
        num_images: Images that enter the first block of the model, of more that the model gets so
            that its batch keeps its size; None for all.

    Raises:
        ValueError: If the model runs its blocks otherwise than one after the other on tokens.
    """
    info = explained.info
    modules = dict(explained.model.named_modules())
    layer = next(
        attention for attention in info.attention_layers if attention.site.startswith(names[0])
    )
    count = len(layer.prefix_tokens) + layer.grid[0] * layer.grid[1]
    chain = BlockChain(info.name, count, names, replace, cut, num_images)
    with ExitStack() as hooks:
        if num_images is not None:
            first = modules[block_names(info)[0]]
            hook = chain.keep_first_images
            hooks.callback(first.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for name in names:
            module = modules[name]
            hooks.callback(module.register_forward_pre_hook(chain.enter, with_kwargs=True).remove)
            # before the hooks of others, which may collect the outputs of the blocks
            hooks.callback(module.register_forward_hook(chain.leave, prepend=True).remove)
        yield chain
    if len(chain.tokens) != len(names):
        raise ValueError(
            f"each block of {info.name} must run once, got {len(chain.tokens)} runs of "
            f"{len(names)} blocks"
        )


def _batch_first(output: Any, count: int, name: str) -> Float[Tensor, "b m d"]:
    """Return the output of a block as [batch, tokens, channels]."""
    if isinstance(output, Tensor) and output.ndim == 3:
        if output.shape[1] == count:
            return output
        if output.shape[0] == count:
            return output.transpose(0, 1)
    got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise ValueError(f"the blocks of {name} must return {count} tokens, [b, m, d], got {got}")


def _same_tokens(hidden: Any, tokens: Tensor, count: int) -> bool:
    if not isinstance(hidden, Tensor) or hidden.ndim != 3:
        return False
    hidden = hidden if hidden.shape[1] == count else hidden.transpose(0, 1)
    return hidden.shape == tokens.shape and torch.equal(hidden.detach(), tokens.detach())


def copies_for_head(tokens: Float[Tensor, "s d"], num_tokens: int) -> Float[Tensor, "s m d"]:
    """Return each token as a sequence of equal tokens, of which any pooling gives this token.

    Args:
        num_tokens: Length of a sequence: all tokens of a block for a head that knows how many there
            are, or the tokens that a pooling of patches leaves out and one more.

    Example:
        >>> copies_for_head(torch.ones(5, 3), 2).shape
        torch.Size([5, 2, 3])
    """
    return tokens[:, None].expand(-1, num_tokens, -1)


def split_output(output: Any, count: int) -> Iterator[Any]:
    """Yield the parts of the output of a model for consecutive groups of images.

    Raises:
        TypeError: If it is something else.

    Example:
        >>> [part.tolist() for part in split_output(torch.arange(4.0), 2)]
        [[0.0, 1.0], [2.0, 3.0]]
    """
    if isinstance(output, Tensor):
        yield from output.chunk(count)
        return
    if isinstance(output, tuple) and all(isinstance(tensor, Tensor) for tensor in output):
        named = hasattr(output, "_fields")
        for parts in zip(*(tensor.chunk(count) for tensor in output), strict=True):
            yield type(output)(*parts) if named else parts
        return
    if not hasattr(output, "items"):
        raise TypeError(
            "the model must return tensors, in a mapping or a tuple if several, got "
            f"{type(output).__name__}"
        )
    mapping: Any = output
    tensors = {key: value for key, value in mapping.items() if isinstance(value, Tensor)}
    for parts in zip(*(value.chunk(count) for value in tensors.values()), strict=True):
        yield type(output)(**dict(zip(tensors, parts, strict=True)))


def _no_chain(explained: ExplainedModel, _target: object) -> str:
    """Return why a model is no chain of blocks with one token grid; "" if it may be."""
    layers = explained.info.attention_layers
    if layers and all(layer.single_query or layer.pools for layer in layers):
        return "its only attention is a pool, and LeGrad reads the tokens after each block"
    return single_grid_error(explained.info)


@method("legrad", title="LeGrad", paper="arXiv:2404.03214", needs="tokens", check=_no_chain)
def legrad(
    explained: ExplainedModel,
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
        ValueError: If the tokens of all layers do not share one grid, there is no such layer, or
            the layers are not a chain of blocks.

    Source:
        Bousselham et al. 2024, arXiv:2404.03214, section 3; the authors pool the mean of all
        tokens. Deviations: the map is not scaled to 0 and 1, so that those of several texts can
        be compared; with attention pooling, patches that an empty text also marks are kept.
    """
    info = explained.info
    layers = info.attention_layers
    names = block_names(info)
    if not -len(names) <= start_layer < len(names):
        raise ValueError(
            f"start_layer must be an index below the number of blocks of {info.name}, "
            f"{len(names)}; got {start_layer}"
        )
    names = names[start_layer % len(names) :]
    pooled = layers[-1].single_query
    sites = [layer.site for layer in layers if layer.single_query == pooled][-len(names) :]
    num_prefix = len(layers[-1].prefix_tokens)

    def stack(tokens: list[Tensor]) -> Tensor:
        if pooled:
            return torch.cat(tokens)
        return copies_for_head(torch.cat([hidden.mean(1) for hidden in tokens]), tokens[0].shape[1])

    with frozen(explained.model):
        with torch.no_grad():
            target(explained.forward(images))  # the predicted class is that of the whole model
        with (
            replaced_last_block(explained, names, stack, cut=True, num_images=len(images)) as chain,
            record(explained.model, layers=sites, differentiable=True) as recording,
        ):
            output = _run_head(explained, images, chain)
        scores = torch.stack([target(scores) for scores in split_output(output, len(names))]).sum()
        check_have_gradients([scores, *recording.weights], info)
        chain.check_only_last_is_read(scores)
        gradients = grad(scores, recording.weights, allow_unused=True)
    rows = _relevance(
        gradients, [attention_map.site for attention_map in recording.maps], len(images)
    )
    return rows[:, num_prefix:].unflatten(1, layers[0].grid)


def _run_head(
    explained: ExplainedModel, images: Float[Tensor, "b c y x"], chain: BlockChain
) -> Any:
    """Return the output of a model whose last layers run on the tokens of each block."""
    # All blocks give their tokens to one run of the head, as if they were images. The model is
    # called with as many images, since it may remember its batch, but the blocks run on the first
    # copy:
    #
    #     3 b images -> first b -> block 1 --> block 2 --> block 3
    #                                 +-----------+-----------+--> tokens of 3 b --> head --> scores
    try:
        return explained.forward(images.repeat(len(chain.names), 1, 1, 1))
    except RuntimeError as error:
        if chain.replaced is None:
            raise
        raise ValueError(
            f"the layers of {explained.info.name} after {chain.names[-1]} must run on the tokens "
            f"of each block in place of its output, as LeGrad needs it, but they do not ({error}); "
            "use relevance or gradient_rollout"
        ) from error


def _relevance(
    gradients: Sequence[Tensor | None], sites: Sequence[str], count: int
) -> Float[Tensor, "b m"]:
    """Return the sum over layers of clipped gradients, averaged over heads and queries."""
    total: Tensor | None = None
    for site, gradient in zip(sites, gradients, strict=True):
        if gradient is None:
            raise ValueError(f"the target must depend on the attention of {site}, but it does not")
        clipped = with_query_axis(gradient).clamp(min=0).mean((1, 2))
        clipped = clipped.unflatten(0, (-1, count)).sum(0)
        total = clipped if total is None else total + clipped
    if total is None:
        raise ValueError("the model recorded no attention")
    return total
