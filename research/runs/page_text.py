# ruff: noqa: E501  # rows of Markdown tables cannot be broken
"""The words of ``docs/accuracy_runs.md``; its tables are computed."""

__all__ = ["ALL_REDUCE", "HEAD", "ORDINARY", "RULE", "SERVERS", "SERVERS_TAIL", "WITHOUT"]

HEAD = """\
# Accuracy: measured distributed runs

Written by `make accuracy`; a test fails when it is stale.

Iterations of real synchronous training are predicted from what was measured before the run: layers on one worker
without communication, all-reduces or pushes and pulls on the idle links of the same session, the rate of the links,
and how the job was configured. Runs: PyTorch 2.13 with gloo over TCP between hosts on one virtual switch, links of
100 Mbit/s to 1 Gbit/s, some with a delay, 1 to 8 workers, some unlike (`measurements` in the folder that
`PLANNER_DATA` names). In *emulated* runs layers sleep for their time and communication is real; in *real* ones layers
compute, on one core a worker. An error is predicted / measured - 1, of the median of 20 iterations. A prediction
reads nothing of the results. The few constants, though, and what is modelled at all, were settled on these same runs;
what is known of runs without a say in them stands below.

`planner calibrate FOLDER` prints the same for files of runs of one's own. *Regret*: among measured jobs of one
session that train the same network on the same workers, how much longer the one predicted fastest took than the one
measured fastest; it is the mean over such choices, of which the open jobs hold few.

"""

ALL_REDUCE = """\
## All-reduce: what is modelled

PyTorch's DistributedDataParallel forms buckets in the order in which gradients get ready, and starts an all-reduce
when a bucket is full on every worker. `planner/models/ddp.py`, `ddp_ring.py` and `ddp_curve.py`:

- *The slowest counts.* A bucket starts when the slowest worker has its last gradient. Of n equal workers the slowest
  is late by what n draws of the measured spread make one expect.
- *Two at once take turns.* Gloo sends at most two segments of up to 1 MiB of a collective at a time, and all
  collectives of a process share one connection to each neighbour, first come first served. A small one beside a large
  one waits for two segments of it at every one of its rounds. In runs with two at once the mean error of when a
  bucket ends is 2.2% of an iteration; simulated one after another it is 6.1%. The iteration as a whole hardly
  notices, since the link is as busy.
- *The curve's level* is that of the measurements which are most like training: without pauses, two together, at the
  end of the session. An all-reduce after a pause differs from one in a train by up to a tenth where links have a
  delay, in either direction.
- *Computing* is measured with all workers at once where that is known, since one worker alone on a machine of two
  cores is not in the same place.
- *Copies.* Where gradients are no views of their buckets, each byte is copied in and out.
- *Late waking.* While the link is busy a sleeping layer wakes up later, for every worker on the machine. This is a
  trait of the emulation.

Two constants are fitted, to traced iterations and not to iteration times
(`research/runs/constants_fit.py`).
"""

RULE = """\
The rule for the curve's level was picked by iteration times of these runs: it is the best of 51 that were tried
(weight of trains without pauses, which repeats count, median or mean, how much of the drift), whose mean errors lie
from 0.72% to 1.54% with emulated and from 1.67% to 2.05% with real compute. Picking among the 51 without the session
predicted leaves 0.84% and 1.67%; that is what to expect of other sessions. That search is not part of the package.
What is not charged (below) was decided in sight of all open jobs as well. The rest are measured inputs and gloo's
source.

## All-reduce: where it fails, and why

- *Links with a delay* make the largest errors of emulated runs. In one such session collectives are up to a tenth
  faster in training than the curve of their size, in another up to 15% slower, and iterations of one job vary by 5 to
  7% between the 10th and the 90th percentile: with a delay of 0.5 or 1 ms windows of TCP and its state after a pause
  matter, which one curve a session does not hold.
- *Real computing varies.* The worst run (ResNet-18) computed 8 to 19% faster in the job than alone or beside the
  other worker before: its forward pass took 0.133 s, against 0.144 to 0.165 s. No input tells which of these an
  iteration meets.
- *Sending and receiving take from a processor that computes*: traced iterations show 3 to 6 ns of backward pass for
  every byte. It is not charged. Where communication binds it is hidden; the one run in which it would count is the
  one above.
- *Caches.* After an exchange the forward pass is up to 18% slower than without, and the optimiser's step about 40%; a
  hundredth of an iteration at most, and not modelled.

"""

WITHOUT = """\
## All-reduce: what each part is worth

Mean error where one part is left out.

| left out | emulated | real |
| --- | --- | --- |
"""

ORDINARY = """\
## All-reduce: as an ordinary question

`research.runs.questions.to_spec(run)` makes the spec of a run: layers with measured seconds, machines and link, the
curve, and the buckets that formed as fusion groups. `planner predict` of it leaves out one collective beside another,
workers that are unlike or vary, late waking, and copies. *Family* is its error, *beside* how far it lies from the
prediction above. The last columns are what `planner plan` predicts for fusion groups of its own choice. Those were
not run; they tell what a free choice of groups would save, by the same model that predicts the buckets that formed.

| run | family | beside | buckets | best groups | predicted saving |
| --- | --- | --- | --- | --- | --- |
"""

