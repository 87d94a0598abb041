"""What the command line shows: results, schedules, topologies and sketches as text and as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from taccl.analysis.certificates.every_cut import bound_rows
from taccl.names import shown, table
from taccl.topology.profiles import profile_of
from taccl.units import format_count, format_gap, format_size, format_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.analysis.certificates.certificate import Certificate
    from taccl.analysis.certificates.cost_of_sketch import Prices
    from taccl.analysis.simulation.simulation import Simulation
    from taccl.analysis.simulation.steady import SteadyState
    from taccl.analysis.verification.violation import Verification
    from taccl.problem import Problem
    from taccl.schedule.compact import CompactSchedule
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.result import Result
    from taccl.topology.topology import Topology


def picked(thing: object, *names: str) -> dict[str, Any]:
    """Some attributes of a thing, by name."""
    return {name: getattr(thing, name) for name in names}


def result_text(result: Result) -> str:
    """A result as a person reads it: the figures, then a row per stage."""
    schedule = result.schedule
    rows = [
        ("finish", ", ".join(filter(None, (schedule.timing, schedule.bandwidth_text)))),
        *bound_rows(result.bound),
        ("gap", format_gap(result.gap) + (f" ({result.standing})" if result.standing else "")),
        *([] if result.dimension_bound is None else [("dimensions", result.dimension_bound.text)]),
        ("schedule", f"{_transfers(schedule)}, verified"),
        ("found by", f"{schedule.producer or result.backend} in {result.seconds:.2f} s, seed {result.seed}"),
        ("backend", f"{result.backend}: {result.choice}" if result.choice else result.backend),
    ]
    lines = [_title(schedule.problem), table(rows, indent="  ")]
    if result.stages:
        from taccl.synthesis.result import STAGE_COLUMNS

        lines += ["", table([STAGE_COLUMNS, *(stage.cells for stage in result.stages)], indent="  ")]
    return "\n".join(lines + _notes(result.notes or schedule.problem.notes))


def schedule_text(schedule: Schedule, found: dict[str, Any], *, limit: int) -> str:
    """A schedule's figures and first transfers; `found` says how it was found, as far as that is known."""
    rows = [
        ("finish", ", ".join(filter(None, (schedule.timing, schedule.bandwidth_text)))),
        ("schedule", _transfers(schedule)),
        ("producer", schedule.producer or "not known"),
    ]
    if found.get("bound_us") is not None:
        rows.append(("bound", f"{format_us(found['bound_us'])}, gap {format_gap(found.get('gap'))}"))
    rows.append(("digest", schedule.digest()))
    lines = [_title(schedule.problem), table(rows, indent="  ")]
    if limit:
        lines += ["", schedule.table(limit=limit)]
    return "\n".join(lines + _notes(schedule.problem.notes))


def schedule_values(schedule: Schedule, found: dict[str, Any]) -> dict[str, Any]:
    """A schedule's figures as plain values."""
    from taccl.synthesis.result import schedule_figures

    notes = list(schedule.problem.notes)
    return {"kind": "schedule", **schedule_figures(schedule), "notes": notes, "result": found or None}


def topology_text(topology: Topology) -> str:
    """A topology's links by cost, its switches, and its constants with their sources."""
    rows = [
        ("ranks", f"{topology.num_ranks} in {format_count(topology.num_nodes, 'node')}"),
        ("resources", f"{len(topology.resources)}, held by {format_count(len(topology.links), 'link')}"),
        ("switches", str(len(topology.switches))),
        ("alpha", {"occupies": "occupies the link"}.get(topology.alpha_meaning, "pipelined")),
        ("cost model", topology.cost_model),
        ("profile", topology.profile or "none"),
        ("protocol", _protocol(topology)),
        ("launch", format_us(topology.launch_us) if topology.launch_us else ""),
    ]
    rows = [row for row in rows if row[1]]
    head = ("links", "where", "alpha us", "beta us/MB", "GB/s")
    lines = [
        shown(topology.name),
        table(rows, indent="  "),
        "",
        table([head, *topology.link_kinds], indent="  "),
    ]
    profile = profile_of(topology)
    if profile is not None:
        cells = [(c.name, f"{float(c.value):g}", c.source) for c in profile.told()]
        lines += ["", table([("constant", "value", "source"), *cells], indent="  ")]
        lines += ["", *(f"  seen: {each.told()}" for each in profile.ranges)] if profile.ranges else []
    return "\n".join(lines + _notes(topology.notes))


def topology_values(topology: Topology) -> dict[str, Any]:
    """A topology as plain values, with its constants and their sources."""
    profile = profile_of(topology)
    told = () if profile is None else profile.told()
    seen = () if profile is None else profile.ranges
    return {
        "kind": "topology", **topology.to_dict(),
        "constants": {c.name: {"value": float(c.value), "source": c.source} for c in told},
        "ranges": [each.model_dump() for each in seen], "notes": list(topology.notes),
    }  # fmt: skip


def verification_text(file: str, verification: Verification) -> str:
    """What was checked, and each violation on a line."""
    figures = f"{_transfers(verification)}, finish {format_us(verification.finish_us)}"
    if verification.num_redundant:
        figures += f", {format_count(verification.num_redundant, 'redundant arrival')}"
    verdict = "ok" if verification.ok else format_count(len(verification.violations), "violation")
    head = f"{shown(file)}: {verdict}: {figures}"
    return "\n".join([head, *(f"  {each}" for each in verification.violations)])


def verification_values(file: str, verification: Verification) -> dict[str, Any]:
    """A verification as plain values."""
    figures = picked(verification, "ok", "finish_us", "num_transfers", "num_sends", "num_redundant")
    return {"file": file, **figures, "violations": [asdict(each) for each in verification.violations]}


