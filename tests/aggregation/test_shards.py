"""Shards: layers cut into chunks, which are distributed over servers' NICs (cards) and cores."""

import itertools
from collections import Counter

import numpy as np
import pytest

from taccl import make_problem, synthesize
from taccl.aggregation import MODELS, choose_servers, layer_bytes, place_shards
from taccl.analysis.verification.verify import verify
from taccl.baselines import servers
from taccl.errors import InputError
from taccl.problem.collectives import exchange
from taccl.topologies import TopologyBuilder, rack


def servers_of(*betas):
    """Two workers, and a server for each of `betas`, the time in us per MB of its NIC ("card")."""
    builder = TopologyBuilder("servers", range(2 + len(betas)))
    for server, beta in enumerate(betas, start=2):
        card = builder.add_resource(f"card of {server}")
        for worker in (0, 1):
            link = builder.add_link(worker, server, alpha_us=0, beta_us_per_mb=beta)
            builder.add_hold(link, card, alpha_us=0, beta_us_per_mb=beta, side="receive")
    return builder.build()


@pytest.mark.parametrize("model", MODELS)
def test_layers_come_to_what_is_published(model):
    """Layer sizes (4 bytes per parameter) add up to torchvision's published numbers."""
    assert sum(layer_bytes(model).values()) == 4 * MODELS[model]


def test_some_layers_by_hand():
    """Layers have the numbers of weights that follow from their published shapes.

    First convolutions have 7 x 7 x 3 x 64 and 11 x 11 x 3 x 64, VGG-19's first full layer 25,088 x 4,096.
    """
    assert layer_bytes("ResNet_50")["conv1"] == 4 * 9408
    assert layer_bytes("vgg-19")["fc1.weight"] == 4 * 25_088 * 4096
    assert layer_bytes("alexnet")["conv1.weight"] == 4 * 11 * 11 * 3 * 64
    # A basic block of ResNet-18 has two convolutions of 3 x 3, and a bottleneck of ResNet-152 three.
    assert layer_bytes("resnet-18")["layer2.1.2.conv"] == 4 * 9 * 128 * 128
    assert layer_bytes("resnet-152")["layer3.35.3.conv"] == 4 * 256 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_chunks_of_32_kb_balance_the_cards(model):
    """32 KB chunks balance ten cards within 1 %; VGG-19's whole layers put seven times the mean on one."""
    layers, box = layer_bytes(model), range(8, 18)
    shards = place_shards(layers, rack(8, 10), box)
    assert shards.imbalance <= 1.01
    assert sum(shards.chunk_bytes) == sum(layers.values())
    assert max(shards.chunk_bytes) <= 32_000
    assert place_shards(layers, rack(8, 10), box, chunk=None).imbalance >= shards.imbalance


def test_whole_layers_leave_cards_idle():
    """Whole layers leave cards idle: VGG-19's largest one loads a card with 7.15 times the mean of ten.

    That layer has 411 of 575 MB.
    """
    whole = place_shards(layer_bytes("vgg-19"), rack(8, 10), range(8, 18), chunk=None)
    assert whole.imbalance == pytest.approx(10 * 25_088 * 4096 / 143_667_240, rel=1e-3)


def test_each_chunk_has_a_core_of_its_server():
    """Eight chunks of 1 kB on one server with two cores give each core four."""
    shards = place_shards({"a": 5_000, "b": 3_000}, rack(2, 1), [2], chunk=1_000, cores=2)
    assert shards.keys == ("a",) * 5 + ("b",) * 3
    assert Counter(shards.cores) == {0: 4, 1: 4}
    assert set(shards.cards) == {"port into 2"}


def test_slow_cards_get_less():
    """A server with a card half as fast gets half as many chunks as the other: a third of twelve."""
    shards = place_shards([12_000], servers_of(1, 2), [2, 3], chunk=1_000)
    assert Counter(shards.servers) == {2: 8, 3: 4}


