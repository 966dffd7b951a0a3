"""The node's self-test: in seconds, before an experiment, do this machine's kernels do what zero-KL stands on?

`table` is the table, `runner` runs it. It needs no model and no ranks: only shapes, and the kernels in force.
"""
