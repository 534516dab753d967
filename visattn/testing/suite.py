"""All checks, and the table of what they found."""

from collections.abc import Callable, Iterable, Mapping

from visattn.testing.behavior import (
    ignores_layout,
    leaves_input,
    looks_at_input,
    repeats_itself,
    sees_each_alone,
)
from visattn.testing.candidate import BlockUnderTest, CheckResult, failed
from visattn.testing.export import (
    compiles,
    copies_whole,
    exports,
    stays_on_device,
    traces,
)
from visattn.testing.gradients import has_right_slopes, learns_everywhere
from visattn.testing.shapes_and_dtypes import (
    keeps_shape,
    stays_finite,
    takes_widths,
    trains_alone,
    works_in_half,
)

CHECKS: dict[str, Callable[[BlockUnderTest], CheckResult]] = {
    "size": keeps_shape,
    "width": takes_widths,
    "batch 1": trains_alone,
    "half": works_in_half,
    "scale": stays_finite,
    "alone": sees_each_alone,
    "again": repeats_itself,
    "input": leaves_input,
    "layout": ignores_layout,
    "learns": learns_everywhere,
    "slopes": has_right_slopes,
    "gate": looks_at_input,
    "copy": copies_whole,
    "device": stays_on_device,
    "export": exports,
    "fx": traces,
    "compile": compiles,
}
"""Each by the word that heads its column."""

Findings = Mapping[str, CheckResult]


def examine(subject: BlockUnderTest, check: str) -> CheckResult:
    """Return what one check finds; a block that fails in it has not passed it.

    Args:
        subject: The block.
        check: One of `CHECKS`.

    Example:
        >>> from torch import nn
        >>> examine(BlockUnderTest("pooling", lambda channels: nn.AvgPool2d(2)), "size")
        CheckResult(passed=False, said='32x32, in use: gives [3, 32, 16, 16] for [3, 32, 32, 32]')
    """
    try:
        return CHECKS[check](subject)
    except (ValueError, TypeError, RuntimeError) as error:
        return failed((str(error).strip().splitlines() or [type(error).__name__])[0])


def examine_all(
    subject: BlockUnderTest, checks: Iterable[str] = tuple(CHECKS)
) -> dict[str, CheckResult]:
    """Return what each check finds.

    Example:
        >>> from torch import nn
        >>> list(examine_all(BlockUnderTest("batch norm", nn.BatchNorm2d), ["size", "input"]))
        ['size', 'input']
    """
    return {check: examine(subject, check) for check in checks}


def listed(found: Findings) -> str:
    """Return the findings on one block, a line each.

    Example:
        >>> print(listed({"size": CheckResult(True, "1x1"), "half": CheckResult(False, "NaN")}))
        size   ok    1x1
        half   FAIL  NaN
    """
    width = max(6, *map(len, found))
    return "\n".join(
        f"{check:{width}} {'ok  ' if finding.passed else 'FAIL'}  {finding.said}"
        for check, finding in found.items()
    )


def tabled(found: Mapping[str, Findings]) -> str:
    """Return a Markdown table, a row for each block, and below it what failed or was refused.

    Example:
        >>> results = {"size": CheckResult(True, ""), "half": CheckResult(False, "NaN")}
        >>> print(tabled({"se": results}))
        | block | size | half |
        |---|---|---|
        | se | ok | **no** |
        <BLANKLINE>
        - se, half: NaN
    """
    checks = list(dict.fromkeys(check for row in found.values() for check in row))
    lines = [_row(["block", *checks]), "|---" * (1 + len(checks)) + "|"]
    for name, row in found.items():
        lines.append(_row([name, *(_mark(row.get(check)) for check in checks)]))
    told = [line for name, row in found.items() for line in _reasons(name, row)]
    return "\n".join([*lines, "", *told] if told else lines)


def _reasons(name: str, row: Findings) -> list[str]:
    """Return a line for each reason, with the checks that did not simply pass for it."""
    reasons: dict[str, list[str]] = {}
    for check, finding in row.items():
        if finding.refuses or not finding.passed:
            reasons.setdefault(finding.said, []).append(check)
    return [f"- {name}, {', '.join(checks)}: {said}" for said, checks in reasons.items()]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _mark(finding: CheckResult | None) -> str:
    if finding is None:
        return ""
    if finding.refuses:
        return "refuses"
    return "ok" if finding.passed else "**no**"
