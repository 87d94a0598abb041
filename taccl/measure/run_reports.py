"""Read times from reports of `taccl run --json`, even if other text stands between the reports."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from taccl.errors import FormatError
from taccl.measure.series import Series


def run_reports(text: str) -> Iterable[dict[str, Any]]:
    """Yield reports of ``taccl run --json`` in a text that is one JSON object, or has one on some lines."""
    for part in (text, *text.splitlines()):
        if part.lstrip().startswith("{"):
            try:
                found = json.loads(part)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict) and {"collective", "size_bytes", "times", "num_ranks"} <= set(found):
                yield found
                if part is text:
                    return


def series_of_reports(reports: list[dict[str, Any]], where: str) -> list[Series]:
    """One series for each report of a size above 0. Raises `FormatError` for invalid times or counts."""
    found = []
    for report in reports:
        times = report["times"]
        time_us: Any = times.get("median_us") if isinstance(times, dict) else None
        counts = size, ranks, hosts = report["size_bytes"], report["num_ranks"], report.get("num_hosts", 0)
        is_time = type(time_us) in (int, float) and 0 < time_us < 1e15
        if not is_time or not all(type(each) is int and 0 <= each < 10**18 for each in counts):
            said = "found a report without a time above 0, or whole numbers of bytes, ranks and hosts"
            raise FormatError(f"{said}; expected what `taccl run --json` prints", where=where)
        if size:
            name = str(report["collective"])
            found.append(Series(name, ranks, min(hosts, ranks), (size,), (float(time_us),), where))
    return found
