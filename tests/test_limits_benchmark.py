"""The benchmark of time limits covers every verb that has one."""

import pytest

from benchmarks.limits import VERBS as MEASURED
from taccl.cli.command import build_parser
from taccl.cli.verbs import VERBS


@pytest.mark.slow
def test_every_verb_with_a_time_limit_is_measured():
    """Each verb whose options have a time limit is in a row of the benchmark, by the option that it has."""
    limits = {}
    for verb in VERBS:
        parsers = next(each for each in build_parser(verb)._actions if isinstance(each.choices, dict))
        if (limited_by := parsers.choices[verb].get_default("limited_by")) is not None:
            limits[verb] = f"--{limited_by.replace('_', '-')}"
    assert "diagnose" in limits
    measured = {(command.split()[0], option) for command, option in MEASURED}
    assert set(limits.items()) == measured
