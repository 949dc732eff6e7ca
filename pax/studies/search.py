# SPDX-License-Identifier: Apache-2.0
"""How an experiment is searched, with its parts built."""

from __future__ import annotations

import dataclasses
from typing import Any

from pax.tuning import aggregators, algorithms, interfaces

# A trial of one run, which has no name.
ONE_RUN = ('',)


@dataclasses.dataclass(frozen=True)
class Search:
  """A search whose parts are built."""

  # How, as the experiment says.
  hparams: interfaces.SearchHParams
  # Where metrics are from: train, eval or decode.
  metrics_from: str
  # What to try next.
  propose: interfaces.Proposer
  # What is maximized.
  reward: interfaces.BaseReward | None
  # Metrics of a trial from those of its steps.
  aggregate: interfaces.CrossStepMetricAggregator
  # Which trials end early.
  is_to_stop: interfaces.Stopper | None
  # The runs that a trial consists of, one after the other.
  sub_experiments: tuple[str, ...] = ONE_RUN

  @classmethod
  def of(
    cls,
    hparams: interfaces.SearchHParams,
    metrics_from: str,
    sub_experiments: tuple[str, ...] = ONE_RUN,
  ) -> Search:
    """Builds the parts.

    Raises:
      ValueError: they want metrics or a service that is not there.
    """
    if hparams.prior_study_ids or hparams.vizier_service_endpoint:
      raise ValueError(
        'prior_study_ids and vizier_service_endpoint must be None: there is no'
        ' search service to ask'
      )

    def built(config: Any, usual: Any = None) -> Any:
      return config.Instantiate() if config is not None else usual

    algorithm = built(hparams.search_algorithm, algorithms.Sweeping())
    reward = built(hparams.search_reward)
    last = aggregators.LastReportedMetricValues()
    early = built(hparams.early_stopping)
    wants = 'decode' if reward and reward.needs_decode else 'eval'
    needs_more = reward and (reward.needs_eval or reward.needs_decode)
    if needs_more and metrics_from not in (wants, 'decode'):
      raise ValueError(
        f'the reward wants --metrics_from={wants}, got {metrics_from}'
      )
    return cls(
      hparams=hparams,
      metrics_from=metrics_from,
      propose=algorithm(),
      reward=reward,
      aggregate=built(hparams.cross_step_metric_aggregator, last),
      is_to_stop=early and early(),
      sub_experiments=sub_experiments,
    )
