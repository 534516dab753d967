"""Any network as a classifier: user code, torchvision or timm."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.insertion.insertion import insert
from visattn.io.messages import did_you_mean
from visattn.io.trusted_modules import TRUST_VARIABLE, import_trusted, is_trusted_module
from visattn.models.backbones.timm_classifier import create_timm_backbone
from visattn.models.base import ImageClassifier


class ModuleClassifier(ImageClassifier):
    """Any network whose output is the logits of the classes.

    In a config, `classifier: {class_path: my_net.MyNet, init_args: {...}}` is such a classifier;
    arguments that this class does not have go to the network.

    Args:
        class_names: Names of the classes, in the order of the logits.
        network: `torchvision:NAME`, `timm:NAME`, `FILE.py:NAME` or `package.module.NAME`; a class
            or function, whose module must be trusted. It gets `class_names` or `num_classes` if it
            has such an argument. A last linear layer with another number of outputs is replaced.
        arguments: Further arguments of the network; `pretrained` and `weights` are not saved.
        img_size: Height and width of the input images, in pixels.
        mean: Mean of each color channel, in [0, 1].
        std: Standard deviation of each color channel, in [0, 1].
        blocks: Attention blocks to insert, with their positions: `{cbam: layer*}`.

    Raises:
        ValueError: If the module of the network is not trusted, or its output is not logits.

    Example:
        >>> model = ModuleClassifier("ab", "torchvision:resnet18", blocks={"se": "layer4"})
        >>> model.head.out_features
        2
    """

    def __init__(
        self,
        class_names: Sequence[str],
        network: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        img_size: tuple[int, int] = (224, 224),
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        blocks: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(class_names, img_size, mean, std)
        given = dict(arguments or {})
        self.net = _build(network, self.class_names, given)
        # When a saved model is rebuilt, its weights come from the checkpoint.
        self.arguments = {k: v for k, v in given.items() if k not in ("pretrained", "weights")}
        example = torch.zeros(1, len(self.mean), *self.img_size)
        count = len(self.class_names)
        if isinstance(self.head, nn.Linear) and self.head.out_features != count:
            name = next(name for name, part in self.net.named_modules() if part is self.head)
            self.net.set_submodule(name, nn.Linear(self.head.in_features, count))
        with torch.no_grad():
            shape = tuple(self.net.eval()(example).shape)
        self.net.train()
        if shape != (1, count):
            raise ValueError(f"{network} must give {count} logits per image, got shape {shape}")
        for block, position in (blocks or {}).items():
            insert(self.net, block, position=position, example=example)

    @property
    def head(self) -> nn.Module:
        """The last linear layer, or the network without one."""
        layers = [part for part in self.net.modules() if isinstance(part, nn.Linear)]
        return layers[-1] if layers else self.net

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""
        return self.net(images)


def _build(name: str, class_names: tuple[str, ...], arguments: Mapping[str, Any]) -> nn.Module:
    if name.startswith("torchvision:"):
        import torchvision

        count = {} if arguments.get("weights") else {"num_classes": len(class_names)}
        return torchvision.models.get_model(name.partition(":")[2], **count, **arguments)
    if name.startswith("timm:"):
        options = {"num_classes": len(class_names), **arguments}
        pretrained = bool(options.pop("pretrained", False))
        return create_timm_backbone(name.partition(":")[2], options, pretrained=pretrained)
    make = find_network(name)
    known = {"class_names": class_names, "num_classes": len(class_names)}
    taken = inspect.signature(make).parameters
    return make(**{key: value for key, value in known.items() if key in taken}, **arguments)


def find_network(name: str) -> Any:
    """Import `FILE.py:NAME` or `package.module.NAME`, also from the working directory.

    Raises:
        ValueError: If its module is not trusted, or has no such name.
    """
    module, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    module = PurePath(module).stem if module.endswith(".py") else module
    if not is_trusted_module(module):
        raise ValueError(f"to run your own code, {name}, trust it: {TRUST_VARIABLE}={module}")
    found = import_trusted(module)
    public = [each for each in vars(found) if not each.startswith("_")]
    if not hasattr(found, attribute):
        raise ValueError(f"{module} has no {attribute}; {did_you_mean(attribute, public)}")
    return getattr(found, attribute)
