"""All checks, and the table of what they found."""

from collections.abc import Callable, Iterable, Mapping

from visattn.blocks.conformance.copies import (
    compiles,
    copies_whole,
    exports,
    stays_on_device,
    traces,
)
from visattn.blocks.conformance.forms import keeps_shape, takes_widths, trains_alone
from visattn.blocks.conformance.gradients import has_right_slopes, learns_everywhere
from visattn.blocks.conformance.habits import (
    ignores_layout,
    leaves_input,
    repeats_itself,
    sees_each_alone,
)
from visattn.blocks.conformance.precisions import stays_finite, works_in_half
from visattn.blocks.conformance.subjects import Candidate, Finding, failed
from visattn.blocks.conformance.variations import looks_at_input

CHECKS: dict[str, Callable[[Candidate], Finding]] = {
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

Findings = Mapping[str, Finding]


def examine(subject: Candidate, check: str) -> Finding:
    """Return what one check finds; a block that fails in it has not passed it.

    Args:
        subject: The block.
        check: One of `CHECKS`.

    Example:
        >>> from torch import nn
        >>> examine(Candidate("pooling", lambda channels: nn.AvgPool2d(2)), "size")
        Finding(passed=False, said='32x32, in use: gives [3, 32, 16, 16] for [3, 32, 32, 32]')
    """
    try:
        return CHECKS[check](subject)
    except (ValueError, TypeError, RuntimeError) as error:
        return failed((str(error).strip().splitlines() or [type(error).__name__])[0])


def examine_all(subject: Candidate, checks: Iterable[str] = tuple(CHECKS)) -> dict[str, Finding]:
    """Return what each check finds.

    Example:
        >>> from torch import nn
        >>> list(examine_all(Candidate("batch norm", nn.BatchNorm2d), ["size", "input"]))
        ['size', 'input']
    """
    return {check: examine(subject, check) for check in checks}


def listed(found: Findings) -> str:
    """Return the findings on one block, a line each.

    Example:
        >>> print(listed({"size": Finding(True, "1x1"), "half": Finding(False, "NaN")}))
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
        >>> print(tabled({"se": {"size": Finding(True, ""), "half": Finding(False, "NaN")}}))
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


def _mark(finding: Finding | None) -> str:
    if finding is None:
        return ""
    if finding.refuses:
        return "refuses"
    return "ok" if finding.passed else "**no**"
