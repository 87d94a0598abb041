"""Gains of better schedules over measured times, for each runtime, with the command that makes them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import replace

from taccl._internal.deadline import Deadline, OutOfTime
from taccl._internal.names import in_runs
from taccl._internal.units import format_size
from taccl.analysis.simulation.simulate import simulate
from taccl.baselines import best
from taccl.baselines.forms import fastest
from taccl.baselines.multiplying import Estimated
from taccl.errors import CollectiveError
from taccl.explore.expectation import Expectation
from taccl.explore.measured_machine import Machine
from taccl.explore.plan_runtimes import under_launch
from taccl.measure.diagnosis import Gain, SeriesDiagnosis
from taccl.measure.facts import LARGE
from taccl.problem.problem import Problem
from taccl.runtimes.registry import usual_runtimes
from taccl.runtimes.runtime import Runtime
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Topology
from taccl.topology.tuning import LAUNCH_US

#: `_GAIN_SIZES`: buffer sizes in bytes near which a better schedule is sought.
#: `_GAIN_RANKS`: max ranks for the search for a better schedule (0.2 to 0.6 s of CPU per size on 16 ranks).
#: `_CUT_BYTES`: buffer size in bytes up to which latencies dominate, so that finer chunks take longer.
_GAIN_SIZES, _GAIN_RANKS, _CUT_BYTES = (8 * 2**10, 2**20, 2**30), 16, 2**16


def with_gains(
    judged: SeriesDiagnosis, expected: Expectation, deadline: Deadline, machine: Machine
) -> SeriesDiagnosis:
    """Add the gains of better schedules to a diagnosis, and notes on what they rest on.

    There are none above `_GAIN_RANKS` ranks. Sizes below `LARGE` are left out if the machine's profile has no
    protocols, since latencies are then unknown. Sizes for which time does not suffice are left out, too.
    """
    on, series = expected.topology, expected.series
    if on.num_ranks > _GAIN_RANKS:
        return judged
    near = [min(series.size_bytes, key=lambda size: abs(size / wanted - 1)) for wanted in _GAIN_SIZES]
    sizes = [size for size in dict.fromkeys(near) if on.protocols or size >= LARGE]
    gains, cut = list[Gain](), list[str]()
    for index, size in enumerate(sizes):
        limit = deadline.sooner(deadline.left_s / (len(sizes) - index))
        try:
            with limit.enforced():
                made, is_cut = _schedule_of(expected.problem(size), limit)
                gains += _gains_at(size, made, expected, machine)
        except CollectiveError:
            continue
        except OutOfTime:
            is_cut = True
        cut += [format_size(size)] * is_cut
    notes = [*judged.notes]
    if gains and on.num_nodes > 1:
        notes.append("no log has tested predictions of better schedules on several nodes")
    if gains and not on.protocols:
        said = f"no better schedules are sought below {format_size(LARGE)}"
        notes.append(f"{said}, as latencies of schedules on {on.machine or on.name} are unknown")
    if any(each.predicted_us == expected.least_us for each in gains):
        together = f"one process launches {series.launched_together} GPUs in turn"
        least = f"at least {expected.least_us:.3g} us under any schedule"
        notes.append(f"{together}, which takes {least}; run one process for each GPU")
    if cut:
        notes.append(f"time was up in the search for better schedules at {', '.join(cut)}; give more time")
    return replace(judged, gains=tuple(gains), notes=tuple(notes))


def _gains_at(size: int, made: Schedule, expected: Expectation, machine: Machine) -> Iterator[Gain]:
    """Yield the gain of a schedule for a size, for each usual runtime of the machine."""
    on, series = expected.topology, expected.series
    place = series.size_bytes.index(size)
    measured_us, predicted_us = series.times_us[place], float(expected.predicted_us[place])
    protocols = on.protocols or ("",)
    under = {each: expected.carried(on.under(each) if each else on) for each in protocols}
    times_us = {each: simulate(made, topology=there).finish_us for each, there in under.items()}
    error = max(predicted_us / measured_us, measured_us / predicted_us)
    for runtime in usual_runtimes(on):
        able = [
            us + _launch_us(runtime, under[each])
            for each, us in times_us.items()
            if _runs(runtime, made.problem, each)
        ]
        if able:
            command = _command(expected, machine, size, runtime.name)
            time_us = max(min(able) + expected.start_us, expected.least_us)
            yield Gain(size, runtime.name, measured_us, time_us, error, command)


def _schedule_of(problem: Problem, limit: Deadline) -> tuple[Schedule, bool]:
    """(schedule of a fast baseline, True if finer chunks of some were left out for lack of time).

    For an allreduce it is the fastest of all baselines in uncut chunks and of the first mix of equal parts of
    a plan. In 30 cases, finer chunks and a search for the best mix save at most 5 %, in 3 to 20 times as much
    time. Other collectives have half of the time for finer chunks, above `_CUT_BYTES`.
    """
    mix = Estimated.mixed(problem)
    if mix is not None:
        return fastest((best(problem, cut=False), mix.schedule(lists=False))), False
    search, is_cut = limit.sooner(limit.left_s / 2), (problem.size_bytes or 0) > _CUT_BYTES
    return best(problem, cut=is_cut, time_limit_s=search.left_s), search.has_passed


def _launch_us(runtime: Runtime, topology: Topology) -> float:
    """Launch overhead of a runtime in us, as measured times include it; a usual value if none is known."""
    usual_us = runtime.launch.us if runtime.launch else None
    own_us = runtime.launch_us or (LAUNCH_US if usual_us is None else usual_us)
    return float(under_launch(runtime, topology).launch_us) or own_us


def _runs(runtime: Runtime, problem: Problem, protocol: str) -> bool:
    """True if a runtime can run the problem's collective by a protocol, or by any if that is empty."""
    known = not protocol or protocol in [each.lower() for each in runtime.protocols]
    return known and not runtime.reason_against(problem.collective, problem.topology, protocol)


def _command(expected: Expectation, machine: Machine, size: int, runtime: str) -> str:
    """Command line of ``taccl plan`` that makes a schedule for the collective, a size and a runtime."""
    on = expected.topology
    word = machine.topology if isinstance(machine.topology, str) else on.machine or on.name
    words = ["taccl", "plan", "--topology", word]
    words += ["--nodes", str(on.num_nodes)] if on.num_nodes > 1 and not os.path.isfile(word) else []
    words += ["--profile", machine.profile] if machine.profile else []
    kept = on.cache.get("kept_ranks")
    words += ["--ranks", in_runs(kept).replace(" ", "")] if kept else []
    words += ["--collective", expected.series.collective, "--sizes", format_size(size)]
    return shlex.join([*words, "--runtime", runtime, "-o", "plan"])
