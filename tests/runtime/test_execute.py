"""Programs executed by real ranks: correct ones, broken ones, and deadlocks."""

from dataclasses import replace

import pytest

import taccl
from taccl.errors import ExecutionError, InputError, VerificationError
from taccl.program.program import Program, RankProgram, Slot, Step, StepAddress, Threadblock
from taccl.runtime.reference import COMPUTED
from tests.fuzzing import MANY
from tests.program.examples import exchange
from tests.runtime.small_programs import first_step, program_for, step_of, with_changed_step

pytestmark = pytest.mark.usefixtures("ranks")

SHORT = {"repetitions": 1, "timeout_s": 20.0}
NAMES = {
    "broadcast": "MPI_Bcast", "scatter": "MPI_Scatter", "gather": "MPI_Gather", "reduce": "MPI_Reduce",
}  # fmt: skip


class TestCollectives:
    """Collectives on up to four ranks; large runs are in test_run_figures.py."""

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["scatter", "reduce", *(["broadcast", "gather"] if MANY else [])])
    def test_rooted_collectives(self, name):
        """Collectives with a root are compared with MPI's own, here in place."""
        done = taccl.execute(program_for(name, "ring:3", in_place=True, chunks_per_rank=2), "10KB", **SHORT)
        assert done.ok, done
        assert (done.compared_with, done.in_place) == (NAMES[name], True)

    @pytest.mark.slow
    def test_what_mpi_has_not(self):
        """A broadcast from two roots, which MPI lacks, is compared with computed outputs, and the report says
        so."""
        done = taccl.execute(program_for("multi-root-broadcast", "ring:3"), "10KB", **SHORT)
        assert done.ok, done
        assert done.compared_with == COMPUTED
        assert done.mpi_times is None

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["allreduce", "alltoall"])
    def test_process_groups(self, name):
        """Rows and columns of 2 x 2 ranks, each a group, run one collective together: every rank is in two."""
        each = taccl.collectives.make(name, 2)
        groups = [[0, 1], [2, 3], [0, 2], [1, 3]]
        every = taccl.collectives.together([each.among(ranks, num_ranks=4) for ranks in groups])
        problem = taccl.make_problem(taccl.topologies.ring(4), every, chunk_bytes=1000)
        done = taccl.execute(taccl.lower(taccl.baselines.best(problem)), "10KB", **SHORT)
        assert done.ok, done
        assert done.compared_with == COMPUTED

    @pytest.mark.slow
    def test_floats_within_tolerance(self):
        """Sums of float32 may differ from MPI's by a tolerance, here 6 eps for 3 ranks, with eps = 2**-23."""
        done = taccl.execute(program_for("allreduce", "ring:3"), "10KB", dtype="float32", **SHORT)
        assert done.ok, done
        assert done.tolerance == 6 * 2.0**-23

    @pytest.mark.slow
    def test_floats_that_only_travel_agree_bit_for_bit(self):
        """An allgather adds nothing, so its tolerance is 0."""
        done = taccl.execute(program_for("allgather", "ring:2"), "10KB", dtype="float64", **SHORT)
        assert done.ok, done
        assert done.tolerance == 0

    @pytest.mark.slow
    def test_merged_steps_travel_as_one_message(self):
        """Steps that merge some of the four chunks per rank run correctly in queues of two messages."""
        program = program_for("allgather", "ring:3", chunks_per_rank=4)
        assert taccl.execute(program, "1MB", **SHORT).ok

    def test_steps_cut_differently_at_two_ends_are_refused(self):
        """Steps that are cut differently at the two ends are refused.

        Rank 0 sends three chunks in one step, and rank 1 receives them in two.
        """
        gather = taccl.collectives.custom(
            2, precondition={c: [0] for c in range(3)}, postcondition={c: [1] for c in range(3)}
        )
        send = Threadblock((Step("send", src=Slot("input", 0), count=3),), send_to=1)
        receive = Threadblock(
            (
                Step("receive", dst=Slot("output", 0), count=1),
                Step("receive", dst=Slot("output", 1), count=2),
            ),
            receive_from=0,
        )
        ranks = (RankProgram(3, 0, 0, (send,)), RankProgram(0, 3, 0, (receive,)))
        with pytest.raises(VerificationError, match="sends 3 chunks at once, of which .* receives 1 at once"):
            taccl.execute(Program("cut", ranks, gather), "3KB", **SHORT)

    @pytest.mark.slow
    def test_without_a_collective_outputs_are_not_judged(self):
        """Without a collective the outputs are not compared, and the report says so."""
        done = taccl.execute(replace(program_for("allgather", "ring:2"), collective=None), "10KB", **SHORT)
        assert done.ok
        assert done.compared_with == ""
        assert "outputs not checked" in repr(done)


