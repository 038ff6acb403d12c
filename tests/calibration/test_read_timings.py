"""Timings of collectives are read from tables and from what benchmarks print; what is wrong is named with its line."""

from pathlib import Path

import pytest

from planner.calibration.benchmarks import is_nccl, is_osu, read_nccl, read_osu
from planner.calibration.tables import grouped, read_table_timings, template
from planner.errors import SpecError

# Of our own making, in the format of NVIDIA/nccl-tests, src/common.cu: as in nebius/soperator pull request 428 (new) and
# in NVIDIA/nccl-tests issue 107 (old, without Group and root, "error" for the last column).
NEW = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 16777216 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1887 on   worker-1 device  0 [0x8d] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1888 on   worker-1 device  1 [0x91] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   1885 on   worker-0 device  0 [0x8d] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   1886 on   worker-0 device  1 [0x91] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    52.43   20.00   30.00      0    51.00   20.56   30.84      0
     4194304       1048576     float     sum      -1    104.9   40.00   60.00      0    104.0   40.33   60.49    N/A
    16777216       4194304     float     sum      -1    335.5   50.01   75.01      0    334.0   50.23   75.35      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 55.0033
"""
OLD = """\
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   1320 on       host device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  1 Pid   1320 on       host device  1 [0x00] Tesla V100-SXM2-16GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0   float     sum     9.20    0.00    0.00  0e+00     9.10    0.00    0.00  0e+00
     1048576        262144   float     sum    52.43   20.00   20.00  4e-07    51.00   20.56   20.56  4e-07
     2097152        524288   float     sum    70.00   29.96   29.96  4e-07    69.00   30.39   30.39  4e-07
     4194304       1048576   float     sum    104.9   40.00   40.00  4e-07    104.0   40.33   40.33  4e-07
"""
# In the format of osu-micro-benchmarks 5 and 7, c/mpi/collective; with -f as in open-mpi/ompi pull request 12318.
OSU = """\

