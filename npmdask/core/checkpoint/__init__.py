"""Run stores: what is committed, who may write, how a run goes on after a kill."""