class TestFaults:
    """Programs with deliberate faults."""

    @pytest.mark.slow
    def test_wrong_offset_is_reported_by_rank_and_chunk(self):
        """Rank 2 writes a received chunk one slot too far; the report names rank and chunk."""
        program = program_for("allgather", "ring:3")
        place = first_step(program, 2, "receive")
        step = step_of(program, 2, place)
        further = Slot("output", (step.dst.offset + 1) % 3)
        done = taccl.execute(
            with_changed_step(program, 2, place, replace(step, dst=further)), "10KB", **SHORT
        )
        assert not done.ok
        assert (2, step.dst.offset) in {(each.rank, each.chunk) for each in done.wrong}
        with pytest.raises(
            VerificationError, match=rf"output\[{step.dst.offset}\] of rank 2 should hold chunk"
        ):
            done.raise_if_failed()

    @pytest.mark.slow
    def test_lost_contribution_is_reported(self):
        """Rank 1 forwards a partial sum without its own contribution; the report says so."""
        program = program_for("allreduce", "ring:3")
        place = next(
            (a.threadblock, a.step)
            for a, step in program.steps()
            if a.rank == 1 and step.operation.startswith("receive-reduce")
        )
        step = step_of(program, 1, place)
        scratch = replace(program.ranks[1], scratch_chunks=program.ranks[1].scratch_chunks + 1)
        program = replace(program, ranks=(program.ranks[0], scratch, *program.ranks[2:]))
        nowhere = Slot("scratch", scratch.scratch_chunks - 1)
        done = taccl.execute(
            with_changed_step(program, 1, place, replace(step, src=nowhere)), "10KB", **SHORT
        )
        assert done.num_wrong
        assert "differ from MPI_Allreduce" in done.failure()

    @pytest.mark.slow
    def test_overwritten_input_is_reported(self):
        """Rank 2 overwrites its input, out of place; the report says so."""
        program = program_for("allgather", "ring:3")
        blocks = (
            *program.ranks[2].threadblocks,
            Threadblock((Step("copy", src=Slot("scratch", 0), dst=Slot("input", 0)),)),
        )
        rank = replace(program.ranks[2], scratch_chunks=1, threadblocks=blocks)
        done = taccl.execute(replace(program, ranks=(*program.ranks[:2], rank)), "10KB", **SHORT)
        assert (2, "input", 0) in {(each.rank, each.buffer, each.slot) for each in done.wrong}

    @pytest.mark.slow
    def test_dropped_send_names_who_waits_for_whom(self):
        """A dropped send is reported with the waiting rank, step, peer and channel."""
        program = program_for("allgather", "ring:3")
        place = first_step(program, 1, "send")
        queue = program.ranks[1].threadblocks[place[0]]
        done = taccl.execute(with_changed_step(program, 1, place, None), "10KB", repetitions=1, timeout_s=0.5)
        assert not done.ok
        told = f"waits for a chunk that is never sent from rank 1 to rank {queue.send_to} over channel 0"
        assert told in done.cause
        assert queue.send_to in {each.address.rank for each in done.waits}
        assert done.times is None
        with pytest.raises(
            ExecutionError, match=rf"a chunk from rank 1 to rank {queue.send_to} over channel 0"
        ):
            done.raise_if_failed()

    @pytest.mark.slow
    def test_dropped_receive_names_the_sender(self):
        """A message without a receive never completes, whether large or small; the report names the sender."""
        program = program_for("allgather", "ring:3")
        place = first_step(program, 1, "receive")
        source = program.ranks[1].threadblocks[place[0]].receive_from
        done = taccl.execute(with_changed_step(program, 1, place, None), "10KB", repetitions=1, timeout_s=0.5)
        assert not done.ok
        assert f"what was sent to be received from rank {source} to rank 1" in done.waits[0].reason

    @pytest.mark.slow
    def test_deadlock_is_reported_as_a_cycle(self):
        """Two ranks that both receive before they send are reported as a deadlock cycle."""
        both = tuple(RankProgram(1, 2, 0, (_receive_then_send(1 - rank, rank),)) for rank in range(2))
        program = Program("both wait", both, taccl.collectives.allgather(2))
        assert {fault.kind for fault in taccl.interpret(program).faults} == {"deadlock"}
        done = taccl.execute(program, "10KB", repetitions=1, timeout_s=0.5)
        assert [each.address for each in done.waits] == [StepAddress(0, 0, 0), StepAddress(1, 0, 0)]
        assert "2 steps wait for each other" in done.failure()

    @pytest.mark.slow
    def test_what_hangs_on_gpus_at_a_size_hangs_here(self):
        """A program that deadlocks on GPUs above a size deadlocks here above that size.

        Nine chunks per step are 5 LL messages at 128 KiB, which fit, and 9 at 256 KiB, which do not.
        """
        program = exchange(9, "LL")
        assert taccl.execute(program, "128KiB", repetitions=1, timeout_s=20).ok
        done = taccl.execute(program, "256KiB", repetitions=1, timeout_s=0.5)
        assert [each.address for each in done.waits] == [StepAddress(0, 0, 0), StepAddress(1, 0, 0)]
        assert "waits for room" in done.failure()

    def test_unsound_steps_are_refused_before_any_rank_starts(self):
        """A step with a slot past the buffer is refused before any rank starts."""
        program = program_for("allgather")
        place = first_step(program, 0, "send")
        past = replace(step_of(program, 0, place), src=Slot("input", 7))
        with pytest.raises(VerificationError, match="reads chunks 7 to 7 of input, which holds 1"):
            taccl.execute(with_changed_step(program, 0, place, past), "10KB")


def _receive_then_send(peer, rank):
    return Threadblock(
        (Step("receive", dst=Slot("output", peer)), Step("send", src=Slot("input", 0))),
        send_to=peer,
        receive_from=peer,
    )


def test_the_name_of_a_file_is_no_program():
    """A file name in place of a program is refused."""
    with pytest.raises(InputError, match=r"expected a program or a schedule"):
        taccl.execute("ring.json")
