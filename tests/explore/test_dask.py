"""The same call on a Dask cluster gives the same table."""

from __future__ import annotations

import sys

import joblib
import pytest

import taccl
from taccl.explore.rows import COLUMNS

distributed = pytest.importorskip("distributed", reason="needs taccl[cluster]")

OPTIONS = {"backends": ["greedy", "highs"], "seeds": range(2), "time_limit_s": 20, "cache": False}
TIMES = [c.name for c in COLUMNS if c.name.endswith("_s") and c.name != "time_limit_s"] + ["seconds"]


@pytest.fixture(scope="module")
def client():
    """A local cluster of two worker processes."""
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


def test_the_table_is_the_same(client, problem, impossible):
    """Schedules, failures and all, but for times; and it was the cluster that worked."""
    for each in (problem, impossible):
        with joblib.parallel_config(backend="dask"):
            table = taccl.compare(each, **OPTIONS)
        here = taccl.compare(each, **OPTIONS, num_workers=1)
        assert table.drop(columns=TIMES).equals(here.drop(columns=TIMES))
    assert all(client.run(lambda: "taccl.synthesis.pipeline" in sys.modules).values())


def test_the_cache_is_here(client, problem, cache):
    """Workers need no folder in common: who compares stores and reads."""
    options = {**OPTIONS, "backends": ["greedy"], "cache": cache}
    with joblib.parallel_config(backend="dask"):
        assert not taccl.compare(problem, **options).from_cache.any()
        assert taccl.compare(problem, **options).from_cache.all()
