"""Data with a known answer: planted spectra, samples and tensors."""
