"""What a task of a search costs beside its work: ``python tests/support/pool_overhead.py TASKS WORKERS``.

Every part does nothing. Prints one JSON object: seconds until the workers are there, wall and CPU milliseconds of the
asking process for each part, bytes sent and returned for each.
"""

import json
import sys
import time
from functools import partial

from planner.worker_pool import Origin
from planner.workers.pool import worker_pool

__all__ = ["nothing"]


def nothing(made: int, number: int) -> int:
    """Do nothing."""
    return number


def main(number: int, num_workers: int) -> None:
    """Measure."""
    origin = Origin.of(partial(int, 0))
    with worker_pool(num_workers) as pool:
        if pool is None or origin is None:
            raise SystemExit("two workers or more")
        pool.room()
        at_work: set[int] = set()
        begin_s, begin_cpu_s, sent = time.perf_counter(), time.process_time(), 0
        while sent < number or at_work:
            for _ in range(min(pool.room(), number - sent)):
                at_work.add(pool.submit(nothing, origin, (sent,)))
                sent += 1
            at_work -= {key for key, _ in pool.poll(0.05, at_work)}
        wall_s, cpu_s, counts = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s, pool.counts
    found = {
        "parts": number,
        "workers": num_workers,
        "start_s": counts.start_s,
        "wall_ms": 1e3 * wall_s / number,
        "cpu_ms": 1e3 * cpu_s / number,
        "sent_bytes": counts.sent_bytes / number,
        "returned_bytes": counts.returned_bytes / number,
    }
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3]))
