"""Fabrics from SLURM's files: host lists, switches, blocks, and the clusters that they give."""

import numpy as np
import pytest
import yaml

import taccl
from taccl.errors import AssumptionWarning, FormatError, InputError
from taccl.placement.slurm import expand_hosts, load_slurm
from tests.foreign import OURS

CONF, BLOCKS, YAML = (OURS / "slurm" / name for name in ("topology.conf", "blocks.conf", "topology.yaml"))


def written(tmp_path, text, name="topology.conf"):
    path = tmp_path / name
    path.write_text(text)
    return path


class TestHostLists:
    """Lists of hosts in SLURM's notation."""

    @pytest.mark.parametrize(
        ("expression", "hosts"),
        [
            ("node[01-03,20]", ["node01", "node02", "node03", "node20"]),
            ("node[8-11]", ["node8", "node9", "node10", "node11"]),
            ("a,b[1,3],c", ["a", "b1", "b3", "c"]),
            ("r[0-1]n[0-1]-ib", ["r0n0-ib", "r0n1-ib", "r1n0-ib", "r1n1-ib"]),
            ("login", ["login"]),
        ],
    )
    def test_lists_are_expanded(self, expression, hosts):
        """Numbers keep the width of the first one of their range; several brackets give all combinations."""
        assert list(expand_hosts(expression)) == hosts

    @pytest.mark.parametrize("expression", ["n[1-", "n[3-1]", "n[a-b]", "n[]", "n]1[", "n[0-9999][0-9999]"])
    def test_bad_lists_are_refused(self, expression):
        """Open brackets, falling ranges, letters in ranges, and lists longer than any cluster are refused."""
        with pytest.raises(InputError, match="found"):
            list(expand_hosts(expression))


def test_switches_make_clusters():
    """Keys in any case, comments and link speeds are read: two leaves of four hosts."""
    probe = load_slurm(CONF)
    assert probe.hosts[4:] == ("node05", "node06", "node09", "node10")
    assert probe.clusters == ((0, 0, 0, 0, 1, 1, 1, 1),)
    assert probe.latency_us[0, 1] < probe.latency_us[0, 4]


def test_blocks_are_grouped_by_their_sizes():
    """Block sizes 2 and 4 group four blocks of two hosts in pairs; the path between groups is assumed."""
    probe = load_slurm(BLOCKS)
    assert probe.clusters == ((0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 0, 0, 1, 1, 1, 1))
    assert any("a path between 2 parts" in each for each in probe.assumed)


@pytest.mark.parametrize("path", [CONF, YAML], ids=["conf", "yaml"])
def test_a_config_map_has_the_file_of_a_key(tmp_path, path):
    """In a ConfigMap of Kubernetes, the text below the key counts; messages have the line of the whole file."""
    text = "".join(f"    {line}\n" if line.strip() else "\n" for line in path.read_text().splitlines())
    head = f"apiVersion: v1\nkind: ConfigMap\ndata:\n  {path.name}: |\n"
    probe = load_slurm(written(tmp_path, f"{head}{text}  other.conf: |\n    A=b\n"))
    assert (probe.hosts, probe.clusters) == (load_slurm(path).hosts, load_slurm(path).clusters)
    with pytest.raises(FormatError, match="line 6: found 'wrong'"):
        load_slurm(
            written(tmp_path, "data:\n  x: y\n  topology.conf: |\n    SwitchName=s Nodes=a\n\n    wrong\n")
        )


_CONF = (
    "BlockName=a Nodes=n[1-2]\nBlockName=b\nBlockName=c Nodes=n[3-4]\nBlockName=d Nodes=n5\nBlockSizes=2,4\n"
)
_YAML = (
    "- topology: t\n  block:\n    block_sizes: [2, 4]\n    blocks:\n    - {block: a, nodes: 'n[1-2]'}\n"
    "    - block: b\n    - {block: c, nodes: 'n[3-4]'}\n    - {block: d, nodes: n5}\n"
)


@pytest.mark.parametrize("text", [_CONF, _YAML], ids=["conf", "yaml"])
def test_blocks_without_hosts_hold_their_places(tmp_path, text):
    """Blocks a and b are the first pair, c and d the second, so hosts 1 and 2 are not grouped with 3 and 4."""
    assert load_slurm(written(tmp_path, text)).clusters == ((0, 0, 1, 1, 2), (0, 0, 1, 1, 1))


def test_printed_blocks_are_aggregated_by_their_sizes(tmp_path):
    """Blocks are grouped by the sizes of the aggregated blocks that `scontrol show topology` prints."""
    blocks = [f"BlockName=b{n} BlockIndex={n} Nodes=n{2 * n},n{2 * n + 1} BlockSize=2\n" for n in range(4)]
    pairs = [f"AggregatedBlock=b[{n}-{n + 1}] BlockIndex=9 Nodes=n[0-3] BlockSize=4\n" for n in (0, 2)]
    probe = load_slurm(written(tmp_path, "".join(blocks + pairs)))
    assert probe.clusters == ((0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 0, 0, 1, 1, 1, 1))


