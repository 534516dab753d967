"""Conformance suite: all checks of a block, and tables of their results."""

from collections.abc import Callable, Iterable, Mapping

from visattn.testing.behavior import (
    depends_on_input,
    is_batch_independent,
    is_deterministic,
    is_memory_format_invariant,
    is_numerically_stable,
    passes_gradcheck,
    preserves_input,
    preserves_shape,
    reaches_all_parameters,
    supports_channel_counts,
    supports_half_precision,
    trains_on_single_image,
)
from visattn.testing.block_under_test import BlockUnderTest, CheckResult, failed
from visattn.testing.export import (
    follows_device,
    supports_compile,
    supports_copying,
    supports_export,
    supports_fx,
)

CHECKS: dict[str, Callable[[BlockUnderTest], CheckResult]] = {
    "shape": preserves_shape,
    "channels": supports_channel_counts,
    "batch 1": trains_on_single_image,
    "half": supports_half_precision,
    "scale": is_numerically_stable,
    "batch": is_batch_independent,
    "deterministic": is_deterministic,
    "in-place": preserves_input,
    "memory format": is_memory_format_invariant,
    "gradients": reaches_all_parameters,
    "gradcheck": passes_gradcheck,
    "depends": depends_on_input,
    "copy": supports_copying,
    "device": follows_device,
    "export": supports_export,
    "fx": supports_fx,
    "compile": supports_compile,
}
"""Checks by name."""

CheckResults = Mapping[str, CheckResult]


def run_check(under_test: BlockUnderTest, check: str) -> CheckResult:
    """Run one check; an exception counts as a failure.

    Example:
        >>> from torch import nn
        >>> run_check(BlockUnderTest("pooling", lambda channels: nn.AvgPool2d(2)), "shape")
        CheckResult(passed=False, details='32x32, eval mode: returns [3, 32, 16, 16] for ...')
    """
    try:
        return CHECKS[check](under_test)
    except (ValueError, TypeError, RuntimeError) as error:
        return failed((str(error).strip().splitlines() or [type(error).__name__])[0])


def run_checks(
    under_test: BlockUnderTest, checks: Iterable[str] = tuple(CHECKS)
) -> dict[str, CheckResult]:
    """Run several checks.

    Example:
        >>> from torch import nn
        >>> list(run_checks(BlockUnderTest("batch norm", nn.BatchNorm2d), ["shape", "in-place"]))
        ['shape', 'in-place']
    """
    return {check: run_check(under_test, check) for check in checks}


def format_results(results: CheckResults) -> str:
    """Return the results of one block, one per line.

    Example:
        >>> results = {"shape": CheckResult(True, "1x1"), "half": CheckResult(False, "NaN")}
        >>> print(format_results(results))
        shape  ok    1x1
        half   FAIL  NaN
    """
    width = max(6, *map(len, results))
    return "\n".join(
        f"{check:{width}} {'ok  ' if result.passed else 'FAIL'}  {result.details}"
        for check, result in results.items()
    )


def format_table(results: Mapping[str, CheckResults]) -> str:
    """Return a Markdown table, one row per block, followed by failures and refusals.

    Example:
        >>> results = {"shape": CheckResult(True, ""), "half": CheckResult(False, "NaN")}
        >>> print(format_table({"se": results}))
        | block | shape | half |
        |---|---|---|
        | se | ok | **no** |
        <BLANKLINE>
        - se, half: NaN
    """
    checks = list(dict.fromkeys(check for row in results.values() for check in row))
    lines = [_row(["block", *checks]), "|---" * (1 + len(checks)) + "|"]
    for name, row in results.items():
        lines.append(_row([name, *(_format_cell(row.get(check)) for check in checks)]))
    reasons = [line for name, row in results.items() for line in _failure_reasons(name, row)]
    return "\n".join([*lines, "", *reasons] if reasons else lines)


def _failure_reasons(name: str, row: CheckResults) -> list[str]:
    """Return one line per failure or refusal, with its checks."""
    reasons: dict[str, list[str]] = {}
    for check, result in row.items():
        if result.refuses or not result.passed:
            reasons.setdefault(result.details, []).append(check)
    return [f"- {name}, {', '.join(checks)}: {message}" for message, checks in reasons.items()]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_cell(result: CheckResult | None) -> str:
    if result is None:
        return ""
    if result.refuses:
        return "refuses"
    return "ok" if result.passed else "**no**"
