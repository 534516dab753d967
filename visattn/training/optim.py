"""Optimizer of a task: learning rates by part, weight decay, and schedule."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self, cast

from lightning.pytorch.utilities import rank_zero_info
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from visattn.blocks.registry import block_name
from visattn.insertion.with_block import InsertedBlock
from visattn.models.base import ImageClassifier, ModelWithEncoder

OptimizerFactory = Callable[[Iterable[Any]], Optimizer]


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer of a task, learning-rate factors of its parts, and the learning-rate schedule.

    Args:
        optimizer: Builds the optimizer from parameter groups; None for the default of the task.
        schedule: Learning-rate schedule after the warm-up: `cosine` annealing, `linear` decay, or
            constant and then linear decay (`trapezoid`).
        warmup_steps: Steps of linear warm-up; below 1 a fraction of the run.
        decay_start: Where the learning rate of `trapezoid` begins to decay: a fraction of the run,
            or a step if above 1.
        final_fraction: The learning rate at the end of the run, as a fraction of the optimizer's;
            by default 0.02 for `trapezoid` and 0 for the others.
        lr_mults: Learning rates of parts of the model, such as `encoder` or `head`, as multiples of
            the optimizer's; 1 for parts that are not named. A task defines them in `parts`.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> OptimConfig(schedule="linear", warmup_steps=2).factor(5, 10)
        0.5
        >>> OptimConfig(schedule="cosine", warmup_steps=0.2).factor(1, 20)
        0.5
    """

    optimizer: OptimizerFactory | None = None
    schedule: Literal["cosine", "linear", "trapezoid"] = "trapezoid"
    warmup_steps: int | float = 0
    decay_start: int | float = 0.4
    final_fraction: float | None = None
    lr_mults: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        final = self.final_fraction or 0.0
        numbers = (self.warmup_steps, self.decay_start, final, *self.lr_mults.values())
        if not all(number >= 0 for number in numbers) or final > 1:
            raise ValueError(
                "warmup_steps, decay_start and lr_mults must be at least 0, final_fraction at most "
                f"1; got {self.warmup_steps}, {self.decay_start}, {self.lr_mults} and {final}"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # jsonargparse's optimizer factory refers to the command line, and through it to the trainer
        # and its worker processes, so copies of a task share it.
        return self

    def factor(self, step: int, total_steps: float) -> float:
        """Return the factor of all learning rates at a step."""
        share = 0 < self.warmup_steps < 1 and math.isfinite(total_steps)
        options = {"warmup_steps": self.warmup_steps * (total_steps if share else 1)}
        if self.final_fraction is not None:
            options["final_fraction"] = self.final_fraction
        if self.schedule == "cosine":
            return cosine(step, total_steps, **options)
        if self.schedule == "linear":
            return trapezoid(step, total_steps, **{"final_fraction": 0.0, **options}, decay_start=0)
        start = self.decay_start / (total_steps if self.decay_start > 1 else 1)
        return trapezoid(step, total_steps, **options, decay_start=start)

    def build(
        self,
        parts: Mapping[str, Sequence[nn.Parameter]],
        *,
        total_steps: float,
        default: OptimizerFactory,
        no_weight_decay: Iterable[nn.Parameter] = (),
    ) -> dict[str, Any]:
        """Return the optimizer and its schedule, in the form that `configure_optimizers` returns.

        Args:
            parts: Parameters of each part; those that do not require a gradient are skipped.
            total_steps: Optimizer steps of the whole run; infinite for a run without an end, which
                has no decay.
            default: Builds the optimizer if the config has none.
            no_weight_decay: Parameters without weight decay, such as biases.

        Raises:
            ValueError: If `lr_mults` has an unknown part.
        """
        if unknown := sorted(set(self.lr_mults) - set(parts)):
            raise ValueError(
                f"lr_mults must name parts of the model, {', '.join(parts)}; got "
                f"{', '.join(unknown)}"
            )
        if max(self.warmup_steps, self.decay_start) >= max(1, total_steps):
            rank_zero_info(
                f"warmup_steps is {self.warmup_steps} and decay_start {self.decay_start}, but the "
                f"run has {total_steps} steps: the learning rate does not reach the end of its "
                "schedule; fractions below 1 follow the length of the run"
            )
        undecayed = {id(weight) for weight in no_weight_decay}
        groups: list[dict[str, Any]] = []
        for part, weights in parts.items():
            # One group with the default weight decay and one without; `bool(options)` tells them
            # apart.
            for options in ({}, {"weight_decay": 0}):
                trained = [
                    weight
                    for weight in weights
                    if weight.requires_grad and (id(weight) in undecayed) == bool(options)
                ]
                mult = self.lr_mults.get(part, 1.0)
                groups += [{"params": trained, "lr_mult": mult, **options}] if trained else []
        optimizer = (self.optimizer or default)(groups)
        # Before the scheduler, whose factor multiplies the rates it finds.
        for group in optimizer.param_groups:
            group["lr"] *= group["lr_mult"]
        optimizer.register_load_state_dict_pre_hook(_with_own_options)
        scheduler = _Schedule(optimizer, partial(self.factor, total_steps=total_steps))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class _Schedule(LambdaLR):
    """A schedule that resumes with the learning rates of the config, not of the state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the step, and set the learning rates to those of that step."""
        super().load_state_dict({**state_dict, "base_lrs": self.base_lrs})
        for group, rate, factor in zip(
            self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=True
        ):
            group["lr"] = rate * factor(self.last_epoch)


def _with_own_options(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer state with the options of the config, such as the weight decay.

    PyTorch would restore those of the state. The schedule sets the learning rate.
    """
    pairs = zip(state["param_groups"], optimizer.param_groups, strict=False)
    kept = [{**own, "lr": old["lr"], "params": old["params"]} for old, own in pairs]
    return {**state, "param_groups": kept}


def trapezoid(
    step: int,
    total_steps: float,
    *,
    warmup_steps: float = 0,
    decay_start: float = 0.4,
    final_fraction: float = 0.02,
) -> float:
    """Return the learning-rate factor of linear warm-up, a constant phase and linear decay.

    Args:
        step: Number of steps done.
        total_steps: Number of steps of the run.
        warmup_steps: Number of warm-up steps.
        decay_start: Fraction of the run after which the learning rate decays.
        final_fraction: The factor at the end of the run.

    Example:
        >>> schedule = {"warmup_steps": 2, "decay_start": 0.5, "final_fraction": 0.0}
        >>> [round(trapezoid(step, 10, **schedule), 2) for step in (0, 1, 4, 6, 10)]
        [0.5, 1.0, 1.0, 0.8, 0.0]
    """
    warmup = min(1.0, (step + 1) / (warmup_steps + 1e-9)) if warmup_steps else 1.0
    progress = min(1.0, step / total_steps)
    if progress <= decay_start:
        return warmup
    decay = 1.0 - (1.0 - final_fraction) * (progress - decay_start) / (1.0 - decay_start)
    return min(warmup, decay)


def cosine(
    step: int, total_steps: float, *, warmup_steps: float = 0, final_fraction: float = 0.0
) -> float:
    """Return the learning-rate factor of linear warm-up and cosine annealing without restarts.

    Args:
        step: Number of steps done.
        total_steps: Number of steps of the run, including the warm-up.
        warmup_steps: Number of warm-up steps.
        final_fraction: The factor at the end of the run.

    Example:
        >>> [round(cosine(step, 10, warmup_steps=2), 3) for step in (0, 1, 2, 6, 10)]
        [0.5, 1.0, 1.0, 0.5, 0.0]

    Source:
        Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5, without restarts.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return final_fraction + (1.0 - final_fraction) * (1.0 + math.cos(math.pi * progress)) / 2.0


def parameters_by_part(model: nn.Module) -> Mapping[str, Sequence[nn.Parameter]]:
    """Return the parameters of a model by part, for `lr_mults`; each is in one part.

    A classifier has a backbone, attention blocks and a head, a model with an encoder has encoder
    and decoder; any other module is one part.

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
    """Return the parameters of the encoder of a model; all others are the decoder's."""
    encoder = list(model.encoder.parameters())
    known = set(map(id, encoder))
    decoder = [weight for weight in model.parameters() if id(weight) not in known]
    return {"encoder": encoder, "decoder": decoder}


def undecayed(model: nn.Module) -> Sequence[nn.Parameter]:
    """Return the parameters of a model that are excluded from weight decay.

    These are all one-dimensional parameters (biases, norms, scales) and those that a module lists
    in a class attribute `NO_WEIGHT_DECAY`: learned tokens, position embeddings and temperatures.
    For captioners and modules of other libraries, all parameters decay.
    """
    if not isinstance(model, ImageClassifier | ModelWithEncoder):
        return ()
    listed = {
        id(getattr(module, name))
        for module in model.modules()
        for name in getattr(module, "NO_WEIGHT_DECAY", ())
    }
    return [weight for weight in model.parameters() if weight.ndim < 2 or id(weight) in listed]
