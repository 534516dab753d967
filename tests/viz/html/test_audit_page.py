"""The page of an audit."""

import re

import pytest

from visattn.results.audit import AuditContent, Effect, Finding, GroupDifference, RegionShare
from visattn.viz.html.audit_page import audit_page


@pytest.mark.parametrize("middle", [-31.0, -1.0, 0.2, 5.0, 11.0, 47.0])
def test_intervals_are_drawn_as_wide_as_they_are_on_one_scale(middle: float) -> None:
    values = (0.5, middle)
    effects = {
        f"edit {value:g}": Effect(value, value - 0.75, value + 0.75, 0.1, 0.01, 72)
        for value in values
    }
    finding = Finding("patches", "patches 1", "rose", "confirmed", effects=effects)
    page = audit_page(AuditContent("net", {}, {"rose": 3}, None, {}, {}, [finding]))
    drawn = re.findall(r'class="ends" x1="([\d.-]+)" x2="([\d.-]+)"', page)
    ends = [tuple(map(float, pair)) for pair in drawn]
    assert len(ends) == 2
    assert all(0 <= low < high <= 100 for low, high in ends)
    widths = [high - low for low, high in ends]
    assert widths[0] == pytest.approx(widths[1], abs=0.21)
    assert (ends[1][0] > ends[0][0]) == (middle > 0.5)


@pytest.mark.parametrize(
    ("p_value", "text"), [(0.0, "&lt; 0.001"), (0.0009, "&lt; 0.001"), (0.001, "0.001")]
)
def test_no_p_value_is_printed_as_zero(p_value: float, text: str) -> None:
    effect = Effect(1.0, 0.5, 1.5, 0.1, p_value, 72)
    finding = Finding("patches", "patches 1", "rose", "confirmed", effects={"edit": effect})
    row = RegionShare("rose", "objects", 9, 0.3, 0.2, 0.2, None, 0.2, p_value)
    group = GroupDifference("camera: A", "accuracy", 9, 9, 0.1, p_value)
    content = AuditContent("net", {}, {"rose": 3}, None, {}, {}, [finding], [row], [group])
    assert audit_page(content).count(f'<td class="number">{text}</td>') == 3
