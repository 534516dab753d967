"""Checks of form: any size, any width, a batch of one."""

from torch import Tensor

from visattn.blocks.conformance.subjects import (
    Candidate,
    Finding,
    answered,
    failed,
    learn,
    stood,
)

SIZES = ((32, 32), (20, 33), (7, 7), (5, 3), (1, 9), (1, 1))
_TORCHS_OWN = "Expected more than 1 value per channel"


def keeps_shape(subject: Candidate) -> Finding:
    """Say whether features of any size come back in the same shape, in use and in training.

    Example:
        >>> keeps_shape(Candidate("batch norm", torch.nn.BatchNorm2d)).passed
        True
    """
    for mode, training in (("in use", False), ("in training", True)):
        block = subject.block().train(training)
        for height, width in SIZES:
            x = subject.features(3, size=(height, width))
            answered(block, x, f"{height}x{width}, {mode}")
    return stood(" ".join(f"{height}x{width}" for height, width in SIZES))


def takes_widths(subject: Candidate) -> Finding:
    """Say whether the block can be made and trained at every width, the narrowest included.

    Example:
        >>> takes_widths(Candidate("sigmoid", lambda channels: torch.nn.Sigmoid()))
        Finding(passed=True, said='C = 1, 4, 8, 16, 24')
    """
    for channels in subject.widths:
        block = subject.block(channels)
        answered(block.eval(), subject.features(channels=channels), f"C={channels}, in use")
        answered(block.train(), subject.features(channels=channels), f"C={channels}, in training")
    return stood(f"C = {', '.join(map(str, subject.widths))}")


def trains_alone(subject: Candidate) -> Finding:
    """Say whether the block trains on a batch of one, or says what to do instead.

    Example:
        >>> trains_alone(Candidate("sigmoid", lambda channels: torch.nn.Sigmoid())).passed
        True
    """
    refused: list[str] = []
    for height, width in (subject.size, (7, 7), (1, 1)):
        block = subject.block().train()
        x = subject.features(1, size=(height, width)).requires_grad_()
        try:
            y = answered(block, x, f"{height}x{width}")
        except ValueError as error:
            if not is_advice(error):
                raise
            refused.append(f"{height}x{width}")
            continue
        learn(y.square().sum())
        if not isinstance(x.grad, Tensor) or not x.grad.isfinite().all():
            return failed(f"{height}x{width}: the gradient is not finite")
    if refused:
        return Finding(passed=True, said=f"refuses {', '.join(refused)}, in words", refuses=True)
    return stood("runs at every size")


def is_advice(error: ValueError) -> bool:
    """Say whether a block refused in words of its own that name the numbers.

    Example:
        >>> try:
        ...     answered(torch.nn.BatchNorm2d(3), torch.zeros(1, 3, 1, 1), "1x1")
        ... except ValueError as error:
        ...     is_advice(error)
        False
    """
    cause = error.__cause__
    said = str(cause)
    numbered = any(sign.isdigit() for sign in said)
    return isinstance(cause, ValueError) and numbered and not said.startswith(_TORCHS_OWN)