SERVERS = """\
## Parameter servers: what is modelled

The physics stand in `planner/models/server_fluid.py` (who waits for whom: layers forward, gradients as they
get ready, requests behind pushes, sums, several iterations in which workers may fall apart) and
`planner/models/server_fluid.py` (how connections share links). *Ideal* shares every link max-min fairly
(`planner/models/server_fluid.py`); *family* is `planner predict` of `to_spec(run)`, the ordinary family
`parameter_server`.

| run | this model | ideal links | family |
| --- | --- | --- | --- |
"""

SERVERS_TAIL = """\
What ideal links leave out, and which runs show it:

- *Workers fall apart* (`n2 alexnet seq`). All ask for the sums behind their last push. Who is ahead gets the sum of
  the large layer before the other has asked for it; a connection that starts beside an established one on the same
  host keeps a small share of the link (the sender's stack holds about a millisecond of each connection's own rate
  before the link). So the first worker stays ahead, pushes of one pass beside pulls of the other, and an iteration
  takes 1.18 s instead of 1.58 s. Both are steady states of the model. The first iterations of workers are spread
  evenly over what the busiest link needs for one, here 0.32 s apart; from 0.15 s on the model is in the faster state,
  as measured.
- *Hand-over* (`vgg16 push greedy`). A server hands a sum to four waiting connections one after the other, each as
  late as a small message takes (by the session's curve). The first stays ahead. Measured iterations vary by 15% here,
  from 1.9 to 2.4 s, and the median is as uncertain.
- *Acknowledgements queue* (`vgg16 push slice`, unlike workers). The slow worker pulls while the others push already;
  its acknowledgements wait behind a window of each in the queue before the server. It gets a window per delay of that
  queue, not the link: 0.44 s instead of 0.36 s.
- *Windows shrink in pauses* (`n8 alexnet part128k`). Pulls begin with small windows after each forward pass, and
  behind the queue of eight pushing workers they grow slowly.

Constants, all of `ServerConstants`, and how far one may move alone before the mean error of the 13 runs (1.0%) rises
by half a point:

| constant | value | interval | from |
| --- | --- | --- | --- |
| window | half the receiver's buffer, 262,144 bytes | 0.4 of it makes the mean 1.6% | Linux, not fitted |
| output before the link | 2^-10 s of twice the connection's rate | not fitted | Linux, `tcp_small_queue_check`, `sk_pacing_shift` |
| first window | 10 segments of 1,448 bytes | not fitted | RFC 6928 |
| `header_bytes` | 66 | not fitted | Ethernet, IP, TCP with time stamps |
| `pause_s`, halves an idle window | 0.03 s | 0.005 to 0.03 s: 0.9 to 1.0%; 0.04 s: 1.4%; 0.2 s, Linux's own: 1.9% | fitted; one run (`part128k`) sets it |
| `stagger_share`, of the busiest link's time over the workers, between first iterations | 1: evenly spread | 0.5 or more | not fitted; at 0.3 one run (`n2 alexnet seq`) is in the slower steady state |
| `key_s`, worker's time per key | 45 us | 0 to more than 45 us | fitted; backward passes were measured 10 to 60 us a key longer |
| `copy_s_per_byte`, where layers compute | 1 ns | 0.5 to 3 ns change the run by 0.6 points | its backward passes were measured 0.8 and 0.9 ns a byte longer |

Rate of the links, latency of a message and hand-over are read from the session's own curves. Choosing `pause_s` among
0.01, 0.03, 0.05 and 0.2 s without the session predicted leaves a mean of 0.9% and a median of 0.8%. But few runs have a
say: `part128k`, and by two points `n2 alexnet seq`. With Linux's own 0.2 s, fitted to nothing, `part128k` is predicted
12% too fast and the mean of the 13 is 1.9%: rather expect that of other sessions. Losses, which the model leaves out
and which that session had most of, may be the real reason for short pauses. Windows do not owe their place to that
constant: with 0.2 s they are better than ideal links (3.5%).

What `overlap` means was measured, too: workers of `push_pull` wait for all sums behind their backward pass and then run
forward as fast as alone; those of `push_pull_forward` wait for nothing there and layer by layer in the forward pass.
Of the seven runs in `measurements_more` five are predicted within 3.3%: `push_pull_forward` 2.2%, `push_pull` 1.5% and
3.3%, `push` with a barrier 0.1% and 0.6%. The two of `push` without a barrier are predicted 12% (`resnet50`) and 39%
(`mlp`, which computes) too slow.

## Parameter servers: where it fails, and why

- `part128k` and its like (eight workers, pushes and pulls at once) hang on that constant, and never settle: the
  model's iterations lie from 2% below to 3% above what was measured, by how workers start and which iteration is
  taken. Where iterations differ by more than 2% the median of twelve is given, and a note says so.
- Runs with large tensors and no barrier have several steady states, up to a third apart. Which one a run is in is a
  property of its noise; the model answers with the one that workers reach whose starts are evenly spread.
- The one run that computes is not enough to fit anything: its errors say little of others.
- No two open runs of a session differ in servers, placement or overlap alone, so that regret cannot be measured on
  them.

## Parameter servers: as an ordinary question

Where a barrier stands between pushes and pulls the family is within 4%; without one it is 8% to 65% too slow, because
it begins pulls after the last push of everybody. Of the physics here it should take over, in this order: pulls of a
sum as soon as it is complete, beside pushes, and the next forward pass layer by layer (the ideal links do that, mean
error 3.5%); iterations that workers begin at different times; a rate by the session's curves. Windows and queues are
worth another 2.3 points in the mean, nearly all of it in runs of several steady states or with eight workers.
"""
