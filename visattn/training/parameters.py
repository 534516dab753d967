"""Parameters of models by part, and those without weight decay."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import nn

from visattn.blocks.registry import block_name
from visattn.insertion.with_block import InsertedBlock
from visattn.models.base import ImageClassifier, ModelWithEncoder


def parameters_by_part(model: nn.Module) -> Mapping[str, Sequence[nn.Parameter]]:
    """Return the parameters of the parts of a model, which `lr_mults` names; each is in one.

    A classifier has a backbone, attention blocks and a head, a model with an encoder that and its
    decoder; any other module is one part.

    Example:
        >>> from visattn.models import AttentionResNet
        >>> parts = parameters_by_part(AttentionResNet(("cat", "dog"), depth=8, block="eca"))
        >>> {part: len(weights) for part, weights in parts.items()}
        {'backbone': 27, 'blocks': 3, 'head': 2}
    """
    if isinstance(model, ModelWithEncoder):
        return encoder_and_decoder(model)
    if not isinstance(model, ImageClassifier):
        return {"model": list(model.parameters())}
    parts: dict[str, list[nn.Parameter]] = {"backbone": [], "blocks": [], "head": []}
    owners = {id(weight): "blocks" for block in model.modules() if _is_block(block)
              for weight in block.parameters()}  # fmt: skip
    owners |= {id(weight): "head" for weight in cast("Any", model).head.parameters()}
    for weight in model.parameters():
        parts[owners.get(id(weight), "backbone")].append(weight)
    return parts


def _is_block(module: nn.Module) -> bool:
    return isinstance(module, InsertedBlock) or bool(block_name(module))


def encoder_and_decoder(model: Any) -> dict[str, list[nn.Parameter]]:
    """Return the parameters of the encoder of a model, and all others as those of the decoder."""
    encoder = list(model.encoder.parameters())
    known = set(map(id, encoder))
    decoder = [weight for weight in model.parameters() if id(weight) not in known]
    return {"encoder": encoder, "decoder": decoder}


def undecayed(model: nn.Module) -> Sequence[nn.Parameter]:
    """Return the parameters of a model that are excluded from weight decay.

    These are all one-dimensional parameters (biases, norms, scales) and those that a module lists
    in a class attribute `NO_WEIGHT_DECAY`: learned tokens, position embeddings and temperatures. Of
    captioners and of modules of other libraries all parameters decay.
    """
    if not isinstance(model, ImageClassifier | ModelWithEncoder):
        return ()
    listed = {
        id(getattr(module, name))
        for module in model.modules()
        for name in getattr(module, "NO_WEIGHT_DECAY", ())
    }
    return [weight for weight in model.parameters() if weight.ndim < 2 or id(weight) in listed]
