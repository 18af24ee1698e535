"""What each rule of a shared cluster costs and brings, beside Kueue and Slurm re-implemented. Read `__main__.py`."""
