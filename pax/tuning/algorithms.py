# SPDX-License-Identifier: Apache-2.0
"""What to try next: all, at random, or what is near to the best so far."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

from pax.tuning import interfaces
from pax.tuning.space import Settings, Space
from pax.tuning.trial import Status, Trial

# Other settings near those given.
Mutator = Callable[[Space, Settings, random.Random], Settings]


class Sweeping(interfaces.BaseAlgorithm):
  """Tries every combination once; the last constant changes fastest."""

  def __call__(self) -> interfaces.Proposer:
    return _sweep


class RandomSearch(interfaces.BaseAlgorithm):
  """Draws every constant on its own; a combination may come again."""

  # Draws the same again; unset: other settings in every study.
  seed: int | None = None

  def __call__(self) -> interfaces.Proposer:
    return functools.partial(_draw, self.seed)


def mutate_one(
  space: Space, settings: Settings, rng: random.Random
) -> Settings:
  """Returns `settings` with another choice in one decision."""
  decision = rng.choice(space.decisions)
  values = decision.point.values
  if values is None:
    return settings | decision.sample(rng)
  others = [decision.settings(value) for value in values]
  others = [o for o in others if not o.items() <= settings.items()]
  return settings | (rng.choice(others) if others else {})


class RegularizedEvolution(interfaces.BaseAlgorithm):
  """Mutates the best of a sample of the youngest trials.

  Real, Aggarwal, Huang and Le, Regularized Evolution for Image Classifier
  Architecture Search, https://arxiv.org/abs/1802.01548.
  """

  # Makes a child of its parent's settings.
  mutator: Mutator = mutate_one
  # How many of the youngest trials may have children; as many are drawn first.
  population_size: int = 100
  # Of how many the best becomes a parent.
  tournament_size: int = 10
  # Draws the same again; unset: other settings in every study.
  seed: int | None = None

  def __call__(self) -> interfaces.Proposer:
    return self._evolve

  def _evolve(self, space: Space, trials: Sequence[Trial]) -> Settings:
    alive = [t for t in trials if t.status is Status.DONE]
    alive = alive[-self.population_size :]
    if len(alive) < self.population_size:
      return _draw(self.seed, space, trials)
    rng = _rng(self.seed, trials)
    rivals = rng.sample(alive, min(self.tournament_size, len(alive)))
    parent = max(rivals, key=lambda trial: trial.reward)
    return self.mutator(space, parent.settings, rng)


def _sweep(space: Space, trials: Sequence[Trial]) -> Settings | None:
  index = len(trials)
  done = space.size is not None and index >= space.size
  return None if done else space.nth(index)


def _draw(seed: int | None, space: Space, trials: Sequence[Trial]) -> Settings:
  return space.sample(_rng(seed, trials))


def _rng(seed: int | None, trials: Sequence[Trial]) -> random.Random:
  """The source of chance of the trial that comes after `trials`."""
  if seed is None:
    return random.Random()
  return random.Random(f'{seed}/{len(trials)}')
