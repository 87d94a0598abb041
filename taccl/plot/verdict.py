"""The verdict of a report: how good a schedule is, in one sentence, and the next three actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl._internal.units import format_us

if TYPE_CHECKING:
    import pandas as pd

    from taccl.analysis.certificates.certificate import Certificate
    from taccl.analysis.verification.findings import Verification
    from taccl.schedule.schedule import Schedule

#: Gap above which a longer search is the first advice; and ratio of bandwidths that counts as a difference.
_WIDE_GAP, _DIFFERS = 0.05, 1.005
#: Max actions.
_MOST = 3


def verdict(
    schedule: Schedule, judged: Verification, bound: Certificate, gap: str, rates: pd.DataFrame | None
) -> tuple[str, list[str]]:
    """A sentence on how good a schedule is, and what to do next, the most urgent first.

    - `bound`, `gap`: The largest lower bound that is known, and the gap in words (`gap_text`).
    - `rates`: Bandwidths by size (`taccl.plot.bandwidths`), with baselines; None if they were not computed.
    """
    if not judged.ok:
        said = f"This schedule is not valid: it has {judged.counted('violation')}. Do not run it."
        return said, [
            "Read the violations below; `taccl verify FILE` lists them, too.",
            "Find a valid schedule: `taccl synthesize` verifies what it returns.",
        ]
    problem = schedule.problem
    said = f"It finishes after {format_us(schedule.finish)}; gap to the lower bound: {gap}."
    actions = []
    baseline = _best_baseline(schedule, rates)
    if baseline is not None:
        name, ratio = baseline
        if ratio < 1 / _DIFFERS:
            said += f" The baseline {name}, in the same chunks, is {1 / ratio:.3g} times as fast."
            actions.append(f"Use the baseline {name} for this size: `taccl baseline` makes it.")
        elif ratio > _DIFFERS:
            said += f" It is {ratio:.3g} times as fast as the best baseline in the same chunks, {name}."
        else:
            said += f" It is as fast as the best baseline in the same chunks, {name}."
    if bound.gap(schedule.finish) > _WIDE_GAP:
        how = "`taccl synthesize` with a larger --time-limit, or another sketch (`taccl suggest`)"
        actions.append(f"Search longer: {how}. No schedule finishes before {format_us(bound.bound)}.")
    profile = f"the profile {problem.topology.profile}" if problem.topology.profile else "the topology"
    fit = "`taccl fit LOG` fits them to your machine, and `taccl report --measured LOG` shows the log here"
    actions += [
        f"Check the costs, which come from {profile}: {fit}.",
        "Run it: `taccl convert FILE OUT` writes it for MSCCL or MSCCL++, and `taccl run FILE` uses MPI.",
        "Cover other sizes: `taccl plan` finds the best schedule for each size of a range.",
    ]
    return f"This schedule is valid. {said}", actions[:_MOST]


def _best_baseline(schedule: Schedule, rates: pd.DataFrame | None) -> tuple[str, float] | None:
    """The fastest baseline at the schedule's size, and the schedule's speedup over it; or None."""
    size = schedule.problem.size_bytes
    if rates is None or not rates.attrs["baselines"] or size not in rates.index:
        return None
    row = rates.loc[size].dropna()
    known = row.reindex(rates.attrs["baselines"]).dropna()
    if known.empty or "this schedule" not in row or not known.max():
        return None
    return str(known.idxmax()), float(row["this schedule"] / known.max())
