"""Zero train/generation KL: the recipe's rules, the kernels, the measurement and the report."""
