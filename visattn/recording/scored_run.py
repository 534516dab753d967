"""A run of a model with gradients, from the image to the scores."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from visattn.recording.gradient_graph import Edge, edge_of
from visattn.recording.marked_probe import MarkedReading
from visattn.recording.model_info import FeatureSite
from visattn.recording.model_outputs import class_scores, output_layout


@dataclass(eq=False)
class ModuleOutput:
    """What a module put out while the model ran.

    Args:
        site: Path of the module.
        edge: Where it stands in the graph.
        tensor: Itself.
        version: How often it had been overwritten by then.
        feature: How it lies on the image, if its activations answer to marks in their place.
    """

    site: str
    edge: Edge
    tensor: Tensor
    version: int
    feature: FeatureSite | None

    @property
    def whole(self) -> bool:
        """Whether nothing overwrote it."""
        return self.tensor._version == self.version  # noqa: SLF001


@dataclass(eq=False)
class ScoredRun:
    """One run of a model with gradients down to the image.

    Args:
        size: Height and width of the image.
        outputs: Of modules that run once, in their order.
        attention: What attention was given, and what it put out.
        roots: The scores.
    """

    size: tuple[int, int]
    outputs: list[ModuleOutput] = field(default_factory=list)
    attention: list[tuple[list[Edge], list[Edge]]] = field(default_factory=list)
    roots: list[Tensor] = field(default_factory=list)


def scored_run(
    model: nn.Module, image: Tensor, run: Callable[[Tensor], Any], marked: MarkedReading
) -> ScoredRun:
    """Return what a model put out on its way from an image to its scores.

    Args:
        model: To be run.
        image: One, normalized, that takes a gradient.
        run: Calls the model.
        marked: What was read off it when it ran on marked images.
    """
    seen = ScoredRun((image.shape[2], image.shape[3]))
    with ExitStack() as stack:
        for site, module in model.named_modules():
            hook = _hook(site, seen, marked)
            handle = module.register_forward_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        output = run(image)
    if not output_layout(output, len(image)).refusal:
        output = class_scores(output, len(image))
    elif isinstance(output, dict) and ("out" in output or "logits" in output):  # dense scores
        output = output["out"] if "out" in output else output["logits"]
    seen.roots = [one for one in _tensors(output) if one.requires_grad and one.is_floating_point()]
    return seen


def _hook(site: str, seen: ScoredRun, marked: MarkedReading) -> Callable[..., None]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if site in marked.attending:
            taken, put = (
                [edge_of(one) for one in _tensors(side) if one.grad_fn is not None]
                for side in ((args, kwargs), output)
            )
            seen.attention.append((taken, put))
        found = output[0] if isinstance(output, tuple) else output
        if marked.runs[site] == 1 and isinstance(found, Tensor) and found.grad_fn is not None:
            version, feature = found._version, marked.sites.get(site)  # noqa: SLF001
            seen.outputs.append(ModuleOutput(site, edge_of(found), found, version, feature))

    return hook


def _tensors(given: Any) -> Iterable[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, dict):
        yield from (one for part in given.values() for one in _tensors(part))
    elif isinstance(given, (tuple, list)):
        yield from (one for part in given for one in _tensors(part))
