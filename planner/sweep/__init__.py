"""Sweeps: many variants of one question, answered into a store that survives whatever stops them.

``question.load_sweep`` reads the block ``sweep`` of a question, ``store.Store`` is the file, ``engine.answer_sweep``
answers what is not answered yet, ``report.summary_of`` and ``report.export`` read the store.
"""
