"""Top lines of files by kind; figures and names are invented."""

from __future__ import annotations

ROW = "  1048576  262144  float  sum  -1  33.27  31.52  55.16  0  33.10  31.68  55.44  0\n"

#: Texts that are neither JSON nor TOML.
TEXTS = {
    "module for PyTorch": '"""allreduce on ring:2: 4 messages; for PyTorch.\n\nMade by taccl.\n"""\n',
    "program": '<!-- made by hand -->\n<algo name="x" nchunksperloop="2" nchannels="1" proto="Simple">\n',
    "table of transfers": "transfer,chunk,src,dst\n0,0,0,1\n",
    "comparison": "collective,topology,backend,seed,finish_us,gap\nallgather,ring,auto,0,1.0,0\n",
    "NCCL topology": '<?xml version="1.0"?>\n<system version="1">\n  <cpu numaid="0">\n',
    "ASTRA-sim network": "topology: [ Ring ]\nnpus_count: [ 4 ]\n",
    "log of nccl-tests or rccl-tests": (
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 1024 step: 2(factor)\n"
        "host:1:1 [0] NCCL INFO Bootstrap : Using eth0\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n" + ROW
    ),
    "log of perftest (ib_write_bw and its kind)": (
        "---------------\n                    RDMA_Write BW Test\n Dual-port       : OFF\n"
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        " 65536      5000             92.07              91.16              0.17\n"
    ),
    "log of NCCL's Inspector": (
        '{"header":{"id":"0x1","rank":0,"n_ranks":8,"nnodes":1},"metadata":{"pid":1},"coll_perf":'
        '{"coll":"AllReduce","coll_sn":0,"coll_msg_size_bytes":67108864,"coll_exec_time_us":671}}\n'
        '{"header":{"id":"0x1","rank":0,"n_ranks":8,"nnodes":1},"metadata":{"pid":1},"coll_perf":'
        '{"coll":"AllReduce","coll_sn":1,"coll_msg_size_bytes":8388608,"coll_exec_time_us":99}}\n'
    ),
    "log of OSU micro-benchmarks": (
        "\n# OSU MPI Latency Test v7.4\n# Size       Avg Latency(us)\n1         1.10\n2        1.11\n"
    ),
    "log of mscclpp-test": (
        "#                                        in-place                       out-of-place\n"
        "#       size         count     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\n"
        "     1048576        262144    20.00   52.43   52.43       0\n"
    ),
    "log of DeepSpeed's communication or of all_reduce_bench.py": (
        "---- Performance of all_reduce on 8 devices ----------------\n"
        "Size (Bytes)  Description  Duration  Throughput (Gbps)  BusBW (Gbps)\n"
    ),
    "table for NCCL's example tuner plugin": (
        "# Collective_type,min_bytes,max_bytes,algorithm\nallreduce,0,65536,tree,ll,2,-1,-1\n"
    ),
    "rank file of Open MPI": "rank 0=node-1 slot=0\nrank 1=node-2 slot=0\n",
    "host file": "# ours\nnode-1 slots=8\nnode-2 slots=8\n",
    "table of a benchmark, whose first column is not the size": (
        "cycle,size,count,type,inplace,time,algbw\n0,1048576,262144,float,0,62.00,16.91\n"
    ),
    "graph (GraphML, GML or DOT)": "digraph servers {\n  a -> b;\n}\n",
    "map of processes by mpirun": " ========================   JOB MAP   ========================\n\n Data for node: n1\n",
    "profile of PyTorch, Nsight Systems or NCCL's profiler": "Time (%),Total Time (ns),Instances,Avg (ns),Name\n50.0,123,1,123.0,ncclKernel\n",
    "record of NCCL's inspector": (
        '{"header": {"rank": 0, "n_ranks": 16}, "coll_perf": {"coll": "AllReduce", "coll_exec_time_us": 61}}\n'
        '{"header": {"rank": 0, "n_ranks": 16}, "coll_perf": {"coll": "AllReduce", "coll_exec_time_us": 62}}\n'
    ),
    "topology of htsim (ASTRA-sim)": "Nodes 8\nTiers 3\nPodsize 4\n\nTier 0\nDownlink_speed_Gbps 200\n",
    "topology of ns-3 (ASTRA-sim, SimAI)": "10 2 8\n8 9\n0 8 100Gbps 0.001ms 0\n1 8 100Gbps 0.001ms 0\n",
    "summary of SuperBench": (
        '{"node": "n1", "nccl-bw:ib/return_code": 0, "nccl-bw:ib/allreduce_8_time:0": 33.1}\n'
        '{"node": "n2", "nccl-bw:ib/return_code": 0, "nccl-bw:ib/allreduce_8_time:0": 33.4}\n'
    ),
    "table of layers": "layer,bytes\nconv1,4096\nfc1,1048576\n",
    "output of ncclras": "NCCL version 2.24.3 compiled with CUDA 12.8\n\nJob summary\n===========\n",
    "output of ucx_info or fi_info": "# UCT version=1.15.0 revision 0\n#      Transport: rc_mlx5\n",
    "page in Markdown": "# Our cluster\n\nIt has the nodes of a lab:\n\n```python\nimport taccl\n```\n",
    "script": "#!/bin/bash\nsrun ./all_reduce_perf -b 8 -e 1G\n",
    "table of measured times": "Message size,Time (us),BusBW (Gbps)\n1MB,65.6,239.7\n2MB,71.2,441.6\n",
    "output of `nvidia-smi topo -m`": (
        "        GPU0    GPU1    CPU Affinity    NUMA Affinity\n"
        "GPU0     X      NV4     0-15    0\nGPU1    NV4      X      0-15    0\n"
    ),
    "matrix of pairs": (
        "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n"
        "   D\\D     0      1\n     0 900.0   21.0\n     1  21.1  900.0\n"
    ),
    "file of logs by pair": "# pair n0 n1\n# OSU MPI Latency Test v7.3\n# Size Latency (us)\n1 1.5\n",
    "log of Intel MPI Benchmarks or of oneCCL's benchmark": (
        "#------------------------------------------------------------\n"
        "#    Intel(R) MPI Benchmarks 2021.3, MPI-1 part\n# Benchmarking Allreduce\n# #processes = 4\n"
        "       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n        1024   1000  2.5  2.7  2.6\n"
    ),
    "log of libfabric's tests (fi_pingpong and its kind)": (
        "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
        "64      1k      =1k      124k        0.02s      7.77       8.24       0.12\n"
    ),
    "output of gdrcopy or gdscheck": "BAR writing test, size=131072 offset=0 num_iters=10000\nwrite BW: 10984.5MB/s\n",
    "log of ROCm Validation Suite (RVS)": "[RESULT] [ 8632.137] Action name :pebb\n",
    "log of ucc_perftest or of a benchmark in PyTorch": (
        "       Count        Size                Time, us                           Bandwidth, GB/s\n"
        "         128         512       21.31       20.88       21.98        0.04        0.04        0.04\n"
    ),
    "log of PARAM or of the benchmarks of gloo, HCL or DeepEP": (
        "Device:      tcp, pci=0000:01:00.0, iface=eth0\nAlgorithm:   allreduce_ring\n\n"
        "   elements   min (us)   p50 (us)   p99 (us)   max (us)   avg (GB/s)    samples\n"
    ),
    "output of dcgmi, xpu-smi, npu-smi, hl-smi, hy-smi or cnmon": "           NPU0       NPU1\nNPU0       X          HCCS\n",
    "log of iperf, netperf, qperf, sockperf, ucx_perftest or ping": (
        "[ ID] Interval           Transfer     Bitrate         Retr  Cwnd\n"
        "[  5]   0.00-1.00   sec  2.72 GBytes  23.4 Gbits/sec    0   1.5 MBytes\n"
    ),
    "output of nvbandwidth without a one-way matrix of GPUs": (
        "nvbandwidth Version: v0.8\n\nRunning host_to_device_memcpy_ce.\n"
        "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n"
        " 0     55.63     55.64\n"
    ),
    "matrix of nvbandwidth": (
        "nvbandwidth Version: v0.8\n\nRunning device_to_device_memcpy_read_ce.\n"
        "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n"
        " 0       N/A     26.33\n 1     26.46       N/A\n"
    ),
    "output of mpiGraph": (
        "START mpiGraph v1.5\nMsgSize\t16384\n\nSend\tn0:0\tn1:1\t\nn0:0 to\t0.000\t9000.5\t\n"
        "n1:1 to\t8000.5\t0.000\t\n\nRecv\tn0:0\tn1:1\t\nn0:0 from\t0.000\t8000.5\t\n"
    ),
    "topology or result of TACOS in CSV": "2\nSrc,Dest,Latency (ns),Bandwidth (GB/s)\n0,1,500,50\n1,0,500,50\n",
    "output of bandwidthTest, deviceQuery or another sample of CUDA": (
        "[CUDA Bandwidth Test] - Starting...\nRunning on...\n\n Device 0: Example GPU\n"
        " Host to Device Bandwidth, 1 Device(s)\n"
    ),
    "matrix of rocm_bandwidth_test or TransferBench": (
        "          Unidirectional copy peak bandwidth GB/s\n\n          D/D       0           1\n\n"
        "          0         500.5       30.5\n\n          1         30.25       501.5\n"
    ),
    "output of rocm_bandwidth_test or TransferBench without a one-way matrix": (
        "          RocmBandwidthTest Version: 2.6.0\n\n          Device: 0,  Example CPU\n"
    ),
    "output of p2pBandwidthLatencyTest, cut short": (
        "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\nDevice: 0, Example GPU, pciBusID: 1\n"
        "P2P Connectivity Matrix\n     D\\D     0     1\n     0\t     1     1\n     1\t     1     1\n"
    ),
    "graph dump of NCCL (NCCL_GRAPH_DUMP_FILE)": (
        '<graphs version="1">\n  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="24">\n'
    ),
    "debug log of NCCL (NCCL_DEBUG=INFO)": (
        "node-1:812:812 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
        "node-1:812:840 [0] NCCL INFO === System : maxBw 24.0 totalBw 24.0 ===\n"
    ),
    "topology of hwloc (lstopo)": (
        '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
        '<topology version="2.0">\n  <object type="Machine" os_index="0">\n'
    ),
    "output of `nvidia-smi topo -p2p`": (
        "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
    ),
    "output of `nvidia-smi nvlink`": (
        "GPU 0: Example GPU (UUID: GPU-0)\n\t Link 0: 25.781 GB/s\n\t Link 1: 25.781 GB/s\n"
    ),
    "output of nvidia-smi or nvidia-imex-ctl": (
        "+-----------------------------------------------+\n"
        "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |\n"
    ),
    "output of `rocm-smi --showtopo`": (
        "============================ ROCm System Management Interface ============================\n"
        "=============================== Link Type between two GPUs ===============================\n"
        "       GPU0         GPU1\nGPU0   0            XGMI\nGPU1   XGMI         0\n"
    ),
    "output of amd-smi": "GPU: 0\n    BDF: 0000:05:00.0\n    UUID: 12ff74a1-0000\n    NODE_ID: 2\n",
    "output of rocm-smi": (
        "======================= ROCm System Management Interface =======================\n"
        "================================= Concise Info =================================\n"
    ),
    "output of `amd-smi topology` or `amd-smi xgmi`": (
        "ACCESS TABLE:\n             0000:0c:00.0 0000:22:00.0\n0000:0c:00.0 ENABLED      ENABLED\n"
    ),
    "output of rocminfo": "ROCk module is loaded\n=====================\nHSA System Attributes\n",
    "output of lspci": (
        "00:00.0 Host bridge: Example Corporation Device 0001\n"
        "17:00.0 3D controller: Example Corporation Device 2330 (rev a1)\n"
    ),
    "output of PyTorch's or vLLM's collect_env": (
        "Collecting environment information...\nPyTorch version: 2.6.0+cu124\nIs debug build: False\n"
    ),
    "output of lscpu or numactl": "available: 2 nodes (0-1)\nnode 0 cpus: 0 1 2 3\nnode distances:\n",
    "output of ibnetdiscover": (
        "#\n# Topology file: generated on Mon Jan  1 00:00:00 2024\n#\n"
        'vendid=0x2c9\nSwitch\t40 "S-0000000000000001"\t\t# "leaf-1" enhanced port 0 lid 1 lmc 0\n'
        '[1]\t"H-0000000000000011"[1](11) \t\t# "n1 mlx5_0" lid 2 4xHDR\n'
        '[2]\t"H-0000000000000012"[1](12) \t\t# "n2 mlx5_0" lid 3 4xHDR\n'
    ),
    "output of ibhosts, ibswitches or ibroute": 'Ca\t: 0x0001 ports 1 "node01 HCA-1"\n',
    "output of ibstat, ibv_devinfo, iblinkinfo or ibdiagnet": (
        "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n"
    ),
    "output of `mst status`": (
        "MST modules:\n------------\n    MST PCI module is not loaded\n\nMST devices:\n------------\n"
        "/dev/mst/mt4129_pciconf0         - PCI configuration cycles access.\n"
    ),
    "model of topograph": (
        "# two leaves\nswitches:\n  # core\n  sw1:\n    switches:\n    - leaf1\n    - leaf2\n"
        "blocks:\n- switch: leaf1\n  nodes:\n  - n[1-4]\n- switch: leaf2\n  nodes:\n  - n[5-8]\n"
    ),
    "output of ethtool, ip or ifconfig": "Settings for eth0:\n\tSupported ports: [ FIBRE ]\n\tSpeed: 100000Mb/s\n",
    "topology.conf or topology.yaml of Slurm": (
        "# leaves\nSwitchName=leaf0 Nodes=n[0-7]\nSwitchName=leaf1 Nodes=n[8-15]\nSwitchName=top Switches=leaf[0-1]\n"
    ),
    "output of lldpcli": "-----------\nLLDP neighbors:\n-----------\nInterface:    eth0, via: LLDP, RID: 1\n",
    "output of ompi_info": "                 Package: Open MPI user@node Distribution\n                Open MPI: 5.0.3\n",
    "profile of mpiP or IPM": "@ mpiP\n@ Command : ./a.out\n@ MPI Task Assignment      : 0 node01\n",
    "output of sinfo, squeue or scontrol": "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ngpu* up 1-00:00:00 8 idle n[0-7]\n",
    "list of settings of NCCL (environment or nccl.conf)": "# nccl.conf\nNCCL_DEBUG=WARN\nNCCL_IB_HCA=mlx5\n",
    "log of a training run": " [2025-01-01 00:00:00] iteration  100/ 5000 | elapsed time per iteration (ms): 52.1 |\n",
    "output of mlxlink, perfquery or show_gids": "\nOperational Info\n----------------\nState : Active\n",
    "log of the kernel or of a service": "[    0.000000] Linux version 5.15.0-1 (gcc 11.3)\n",
    "log of a job (torchrun or Slurm)": "srun: job 12 queued and waiting for resources\n",
    "object of Kubernetes": "apiVersion: v1\nkind: Pod\nmetadata:\n  name: tests\n",
    "text with a matrix of numbers": "us;n0;n1\nn0;0;4,5\nn1;4,6;0\n",
    "web page or picture": "<!DOCTYPE html>\n<html>\n<head><title>a log</title></head>\n",
}  # fmt: skip

