"""Advice in messages, in terms of the command line."""

import pytest

from taccl.cli.advice import on_command_line
from taccl.cli.output import Answer, warning_printer
from taccl.errors import AssumptionWarning


@pytest.mark.parametrize(
    ("said", "flags", "shown"),
    [
        ("use backend='greedy'", ["backend"], "use --backend greedy"),
        ("give tflops=... and gb_per_s=...", ["tflops", "gb_per_s"], "give --tflops ... and --gb-per-s ..."),
        ("pass --overwrite (overwrite=True)", ["overwrite"], "pass --overwrite (overwrite=True)"),
        ("sketch='none' (--no-sketch) suggests none", ["no_sketch"], "--no-sketch suggests none"),
        ("sketch='none' (--no-sketch) suggests none", ["size"], "sketch='none' (--no-sketch) suggests none"),
        ("found latency='x'; correct it", ["size"], "found latency='x'; correct it"),
        ("no word of a parameter", ["size"], "no word of a parameter"),
        ("give --set nodes=2", ["nodes", "set"], "give --set nodes=2"),
        ("give nic_gb_per_s=", [], "give nic_gb_per_s=; `taccl convert IN OUT --set nic_gb_per_s=VALUE` writes a "
         "file that states it"),
        ("nodes=2 needs it; give nic_gb_per_s=", ["nodes"], "--nodes 2 needs it; give nic_gb_per_s=; `taccl convert IN "
         "OUT --set nodes=2 --set nic_gb_per_s=VALUE` writes a file that states it"),
        ("lower it with threadblocks='per-peer'", ["set"], "lower it with --set threadblocks=per-peer"),
        ("merged='pack' packs their chunks", ["size"], "`taccl convert IN OUT --set merged=pack` packs their chunks"),
        ("pcie='always' adds it", [], "pcie='always' adds it; `taccl convert IN OUT --set pcie=always` writes a file "
         "that states it"),
        ("25 GB/s (nvlink_gb_per_s=)", ["set"], "25 GB/s (nvlink_gb_per_s=); --set NAME=VALUE sets each"),
    ],
)  # fmt: skip
def test_parameters_in_messages_become_options(said, flags, shown):
    """A parameter named in a message is shown as an option of the verb, or as a setting of `taccl convert`.

    Other words are unchanged.
    """
    assert on_command_line(said, flags) == shown


def test_notes_of_an_answer_name_options():
    """Notes of an answer, in its text and in its JSON values, name options of the verb; the title is unchanged."""
    note = "its costs are replaced (cost_model='upstream' keeps them)"
    answer = Answer(
        f"title cost_model='upstream'\n  note: {note}", lambda: {"notes": (note,), "finish_us": 1}
    )
    said = answer.on_command_line(["cost_model"])
    shown = "its costs are replaced (--cost-model upstream keeps them)"
    assert said.text == f"title cost_model='upstream'\n  note: {shown}"
    assert said.values == {"notes": [shown], "finish_us": 1}


def test_warnings_name_options(capsys):
    """A warning names options of the verb in place of parameters."""
    warning_printer(["backend"])(UserWarning("use backend='greedy'"), UserWarning, "file.py", 1)
    assert capsys.readouterr().err == "taccl: warning: use --backend greedy\n"


@pytest.mark.parametrize("is_verbose", [False, True])
def test_a_warning_of_assumptions_is_one_line_unless_verbose(is_verbose, capsys):
    """Several assumptions are counted, and listed only with ``--verbose``; a command is then named once."""
    warning = AssumptionWarning(
        "x: 2 assumptions", ("25 GB/s (nvlink_gb_per_s=)", "12 GB/s (pcie_gb_per_s=)")
    )
    warning_printer(is_verbose=is_verbose)(warning)
    brief = "taccl: warning: x: 2 assumptions (--verbose lists them)\n"
    listed = (
        "taccl: warning: x: 2 assumptions:\n  25 GB/s (nvlink_gb_per_s=)\n  12 GB/s (pcie_gb_per_s=)\n"
        "  to state values in a file: `taccl convert IN OUT --set NAME=VALUE`\n"
    )
    assert capsys.readouterr().err == (listed if is_verbose else brief)
