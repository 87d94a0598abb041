"""Matrices with a number of bytes for each pair of ranks."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from taccl.errors import CollectiveError, FormatError
from taccl.problem.byte_matrices import checked_sizes, load_sizes

#: Bytes from each of three ranks to each.
SIZES = [[0, 10, 2000], [3, 0, 1], [4, 5, 0]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("commas.csv", "0, 10, 2KB\n3,0,1\n4,5,0\n"),
        ("blanks.txt", "# bytes, of 64 MB per rank, at 5 GB/s; in all 64 MB\n0 10 2000\n\n3 0 1\n4 5 0"),
        ("semicolons.csv", "0;10;2000;\n3;0;1;\n4;5;0;\n"),
        ("savetxt.txt", "0.000000e+00 1.000000e+01 2.000000e+03\n3.0 0.0 1.0\n4 5E0 .0\n"),
        ("units.csv", "0KB,10B,2 KB\n3,0.0MB,1\n4,5,0B\n"),
        ("thousands.csv", '0,10,"2,000"\n3,0,1\n4,5,0\n'),
        ("quotes.csv", '"0","10","2,000"\n"3","0","1"\n"4","5","0"\n'),
        ("json.txt", "[[0, 10, 2000], [3, 0, 1], [4, 5, 0]]"),
        (
            "torch.txt",
            "tensor([[   0,   10, 2000],\n        [   3, 0, 1],\n        [4, 5, 0]], device='cuda:0')\n",
        ),
        ("numpy.txt", "[[   0   10 2000]\n [   3    0    1]\n [   4    5    0]]\n"),
    ],
)
def test_sizes_are_read_from_text(tmp_path, name, content):
    """Commas, semicolons or blanks separate the sizes, which have units; comments are ignored."""
    (tmp_path / name).write_text(content)
    assert load_sizes(tmp_path / name).tolist() == SIZES


@pytest.mark.parametrize("content", [
    "rank0,rank1,rank2\n0,10,2000\n3,0,1\n4,5,0\n", "0,1,2\n0,10,2000\n3,0,1\n4,5,0\n",
    ",0,1,2\n0,0,10,2000\n1,3,0,1\n2,4,5,0\n", "to,a,b,c\na,0,10,2000\nb,3,0,1\nc,4,5,0\n",
    "0,0,10,2000\n1,3,0,1\n2,4,5,0\n", "a;0;10;2000\nb;3;0;1\nc;4;5;0\n", "to,a,b,c\nc,4,5,-\na,nan,10,2000\nb,3,,1\n",
    "src rank2 rank0 rank1\nrank2 0 4 5\nrank0 2000 0 10\nrank1 1 3 0\n", ",10,20,30\n10,0,10,2000\n20,3,0,1\n30,4,5,0\n",
])  # fmt: skip
def test_names_of_ranks_are_read(tmp_path, content):
    """Names may head rows, columns or both, the diagonal may be empty, and rows that name ranks are sorted."""
    (tmp_path / "named.csv").write_text(content)
    assert load_sizes(tmp_path / "named.csv").tolist() == SIZES


@pytest.mark.parametrize("content", [
    "KB,0,1,2\n0,0,0.01,2\n1,3e-3,0,0.001\n2,.004,5B,0\n", "# sizes in KB\n0,0.01,2\n0.003,0,1e-3\n0.004,0.005,0\n",
    "src/dst (KB)\ta\tb\tc\na\t0\t0.01\t2\nb\t0.003\t0\t0.001\nc\t0.004\t0.005\t0\n",
])  # fmt: skip
def test_the_first_cell_or_a_comment_names_the_unit(tmp_path, content):
    """Numbers without a unit are in the unit above them, also with fractions that make whole bytes."""
    (tmp_path / "units.csv").write_text(content)
    assert load_sizes(tmp_path / "units.csv").tolist() == SIZES


@pytest.mark.parametrize("content", [
    "src,dst,bytes\n0,1,10\n0,2,2KB\n1,0,3\n1,2,1\n2,0,4\n2,1,5\n",
    "from\tto\tsize_bytes\nrank2\trank0\t4\nrank2\trank1\t5\nrank0\trank1\t10\nrank0\trank2\t2e3\nrank1\trank0\t3\n"
    "rank1\trank2\t1\nrank1\trank1\t0\n",
])  # fmt: skip
def test_lists_of_pairs_are_read(tmp_path, content):
    """A header that names source and destination begins a list of pairs, also if as many ranks as columns."""
    (tmp_path / "pairs.csv").write_text(content)
    assert load_sizes(tmp_path / "pairs.csv").tolist() == SIZES
    (tmp_path / "two.csv").write_text("src,dst,bytes\n0,1,100\n1,0,7\n")
    assert load_sizes(tmp_path / "two.csv").tolist() == [[0, 100], [7, 0]]
    assert load_sizes(tmp_path / "two.csv", num_ranks=3).tolist() == [[0, 100, 0], [7, 0, 0], [0, 0, 0]]


def test_a_matrix_that_begins_with_the_numbers_of_its_columns_is_whole(tmp_path):
    """Only a row too many is a header: ``0,1,2`` above two further rows is the data of rank 0."""
    (tmp_path / "sizes.csv").write_text("0,1,2\n3,0,1\n4,5,0\n")
    assert load_sizes(tmp_path / "sizes.csv").tolist() == [[0, 1, 2], [3, 0, 1], [4, 5, 0]]


@pytest.mark.parametrize("dtype", ["f8", "f4", ">i4", "u8"])
def test_sizes_are_read_from_numpy(tmp_path, dtype):
    """Whole numbers of any type are accepted as sizes."""
    np.save(tmp_path / "sizes.npy", np.array(SIZES, dtype))
    assert load_sizes(tmp_path / "sizes.npy").tolist() == SIZES


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("short.csv", b"0,1\n2", "line 2: found 1 entries; expected 2, one for every rank"),
        ("words.csv", b"0,a\n2,0", "found 1 x 2 entries for 2 ranks; expected a square .* names such as 'a'"),
        ("mixed.csv", b"0,1\na,0", "line 2: found 'a'; expected a number of bytes"),
        ("order.csv", b",a,b\na,0,1\nc,2,0", "found the row 'c' and the column 'b' at one place"),
        ("hole.csv", b"0,\n2,0", "line 1: found ''; expected a number of bytes or a size"),
        ("half.csv", b"0,1.5\n2,0", "line 1: found '1.5'; expected a whole number of bytes"),
        ("negative.csv", b"0,-1\n2,0", "line 1: found '-1'; expected from 0 to less than"),
        ("inf.csv", b"0,inf\n2,0", "line 1: found 'inf'; expected a number of bytes"),
        ("huge.csv", b"0,99999999999999999999\n2,0", "line 1: found '9+'; expected from 0 to less than"),
        ("bits.csv", b"0,0Mb\n2,0", "line 1: .* reads as bits"),
        ("deep.txt", b"[[[0, 1], [2, 0]]]", "expected a square"),
        ("cut.txt", b"[[0 1 ... 3]\n [2 0 ... 1]]", "line 1: found '...', as of a matrix .* numpy.save"),
        ("digits.csv", "0,²\n2,0".encode(), "line 1: found '²'; expected a"),
        ("units.csv", b"# in KB\n# in MB\n0,1\n2,0\n", "found the units KB and MB; expected one"),
        ("unit.csv", b"src,dst,us\n0,1,3\n", "line 1: found the columns src, dst, us; expected source"),
        ("again.csv", b"src,dst,bytes\n0,1,3\n0,1,4\n", "line 3: found the pair 0 to 1 again"),
        ("host.csv", b"src,dst,bytes\na,b,3\n", "line 2: found a, b, 3; expected two numbers of ranks"),
        ("text.npy", b"0,1\n2,0", "found no NumPy array"),
        ("none.csv", b"", "the file is empty"),
        ("comment.csv", b"# none\n", "found no rows; expected a matrix, a row for every rank"),
    ],
)
def test_files_without_a_matrix_are_refused(tmp_path, name, content, word):
    """The error for a file without a matrix names the line and the expected content."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=word):
        load_sizes(tmp_path / name)


