"""The choice of the whole layout of a run: tensor, context, expert, data and pipeline parallelism.

A question says the model, the devices and the batch. Every legal layout has a lower bound on its
time and one on its memory; those that can still win are judged by published schedules, the one with
the least bound first, and the best few are given to the solver.
"""
