"""
Topics of documentation
=======================

What 600 functions of NumPy and SciPy say of themselves, and four topics in it. Counts come from scikit-learn; no
document has a label.
"""

import inspect

import matplotlib.pyplot as plt
import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.signal
import scipy.stats
from sklearn.feature_extraction.text import CountVectorizer

import npmdask

modules = (np, np.ma, scipy.linalg, scipy.optimize, scipy.signal, scipy.stats)
told = {inspect.getdoc(getattr(module, name, None)) or "" for module in modules for name in dir(module)}
texts = sorted(text for text in told if len(text) > 400)
counter = CountVectorizer(min_df=10, max_df=0.4, stop_words="english", token_pattern=r"[a-z]{3,}")
counts = counter.fit_transform(texts)
topics = npmdask.Topics(4, random_state=0).fit(counts, vocabulary=counter.get_feature_names_out().tolist())

figure, axes = plt.subplots(1, 4, figsize=(10, 3.4), layout="constrained")
weights = topics.model_.alpha / topics.model_.alpha.sum()
for axis, weight, found in zip(axes, weights, topics.model_.top_words(8), strict=True):
    words, probabilities = zip(*found, strict=True)
    axis.barh(words, probabilities)
    axis.invert_yaxis()
    axis.set_title(f"{weight:.0%} of the words", fontsize=10)