@pytest.mark.parametrize(
    ("table", "word"),
    [
        (np.array([[{}]]), "found no NumPy array"),
        (np.array([[0.0, 0.5], [1, 0]]), "found 0.5 from rank 0 to 1; expected a whole number of bytes"),
        (np.array([[0, 1], [np.nan, 0]]), "found nan from rank 1 to 0; expected a whole number of bytes"),
        (np.array([[0, 1], [-7, 0]]), "found -7 bytes from rank 1 to 0"),
        (np.array([[True, False], [False, True]]), "found bool values; expected whole numbers"),
        (np.zeros((2, 3)), "found an array of shape .2, 3.; expected a matrix"),
        (np.zeros(4), "found an array of shape .4,.; expected a matrix"),
    ],
)
def test_arrays_that_are_no_sizes_are_refused(tmp_path, table, word):
    """The error for an array names the first entry that is no whole number of bytes, or the shape."""
    np.save(tmp_path / "wrong.npy", table, allow_pickle=True)
    with pytest.raises(FormatError, match=word):
        load_sizes(tmp_path / "wrong.npy")


@pytest.mark.parametrize("entries", [
    np.array(SIZES, object), [["0", "10B", "2KB"], ["3", "0", "1"], ["4", "5", "0"]],
    [[Decimal(each) for each in row] for row in SIZES], np.array(SIZES, float),
])  # fmt: skip
def test_entries_of_any_type_are_sizes(entries):
    """Python's numbers and texts are accepted as sizes."""
    assert checked_sizes(entries, 3, "test").tolist() == SIZES


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([[0, 1], ["a", 0]], "found 'a' from rank 1 to 0"),
        ([[0, 2**70], [1, 0]], "expected a whole number of bytes|bytes in total"),
        (np.array([[0, None], [1, 0]]), "found None from rank 0 to 1"),
        (np.ma.masked_array([[0, 1], [2, 0]], [[0, 1], [0, 0]]), "found masked entries"),
        (np.array([[0, 1j], [1, 0]]), "found complex128 values"),
    ],
)
def test_wrong_entries_are_named(entries, word):
    """The error names the first pair whose entry is no whole number of bytes."""
    with pytest.raises(CollectiveError, match=word):
        checked_sizes(entries, 2, "test")


def test_labels_of_frames_order_the_ranks():
    """A frame whose labels are sorted as texts, with 10 before 2, is put into the order of ranks."""
    pandas = pytest.importorskip("pandas")
    table = np.arange(121).reshape(11, 11) * (1 - np.eye(11, dtype=int))
    frame = pandas.DataFrame(table, [str(rank) for rank in range(11)], [str(rank) for rank in range(11)])
    by_text = frame.sort_index().sort_index(axis=1)
    assert by_text.index[2] == "10"
    assert checked_sizes(by_text, 11, "test").tolist() == table.tolist()
    hosts = pandas.DataFrame([[0, 1], [2, 0]], ["a", "b"], ["b", "a"])
    with pytest.raises(CollectiveError, match="rows and columns in different orders"):
        checked_sizes(hosts, 2, "test")
