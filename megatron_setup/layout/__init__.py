"""The rules of parallel layouts: keys and conditions, the sums, the rows, and the search for the nearest valid layout.

Torch-free. `megatron_setup.parallelism` is its face: the table with hints, the provider's fields, the environment.
"""