def test_a_chunk_goes_to_the_card_that_finishes_first():
    """Each chunk goes to the card that would finish it first, even if another one is idle.

    Two chunks of 1 MB, at 1 and 100 us/MB, both go to the fast card, 2 us.
    """
    for betas in ((1, 100), (100, 1)):
        shards = place_shards([2_000_000], servers_of(*betas), [2, 3], chunk=1_000_000)
        assert set(shards.servers) == {2 + betas.index(1)}
        assert max(shards.card_us.values()) == 2


@pytest.mark.slow
def test_largest_first_placement_is_near_the_optimum():
    """On random cards and layers, largest-first placement (LPT) on m cards takes at most 2 m / (m + 1) times
    as long as the optimal placement."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        betas = rng.integers(1, 40, 3).tolist()
        sizes = rng.integers(1, 9, 6).tolist()
        shards = place_shards([size * 10**6 for size in sizes], servers_of(*betas), [2, 3, 4], chunk=None)
        every = itertools.product(range(3), repeat=len(sizes))
        busy = ([sum(s for s, c in zip(sizes, at, strict=True) if c == i) for i in range(3)] for at in every)
        best = min(max(b * load for b, load in zip(betas, loads, strict=True)) for loads in busy)
        assert max(shards.card_us.values()) <= best * 1.5


def test_cards_of_one_name_are_told_apart():
    """Resources of one name, on one server or several, are cards of their own, named with the server."""
    builder = TopologyBuilder("boxes", [0, 1, 2, 3])
    for server, card in ((2, "nic"), (2, "nic"), (3, "nic"), (3, "other")):
        resource = builder.add_resource(card)
        for worker in (0, 1):
            link = builder.add_link(worker, server, alpha_us=0, beta_us_per_mb=1)
            builder.add_hold(link, resource, alpha_us=0, beta_us_per_mb=1, side="receive")
    shards = place_shards([8_000], builder.build(), [2, 3], chunk=1_000)
    assert Counter(shards.cards) == dict.fromkeys(
        ("nic of rank 2", "nic of rank 2, 2", "nic of rank 3", "other"), 2
    )
    assert [*shards.card_us.values()] == [0.002] * 4
    assert shards.imbalance == 1


def test_a_server_may_have_several_cards():
    """A server's two cards, each shared by the links of two workers, get six chunks each."""
    builder = TopologyBuilder("a box", [0, 1, 2])
    for card in ("first", "second"):
        resource = builder.add_resource(card)
        for worker in (0, 1):
            link = builder.add_link(worker, 2, alpha_us=0, beta_us_per_mb=1, name=card)
            builder.add_hold(link, resource, alpha_us=0, beta_us_per_mb=1, side="receive")
    shards = place_shards([12_000], builder.build(), [2], chunk=1_000)
    assert Counter(shards.cards) == {"first": 6, "second": 6}


def test_shards_make_an_exchange():
    """An exchange with every chunk summed at the server of its shard has a schedule that verifies."""
    topology = rack(2, 3)
    shards = place_shards([70_000, 10_000], topology, [2, 3, 4], chunk="10KB")
    collective = exchange(2, 3, roots=shards.servers)
    schedule = servers(make_problem(topology, collective, chunk_bytes=shards.chunk_bytes), cut=False)
    verify(schedule).raise_if_failed()
    assert Counter(chunk.root for chunk in schedule.problem.collective.chunks) == {2: 3, 3: 3, 4: 2}


@pytest.mark.slow
def test_an_exchange_without_a_chunk_count_is_cut_until_it_is_near_its_bound():
    """If no number of chunks is given, an exchange of 10 MB between four workers and five cards is cut finely
    enough to finish within 5 % of its bound, 805 us."""
    problem = make_problem(rack(4, 5), exchange(4, 5, update_us_per_mb=2), size_bytes=10_000_000)
    found = synthesize(problem)
    assert found.schedule.problem.collective.chunks_per_rank > 1
    assert found.finish_us < 1.05 * 805


