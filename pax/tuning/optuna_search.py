# SPDX-License-Identifier: Apache-2.0
"""Samplers and pruners of Optuna as algorithm and early stopping policy.

References:
  Akiba et al., https://arxiv.org/abs/1907.10902
"""

# Optuna imports it by name.
# bazel: deps=@pypi//cmaes
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pax.tuning import interfaces, optuna_study
from pax.tuning.metrics import Metric

SAMPLERS = ('tpe', 'cmaes', 'random')
PRUNERS = ('median', 'halving', 'hyperband')

_REWARD = Metric('reward')


class OptunaSearch(interfaces.BaseAlgorithm):
  """Proposes settings by a sampler of Optuna.

  With several trials at a time, running ones count as bad to TPE, so that new
  ones keep away from them.
  """

  # 'tpe' (https://arxiv.org/abs/2304.11127), 'cmaes'
  # (https://arxiv.org/abs/1604.00772; oneof points are sampled at random), or
  # 'random'.
  sampler: str = 'tpe'
  # Number of random trials before the sampler learns from them.
  num_startup_trials: int = 10
  # Seed of all choices; None: a random one.
  seed: int | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    _check('sampler', self.sampler, SAMPLERS)

  def __call__(self) -> interfaces.Proposer:
    raise ValueError('OptunaSearch needs the directory of the study: open() it')

  def open(self, directory: str) -> interfaces.Proposer:
    study = optuna_study.OptunaStudy(directory)

    def propose(
      space: interfaces.Space, trials: interfaces.Trials
    ) -> interfaces.Settings | None:
      # A sampler for each trial, so that a study that was started again
      # continues as if it had not stopped.
      study.study.sampler = self._make_sampler(len(trials))
      return study.propose(space, trials)

    return propose

  def _make_sampler(self, num_trials: int) -> Any:
    samplers = optuna_study.load_optuna().samplers
    seed = None if self.seed is None else self.seed + num_trials
    if self.sampler == 'random':
      return samplers.RandomSampler(seed=seed)
    if self.sampler == 'tpe':
      return samplers.TPESampler(
        n_startup_trials=self.num_startup_trials, constant_liar=True, seed=seed
      )
    return samplers.CmaEsSampler(
      n_startup_trials=self.num_startup_trials,
      warn_independent_sampling=False,
      seed=seed,
    )


class OptunaPruner(interfaces.BaseEarlyStoppingPolicy):
  """Stops trials by a pruner of Optuna; their sampler must be OptunaSearch."""

  # 'median'; 'halving', asynchronous successive halving
  # (https://arxiv.org/abs/1810.05934); or 'hyperband'
  # (https://arxiv.org/abs/1603.06560).
  pruner: str = 'median'
  # The metric to compare; None: the reward.
  metric: Metric | None = None
  # Whether larger values are better.
  maximize: bool = True
  # 'median': number of trials that are not stopped, at first.
  num_startup_trials: int = 5
  # The first step at which a trial may be stopped.
  min_step: int = 1
  # 'hyperband': the last step of trials; None: that of the first that ended.
  max_step: int | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    _check('pruner', self.pruner, PRUNERS)

  def __call__(self) -> interfaces.Stopper:
    raise ValueError('OptunaPruner needs the directory of the study: open() it')

  def open(self, directory: str) -> interfaces.TrialStopper:
    study = optuna_study.OptunaStudy(directory)
    study.study.pruner = self._make_pruner()
    metric = self.metric or _REWARD

    def should_stop(
      id: int, histories: Mapping[int, interfaces.History]
    ) -> bool:
      sign = 1.0 if self.maximize else -1.0
      values = [
        (step, sign * metric.get_value(metrics))
        for step, metrics in histories[id]
        if metric.match_items(metrics)
      ]
      return bool(values) and study.should_prune(id, values)

    return should_stop

  def _make_pruner(self) -> Any:
    pruners = optuna_study.load_optuna().pruners
    if self.pruner == 'median':
      return pruners.MedianPruner(
        n_startup_trials=self.num_startup_trials, n_warmup_steps=self.min_step
      )
    if self.pruner == 'halving':
      return pruners.SuccessiveHalvingPruner(min_resource=self.min_step)
    return pruners.HyperbandPruner(
      min_resource=self.min_step, max_resource=self.max_step or 'auto'
    )


def _check(name: str, value: str, valid: tuple[str, ...]) -> None:
  if value not in valid:
    raise ValueError(f'{name} must be one of {", ".join(valid)}, got {value!r}')
