# ruff: noqa: E501  # rows of Markdown tables cannot be broken
"""The words of ``docs/accuracy_runs.md``; its tables are computed."""

__all__ = ["ALL_REDUCE", "BANDS", "HEAD", "ORDINARY", "ORDINARY_HEAD", "SERVERS", "SERVERS_HEAD"]
__all__ += ["SERVERS_TAIL", "WITHOUT"]

HEAD = """\
# Accuracy: measured distributed runs

Written by `make accuracy`; a test fails when it is stale.

Iterations of real synchronous training are predicted from what was measured before the run: layers on one worker
without communication, all-reduces or pushes and pulls on the idle links of the same session, the rate of the links,
and how the job was configured. Runs: PyTorch 2.13 with gloo over TCP between hosts on one virtual switch, links of
100 Mbit/s to 1 Gbit/s, some with a delay, 1 to 8 workers, some unlike (`measurements` and
`measurements_more` in the folder that `PLANNER_DATA` names). In *emulated* runs layers sleep for their time and communication is real; in *real* ones layers
compute, on one core a worker. An error is predicted / measured - 1, of the median of 20 iterations. A prediction
reads nothing of the results. The few constants, though, and what is modelled at all, were settled on these same runs;
what is known of runs without a say in them stands below.

`python -m research.runs` prints every run and every choice, too, and `planner calibrate FOLDER` those of one's own. *Regret*: among measured jobs of one
session that train the same network on the same workers, how much longer the one predicted fastest took than the one
measured fastest; it is the mean over such choices, of which the open jobs hold few.

"""

ALL_REDUCE = """\
## All-reduce

What is modelled, and what two constants are fitted to (traced iterations, and not iteration times), stands in
`models/ddp.py`. The rule for the level of a session's curve was picked by iteration times of these runs, as the best of
51; picked without the session predicted it leaves 0.84% and 1.67%: that is what to expect of other sessions.

## All-reduce: where it fails, and why

- *Links with a delay* make the largest errors of emulated runs: windows of TCP and its state after a pause matter,
  which one curve a session does not hold.
- *Real computing varies.* The worst run (ResNet-18) computed 8 to 19% faster in the job than alone. No input tells.
- *Sending and receiving take from a processor that computes*: 3 to 6 ns of backward pass for every byte, not charged.
- *Caches.* After an exchange the forward pass is up to 18% slower; a hundredth of an iteration at most.

"""

WITHOUT = """\
## All-reduce: what each part is worth

Mean error where one part is left out.

| left out | emulated | real |
| --- | --- | --- |
"""

ORDINARY = """\
## All-reduce: as an ordinary question

`research.runs.questions.to_spec(run)` makes the spec of a run. Seconds of layers hold what the family has no term for:
how late the slowest of equal workers is, copies into buckets, and late waking.

"""

ORDINARY_HEAD = """\
As an ordinary question: *family* is its error, *beside* how far it lies from the prediction above. The last columns are
what `planner plan` predicts for fusion groups of its own choice, which were not run.

| run | family | beside | buckets | best groups | predicted saving |
| --- | --- | --- | --- | --- | --- |
"""

SERVERS = """\
## Parameter servers: what is modelled

`planner/models/exchange.py`: who waits for whom, over duplex links that connections share max-min fairly, as the family
`parameter_server` counts wherever sums do not wait behind a barrier. *Free keys*: a key costs a worker no time. *Family* is `planner predict` of `to_spec(run)`, the ordinary question.

| error | this model | free keys | family |
| --- | --- | --- | --- |
"""

SERVERS_HEAD = """\
| run | this model | free keys | family |
| --- | --- | --- | --- |
"""

SERVERS_TAIL = """\
Constants, and what they were measured from: `ServerConstants` in `planner/calibration/runs.py`.

## Parameter servers: where it fails, and why

- *Large tensors and no barrier* (`alexnet seq`, `vgg16 push greedy`): there are several steady states, up to a third apart. The
  model answers with the one that workers reach whose starts are evenly spread.
- *Eight workers that push and pull at once* (`part128k`): losses and small windows make links slower than fair ones.
- *Where layers compute* (`mlp push`) sending and receiving take from the processor that computes.
- *Acknowledgements queue* (`vgg16 push slice`, unlike workers): a slow worker's pulls get less than their share beside pushes of the others.
"""

BANDS = """\

## Bands of ordinary questions

Between `low` and `high` lies measured / predicted - 1 of one more run with 80%, where the seconds of layers and the rate of
links were measured; `coverage` is the share of runs that lie in the band of all other sessions. Predictions and plans
by a processor a machine on such links (TCP, synchronous, fp32; all-reduce by measured curves) carry the band of their family.

| family | runs | sessions | low | high | coverage |
| --- | --- | --- | --- | --- | --- |
"""
