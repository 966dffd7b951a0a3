"""Slurm: a run's shape, sbatch's parameters, submission, the end of a job on its node, states and cancelling."""
