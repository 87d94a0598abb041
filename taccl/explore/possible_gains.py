"""Gains of better schedules over measured times, for each runtime, with the command that makes them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from taccl._internal.deadline import Deadline, OutOfTime
from taccl._internal.names import in_runs
from taccl._internal.units import format_size
from taccl.analysis.simulation.simulate import simulate
from taccl.baselines import best
from taccl.errors import CollectiveError
from taccl.explore.expectation import Expectation
from taccl.explore.measured_machine import Machine
from taccl.explore.plan_runtimes import under_launch
from taccl.measure.diagnosis import Gain
from taccl.measure.facts import LARGE
from taccl.runtimes.registry import usual_runtimes
from taccl.runtimes.runtime import Runtime
from taccl.topology.topology import Topology
from taccl.topology.tuning import LAUNCH_US

#: `_GAIN_SIZES`: buffer sizes in bytes near which a better schedule is sought.
#: `_GAIN_RANKS`: max ranks for this search, which takes seconds for 16 ranks.
_GAIN_SIZES, _GAIN_RANKS = (8 * 2**10, 2**20, 2**30), 16


def gains_of(expected: Expectation, deadline: Deadline, machine: Machine) -> Iterator[Gain]:
    """Yield the predicted time of the best baseline at a few sizes, for each usual runtime of the machine.

    Nothing above `_GAIN_RANKS` ranks. Sizes below `LARGE` are left out if the machine's profile has no
    protocols, since latencies are then unknown.
    """
    on, series = expected.topology, expected.series
    if on.num_ranks > _GAIN_RANKS:
        return
    sizes = [min(series.size_bytes, key=lambda size: abs(size / wanted - 1)) for wanted in _GAIN_SIZES]
    for size in dict.fromkeys(size for size in sizes if on.protocols or size >= LARGE):
        place = series.size_bytes.index(size)
        measured_us, predicted_us = series.times_us[place], float(expected.predicted_us[place])
        protocols = on.protocols or ("",)
        try:
            with deadline.enforced():
                made = best(expected.problem(size), time_limit_s=max(0.1, deadline.left_s / 4))
                under = {each: expected.carried(on.under(each) if each else on) for each in protocols}
                times_us = {each: simulate(made, topology=there).finish_us for each, there in under.items()}
        except (CollectiveError, OutOfTime):
            continue
        error = max(predicted_us / measured_us, measured_us / predicted_us)
        for runtime in usual_runtimes(on):
            able = [
                us + _launch_us(runtime, under[each]) for each, us in times_us.items() if _has(runtime, each)
            ]
            if able:
                command = _command(expected, machine, size, runtime.name)
                yield Gain(size, runtime.name, measured_us, min(able), error, command)


def _launch_us(runtime: Runtime, topology: Topology) -> float:
    """Launch overhead of a runtime in us, as measured times include it; a usual value if none is known."""
    usual_us = runtime.launch.us if runtime.launch else None
    own_us = runtime.launch_us or (LAUNCH_US if usual_us is None else usual_us)
    return float(under_launch(runtime, topology).launch_us) or own_us


def _has(runtime: Runtime, protocol: str) -> bool:
    return not protocol or protocol in [each.lower() for each in runtime.protocols]


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
