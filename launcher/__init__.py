"""The torch-free half: typed configuration, rules, plan, submission and the run folder."""
