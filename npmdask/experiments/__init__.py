"""Experiments of the papers: data generators, baselines and figures of Duengler and Sanyal 2025, to be run again."""
