"""What training a sample costs: measured before a run, or fitted to it. `sources` is what the pipeline asks."""
