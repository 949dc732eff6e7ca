# SPDX-License-Identifier: Apache-2.0
"""The early stopping function of a trial, which reports its measurements."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import logging

from pax.programs.running_mode import RunningMode
from pax.tuning.early_stopping import EarlyStoppingError
from pax.tuning.interfaces import BaseReward, CrossStepMetricAggregator
from praxis import py_utils


class EarlyStoppingFn:
  """Reports the metrics of one run of a trial to PyGlove.

  The run stops when the trial is complete, or by the early stopping policy of
  the study. Process 0 reports; all processes stop together.
  """

  def __init__(
    self,
    feedback: Any,
    sub_experiment_id: str,
    reward_fn: BaseReward | None,
    cross_step_metric_aggregator: CrossStepMetricAggregator,
    is_metric_reporting_role: bool,
    is_last_experiment: bool,
    tuning_step_start: int,
    treats_early_stopped_trials_as_done: bool,
    train_to_end: bool,
  ):
    """Stores its collaborators.

    Args:
      feedback: The `pg.tuning.Feedback` of the trial.
      sub_experiment_id: Suffix of the names of the metrics; '' is none.
      reward_fn: The objective; None is 0.
      cross_step_metric_aggregator: Reduces the metrics of all steps.
      is_metric_reporting_role: Whether this job reports metrics.
      is_last_experiment: Whether this run completes the trial.
      tuning_step_start: Step of the study at step 0 of the run.
      treats_early_stopped_trials_as_done: Whether a trial that stops early
        keeps its reward; else it is skipped.
      train_to_end: Whether training ignores that no evaluation follows.
    """
    self._feedback = feedback
    self._sub_experiment_id = sub_experiment_id
    self._reward_fn = reward_fn
    self._aggregator = cross_step_metric_aggregator
    self._is_metric_reporting_role = is_metric_reporting_role
    self._is_last_experiment = is_last_experiment
    self._tuning_step_start = tuning_step_start
    self._keeps_stopped_trials = treats_early_stopped_trials_as_done
    self._train_to_end = train_to_end

  @property
  def train_to_end(self) -> bool:
    """Whether training ignores that no evaluation follows."""
    return self._train_to_end

  def __call__(
    self,
    metrics: Mapping[str, float],
    running_mode: RunningMode,
    global_step: int,
    is_last_ckpt: bool,
    checkpoint_path: os.PathLike[str] | str | None,
  ) -> bool:
    """Reports metrics; returns whether the run stops.

    Args:
      metrics: Metrics by name.
      running_mode: The sources of the metrics.
      global_step: Step of the run.
      is_last_ckpt: Whether no metrics follow.
      checkpoint_path: The checkpoint of the step.
    """
    step = self._tuning_step_start + global_step
    path = None if checkpoint_path is None else str(checkpoint_path)
    if self._is_metric_reporting_role:
      has_eval = running_mode.has_eval or running_mode.has_decode
      if not has_eval and not is_last_ckpt:
        return False
      if has_eval or not self._needs_eval:
        report = lambda: self._report(metrics, step, is_last_ckpt, path)
      else:
        report = lambda: self._complete_without_eval(step, path)
      self._run_on_process_0(report, step)
    return self._should_stop()

  @property
  def _needs_eval(self) -> bool:
    reward = self._reward_fn
    return reward is not None and (reward.needs_eval or reward.needs_decode)

  def _run_on_process_0(self, report: Callable[[], None], step: int) -> None:
    """Reports; all processes wait, so that they stop or go on together."""
    try:
      if jax.process_index() == 0:
        report()
    finally:
      py_utils.sync_global_devices(
        f'tuning: trial {self._feedback.id}, step {step}'
      )

  def _should_stop(self) -> bool:
    if self._feedback.get_trial().status != 'COMPLETED':
      if not self._feedback.should_stop_early():
        return False
      if jax.process_index() == 0:
        self._end_early(None)
    py_utils.sync_global_devices(f'tuning: end of trial {self._feedback.id}')
    return True

  def _end_early(self, reason: str | None) -> None:
    """Completes the trial with the measurements so far, or skips it."""
    trial = self._feedback.get_trial()
    if self._keeps_stopped_trials and trial.measurements:
      self._feedback.done()
    else:
      self._feedback.skip(reason)

  def _complete_without_eval(self, step: int, path: str | None) -> None:
    """Ends a trial whose last step has no metrics that the reward needs."""
    if not self._feedback.get_trial().measurements:
      self._feedback.skip(
        'No eval/decode has taken place before training ended. '
        f'(trial={self._feedback.id}, step={step - self._tuning_step_start})'
      )
    elif self._is_last_experiment:
      self._complete(step + 1, path)

  def _report(
    self,
    metrics: Mapping[str, float],
    step: int,
    is_last: bool,
    path: str | None,
  ) -> None:
    """Adds a measurement, and completes the trial with its last."""
    if self._sub_experiment_id:
      suffix = f':{self._sub_experiment_id}'
      metrics = {f'{name}{suffix}': value for name, value in metrics.items()}
    try:
      self._add_measurement(metrics, step, path)
      if is_last and self._is_last_experiment:
        self._complete(step + 1, path)
    except EarlyStoppingError as error:
      logging.info('trial %d stops early: %s', self._feedback.id, error)
      # A trial that is not skipped has a step.
      if error.skip or error.step is None:
        self._end_early(error.skip_reason or 'Unknown.')
        return
      reward = error.reward
      if reward is None:
        reward = self._reward(error.metrics or {}, error.step)
      self._feedback.add_measurement(
        reward,
        step=error.step,
        metrics=error.metrics,
        checkpoint_path=error.checkpoint,
      )
      self._feedback.done()

  def _reward(self, metrics: Mapping[str, float], step: int) -> float:
    if self._reward_fn is None:
      return 0.0
    return self._reward_fn(dict(metrics), step)

  def _add_measurement(
    self, metrics: Mapping[str, float], step: int, path: str | None
  ) -> None:
    """Adds the reward of metrics, and those that it is computed from.

    Raises:
      FloatingPointError: The reward is NaN.
    """
    reward = self._reward(metrics, step)
    if math.isnan(reward):
      raise FloatingPointError(
        f'the reward of trial {self._feedback.id} at step {step} is NaN; set '
        'reward_for_nan to give such trials a reward'
      )
    used = dict(metrics)
    if self._reward_fn is not None:
      used = {
        name: value
        for metric in self._reward_fn.used_metrics
        for name, value in metric.match_items(metrics)
      }
    self._feedback.add_measurement(
      reward, metrics=used, step=step, checkpoint_path=path
    )
    logging.info(
      'trial %d, step %d: reward %f of %s',
      self._feedback.id,
      step,
      reward,
      used,
    )

  def _complete(self, step: int, path: str | None) -> None:
    """Adds the measurement of the whole trial, and completes it."""
    history = [
      (m.step, dict(m.metrics) | {'reward': m.reward})
      for m in self._feedback.get_trial().measurements
    ]
    metrics = dict(self._aggregator(history))
    metrics.pop('reward', None)
    self._add_measurement(metrics, step, path)
    self._feedback.done()
