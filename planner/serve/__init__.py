"""``planner serve``: a local page to ask questions in. Each question is searched in a process of its own.

The page sends fields of a spec (:mod:`~planner.serve.form`); a child process asks :mod:`planner.api` and makes the
report (:mod:`~planner.serve.worker`); :mod:`~planner.serve.searches` holds processes and answers within limits;
:mod:`~planner.serve.app` speaks HTTP, and lets no other page of the browser do so.
"""