def bound_text(prices: Prices, granted: Certificate | None, *, proven: bool | None) -> str:
    """A lower bound, what limits, and what the sketch and whole chunks have to do with it.

    `granted` is the bound where switches reduce what passes them; `proven` what `Certificate.check` said.
    """
    bound, problem, algbw = prices.bound, prices.bound.problem, prices.bound.algbw_gb_per_s
    limit = f", so {_rate(algbw)} GB/s at most" if algbw else ""
    rows = [
        ("bound", f"{format_us(bound.bound)} for {bound.scope}{limit}"),
        ("limited by", bound.limits),
        ("kind", bound.kind),
        ("without sketch", f"{_bound(prices.without_sketch)}; the sketch costs {prices.sketch:+.2%}"),
        ("every cut", f"{_bound(prices.divisible)}; whole chunks cost {prices.chunks:+.2%}"),
    ]
    if granted is not None:
        rows.append(("in switches", f"{_bound(granted)}, if switches reduce what passes them"))
    if proven is not None:
        words = "the witness proves the bound" if proven else "the witness does not prove the bound"
        rows.append(("checked", words))
    return "\n".join([_title(problem), table(rows, indent="  "), *_notes(problem.notes)])


def bound_values(prices: Prices, granted: Certificate | None, *, proven: bool | None) -> dict[str, Any]:
    """A lower bound with its witness, as plain values."""
    bound, problem = prices.bound, prices.bound.problem
    topology = problem.topology
    certificates = {
        name: getattr(prices, name).to_dict() for name in ("bound", "without_sketch", "divisible")
    }
    return {
        **bound.to_dict(), "prices": certificates | picked(prices, "sketch", "chunks"),
        "in_switches": None if granted is None else granted.to_dict(), "checked": proven,
        "collective": problem.collective.name, "topology": topology.name,
        "sketch": problem.clauses.name or None, "cost_model": topology.cost_model,
        "size_bytes": problem.size_bytes, "num_ranks": topology.num_ranks,
        "num_chunks": problem.collective.num_chunks, "notes": list(problem.notes),
    }  # fmt: skip


def simulation_text(schedule: Schedule, found: Sequence[tuple[Simulation, SteadyState]]) -> str:
    """What becomes of a schedule at each size: one pass, and tiles that follow one another."""
    launches = any(simulation.launch for simulation, _ in found)
    head = (
        "size", "finish", *(("predicted",) if launches else ()), "GB/s", "bus GB/s", "interval",
        "GB/s in tiles", "limited by",
    )  # fmt: skip
    rows = []
    for simulation, steady in found:
        size = simulation.problem.size_bytes
        rows.append(
            ("not known" if size is None else format_size(size), format_us(simulation.finish),
             *((format_us(simulation.predicted_us),) if launches else ()),
             _rate(simulation.algbw_gb_per_s), _rate(simulation.busbw_gb_per_s), format_us(steady.interval),
             _rate(steady.algbw_gb_per_s), steady.limits)
        )  # fmt: skip
    first = found[0][0]
    assumed = [f"alpha {first.problem.topology.alpha_meaning}", format_count(first.tiles, "tile")]
    if first.jitter:
        assumed.append(f"jitter {first.jitter:g}, seed {first.seed}")
    own = f"  its own finish is {schedule.timing}; simulated with {', '.join(assumed)}"
    lines = [_title(schedule.problem), own, "", table([head, *rows], indent="  ")]
    return "\n".join(lines + _notes(first.problem.notes))


def simulation_values(schedule: Schedule, found: Sequence[tuple[Simulation, SteadyState]]) -> dict[str, Any]:
    """Simulations of a schedule as plain values."""
    first = found[0][0]
    return {
        **picked(schedule, "finish_us", "launch_us", "predicted_us"),
        "collective": schedule.problem.collective.name,
        "topology": schedule.problem.topology.name, "alpha": first.problem.topology.alpha_meaning,
        **picked(first, "tiles", "jitter", "seed"), "digest": schedule.digest(),
        "sizes": [
            {
                "size_bytes": simulation.problem.size_bytes,
                **picked(simulation, "finish_us", "launch_us", "predicted_us"),
                **picked(simulation, "algbw_gb_per_s", "busbw_gb_per_s"),
                "interval_us": steady.interval_us, "interval_limits": steady.limits,
                "interval_algbw_gb_per_s": steady.algbw_gb_per_s,
                "interval_busbw_gb_per_s": steady.busbw_gb_per_s,
            }
            for simulation, steady in found
        ],
        "notes": list(first.problem.notes),
    }  # fmt: skip


def _title(problem: Problem) -> str:
    sketch = f", sketch {shown(problem.clauses.name)}" if problem.clauses.name else ""
    size = f", {format_size(problem.size_bytes)}" if problem.size_bytes else ""
    model = " (upstream cost model)" if problem.topology.cost_model == "upstream" else ""
    return f"{problem.title}{sketch}{size}{model}"


def _bound(bound: Certificate) -> str:
    return f"{format_us(bound.bound)} ({bound.kind})"


def _rate(gb_per_s: float | None) -> str:
    return "not known" if gb_per_s is None else f"{gb_per_s:.4g}"


def _transfers(found: Schedule | CompactSchedule | Verification) -> str:
    return f"{format_count(found.num_transfers, 'transfer')} in {format_count(found.num_sends, 'send')}"


def _notes(notes: Sequence[str]) -> list[str]:
    return ["", *(f"  note: {shown(note)}" for note in notes)] if notes else []


def _protocol(topology: Topology) -> str:
    """The protocol of a topology's costs, and the others that its profile has."""
    others = [each for each in topology.protocols if each != topology.protocol]
    return topology.protocol + (f" (of {', '.join(topology.protocols)})" if others else "")
