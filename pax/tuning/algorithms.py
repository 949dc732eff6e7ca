# SPDX-License-Identifier: Apache-2.0
"""Search algorithms: grid, random search, regularized evolution."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

from pax.tuning import interfaces
from pax.tuning.space import Settings, Space
from pax.tuning.trial import Status, Trial

# Returns a mutation of settings.
Mutator = Callable[[Space, Settings, random.Random], Settings]


class Sweeping(interfaces.BaseAlgorithm):
  """Grid search: every combination once; the last constant varies fastest."""

  def __call__(self) -> interfaces.Proposer:
    return _propose_next


class RandomSearch(interfaces.BaseAlgorithm):
  """Samples every constant independently, with replacement.

  Bergstra and Bengio, Random Search for Hyper-Parameter Optimization, JMLR 13
  (2012).
  """

  # Seed of the samples; None: a random one.
  seed: int | None = None

  def __call__(self) -> interfaces.Proposer:
    return functools.partial(_propose_random, self.seed)


def mutate_one(
  space: Space, settings: Settings, rng: random.Random
) -> Settings:
  """Returns `settings` with another value of one decision, chosen at random."""
  decision = rng.choice(space.decisions)
  values = decision.point.values
  if values is None:
    return settings | decision.sample(rng)
  others = [decision.settings(value) for value in values]
  others = [o for o in others if not o.items() <= settings.items()]
  return settings | (rng.choice(others) if others else {})


class RegularizedEvolution(interfaces.BaseAlgorithm):
  """Mutates the best of a random sample of the newest trials.

  Real, Aggarwal, Huang and Le, Regularized Evolution for Image Classifier
  Architecture Search, https://arxiv.org/abs/1802.01548.
  """

  # Returns the child of a parent's settings.
  mutator: Mutator = mutate_one
  # Number of newest trials that are sampled; as many random trials come first.
  population_size: int = 100
  # Number of trials in the sample whose best is the parent.
  tournament_size: int = 10
  # Seed of all choices; None: a random one.
  seed: int | None = None

  def __call__(self) -> interfaces.Proposer:
    return self._evolve

  def _evolve(self, space: Space, trials: Sequence[Trial]) -> Settings:
    alive = [t for t in trials if t.status is Status.DONE]
    alive = alive[-self.population_size :]
    if len(alive) < self.population_size:
      return _propose_random(self.seed, space, trials)
    rng = _rng(self.seed, trials)
    candidates = rng.sample(alive, min(self.tournament_size, len(alive)))
    parent = max(candidates, key=lambda trial: trial.reward or 0.0)
    return self.mutator(space, parent.settings, rng)


def _propose_next(space: Space, trials: Sequence[Trial]) -> Settings | None:
  index = len(trials)
  done = space.size is not None and index >= space.size
  return None if done else space.nth(index)


def _propose_random(
  seed: int | None, space: Space, trials: Sequence[Trial]
) -> Settings:
  return space.sample(_rng(seed, trials))


def _rng(seed: int | None, trials: Sequence[Trial]) -> random.Random:
  """The generator for the trial after `trials`, reproducible with a seed."""
  if seed is None:
    return random.Random()
  return random.Random(f'{seed}/{len(trials)}')
