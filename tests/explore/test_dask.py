"""`compare` on a Dask cluster gives the same table as without."""

import os
import sys
from importlib.util import find_spec

import joblib
import pytest

import taccl
from taccl.explore.rows import COLUMNS
from tests.explore.stand_ins import dying, where

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("distributed") is None, reason="needs taccl[cluster]"),
]

OPTIONS = {
    "backends": ["greedy", "highs"],
    "seeds": range(2),
    "time_limit_s": 20,
    "cache": False,
    "full": True,
}
TIMES = [
    *(c.name for c in COLUMNS if c.name.endswith("_s") and c.name != "time_limit_s"),
    "seconds",
    "stages",
]


@pytest.fixture(scope="module")
def client():
    """Client of a local cluster of two worker processes."""
    import distributed

    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


def test_the_table_is_the_same(client, problem, impossible):
    """Schedules and failures equal those without a cluster, except for times; the workers computed them."""
    for each in (problem, impossible):
        with joblib.parallel_config(backend="dask", wait_for_workers_timeout=120):
            table = taccl.compare(each, **OPTIONS)
        here = taccl.compare(each, **OPTIONS, num_workers=1)
        assert table.drop(columns=TIMES).equals(here.drop(columns=TIMES))
    assert all(client.run(lambda: "taccl.synthesis.synthesize" in sys.modules).values())


def test_the_cache_is_here(client, problem, cache):
    """The calling process stores and reads results, so workers need no common folder."""
    options = {**OPTIONS, "backends": ["greedy"], "cache": cache}
    with joblib.parallel_config(backend="dask", wait_for_workers_timeout=120):
        assert not taccl.compare(problem, **options).from_cache.any()
        assert taccl.compare(problem, **options).from_cache.all()


def test_a_run_that_ends_its_worker_is_a_row(client, problem, monkeypatch):
    """A run that ends its worker, for which joblib would wait forever, becomes a row; the others continue."""
    monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", 0)
    monkeypatch.setattr("taccl.explore.parallel_runs._numbered", dying)
    with joblib.parallel_config(backend="dask", wait_for_workers_timeout=120):
        table = taccl.compare(problem, backends=["greedy"], seeds=range(3), cache=False, full=True)
    assert [*table.status] == ["found", "crashed", "found"]
    assert table.error[1] == "its process died, also when run alone (KilledWorker)"


def test_a_cluster_of_one_core_does_the_work(client, problem, monkeypatch):
    """A cluster of one core performs the runs, although joblib alone would use this process."""
    monkeypatch.setattr("taccl.explore.parallel_runs._numbered", where)
    monkeypatch.setattr("joblib._dask.DaskDistributedBackend.effective_n_jobs", lambda self, n_jobs: 1)
    with joblib.parallel_config(backend="dask", wait_for_workers_timeout=120):
        table = taccl.compare(problem, backends=["greedy"], seeds=range(3), cache=False, full=True)
    assert set(table.error) <= {str(pid) for pid in client.run(os.getpid).values()}
