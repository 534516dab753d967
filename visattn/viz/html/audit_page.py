"""HTML page of an audit, without scripts: what was tested, candidates, stamps, regions, groups."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

from visattn.results.audit import AuditContent, Effect, Finding
from visattn.viz.heatmap import colormap_lut
from visattn.viz.html.document import escape_text, image_data_url, render_page

_DRAWN = (-2.0, 6.0)  # nats that the drawn intervals of a candidate reach at least
_TAGS = "object, part of it, context, artefact"
_TO_DO = (
    "What to do: look at the crops and name what they show. A part of the object is as it should "
    "be. An artefact or the background is not: take it off the training photos, or put it on those "
    "of all classes alike, train again, and audit again on the same photos."
)
_REACTIONS = (
    "Reactions to stamps: {}. Any model reacts to some artefacts that it was not trained on; they "
    "are confirmed only beyond models that did not learn from such photos, --reference. "
)
_STRONG = ("confirmed", "reaction")
_FILE = "findings.json"
_MOST_SENTENCES, _MOST_COUNTS, _MOST_CLASSES, _MOST_GROUPS, _MOST_MAPS, _MOST_SHIFTS = (
    6, 40, 12, 60, 24, 40,
)  # fmt: skip
_LIMITS = (
    "A finding is what the model uses, measured. Whether it should is for a person to say: a petal "
    "is used as well as a tag.",
    "Without a finding, none of the tested kinds has an effect above the minimum. Tint, blur, "
    "resolution and noise leave no patch: stamps alone can show them, and only those of the bank.",
    "What is neither in these photos nor among the stamps is not seen at all.",
    "An effect is that of an edit: a pasted patch is unlike photos of the training, and the test "
    "asks whether it is sufficient on other photos.",
    "Candidates were searched in one half of the photos and tested on the other. Rank is by "
    "coherence, share and evidence; only the effect decides.",
    "Shares of evidence describe where a method sees evidence. They say neither that a model is "
    "right nor that it will be right on other photos.",
)
Cell = tuple[str, str]
"""Markup of a cell of a table, and its CSS class."""


def audit_page(content: AuditContent) -> str:
    """Return the report of an audit as a self-contained page.

    Args:
        content: What it shows.

    Example:
        >>> page = audit_page(AuditContent("net", {}, {"rose": 3}, None, {}, {}))
        >>> "<h2" in page, "<script" in page
        (True, False)
    """
    sections = [
        ("found", "What was found", _found(content)),
        ("tested", "What was tested", _tested(content)),
        ("candidates", "Candidates", _candidates(content)),
        ("stamps", "Stamp probes", _stamps(content)),
        ("regions", "Regions and background", _regions(content)),
        ("groups", "Groups", _groups(content)),
        ("maps", "Mean maps", _mean_maps(content)),
    ]
    if content.comparison is not None:
        sections.append(("comparison", "Comparison", _comparison(content)))
    limits = "".join(f"<li>{escape_text(text)}</li>" for text in _LIMITS)
    sections.append(("limits", "Limits", f'<ul class="plain">{limits}</ul>'))
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in sections)
    body = "\n".join(
        f'<section id="{key}"><h2>{number}. {title}</h2>{markup}</section>'
        for number, (key, title, markup) in enumerate(sections, 1)
    )
    return render_page(
        "audit.html",
        styles=["paper.css", "audit.css"],
        scripts=[],
        data={},
        texts={"title": f"Audit of {content.model}", "lead": _lead(content)},
        markup={"contents": links, "sections": body},
    )


def _lead(content: AuditContent) -> str:
    confirmed = {
        kind: sum(each.kind == kind and each.status == "confirmed" for each in content.findings)
        for kind in ("patches", "stamp")
    }
    listed = sum(each.kind == "patches" and each.effect is not None for each in content.findings)
    photos = sum(content.counts.values())
    least = content.settings.get("min_effect", 0.5)
    return (
        f"{photos:,} photos. {confirmed['patches']} of {listed} candidates are "
        f"confirmed{_of_stamps(content, confirmed['stamp'])}, with an interval above "
        f"{least:g} nats of log-odds."
    )


def _of_stamps(content: AuditContent, confirmed: int) -> str:
    if not (count := content.tests.get("stamps", 0)):
        return ""
    if references := content.settings.get("references"):
        return f", and {confirmed} of {count} stamp effects beyond {references} reference models"
    reactions = sum(each.status == "reaction" for each in content.findings)
    return f", and the model reacts to {reactions} of {count} pairs of a stamp and a class"


def _found(content: AuditContent) -> str:
    """Return the confirmed effects in words, with crops, and what to do about them."""
    confirmed = [each for each in content.findings if each.status == "confirmed"]
    patches = [each for each in confirmed if each.kind == "patches"]
    stamps = [each for each in confirmed if each.kind == "stamp"]
    is_known = any("outside" in each.details for each in patches)
    beside = [each for each in patches if each.is_beside_objects]
    parts = [
        ("Beside the objects" if is_known else "", beside),
        ("On the objects", [each for each in patches if each not in beside]),
        ("Stamps" if patches else "", stamps[:_MOST_SENTENCES]),
    ]
    listed = "".join(_list_of(title, findings) for title, findings in parts if findings)
    reactions = sum(each.status == "reaction" for each in content.findings)
    if not listed:
        least = " and ".join(
            f"{value:g} nats for {'stamps' if kind == 'stamp' else kind}"
            for kind, value in content.smallest.items()
        )
        listed = "<p>Nothing is confirmed" + (
            f": no effect of the tested kinds is above what could be detected here, {least}.</p>"
            if least else ": nothing could be tested, see the notes below.</p>"
        )  # fmt: skip
    present = sum(each.status == "present, not used" for each in content.findings if each.photos)
    open_ = sum(each.status in ("not confirmed", "not testable") for each in content.findings
                if each.photos)  # fmt: skip
    rest = (
        f"Groups of patches that are not confirmed: {present} present and not used, {open_} "
        "undecided with these photos. " if present + open_ else ""
    )  # fmt: skip
    rest += _REACTIONS.format(reactions) if reactions else ""
    left = _left_out(len(stamps) - _MOST_SENTENCES, "confirmed stamps", "the table of stamps")
    return f'{listed}{left}<p class="note">{rest}{_TO_DO if confirmed else ""}</p>'


def _list_of(title: str, findings: Sequence[Finding]) -> str:
    head = f"<h3>{title}</h3>" if title else ""
    return f'{head}<ul class="found">{"".join(map(_sentence, findings))}</ul>'


def _sentence(finding: Finding) -> str:
    effect = finding.effect
    if effect is None:
        return ""
    crops = "".join(f'<img src="{escape_text(crop)}" alt="">' for crop in finding.crops[:6])
    name, own = escape_text(finding.name), escape_text(finding.class_name)
    odds = f"odds times {_times(effect.low)} to {_times(effect.high)}"
    change = f"{effect.value:+z.1f} nats ({effect.low:+z.1f} to {effect.high:+z.1f}: {odds})"
    if finding.kind == "stamp":
        text = f"<b>{name}</b>, put on photos of other classes, raises <b>{own}</b> by {change}."
    else:
        share = f"{100 * (finding.share or 0):.0f} % of its photos"
        text = f"<b>{own}: {name}</b>, in {share}. Pasted into photos of other classes they raise "
        text += f"<b>{own}</b> by {change}."
        if "outside" in finding.details:
            text += f" {100 * finding.details['outside']:.0f} % of the patches show no object."
    return f'<li><div class="strip">{crops}</div>{text}</li>' if crops else f"<li>{text}</li>"


def _times(nats: float) -> str:
    """Return the factor of odds that a change of log-odds is, with two digits."""
    factor = float(np.exp(nats))
    return f"{factor:.2g}" if factor < 100 else f"{float(f'{factor:.2g}'):,.0f}"


def _left_out(count: int, what: str, where: str) -> str:
    """Return a note that a list is not shown as a whole; "" if it is."""
    return f'<p class="note">Further {what}: {count:,}, in {where}.</p>' if count > 0 else ""


def _tested(content: AuditContent) -> str:
    facts = [("Photos", f"{sum(content.counts.values()):,}")]
    if content.accuracy is not None:
        facts.append(("Right predictions", f"{100 * content.accuracy:.1f} %"))
    facts += [
        (name.replace("_", " ").capitalize(), _plain(value))
        for name, value in content.settings.items()
        if value not in (None, "", [], {}) and not isinstance(value, dict)
    ]
    facts += [(f"Tests of {kind}", f"{count:,}") for kind, count in content.tests.items()]
    facts += [
        (f"Smallest detectable effect, {'stamps' if kind == 'stamp' else kind}", f"{value:g} nats")
        for kind, value in content.smallest.items()
    ]
    rows = "".join(
        f"<div><dt>{escape_text(name)}</dt><dd>{escape_text(value)}</dd></div>"
        for name, value in facts
    )
    shown = [*content.counts.items()][:_MOST_COUNTS]
    counts = ", ".join(f"{name} {count:,}" for name, count in shown)
    if more := len(content.counts) - len(shown):
        counts += f", and {more:,} more"
    notes = "".join(f"<li>{escape_text(note)}</li>" for note in content.notes)
    listed = f'<ul class="plain">{notes}</ul>' if notes else ""
    return (
        f'<dl class="facts">{rows}</dl><p class="note">Predicted classes: {escape_text(counts)}. '
        "The smallest detectable effect is the one that half of the tests would have confirmed; "
        "p-values of patches and stamps are corrected within their kind (Holm; beside reference "
        f"models Benjamini and Hochberg).</p>{listed}"
    )


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if type(value) is int else str(value)


def _candidates(content: AuditContent) -> str:
    patches = [finding for finding in content.findings if finding.kind == "patches"]
    text = (
        "Patches with the most evidence that look alike to the model. The effect is the change of "
        "the log-odds of the class when they are pasted into photos of other classes, beside the "
        "same place of photos of the class without them. Where pixels are the same in many of its "
        "photos, as in a frame or a text, these are pasted, and whole photos are shown with a line "
        "around them. Groups whose effect is not beyond that of "
        "other places of their photos are not listed. Replaced: how far the class falls when the "
        "patches of a photo give way to one without them, beside other places. Tag each: "
        + _TAGS
        + "."
    )
    cards = (
        "".join(map(_card, patches))
        or "<p>No group of patches is coherent enough in the classes that were searched.</p>"
    )
    return f'<p class="note">{text}</p>{cards}'


def _card(finding: Finding) -> str:
    crops = "".join(f'<img src="{escape_text(crop)}" alt="">' for crop in finding.crops)
    strip = f'<div class="strip">{crops}</div>' if crops else ""
    share = "" if finding.share is None else f"{100 * finding.share:.0f} % of its photos"
    head = (
        f'<div class="head"><h3>{escape_text(finding.class_name)}: {escape_text(finding.name)}</h3>'
        f"{_status(finding)}<span>{share}</span></div>"
    )
    drawn = finding.effects.values()
    ends = (min([_DRAWN[0], *(each.low for each in drawn)]),
            max([_DRAWN[1], *(each.high for each in drawn)]))  # fmt: skip
    effects = _table(
        ("edit", "log-odds, nats", "95 %", "", "probability", "p", "pairs"),
        (_effect_row(name, effect, ends) for name, effect in finding.effects.items()),
    )
    if not finding.effects:
        effects = '<p class="note">Not testable: too few photos in the half that was held out, or '
        effects += "the budget was used up.</p>"
    names = {
        "coherence": "coherence", "purity": "purity", "random": "random cells like it",
        "evidence": "evidence over that of a uniform map",
        "untrained": "shuffled weights: cells like it", "outside": "patches without an object",
    }  # fmt: skip
    numbers = ", ".join(
        f"{label} {_detail(key, finding.details[key])}"
        for key, label in names.items()
        if key in finding.details
    )
    if (parts := finding.details.get("parts", 1)) > 1:
        numbers += f"; {parts:g} groups of patches that lie beside each other, effects of the first"
    dots = "".join(
        f'<circle cx="{100 * x:.1f}" cy="{100 * y:.1f}" r="4"/>' for x, y in finding.places[:200]
    )
    places = (
        '<figure><svg class="places" viewBox="0 0 100 100" role="img" '
        f'aria-label="Places on the photos">{dots}</svg><figcaption>places</figcaption></figure>'
    )
    return (
        f'<div class="card">{head}{strip}<div class="split"><div>{effects}'
        f'<p class="note">{escape_text(numbers)}</p></div>{places}</div></div>'
    )


def _detail(key: str, value: float) -> str:
    return f"{value:.2f}" if key in ("coherence", "purity", "evidence") else f"{100 * value:.0f} %"


def _status(finding: Finding) -> str:
    extra = " confirmed" if finding.status == "confirmed" else ""
    return f'<span class="status{extra}">{finding.status}</span>'


def _effect_row(name: str, effect: Effect, ends: tuple[float, float]) -> Sequence[Cell]:
    return (
        (escape_text(name), ""),
        (f"{effect.value:+z.2f}", "number"),
        (f"{effect.low:+z.2f} to {effect.high:+z.2f}", "number"),
        (_range(effect, ends), ""),
        (f"{effect.probability:+z.3f}", "number"),
        (_p_value(effect.p_value), "number"),
        (str(effect.images), "number"),
    )


def _p_value(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "&lt; 0.001"


def _range(effect: Effect, ends: tuple[float, float]) -> str:
    """Return an interval as a drawing between two ends, with lines at 0 and 0.5."""

    def at(value: float) -> float:
        return 100 * (value - ends[0]) / (ends[1] - ends[0])

    return (
        '<svg class="range" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<line class="axis" x1="{at(0):.1f}" x2="{at(0):.1f}" y1="0" y2="10"/>'
        f'<line class="least" x1="{at(0.5):.1f}" x2="{at(0.5):.1f}" y1="0" y2="10"/>'
        f'<line class="ends" x1="{at(effect.low):.1f}" x2="{at(effect.high):.1f}" y1="5" y2="5"/>'
        "</svg>"
    )


def _stamps(content: AuditContent) -> str:
    stamps = [finding for finding in content.findings if finding.kind == "stamp"]
    if not stamps:
        return "<p>No stamps were tested; the notes above say why.</p>"
    # Findings are ranked, so that the classes with the strongest effects come first.
    all_classes = list(dict.fromkeys(each.class_name for each in stamps))
    classes = all_classes[:_MOST_CLASSES]
    strongest: dict[str, float] = {}
    cells: dict[tuple[str, str], Cell] = {}
    for each in stamps:
        effect = each.effect
        if effect is None:
            continue
        strongest[each.name] = max(strongest.get(each.name, -np.inf), effect.low)
        text = f"{effect.value:+z.1f}<small>{effect.low:+z.1f} to {effect.high:+z.1f}, P "
        text += f"{effect.probability:+z.2f}</small>"
        strong = "strong" if each.status in _STRONG else "faint" * (effect.value <= 0)
        cells[each.name, each.class_name] = (text, f"number {strong}".strip())
    order = sorted(strongest, key=lambda name: -strongest[name])
    rows = (
        [(escape_text(name), ""), *(cells.get((name, each), ("", "")) for each in classes)]
        for name in order
    )
    text = (
        "Artefacts put on photos of other classes: change of the log-odds of each class, in nats, "
        "with its interval, beyond the median of the stamps of its kind: some classes rise with "
        "any of them. What covers a part is compared with the same part blurred. Only these probes "
        "can show what a model learned from photos that are not in this set. "
    )
    text += _stamps_claim(content.settings.get("references"))
    left = _left_out(len(all_classes) - len(classes), "classes with weaker effects", _FILE)
    return f'<p class="note">{text}</p>' + _table(("stamp", *classes), rows) + left


def _stamps_claim(references: int | None) -> str:
    """Return what the numbers that are printed strong say."""
    if references:
        return (
            f"Numbers are differences to the mean of {references} models that did not learn from "
            "such photos, with an interval from the spread of these models; those that are "
            "confirmed are printed strong."
        )
    return (
        "Reactions are printed strong: the interval is above the minimum. They are no findings of "
        "what was learned: clean models react as strongly to artefacts that they never saw, and to "
        "the color of a class. Audit models that did not learn from such photos, and pass them as "
        "--reference."
    )


def _regions(content: AuditContent) -> str:
    if not content.regions:
        return "<p>No class has enough photos.</p>"
    own = any(row.region == "objects" for row in content.regions)
    text = "Share of the evidence for the predicted class in a region, beside four baselines."
    if not own:
        text += " Without boxes or masks nothing is known of the objects."
    rows = (
        [
            (escape_text(row.class_name), ""),
            (row.region, ""),
            (f"{row.photos:,}", "number"),
            (_percent(row.share), "number"),
            (f"{row.enrichment:.2f}", "number"),
            (_percent(row.area), "number"),
            (_percent(row.center), "number"),
            ("" if row.untrained is None else _percent(row.untrained), "number"),
            (_percent(row.shuffled), "number"),
            ("" if row.p_value is None else _p_value(row.p_value), "number"),
        ]
        for row in content.regions
    )
    heads = (
        "class", "region", "photos", "share", "over area", "area", "center", "shuffled weights",
        "other photos", "p",
    )  # fmt: skip
    return f'<p class="note">{text}</p>' + _table(heads, rows)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if np.isfinite(value) else ""


def _groups(content: AuditContent) -> str:
    if not content.groups:
        return "<p>No group has enough photos.</p>"
    ranked = sorted(content.groups, key=lambda row: -abs(row.difference))
    rows = (
        [
            (escape_text(row.group), ""),
            (row.measure, ""),
            (f"{row.photos:,}", "number"),
            (f"{row.others:,}", "number"),
            (f"{100 * row.difference:+z.1f}", "number"),
            (_p_value(row.p_value), "number"),
        ]
        for row in ranked[:_MOST_GROUPS]
    )
    text = (
        "How photos of a group differ from the others of the same classes, in points of accuracy "
        "or of the share of evidence. p by permutation within classes, corrected (Benjamini and "
        "Hochberg)."
    )
    heads = ("group", "measure", "photos", "others", "difference", "p")
    left = _left_out(len(ranked) - _MOST_GROUPS, "smaller differences", _FILE)
    return f'<p class="note">{text}</p>' + _table(heads, rows) + left


def _mean_maps(content: AuditContent) -> str:
    if not content.mean_maps:
        return "<p>No class has enough photos.</p>"
    order = sorted(content.mean_maps, key=lambda name: -content.counts.get(name, 0))
    shown = [(name, content.mean_maps[name]) for name in order[:_MOST_MAPS]]
    highest = max(float(np.nanmax(values)) for _, values in shown)
    figures = "".join(
        f'<figure><img src="{_map_url(values, highest)}" alt="">'
        f"<figcaption>{escape_text(name)}, {content.counts.get(name, 0):,} photos</figcaption>"
        "</figure>"
        for name, values in shown
    )
    text = (
        "Mean share of the evidence in each cell of the input, on one scale. Classes differ in "
        "shape and place; a mean map is a description, with no p-value."
    )
    left = _left_out(len(order) - _MOST_MAPS, "classes with fewer photos", "maps.npy")
    return f'<p class="note">{text}</p><div class="maps">{figures}</div>{left}'


def _map_url(values: Float[np.ndarray, "gy gx"], highest: float) -> str:
    levels = (np.nan_to_num(values) / (highest or 1.0) * 255).clip(0, 255).astype(np.uint8)
    colors = colormap_lut("magma")[levels]
    scale = max(1, 168 // max(levels.shape))
    return image_data_url(colors.repeat(scale, 0).repeat(scale, 1), longest=200)[0]


def _comparison(content: AuditContent) -> str:
    shifts = content.comparison or ()
    rows = (
        [
            (escape_text(row.class_name), ""),
            (row.region, ""),
            (f"{row.photos:,}", "number"),
            (f"{100 * row.shift:+z.1f}", "number"),
            ("" if row.spread is None else f"{100 * row.spread:.1f}", "number"),
            (row.verdict, ""),
        ]
        for row in shifts[:_MOST_SHIFTS]
    )
    text = (
        "Shift of the share of evidence from this checkpoint to the other one, in points, on "
        "photos that both predict alike. Two trainings that differ in their seed alone shift, too: "
        "without such seeds a shift cannot be judged."
    )
    heads = ("class", "region", "photos", "shift", "spread of seeds", "verdict")
    left = _left_out(len(shifts) - _MOST_SHIFTS, "smaller shifts", _FILE)
    return f'<p class="note">{text}</p>' + _table(heads, rows) + left


def _table(heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table; columns with numbers are aligned by their cells."""
    listed = [list(row) for row in rows]
    numeric = {number for row in listed for number, (_, kind) in enumerate(row) if "number" in kind}
    first = "".join(
        f"<th{' class=number' if number in numeric else ''}>{escape_text(head)}</th>"
        for number, head in enumerate(heads)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{text}</td>' if kind else f"<td>{text}</td>"
                  for text, kind in row)
        + "</tr>"
        for row in listed
    )  # fmt: skip
    table = f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'