# OSU MPI Allreduce Latency Test v5.4.0
# Size       Avg Latency(us)
4                      31.92
1024                   41.80
1048576              1839.14
"""
OSU_FULL = """\
# OSU MPI-CUDA Reduce Latency Test v7.3
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
1                      53.34             24.80            158.96        1000
4096                   58.17             25.93            167.34         500
"""


def mends(error: pytest.ExceptionInfo[SpecError]) -> str:
    return str(error.value)


def test_new_output_of_nccl_tests_gives_times_out_of_place_ranks_and_hosts() -> None:
    assert is_nccl(NEW)
    rows = read_nccl(Path("all_reduce.txt"), NEW)
    assert [(row.num_devices, row.num_machines, row.collective) for row in rows] == [(4, 2, "all_reduce")] * 3
    assert [row.size_bytes for row in rows] == [2**20, 2**22, 2**24]
    assert [row.time_s for row in rows] == pytest.approx([52.43e-6, 104.9e-6, 335.5e-6])
    assert rows[0].line == 12


def test_old_output_of_nccl_tests_has_no_group_no_root_and_errors_for_wrongs() -> None:
    rows = read_nccl(Path("log.txt"), OLD)
    assert [(row.num_devices, row.num_machines, row.collective) for row in rows] == [(2, 1, "all_reduce")] * 3


def test_a_collective_that_does_not_reduce_is_told_by_its_bus_rate() -> None:
    text = NEW.replace("sum", "none")
    for algorithm, bus, gathered in ((20.00, 30.00, 15.00), (40.00, 60.00, 30.00), (50.01, 75.01, 37.51)):
        text = text.replace(f"{algorithm:.2f}   {bus:.2f}", f"{algorithm:.2f}   {gathered:.2f}")
    assert {row.collective for row in read_nccl(Path("log.txt"), text)} == {"all_gather"}
    assert {row.collective for row in read_nccl(Path("log.txt"), text.replace("none", " sum"))} == {"reduce_scatter"}


def test_several_runs_in_one_text_keep_their_own_ranks() -> None:
    found = read_nccl(Path("both.txt"), NEW + OLD)
    assert [row.num_devices for row in found] == [4, 4, 4, 2, 2, 2]
    assert [row.line for row in found] == [12, 13, 14, 27, 28, 29]


def test_the_collective_that_the_output_names_goes_before_its_rates() -> None:
    named = "# Collective test starting: all_reduce_perf\n" + NEW
    assert {row.collective for row in read_nccl(Path("x.txt"), named)} == {"all_reduce"}
    assert {row.collective for row in read_nccl(Path("broadcast_perf.txt"), NEW)} == {"broadcast"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NEW.replace("52.43 ", "52430 "), "x.txt:12: time: .* contradict each other by a factor of 1000"),
        (NEW.replace("Rank  3", "Rank  2"), "x.txt:7: rank 2 stands twice, on worker-0 .process 1885. and worker-0 .process 1886."),
        (OLD.replace("Rank  1 Pid   1320 on       host", "Rank  0 Pid   1321 on      other"), "x.txt:5: rank 0 stands twice, on host .process 1320. and other"),
        ("\n".join(line for line in NEW.splitlines() if "Rank" not in line), "lists no ranks.*--devices N. Its bus rates look like 4 devices"),
        ("\n".join(line for line in NEW.splitlines() if "Rank  3" not in line), "x.txt:13: busbw is 1.500 of algbw, as of no collective on 3 devices .all_reduce: 1.333."),
        ("# all_reduce_perf\n" + "\n".join(line for line in NEW.splitlines() if "Rank  3" not in line), "busbw is 1.500 of algbw; 3 devices make it 1.333"),
        (NEW.partition("     1048576")[0], "no line of a table"),
        (NEW.replace("52.43 ", " 0.00 "), "x.txt:12: a time of 0.00 us"),
    ],
)  # fmt: skip
def test_output_that_contradicts_itself_is_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read_nccl(Path("x.txt"), text)


def test_ranks_may_be_given_where_the_output_lacks_them_and_must_agree_where_it_has_them() -> None:
    bare = "\n".join(line for line in NEW.splitlines() if "Rank" not in line)
    assert read_nccl(Path("x.txt"), bare, num_devices=4)[0].num_devices == 4
    with pytest.raises(SpecError, match="4 ranks are listed, not 8"):
        read_nccl(Path("x.txt"), NEW, num_devices=8)


def test_output_of_osu_gives_microseconds_and_ranks_come_from_the_name_or_the_command_line() -> None:
    assert is_osu(OSU)
    rows = read_osu(Path("allreduce8.log"), OSU)
    assert [(row.num_devices, row.size_bytes) for row in rows] == [(8, 4), (8, 1024), (8, 2**20)]
    assert [row.time_s for row in rows] == pytest.approx([31.92e-6, 41.80e-6, 1839.14e-6])
    assert read_osu(Path("log.txt"), OSU, num_devices=16)[0].num_devices == 16


def test_full_output_of_osu_gives_iterations_and_names_other_collectives() -> None:
    rows = read_osu(Path("reduce.txt"), OSU_FULL, num_devices=4)
    assert [(row.collective, row.repetitions) for row in rows] == [("reduce", 1000), ("reduce", 500)]


def test_sizes_with_ranks_before_them_are_read_and_must_agree_with_the_name() -> None:
    text = OSU.replace("\n4 ", "\n2,4 ").replace("\n1024", "\n2,1024").replace("\n1048576", "\n2,1048576")
    assert {row.num_devices for row in read_osu(Path("log.txt"), text)} == {2}
    with pytest.raises(SpecError, match=r"allreduce8.log:4: the sizes have 2 before them; expected 8"):
        read_osu(Path("allreduce8.log"), text)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("log.txt", OSU, "number of ranks is not in this format. Give --devices N"),
        ("log-2024-8.txt", OSU, "number of ranks is not in this format"),
        ("r8.txt", OSU.replace("31.92", "nan"), "r8.txt:4: .*finite and more than 0"),
        ("r8.txt", OSU.replace("31.92", "-1"), "r8.txt:4: "),
        ("r8.txt", OSU.replace("31.92", "fast"), "r8.txt:4: .*no line of size and latency"),
        ("r8.txt", OSU.replace("(us)", "(ticks)"), "r8.txt:3: latencies in 'ticks'"),
        ("r8.txt", "# OSU MPI Bandwidth Test v5.4\n# Size Bandwidth (MB/s)\n1 2\n", "not the latency of a collective"),
    ],
)  # fmt: skip
def test_osu_output_that_says_too_little_is_refused(name: str, text: str, words: str) -> None:
    if "Bandwidth" in text:
        text = text.replace("MPI Bandwidth Test", "MPI Something Bandwidth Test")
    with pytest.raises(SpecError, match=words):
        read_osu(Path(name), text)


# -- tables ----------------------------------------------------------------------------------------------------------


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(text)
    return path


def test_the_template_reads_back(tmp_path: Path) -> None:
    rows = read_table_timings(table(tmp_path, template("collectives")))
    assert [(row.collective, row.num_devices, row.num_machines) for row in rows] == [("all_reduce", 8, 1)] * 3
    assert rows[1].time_s == pytest.approx(121e-6)


def test_units_stand_in_the_names_of_columns(tmp_path: Path) -> None:
    text = "collective,num_devices,size_mib,time_us\nallreduce,4,1,250\nall_gather,4,2,100\n"
    one, other = read_table_timings(table(tmp_path, text))
    assert (one.size_bytes, one.collective, other.collective) == (2**20, "all_reduce", "all_gather")
    assert one.time_s == pytest.approx(250e-6)


HEAD = "collective,num_devices,size_bytes,time_s\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("collective,num_devices,size_bytes,time_s,time_us\nall_reduce,4,1,1,1\n", "t.csv:1: time: time_s and time_us are given"),
        ("collective,num_devices,size_bytes,time\nall_reduce,4,1,1\n", "the column 'time_s' is missing. Name it time_s"),
        (HEAD + "all_reduce,4,8,31 us\n", "t.csv:2: time_s: '31 us' is not a number. Write a plain number"),
        (HEAD + "all_reduce,4,8,nan\n", "t.csv:2: time_s: 'nan' is not a finite number"),
        (HEAD + "all_reduce,4,8,0\n", "not more than 0"),
        (HEAD + "all_reduce,4,-8,1\n", "t.csv:2: size_bytes: '-8' is not more than 0"),
        (HEAD + "all_reduce,1,8,1\n", "num_devices: '1' is not at least 2"),
        (HEAD + "all_reduce,2.5,8,1\n", "not a whole number"),
        (HEAD + "shout,4,8,1\n", "unknown collective 'shout'"),
        (HEAD + "all_reduce,4,8\n", "3 cells under 4 columns"),
        (HEAD, "no row below a header"),
        ("collective,num_devices,size_bytes,time_s,mood\nall_reduce,4,8,1,good\n", "unknown column 'mood'"),
        ("collective,num_devices,num_devices,size_bytes,time_s\nall_reduce,4,4,8,1\n", "'num_devices' stands twice"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_is_refused_with_line_and_mend(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read_table_timings(table(tmp_path, text))


def test_microseconds_under_a_header_of_seconds_are_noticed_where_no_link_is_that_slow_or_fast(tmp_path: Path) -> None:
    slow = HEAD + "all_reduce,4,1024,250000\n"
    with pytest.raises(SpecError, match=r"t.csv:2: time: one call of 250000 s is longer than a day"):
        grouped(read_table_timings(table(tmp_path, slow)))
    fast = HEAD.replace("time_s", "time_us") + "all_reduce,4,67108864,0.0043\n"
    with pytest.raises(SpecError, match=r"no link\. Check the unit"):
        grouped(read_table_timings(table(tmp_path, fast)))

    slow = HEAD + "all_reduce,4,1048576,1839.14\n"
    with pytest.raises(SpecError, match=r"t.csv:2: time: 1.04858e\+06 bytes in 1839.14 s are 570 bytes/s: no link"):
        grouped(read_table_timings(table(tmp_path, slow)))


def test_a_rate_beside_a_time_must_agree_with_it(tmp_path: Path) -> None:
    head = "collective,num_devices,size_bytes,time_us,algbw_gb_per_s\n"
    assert len(read_table_timings(table(tmp_path, head + "all_reduce,4,1048576,52.43,20.00\n"))) == 1
    with pytest.raises(
        SpecError, match=r"t.csv:2: algbw_gb_per_s: size over time is 2e\+04 GB/s, not 20: off by a factor of 0.001"
    ):
        read_table_timings(table(tmp_path, head + "all_reduce,4,1048576,0.05243,20.00\n"))


def test_a_table_of_too_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.calibration.tables.MOST_ROWS", 2)
    with pytest.raises(SpecError, match=r"it holds 3 rows, more than 2. Leave out repetitions, or take their median."):
        read_table_timings(table(tmp_path, HEAD + "all_reduce,4,8,1\n" * 3))


def test_groups_are_told_apart_and_repeated_sizes_joined_by_their_median(tmp_path: Path) -> None:
    text = HEAD + (
        "all_reduce,4,1024,0.003\nall_reduce,4,1024,0.001\nall_reduce,4,1024,0.002\n"
        "all_reduce,4,4096,0.001\nall_reduce,8,1024,0.005\nbroadcast,4,1024,0.001\n"
    )
    groups = grouped(read_table_timings(table(tmp_path, text)))
    assert [group.name for group in groups] == [
        "all_reduce on 4 devices",
        "all_reduce on 8 devices",
        "broadcast on 4 devices",
    ]
    assert groups[0].time_s.tolist() == [0.002, 0.001]
    assert "1 size stood several times, up to 3 times apart: the median is taken" in groups[0].notes[0]
    assert "a larger transfer was faster, at most by 50.0% (1024 to 4096 bytes)" in groups[0].notes[1]


def test_the_median_counts_repetitions(tmp_path: Path) -> None:
    text = "collective,num_devices,size_bytes,time_s,repetitions\nall_reduce,4,8,1,1\nall_reduce,4,8,3,5\n"
    assert grouped(read_table_timings(table(tmp_path, text)))[0].time_s.tolist() == [3.0]


# -- what benchmarks print on real machines --------------------------------------------------------------------------


def test_results_that_were_wrong_are_refused_with_their_line() -> None:
    text = NEW.replace("75.01      0 ", "75.01      5 ")
    with pytest.raises(SpecError, match=r"log:14: 5 results of this collective were wrong"):
        read_nccl(Path("log"), text)


def test_what_mpi_says_around_the_table_is_no_part_of_it() -> None:
    text = f"-----\nWARNING: no OpenFabrics device, 2 ports\n-----\n{OSU}[node1:12] 3 more processes have sent help\n"
    plain, found = (read_osu(Path("allreduce8.log"), one) for one in (OSU, text))
    assert [(row.size_bytes, row.time_s) for row in found] == [(row.size_bytes, row.time_s) for row in plain]


def test_a_head_without_a_version_is_read() -> None:
    text = OSU.replace(" v5.4.0", "")
    assert is_osu(text)
    assert len(read_osu(Path("allreduce8.log"), text)) == 3


def test_overlapped_times_of_non_blocking_collectives_are_no_latencies() -> None:
    text = "# OSU MPI Non-blocking Allreduce Latency Test v5.9\n# Overall = Coll. Init + Compute + MPI_Test\n"
    text += "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)\n4  20.5  10.2  10.3  50.0\n"
    with pytest.raises(SpecError, match="not the latency of a blocking collective"):
        read_osu(Path("allreduce8.log"), text)


def test_tail_latencies_are_no_repetitions() -> None:
    text = "# OSU MPI Allreduce Latency Test v7.4\n# Size       Avg Latency(us)    P50 Tail Lat(us)    P90 Tail Lat(us)"
    text += "    P99 Tail Lat(us)\n4  10.0  9.0  11.0  130.0\n"
    (row,) = read_osu(Path("allreduce8.log"), text)
    assert row.repetitions == 1
