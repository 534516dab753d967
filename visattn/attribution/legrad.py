"""LeGrad: gradients of the scores of each transformer block with respect to its attention.

One forward pass keeps the output tokens Z and the attention A of each block. The score of a block
is the output of the model's head for its tokens:

    images --> block 1 --> block 2 --> block 3      kept: tokens Z1 Z2 Z3, attention A1 A2 A3
                  Z1          Z2          Z3
                  |           |           +---> head(mean of Z3) = s3,   ds3/dA3
                  |           +---------------> head(mean of Z2) = s2,   ds2/dA2
                  +---------------------------> head(mean of Z1) = s1,   ds1/dA1

    map = sum over blocks of the mean over heads and queries of relu(ds/dA)
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import grad

from visattn.attribution.layer_weights import (
    check_one_call_each,
    no_single_grid,
    with_query_axis,
)
from visattn.attribution.perturbation import evaluate_target
from visattn.attribution.registry import method
from visattn.attribution.targets import Target
from visattn.recording.frozen import frozen, with_grad
from visattn.recording.interception import in_this_run
from visattn.recording.model_info import ModelInfo
from visattn.recording.recorder import record
from visattn.recording.subject import Subject


def block_names(info: ModelInfo) -> list[str]:
    """Return the names of the blocks around the attention layers, without attention pooling.

    A name is that of the layer, up to the first part that differs between layers; for a single
    layer, up to its index in a container.

    Raises:
        ValueError: If a block has several layers.

    Example:
        >>> from visattn.recording.model_info import AttentionLayer
        >>> layers = tuple(AttentionLayer(f"blocks.{i}.attn", (3, 5)) for i in range(2))
        >>> block_names(ModelInfo("tiny", "timm", (6, 10), (0.5,), (0.5,), "class", layers))
        ['blocks.0', 'blocks.1']
    """
    sites = [layer.site.split(".") for layer in info.attention_layers if not layer.single_query]
    apart = (
        at
        for at, [name, *others] in enumerate(zip(*sites, strict=False))
        if {*others} - {name} or (not others and name.isdecimal())
    )
    end = next(apart, len(sites[0]) - 1)
    names = [".".join(parts[: end + 1]) for parts in sites]
    if len({*names}) < len(names):
        raise ValueError(f"{info.name} must have one attention layer in each block, got {names}")
    return names


@contextmanager
def _output_tokens(block: nn.Module, tokens: Tensor | None = None) -> Iterator[list[Tensor]]:
    """Collect the output tokens of a block within the context, and replace them if any are given.

    They are `[b, m, d]` or `[m, b, d]`, alone or first in a tuple.
    """
    outputs: list[Tensor] = []

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        outputs.append(hidden)
        if tokens is None:
            return None
        return (tokens, *output[1:]) if isinstance(output, tuple) else tokens

    # before other hooks, which may collect the outputs of blocks
    handle = block.register_forward_hook(in_this_run(hook), prepend=True)
    try:
        yield outputs
    finally:
        handle.remove()


def _no_chain(subject: Subject, _target: object) -> str:
    """Return why a model is not a chain of blocks with one token grid; "" if it may be."""
    layers = subject.info.attention_layers
    if layers and all(layer.single_query or layer.pools for layer in layers):
        return "its only attention is attention pooling, but LeGrad needs attention in its blocks"
    return no_single_grid(subject, _target)


@method("legrad", title="LeGrad", paper="arXiv:2404.03214", needs="tokens", check=_no_chain)
def legrad(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
) -> Float[Tensor, "b gy gx"]:
    """LeGrad: gradients of each layer's own score for its attention, summed over layers.

    The score of a layer is the output of the model's head for the mean of the tokens after that
    layer. Its gradient with respect to the layer's attention is clipped at 0 and averaged over
    heads and queries. With attention pooling, the head gets all tokens of each layer, and the
    gradient is taken with respect to the weights of the pool.

    Raises:
        ValueError: If the scores depend on more than the output of the last block.

    Source:
        Bousselham et al. 2024, arXiv:2404.03214, section 3, with the mean of all tokens as in the
        authors' code. Deviations: maps are not scaled to [0, 1], so that those of several texts can
        be compared; with attention pooling, patches that an empty text also highlights are kept.
    """
    info, model = subject.info, subject.model
    layers = [layer for layer in info.attention_layers if not layer.single_query]
    pools = [layer.site for layer in info.attention_layers if layer.single_query]
    names = block_names(info)
    blocks = [model.get_submodule(name) for name in names]
    sites = [layer.site for layer in layers]
    cells = layers[0].grid[0] * layers[0].grid[1]
    with frozen(model):
        with ExitStack() as stack, record(subject, layers=sites, differentiable=True) as recording:
            runs = [stack.enter_context(_output_tokens(block)) for block in blocks]
            values = target(subject.forward(with_grad(images)))
        check_one_call_each(info, recording, layers)
        pairs = zip(layers, runs, strict=True)
        at = [
            1 if run[-1].shape[1] == len(each.prefix_tokens) + cells else 0 for each, run in pairs
        ]
        tokens = [run[-1].movedim(axis, 1) for axis, run in zip(at, runs, strict=True)]
        blank = torch.zeros_like(images)

        def head(given: Float[Tensor, "mb n d"]) -> Any:
            """Return the output of the model with these tokens as the output of its last block."""
            with _output_tokens(blocks[-1], given.movedim(1, at[-1])):
                try:
                    return subject.forward(blank)
                except Exception:  # noqa: BLE001 - a model may check how many images it has
                    return subject.forward(blank.repeat(len(given) // len(blank), 1, 1, 1))

        # one pass of the head for the tokens of each block, and for those of the last unchanged
        chosen = tokens
        if not pools:  # any pooling of equal tokens, also of patches only, gives their mean
            chosen = [each.mean(1, keepdim=True).expand_as(tokens[-1]) for each in tokens]
        given = torch.stack(
            [*map(with_grad if pools else torch.clone, chosen), tokens[-1].detach()]
        )
        record_pools = (
            record(subject, layers=pools, differentiable=True) if pools else nullcontext()
        )
        with record_pools as recorded_pools:
            *scores, other = evaluate_target(replace(subject, forward=head), given, target)
        if not torch.allclose(values, other, rtol=1e-3, atol=1e-5):
            raise ValueError(
                f"the scores of {info.name} must depend only on the output of its last block, "
                f"{names[-1]}, but they do not; use relevance or gradient_rollout"
            )
        if recorded_pools is not None:
            of_pool = grad(torch.stack(scores).sum(), recorded_pools.weights)
            gradients = with_query_axis(torch.cat(of_pool)).unflatten(0, given.shape[:2])[:-1]
        else:
            pairs = zip(scores, recording.weights, strict=True)
            gradients = [grad(each.sum(), of, retain_graph=True)[0] for each, of in pairs]
        marks = [each.clamp(min=0).mean((1, 2))[:, -cells:] for each in gradients]
    return torch.stack(marks).sum(0).unflatten(1, layers[0].grid)
