"""Private stochastic PCA: oracles that ask, mechanisms that release, deflation (Duengler and Sanyal 2025). Pure."""