#: {kind of file: minimal JSON or TOML text with the fields that identify the kind}.
FIELDS = {
    "graph of networkx in JSON": '{"directed": true, "multigraph": false, "graph": {}, "nodes": [{"id": 0}], "links": []}',
    "schedule": '{"format": "taccl-schedule"}',
    "plan": '{"format": "taccl-plan", "version": 1}',
    "probe": '{"format": "taccl-probe"}',
    "saved topology": '{"format": "taccl-topology"}',
    "output of ncclras in JSON": '{"nccl_version": "2.29.2", "communicators_count": 0, "communicators": []}',
    "list of AWS instances with their network nodes": '{"Instances": [{"InstanceId": "i-1", "NetworkNodes": ["nn-1"]}]}',
    "problem": '{"format": "taccl-problem"}',
    "algorithm of the published TACCL tool": '{"sccl_type": "algorithm"}',
    "timeline": '{"traceEvents": []}',
    "switch job": '{"format": "taccl-switch-job", "version": 1}',
    "plan for MSCCL++": '{"name": "x", "gpus": [], "inplace": true, "protocol": "Simple"}',
    "workload": '{"num_ranks": 2, "operations": []}',
    "placement": '{"before_us": 2, "after_us": 1}',
    "upstream sketch": '{"nnodes": 2}',
    "upstream topology": '{"gpus_per_node": 8}',
    "profile": 'machine = "ndv2"\nsource = "a log"\n[constants]\n',
    "report of `taccl run --json`": (
        '{"collective": "allreduce", "size_bytes": 8, "times": {"median_us": 1.0}, "num_ranks": 2}'
    ),
    "output of nvbandwidth in JSON": (
        '{"nvbandwidth": {"testcases": [{"name": "device_to_device_memcpy_read_ce", "bandwidth_matrix": [["N/A", "390"], '
        '["391", "N/A"]], "bandwidth_description": "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)"}]}}'
    ),
    "output of nccl-tests in JSON": (
        '{"args": ["all_reduce_perf"], "results": ['
        + ", ".join(
            f'{{"size": {size}, "count": {size // 4}, "type": "float", "redop": "sum", "root": "-1", "out_of_place": '
            f'{{"time": {us}, "alg_bw": {size / us / 1e3}, "bus_bw": {1.75 * size / us / 1e3}, "nwrong": 0}}}}'
            for size, us in ((2**20, 40), (2**24, 120), (2**28, 1500))
        )
        + '], "average_bus_bandwidth": {"bandwidth": 1.0}}'
    ),
    "input of TE-CCL": '{"TopologyParams": {"name": "AMD"}, "GurobiParams": {}, "InstanceParams": {"collective": 1}}',
    "schedule of TE-CCL": '{"1-Epoch_Duration": 2.5e-07, "4-Collective_Finish_Time": 1e-06, "6-Flows": []}',
    "output of perftest in JSON": '{"test_info": {"test": "RDMA_Write_BW_Test"}, "results": {}}',
    "trace of PyTorch's profiler": '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}',
    "execution trace of PyTorch": '{"schema": "1.1.1-chakra.0.0.4", "pid": 42, "nodes": [{"id": 2}]}',
    "record of PyTorch's flight recorder": '{"version": "2.4", "entries": [], "pg_config": {}}',
    "Chakra trace in JSON": '{"workload_graph": [{"Id": 1, "NodeType": 7, "Name": "x"}]}',
    "notebook of Jupyter": '{"cells": [], "metadata": {}, "nbformat": 4}',
    "rank table of HCCL": '{"version": "1.0", "server_count": "1", "server_list": []}',
    "file of SCCL or msccl-tools": '{"msccl_type": "algorithm", "name": "Allgather(n=4)"}',
    "system file of ASTRA-sim": '{"scheduling-policy": "LIFO", "preferred-dataset-splits": 4}',
    "memory file of ASTRA-sim": '{"memory-type": "NO_MEMORY_EXPANSION"}',
    "logical topology of ASTRA-sim": '{"logical-dims": ["8", "2"]}',
    "network of ASTRA-sim's first version": '{"topologies-per-dim": ["Ring"], "units-count": [8]}',
    "output of iperf3 in JSON": '{"start": {}, "intervals": [], "end": {}}',
    "answer of a verb with --json": '{"finish_us": 1.0, "digest": "0"}',
    "topology": "schema = 1\n[nics]\n",
    "sketch": "schema = 1\n[routing]\n",
}
