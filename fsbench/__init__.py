"""fsbench: which systems strategies train your sequential recommender fastest, at equal quality, and why."""

__version__ = "0.1.0"
