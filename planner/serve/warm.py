"""Imported by the process from which searches are forked, and by nothing else: they find done what all of them need.

Two small questions are asked, so that modules are imported and tables read.
"""

import gc
from contextlib import suppress

from planner.serve.worker import answer_of

_MACHINES = {"machines": [{"count": 2, "machine": "hgx-h100"}]}

for _dnn in ({"zoo": "resnet50", "global_batch": 256}, {"zoo": "bert-base", "global_batch": 64}):
    with suppress(Exception):  # then searches do by themselves what is missing
        answer_of({"kind": "plan", "question": {"dnn": _dnn, "cluster": _MACHINES}, "time_limit_s": 5.0})
gc.collect()
gc.freeze()  # a collection would copy what is shared
