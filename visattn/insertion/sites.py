"""Sites: the modules after which a block can be inserted, found in one run on an example."""

import math
import re
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from visattn.insertion.with_block import WithBlock, plain_modules
from visattn.io.messages import did_you_mean

Example = Tensor | tuple[Any, ...] | list[Any]
"""An input of the model: a tensor, or all arguments as a tuple or a list."""
Position = str | Sequence[str] | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class Site:
    """Module after which a block is inserted.

    Args:
        grid: Height and width of its output.
        channels_last: Whether its output is [batch, height, width, channels].
    """

    name: str
    channels: int
    grid: tuple[int, int]
    channels_last: bool

    def __str__(self) -> str:
        """Return the name and the shape of the features."""
        return f"{self.name}  {self.channels} x {self.grid[0]} x {self.grid[1]}"


def find_sites(model: nn.Module, position: Position, example: Example) -> list[Site]:
    """Return the selected sites of a model in the order in which they run.

    Args:
        position: As for `visattn.insert`. Modules that match a pattern or a predicate but that no
            block can follow are skipped.

    Raises:
        ValueError: If there is no such site, or no block can follow a named module.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten())
        >>> [str(site) for site in find_sites(model, "*", torch.zeros(1, 3, 11, 13))]
        ['0  8 x 9 x 11', '1  8 x 9 x 11']
    """
    modules = plain_modules(model)
    run = _SiteRun(example)
    with torch.no_grad(), modes_restored(model), ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_hook(partial(run.leave, name)).remove)
        with run:
            run_model(model, example)
    names = _select_names(model, modules, position, run.branches)
    order = [*(name for name in modules if name not in run.outputs), *run.outputs]
    found = [_make_site(n, modules[n], run.outputs.get(n, [])) for n in order if n in names]
    sites = [site for site in found if isinstance(site, Site)]
    reasons = [site for site in found if isinstance(site, str)]
    if callable(position) or any(sign in str(position) for sign in "*?"):
        sites = [site for site in sites if site.grid != (1, 1)]
        reasons = [] if sites else reasons
    if reasons or not sites:
        raise ValueError(f"there is no site for position={position!r}: {'; '.join(reasons[:3])}")
    return sites


def _select_names(
    model: nn.Module, modules: Mapping[str, nn.Module], position: Position, branches: list[str]
) -> set[str]:
    """Return the names of the modules at a position."""
    patterns = [position] if isinstance(position, str) else [] if callable(position) else position
    names = set[str]()
    for pattern in patterns:
        if pattern == "residual":
            found = branches
        elif pattern == "stage_end":  # without the stem: BAM is inserted after stages only
            # the model of timm may be inside of another one, such as TimmClassifier
            owners = [each for each in modules.items() if hasattr(each[1], "feature_info")]
            within, timm_model = owners[0] if owners else ("", model)
            stages = cast("Any", getattr(timm_model, "feature_info", ()))
            ends = [str(stage["module"]) for stage in stages]
            found = [
                f"{within}.{name}".removeprefix(".")
                for name in ends if not name.startswith(("act1", "conv_stem", "stem"))
            ]  # fmt: skip
        else:
            found = [name for name in modules if name and matches(name, pattern)]
        if not found:
            known = [each for each in ("residual", "stage_end", *modules) if each != pattern]
            hint = did_you_mean(pattern, known, otherwise="")
            raise ValueError(
                f"{type(model).__name__} has no module for {pattern!r}; position must be "
                "'residual' (residual networks), 'stage_end' (models of timm), a predicate of "
                "name and module, or names or patterns of modules, such as 'layer?' or "
                "'layer[34].*.bn2'; the top-level modules are "
                f"{', '.join(name for name, _ in model.named_children())}. {hint}"
            )
        names.update(found)
    if callable(position):
        names = {name for name, module in modules.items() if name and position(name, module)}
    return names


def matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern: `*` within a component, `**` across, `?`, `[...]`.

    Example:
        >>> [matches(name, "layer[34].*.bn?") for name in ("layer3.0.bn2", "layer3.0.a.bn2")]
        [True, False]
    """
    regex = re.sub(r"\\\[(.+?)\\\]", r"[\1]", re.escape(pattern))
    for sign, meaning in (("**.", r"(.+\.)?"), ("**", ".*"), ("*", "[^.]*"), ("?", "[^.]")):
        regex = regex.replace(re.escape(sign), meaning)
    return re.fullmatch(regex, name) is not None


_Call = tuple[tuple[int, ...], bool | None]
"""The shape that a module returned, and whether it is channels-last, if that is known."""


def _make_site(name: str, host: nn.Module, calls: Sequence[_Call]) -> Site | str:
    """Return the site after a module, or why no block can be inserted there."""
    said = f"no block can be inserted after {name}: it"
    if isinstance(host, WithBlock):
        return f"{said} already has {' and '.join(host.visattn.names)}; call remove(model) first"
    if not calls:
        return f"{said} does not run"
    shape, last = calls[0]
    if any(len(shape) != 4 for shape, _ in calls):
        returned = list(shape) or "no tensor"
        return f"{said} returns {returned}, not features [batch, channels, height, width]"
    if last is None:
        return f"{said} returns {list(shape)}, whose channels are ambiguous; pass another example"
    widths = {shape[3 if last else 1] for shape, _ in calls}
    if len(widths) > 1:
        return f"{said} runs with different numbers of channels, {sorted(widths)}"
    height, width = shape[1:3] if last else shape[2:]
    return Site(name, widths.pop(), (height, width), last)


def default_example(model: nn.Module) -> Tensor:
    """Return a blank input for a model of timm, visattn or torchvision.

    Raises:
        ValueError: If the input size of the model is unknown.
    """
    known = cast("Any", model)
    if config := getattr(known, "pretrained_cfg", None):
        size = config["input_size"]
    elif hasattr(known, "img_size"):
        size = (len(known.mean), *known.img_size)
    elif type(model).__module__.startswith("torchvision.models"):
        size = (3, 224, 224)
    else:
        raise ValueError(
            "the input size is unknown; pass an input, such as example=torch.zeros(1, 3, 224, 224)"
        )
    return next(model.parameters()).new_zeros(1, *size)


def run_model(model: nn.Module, example: Example) -> Any:
    """Call a model with an example; a list of images [3, y, x] is one argument (detectors)."""
    images = isinstance(example, list) and all(getattr(x, "ndim", 0) == 3 for x in example)
    return model(example) if isinstance(example, Tensor) or images else model(*example)


@contextmanager
def modes_restored(model: nn.Module) -> Generator[None]:
    """Put a model into evaluation mode; restore the mode of each of its modules afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        if any(mode for _, mode in modes):  # setting an attribute of every module is slow
            model.eval()
        yield
    finally:
        for module, mode in modes:
            if module.training != mode:
                module.training = mode


@dataclass(frozen=True)
class _Origin:
    """Where a tensor of the run comes from.

    Args:
        depth: Number of operations on the longest path from the input.
        modules: Modules that returned the tensor, outermost last.
        channels_last: Whether it is channels-last; None if unknown.
    """

    depth: int
    modules: tuple[str, ...] = ()
    channels_last: bool | None = None


_ADDITIONS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
# Functions that only scale features or permute their axes: a branch ends before them.
_PASS_ON = frozenset(
    {"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__", "permute", "movedim"}
    | {"transpose", "contiguous", "to", "clone", "dropout"}
)
# Whether features are channels-last after a function; None if only their shape can tell.
_LAYOUTS: dict[str, bool | None] = {
    **dict.fromkeys(("conv2d", "conv_transpose2d", "batch_norm", "group_norm"), False),
    "linear": True,
    **dict.fromkeys(("permute", "transpose", "movedim", "reshape", "view", "unflatten"), None),
}


