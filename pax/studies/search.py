# SPDX-License-Identifier: Apache-2.0
"""A search of an experiment, with its parts built."""

from __future__ import annotations

import dataclasses
from typing import Any

from pax.tuning import (
  aggregators,
  algorithms,
  interfaces,
  metrics,
  optuna_search,
)

# A trial of one run without a sub-experiment.
ONE_RUN = ('',)


@dataclasses.dataclass(frozen=True)
class Search:
  """The parts of a search, built."""

  # The configuration, from `search()` of the experiment.
  hparams: interfaces.SearchHParams
  # Source of metrics: train, eval or decode.
  metrics_from: str
  # Proposes the settings of the next trial.
  propose: interfaces.Proposer
  # The objective to maximize.
  reward: interfaces.BaseReward | None
  # Reduces metrics of steps to those of a trial.
  aggregate: interfaces.CrossStepMetricAggregator
  # Decides whether a trial is stopped early.
  should_stop: interfaces.TrialStopper | None
  # Sub-experiments of a trial, run one after the other.
  sub_experiments: tuple[str, ...] = ONE_RUN

  def shown_values(self, values: dict[str, float]) -> dict[str, float]:
    """Returns the metrics of the reward by name; the losses without one."""
    if self.reward:
      shown = self.reward.used_metrics
    elif self.metrics_from == 'train':
      shown = [metrics.Metric.train('loss')]
    else:
      shown = [metrics.Metric.eval('loss')]
    return {name: v for m in shown for name, v in m.match_items(values)}

  def reward_of(self, metrics: dict[str, float], step: int) -> float:
    """Returns the reward of metrics at a step; 0 without an objective."""
    return self.reward(metrics, step) if self.reward else 0.0

  @classmethod
  def of(
    cls,
    hparams: interfaces.SearchHParams,
    metrics_from: str,
    sub_experiments: tuple[str, ...] = ONE_RUN,
    directory: str = '',
  ) -> Search:
    """Builds the parts.

    Args:
      hparams: the configuration.
      metrics_from: source of metrics: train, eval or decode.
      sub_experiments: ids of the runs of a trial.
      directory: of the study; algorithms of Optuna keep their state in it.

    Raises:
      ValueError: the search needs a service, metrics or a reward that do not
        exist, or a sampler of Optuna.
    """
    if hparams.prior_study_ids or hparams.vizier_service_endpoint:
      raise ValueError(
        'prior_study_ids and vizier_service_endpoint must be None: there is no'
        ' search service to ask'
      )

    def build(config: Any, default: Any = None) -> Any:
      return config.Instantiate() if config is not None else default

    algorithm = build(hparams.search_algorithm, algorithms.Sweeping())
    reward = build(hparams.search_reward)
    last_values = aggregators.LastReportedMetricValues()
    early_stopping = build(hparams.early_stopping)
    source = 'decode' if reward and reward.needs_decode else 'eval'
    needs_more = reward and (reward.needs_eval or reward.needs_decode)
    if needs_more and metrics_from not in (source, 'decode'):
      raise ValueError(
        f'the reward needs --metrics_from={source}, got {metrics_from}'
      )
    _check_optuna(algorithm, early_stopping, reward)
    return cls(
      hparams=hparams,
      metrics_from=metrics_from,
      propose=algorithm.open(directory),
      reward=reward,
      aggregate=build(hparams.cross_step_metric_aggregator, last_values),
      should_stop=early_stopping and early_stopping.open(directory),
      sub_experiments=sub_experiments,
    )


def _check_optuna(
  algorithm: interfaces.BaseAlgorithm,
  early_stopping: interfaces.BaseEarlyStoppingPolicy | None,
  reward: interfaces.BaseReward | None,
) -> None:
  """Checks that samplers and pruners of Optuna have what they need.

  Raises:
    ValueError: a pruner has no sampler, or one of them no reward.
  """
  needs_reward = False
  if isinstance(algorithm, optuna_search.OptunaSearch):
    needs_reward = algorithm.sampler != 'random'
  if isinstance(early_stopping, optuna_search.OptunaPruner):
    needs_reward |= early_stopping.metric is None
    if not isinstance(algorithm, optuna_search.OptunaSearch):
      raise ValueError(
        f'pruner {early_stopping.pruner!r} of Optuna needs a sampler of Optuna,'
        f' got {type(algorithm).__name__}; add --sampler=tpe, or set'
        ' search_algorithm to OptunaSearch'
      )
  if needs_reward and reward is None:
    raise ValueError(
      'samplers and pruners of Optuna need a reward, got search_reward=None;'
      ' set it in search(), or metric= of parameter_sweep'
    )
