"""Scheduled model parallelism: STRADS (Kim et al., EuroSys 2016; Lee et al., NIPS 2014).

Most pipelines of this project divide layers; here the parameters of one model are divided into
blocks that are updated in parallel, and which ones come next is decided while the model trains.
A model gives three functions, `schedule`, `push` and `pull`, and the engine runs them on all ranks:

    sampler = PrioritySampler(rows.shape[1], seed=0)
    model = Lasso(rows, targets, 0.5, group, sampler=sampler, block_size=8, threshold=0.1)
    engine = Engine(model, group, depth=1)
    for _ in range(1000):
        engine.step()
    engine.drain()
"""

from .dependency import DependencyCheck
from .engine import Engine, ScheduledModel
from .lasso import Lasso
from .sampling import PrioritySampler, RoundRobinSampler
from .scheduler import DynamicScheduler, StaticScheduler

__all__ = [
    "DependencyCheck",
    "DynamicScheduler",
    "Engine",
    "Lasso",
    "PrioritySampler",
    "RoundRobinSampler",
    "ScheduledModel",
    "StaticScheduler",
]