@pytest.mark.parametrize(("topology", "note"), [(None, True), ("fat", False), ("blocks", False)])
def test_one_topology_of_several_is_read(topology, note):
    """The named topology is read, or the cluster's default, with a note. Each has two groups of two hosts."""
    probe = load_slurm(YAML, topology=topology)
    assert probe.clusters == ((0, 0, 1, 1),)
    assert any("topology fat of the file is read, of 3" in each for each in probe.assumed) == note


def test_the_reader_agrees_with_yaml_itself():
    """One fabric in YAML and in conf notation gives the same names."""
    tree = yaml.safe_load(YAML.read_text())[1]["tree"]["switches"]
    hosts = [host for each in tree for host in expand_hosts(each.get("nodes", ""))]
    assert load_slurm(YAML).hosts == tuple(hosts)


def test_a_switch_below_two_others_joins_them(tmp_path):
    """Each leaf is below both spines: hosts of two leaves are one level apart, in either order of spines."""
    text = "SwitchName=a Nodes=n[0-1]\nSwitchName=b Nodes=n[2-3]\n"
    text += "SwitchName=s1 Switches=a,b\nSwitchName=s2 \\\n Switches=a,b\n"
    assert load_slurm(written(tmp_path, text)).clusters == ((0, 0, 1, 1),)


def test_switches_that_share_a_host_are_noted(tmp_path):
    """If a host is below two leaf switches, their hosts form one cluster, and the probe says so."""
    text = "SwitchName=a Nodes=n[0-2]\nSwitchName=b Nodes=n[2-4]\nSwitchName=c Nodes=n[5-6]\n"
    probe = load_slurm(written(tmp_path, text + "SwitchName=top Switches=a,b,c\n"))
    assert probe.clusters == ((0, 0, 0, 0, 0, 1, 1),)
    assert "switches that share hosts, such as n2, form one cluster" in probe.assumed
    alone = load_slurm(written(tmp_path, text, "b.conf"), hosts=["n5", "n6"])
    assert not any("share hosts" in each for each in alone.assumed)


def test_several_ranks_of_a_host_form_the_innermost_cluster(tmp_path):
    """A host that is named twice has two ranks; they are nearer to each other than to ranks behind a switch."""
    text = "SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[2-3]\nSwitchName=top Switches=s[0-1]\n"
    probe = load_slurm(written(tmp_path, text), hosts=["n0", "n1", "n2", "n0", "n2"])
    assert probe.hosts == ("n0", "n1", "n2", "n0", "n2")
    assert probe.clusters == ((0, 1, 2, 0, 2), (0, 0, 1, 0, 1))
    assert probe.latency_us[0, 3] < probe.latency_us[0, 1] < probe.latency_us[0, 2]
    assert any("us inside a host" in each for each in probe.assumed)


def test_hosts_of_a_job_are_chosen():
    """Rows are the named hosts, in their order; levels that separate none of them are omitted."""
    probe = load_slurm(BLOCKS, hosts=["gpu8", "gpu1", "gpu7"])
    assert probe.hosts == ("gpu8", "gpu1", "gpu7")
    assert probe.clusters == ((0, 1, 0),)
    assert not probe.is_one_server


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("SwitchName=a Nodes=n[1-2]\nSwitchName=b Switches=c\n", "above c, which is not defined"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "switch a above itself"),
        ("SwitchName=a\n", "found a without Nodes and Switches"),
        ("SwitchName=a Nodes=n[0-99999999]\n", "line 1: found more than .* names in n.0-99999999.; expected fewer"),
        ("SwitchName=a Nodes=n[1-2]\nBlockName=b Nodes=n[3-4]\n", "line 2: found BlockName"),
        ("RingName=r Nodes=n[1-4]\n", "expected SwitchName or BlockName"),
        ("SwitchName=a Nodes=n[1-2]\nSwitchName=a Nodes=n3\n", "found a twice"),
        ("BlockName=a Nodes=n[1-6]\nBlockSizes=2,6\n", "each a power of two times"),
        ("SwitchName=a Nodes=n[1-2]\nhello\n", "line 2: found 'hello'"),
        ("- topology: t\n  ring:\n    rings: []\n", "found ring; expected tree or block"),
        ("- topology: t\n  flat: true\n", "found flat; expected tree or block"),
        ("- topology: t\n  flat: true\n  block:\n    blocks: []\n", "found block and flat in one topology"),
        ("- topology: t\n  tree: [\n", "found invalid YAML"),
        ("- topology: t\n  tree:\n    switches:\n    - nodes: n1\n", "expected `switch: NAME`"),
    ],
)  # fmt: skip
def test_bad_files_are_named(tmp_path, text, complaint):
    """The error for an invalid file of SLURM names the line or the topology, and the correction."""
    with pytest.raises(FormatError, match=complaint):
        load_slurm(written(tmp_path, text))


def test_what_was_assumed_is_reported():
    """Rates and latencies, which no file of SLURM has, are noted as assumed."""
    with pytest.warns(AssumptionWarning):
        topology = taccl.topologies.load(CONF)
    assert any("latencies 10 us inside the innermost switch or block" in each for each in topology.assumed)
    assert topology.num_nodes == 2
    assert np.all([link.alpha_us > 0 for link in topology.links])