class _SiteRun(TorchFunctionMode):
    """One run of a model: what its modules return, and which of them end a residual branch.

    Residual branches are found by computation, not by name: in x + f(x), one summand was computed
    by more operations than the other. This one is the branch, and a block is inserted after the
    module that returned it:

        x --+--> conv1 -> bn1 -> relu -> conv2 -> bn2 -[block]-> + -> relu
            '----------------------------------------------------^

    Sums of equal depth are fusions (of two inputs, in a pyramid), not residual connections.
    """

    def __init__(self, example: Example) -> None:
        super().__init__()
        self.outputs: dict[str, list[_Call]] = {}
        self.branches: list[str] = []
        self._origins = cast("MutableMapping[Tensor, _Origin]", WeakTensorKeyDictionary())
        # Leaf modules that only pass features on: dropout, scaling, permutation.
        self._passing_on = set[str]()
        tensors = [x for x in tree_leaves(example) if isinstance(x, Tensor)]
        self._origins.update((x, _Origin(0, channels_last=False)) for x in tensors)
        self._image = next((x.shape[2:] for x in tensors if x.ndim == 4), None)

    def leave(self, name: str, module: nn.Module, inputs: object, output: object) -> None:
        """Forward hook: record what a module returns."""
        calls = self.outputs.setdefault(name, [])
        if not isinstance(output, Tensor) or not output.is_floating_point():
            calls.append(((), None))
            return
        # Tensors that no traced function returned, such as those of custom kernels, start anew.
        depths = [origin.depth for _, origin in self._tracked(inputs)]
        origin = self._origins.get(output, _Origin(1 + max(depths, default=-1)))
        # A leaf module whose output still counts as that of another module only passed it on.
        if origin.modules and not any(True for _ in module.children()):
            self._passing_on.add(name)
        last = origin.channels_last
        if last is None and output.ndim == 4:
            last = _infer_channels_last(output.shape, self._image)
        calls.append((tuple(output.shape), last))
        self._origins[output] = replace(origin, modules=(*origin.modules, name))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a torch function and record the origin of its results."""
        tracked = self._tracked((args, kwargs))
        result = func(*args, **(kwargs or {}))
        if tracked:
            name, first = getattr(func, "__name__", ""), tracked[0][1]
            if name in _ADDITIONS and len(tracked) == 2:
                (x, short), (y, long) = sorted(tracked, key=lambda pair: pair[1].depth)
                if x.ndim == 4 and x.shape == y.shape and short.depth < long.depth:
                    made = [n for n in long.modules if n not in self._passing_on] or long.modules
                    self.branches += made[-1:]
            origin = _Origin(
                1 + max(origin.depth for _, origin in tracked),
                first.modules if name in _PASS_ON and len(tracked) == 1 else (),
                _LAYOUTS.get(name, first.channels_last),
            )
            for tensor in tree_leaves(result):
                if isinstance(tensor, Tensor):
                    self._origins[tensor] = origin
        return result

    def _tracked(self, values: object) -> list[tuple[Tensor, _Origin]]:
        """Return the tensors that derive from the input, with their origins."""
        tensors = [x for x in tree_leaves(values) if isinstance(x, Tensor)]
        return [(x, self._origins[x]) for x in tensors if x in self._origins]


def _infer_channels_last(shape: tuple[int, ...], image: tuple[int, ...] | None) -> bool | None:
    """Return whether features are [b, y, x, c] by the aspect ratio of the image, which they keep.

    None if both layouts keep it equally well.

    Example:
        >>> _infer_channels_last((1, 14, 14, 384), (224, 224))
        True
        >>> print(_infer_channels_last((1, 8, 8, 8), (64, 64)))
        None
    """
    if image is None:
        return False
    first, last = (
        abs(math.log(height / width) - math.log(image[0] / image[1]))
        for height, width in (shape[2:], shape[1:3])
    )
    return None if math.isclose(first, last, abs_tol=1e-9) else last < first
