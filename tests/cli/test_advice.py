"""Advice in messages, in terms of the command line."""

import pytest

from taccl.cli.advice import on_command_line


@pytest.mark.parametrize(
    ("said", "flags", "shown"),
    [
        ("use backend='greedy'", ["backend"], "use --backend greedy"),
        ("give tflops=... and gb_per_s=...", ["tflops", "gb_per_s"], "give --tflops ... and --gb-per-s ..."),
        ("pass --overwrite (overwrite=True)", ["overwrite"], "pass --overwrite (overwrite=True)"),
        ("found latency='x'; correct it", ["size"], "found latency='x'; correct it"),
        ("no word of a parameter", ["size"], "no word of a parameter"),
        ("give nic_gb_per_s=", [], "give nic_gb_per_s=; `taccl convert IN OUT --set nic_gb_per_s=VALUE` writes a "
         "file that states it"),
        ("lower it with threadblocks='per-peer'", ["set"], "lower it with threadblocks='per-peer'; give such options "
         "as --set NAME=VALUE"),
    ],
)  # fmt: skip
def test_parameters_in_messages_become_options(said, flags, shown):
    """A parameter becomes an option of the verb, or a setting of `taccl convert`; other words are unchanged."""
    assert on_command_line(said, flags) == shown