@pytest.mark.slow
@pytest.mark.parametrize(("cards", "choice"), [(5, "central"), (1, "colocated")])
def test_workers_serve_if_a_server_box_has_too_few_cards(cards, choice):
    """The arrangement of servers that moves the least data is chosen for four workers.

    A worker that also serves moves 1.5 times the data over its port. With a server box of five cards every
    port moves the data once at most; with a box of one, the five ports send 8 times the data.
    """
    n, k = range(4), range(4, 4 + cards)
    served = choose_servers(rack(4, cards), "100MB", workers=n, servers=k)
    assert served.choice.startswith(f"{choice} servers, as the faster: central ")
    assert served.bound.bound <= served.schedule.finish
    assert {chunk.root for chunk in served.schedule.problem.collective.chunks} == set(
        k if choice == "central" else n
    )
    # A port takes 80 us/MB. It moves 100 MB once with the box of five, or 1.5 times where workers serve.
    # There, the card of the box may relay sums, which saves up to 5 %.
    expected_us, least = (8000, 0.98) if choice == "central" else (12_000, 0.95)
    assert least * expected_us <= served.finish_us <= 1.02 * expected_us


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: place_shards({"fc": 0}, rack(2, 1), [2]), "layer_bytes: fc: found 0 bytes"),
        (lambda: place_shards([], rack(2, 1), [2]), "found no layers"),
        (
            lambda: place_shards([8], rack(2, 1), [2, 2]),
            "servers: found \\[2, 2\\]; expected servers, each once",
        ),
        (lambda: place_shards([8], rack(2, 1), []), "servers: found \\[\\]"),
        (lambda: place_shards([8], rack(2, 1), [9]), "servers: rank 9 does not exist"),
        (lambda: place_shards([10**9], rack(2, 1), [2], chunk=1), "found more than 5000000 chunks"),
        (lambda: place_shards([8], rack(2, 1), [2], cores=0), "cores: found 0"),
        (lambda: layer_bytes("vgg19x"), "did you mean 'vgg-19'"),
    ],
)
def test_layers_that_cannot_be_placed_are_refused(call, error):
    """The error for layers or servers that cannot be placed names the fault and its place."""
    with pytest.raises(InputError, match=error):
        call()


def test_layers_of_a_file(tmp_path):
    """In a file of layers, names may be quoted, sizes have units, and a first row with headings is
    skipped."""
    file = tmp_path / "layers.csv"
    file.write_text('name,bytes\n"fc, first",4MB\n\nfc2, 12\n')
    assert layer_bytes(str(file)) == {"fc, first": 4_000_000, "fc2": 12}


@pytest.mark.parametrize("text", [
    "a\t4e6\nb\t12\n", "layer;size\na;4000000\nb;12.0\n", '"name","bytes"\n"a","4,000,000"\n"b","12"\n',
    "id,name,params,size_bytes\n0,a,1000000,4MB\n1,b,3,12\n", "bytes,index\n4MB,a\n12,b\n",
])  # fmt: skip
def test_tables_of_layers_have_separators_and_columns_of_their_own(tmp_path, text):
    """Tabs or semicolons separate cells as well, and a header names the two columns among others."""
    (tmp_path / "layers.txt").write_text(text)
    assert layer_bytes(str(tmp_path / "layers.txt")) == {"a": 4_000_000, "b": 12}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,bytes\n", "found no layers"),
        ("a,1\na,2\n", "line 2: found layer 'a' again"),
        ("a,1,2\n", "line 1: found 3 cells; expected a layer's name and bytes"),
        ("name,bytes\na,1,2\n", "line 2: found 3 cells"),
        ("a,0\n", "line 1: found 0 bytes of 'a'"),
        ("name,size_mb\na,1\n", "line 1: found 'size_mb'"),
    ],
)
def test_files_without_layers_are_refused(tmp_path, text, said):
    """Files without layers, with a repeated layer or with a bad row are refused, and the error names the
    line."""
    file = tmp_path / "layers.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        layer_bytes(str(file))
