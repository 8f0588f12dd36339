"""Models made of several runs: topics, mixtures, independent components, singular triplets."""
