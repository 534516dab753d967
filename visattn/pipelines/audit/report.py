"""Report of an audit: its findings and tables, as files that can be loaded and compared."""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from visattn.io.atomic import atomic_write
from visattn.io.safe_text import decode_utf8, read_bytes_bounded, read_json
from visattn.io.tables import csv_table, parquet_table
from visattn.pipelines.audit.probes import beyond_references
from visattn.pipelines.audit.regions import region_shifts
from visattn.results.audit import AuditContent, Finding, RegionShift
from visattn.results.records import read_array
from visattn.viz.html.audit_page import audit_page

REPORT, FINDINGS, ROWS, MAPS, PATCHES = (
    "report.html", "findings.json", "rows.csv", "maps.npy", "patches.npz",
)  # fmt: skip
_MOST_BYTES = 2**30
_SHARE = "share_"


@dataclass(frozen=True, eq=False)
class AuditReport:
    """Result of `audit`: findings, a row and a map for each photo, and tables.

    Args:
        content: Findings and tables.
        rows: Name, prediction, label, probability, shares of regions and attributes of each photo.
        maps: Share of the evidence in each cell, in the order of the rows; NaN on padding.
        patches: Cells with the most evidence, with their features, as arrays by name.

    Example:
        >>> content = AuditContent("net", {}, {"rose": 1}, None, {}, {})
        >>> report = AuditReport(content, [{"image": "a.jpg", "predicted": "rose"}])
        >>> report.save(getfixture("tmp_path"))
        >>> load_audit(getfixture("tmp_path")).rows[0]["predicted"]
        'rose'
    """

    content: AuditContent
    rows: Sequence[Mapping[str, Any]]
    maps: Float[np.ndarray, "n gy gx"] = field(default_factory=lambda: np.zeros((0, 1, 1)))
    patches: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def findings(self) -> Sequence[Finding]:
        """Candidates and stamps with their effects, ranked."""
        return self.content.findings

    def files(self, *, parquet: bool = False) -> dict[str, bytes]:
        """Return the content of each file of the report.

        Args:
            parquet: Whether there is a parquet file of the rows, too.
        """
        maps, patches = io.BytesIO(), io.BytesIO()
        np.save(maps, self.maps.astype(np.float16))
        np.savez(patches, **cast("Any", dict(self.patches)))
        findings = json.dumps(self.content.to_dict(), allow_nan=False, indent=1) + "\n"
        files = {
            ROWS: csv_table(self.rows), MAPS: maps.getvalue(), PATCHES: patches.getvalue(),
            FINDINGS: findings.encode(), REPORT: audit_page(self.content).encode(),
        }  # fmt: skip
        if parquet:
            files["rows.parquet"] = parquet_table(self.rows)
        return files

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write report.html, findings.json, rows.csv, maps.npy and patches.npz.

        Args:
            folder: It is created; files of these names are replaced.

        Raises:
            OSError: If it cannot be written.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, content in self.files().items():
            atomic_write(Path(folder) / name, content)

    def compare(
        self, other: "AuditReport", seeds: Sequence["AuditReport"] = ()
    ) -> Sequence[RegionShift]:
        """Return how another checkpoint looks at the same photos, in units of the spread of seeds.

        Photos count that both predict as the same class.

        Args:
            other: Audit of the other checkpoint, on the same photos.
            seeds: Audits of checkpoints of the recipe of this one, with other seeds. Without them
                shifts cannot be judged.

        Raises:
            ValueError: If an audit has other photos.

        Example:
            >>> content = AuditContent("net", {}, {"rose": 1}, None, {}, {})
            >>> row = {"image": "a", "predicted": "rose", "share_border": 0.3}
            >>> old = AuditReport(content, [row])
            >>> old.compare(AuditReport(content, [{**row, "share_border": 0.5}]))[0].verdict
            'cannot be judged: no other seeds'
        """
        own = {row["image"]: row for row in self.rows}
        tables: list[dict[str, Any]] = []
        for each in (other, *seeds):
            table = {row["image"]: row for row in each.rows}
            if missing := sorted(own.keys() - table.keys()):
                raise ValueError(
                    f"checkpoints are compared on the same photos, but {missing[0]} and "
                    f"{len(missing) - 1} others are not in the audit of {each.content.model}"
                )
            tables.append(table)
        classes = {
            name: row["predicted"]
            for name, row in own.items()
            if row["predicted"] == tables[0][name]["predicted"]
        }
        shares = [_region_shares(table) for table in (own, *tables)]
        return region_shifts(shares[0], shares[1], shares[2:], classes)

    def with_references(self, references: Sequence["AuditReport"]) -> "AuditReport":
        """Return the report with stamps confirmed whose effect is beyond that in other models.

        Args:
            references: Audits of models of the same classes that did not learn from the photos in
                question: trained on other or cleaned photos, with two seeds at least, better five.
                Their spread is what differs by chance.

        Raises:
            ValueError: If an audit has other photos, or stamps that are not those of this one, or
                there are fewer than two.

        Example:
            >>> from visattn.results.audit import Effect
            >>> def audit_of(nats):
            ...     effect = Effect(nats, nats - 1, nats + 1, 0.1, 0.01, 64)
            ...     finding = Finding("stamp", "frame", "rose", "reaction", effect)
            ...     content = AuditContent("net", {}, {}, None, {}, {}, [finding])
            ...     return AuditReport(content, [{"image": "a"}])
            >>> others = [audit_of(0.4), audit_of(-0.2), audit_of(0.1)]
            >>> [audit_of(nats).with_references(others).findings[0].status for nats in (5.0, 0.5)]
            ['confirmed', 'not confirmed']
        """
        if len(references) < 2:
            raise ValueError(
                "references must be two audits at least, since their spread is what differs "
                f"between models by chance; got {len(references)}: train another seed"
            )
        own = {row["image"] for row in self.rows}
        stamps = {each.name for each in self.findings if each.kind == "stamp"}
        for each in references:
            if own != {row["image"] for row in each.rows}:
                raise ValueError(
                    f"the audit of {each.content.model} is of other photos: a reference needs those"
                    f" of this one, {len(own):,} of them"
                )
            if missing := stamps - {finding.name for finding in each.findings}:
                raise ValueError(
                    f"the audit of {each.content.model} has not the stamp {min(missing)}: audit it "
                    "again with the same stamps, by this version"
                )
        least = self.content.settings.get("min_effect", 0.5)
        findings = beyond_references(self.findings, [each.findings for each in references], least)
        patches = [each for each in findings if each.kind == "patches"]
        ranked = sorted(
            (each for each in findings if each.kind == "stamp"),
            key=lambda each: -np.inf if each.effect is None else -each.effect.low,
        )
        settings = {**self.content.settings, "references": len(references)}
        content = replace(self.content, findings=[*patches, *ranked], settings=settings)
        return replace(self, content=content)

    def with_comparison(self, shifts: Sequence[RegionShift]) -> "AuditReport":
        """Return the report with a comparison in it."""
        return replace(self, content=replace(self.content, comparison=tuple(shifts)))


def _region_shares(table: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            key.removeprefix(_SHARE): float(value)
            for key, value in row.items()
            if key.startswith(_SHARE) and value != ""
        }
        for name, row in table.items()
    }


def load_audit(folder: str | os.PathLike[str]) -> AuditReport:
    """Return the report that `visattn audit` or `AuditReport.save` wrote.

    Crops of findings are in report.html alone.

    Args:
        folder: Its folder.

    Raises:
        OSError: If a file is missing.
        ValueError: If a file is damaged or of another version.

    Example:
        >>> content = AuditContent("net", {}, {}, None, {}, {})
        >>> AuditReport(content, [{"image": "a.jpg"}]).save(getfixture("tmp_path"))
        >>> load_audit(getfixture("tmp_path")).content.model
        'net'
    """
    path = Path(folder)
    try:
        content = AuditContent.from_dict(read_json(path / FINDINGS))
        text = decode_utf8(read_bytes_bounded(path / ROWS, _MOST_BYTES))
        rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except (LookupError, TypeError, AttributeError, csv.Error) as error:
        raise ValueError(f"{path} holds no audit that this version reads: {error!r}") from error
    return AuditReport(content, rows, read_array(path / MAPS))
