"""Sweeps (-m): words to points, points judged and priced, then run here in turn or queued as Slurm arrays."""
