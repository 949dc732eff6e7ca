# SPDX-License-Identifier: Apache-2.0
"""Inputs that evaluate the tasks of a SeqIO mixture by their own metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from pax.inputs.seqio import lm_features, metrics, outputs, seqio_input, tasks
from praxis import pax_fiddle

MetricType = outputs.MetricType
SeqIOInput = seqio_input.SeqIOInput
FeatureConverter = pax_fiddle.Config[Any] | Any


def get_eval_hparams_for_seqio(
  task_or_mixture_name: Any,
  batch_size: int,
  feature_lengths: Mapping[str, int],
  seed: int,
  metric_type: MetricType,
  split_name: str | Callable[[str], str] = 'validation',
  feature_converter: FeatureConverter | None = None,
  num_infeed_hosts: int = 0,
  use_cached: bool = False,
  shuffle: bool | None = None,
  require_metric_fns: bool = True,
  eval_metrics_retain_task_features: bool = False,
  check_split_exists: bool = False,
  eval_loop_num_batches: int | None = None,
  repeat: bool | None = None,
  reset_for_eval: bool = True,
  pass_entire_feature_lengths: bool = False,
) -> list[pax_fiddle.Config[SeqIOInput]]:
  """Returns the config of an input for each task that has metrics.

  `datasets()` returns those of MetricType.SCORE, `decode_datasets()` those of
  MetricType.PREDICT. An input has the name of its task.

  Args:
    task_or_mixture_name: The task or mixture of SeqIO, or its name.
    batch_size: Number of rows of a batch.
    feature_lengths: Maximum length of 'inputs' and 'targets', in tokens. With
      PREDICT the model gets only the end of the targets.
    seed: Seed of the preprocessors.
    metric_type: The outputs that metrics are computed from.
    split_name: The split, or a function of the name of the task.
    feature_converter: Converts examples to rows; None is
      `LanguageModelFeatures` without packing.
    num_infeed_hosts: Number of hosts that share the data; 0 is set by the job.
    use_cached: Whether to read the offline cache of SeqIO.
    shuffle: Ignored, with a warning if it is True.
    require_metric_fns: Whether to leave out tasks without such metrics.
    eval_metrics_retain_task_features: Whether SCORE uses all of
      `feature_lengths`.
    check_split_exists: Whether to leave out tasks without the split.
    eval_loop_num_batches: Number of batches of an evaluation; None is all.
    repeat: Whether the data repeat.
    reset_for_eval: Whether each evaluation is one epoch.
    pass_entire_feature_lengths: Whether features other than 'inputs' and
      'targets' keep their lengths.

  Raises:
    TypeError: `task_or_mixture_name` is no name, task or mixture.
    ValueError: The metric type is unknown, or a length is missing.
  """
  seqio = tasks.load('get_eval_hparams_for_seqio')
  if isinstance(task_or_mixture_name, str):
    task_or_mixture = tasks.find(seqio, task_or_mixture_name)
  elif isinstance(task_or_mixture_name, seqio.Task | seqio.Mixture):
    task_or_mixture = task_or_mixture_name
  else:
    raise TypeError(
      'task_or_mixture_name must be a seqio.Task, a seqio.Mixture or a name of'
      f' one, got {task_or_mixture_name!r}'
    )
  settings = {
    'is_training': False,
    'reset_for_eval': reset_for_eval,
    'shuffle': shuffle,
    'batch_size': batch_size,
    'num_infeed_hosts': num_infeed_hosts,
    'input_random_seed': seed,
    'eval_loop_num_batches': eval_loop_num_batches,
    'repeat': repeat,
    'use_cached': use_cached,
  }
  if metric_type is MetricType.PREDICT:
    settings['eval_metrics_targets_length'] = _length(
      feature_lengths, 'targets'
    )
  lengths = _task_feature_lengths(
    feature_lengths,
    metric_type,
    eval_metrics_retain_task_features,
    pass_entire_feature_lengths,
  )
  configs = []
  for task in seqio.get_subtasks(task_or_mixture):
    split = outputs.select_split(task.name, split_name)
    if check_split_exists and split not in task.splits:
      logging.warning(
        'Task %s has no split %r and is not evaluated', task.name, split
      )
    elif require_metric_fns and not metrics.has_metrics(
      task, metric_type is MetricType.SCORE
    ):
      logging.warning(
        'Task %s has no metrics of type %s and is not evaluated; set'
        ' require_metric_fns=False to evaluate it nevertheless',
        task.name,
        metric_type.name,
      )
    else:
      configs.append(
        pax_fiddle.Config(
          SeqIOInput,
          name=task.name,
          mixture_or_task=task,
          split_name=split,
          task_feature_lengths=dict(lengths),
          feature_converter=_converter(feature_converter, metric_type, task),
          **settings,
        )
      )
  return configs


def _length(feature_lengths: Mapping[str, int], name: str) -> int:
  if name not in feature_lengths:
    raise ValueError(
      f"feature_lengths must have 'inputs' and 'targets', got"
      f' {dict(feature_lengths)}; add {name!r}'
    )
  return feature_lengths[name]


def _task_feature_lengths(
  feature_lengths: Mapping[str, int],
  metric_type: MetricType,
  retains_all: bool,
  passes_others: bool,
) -> dict[str, int]:
  """Returns the lengths of the features that the model gets.

  Args:
    feature_lengths: The lengths of the task.
    metric_type: The outputs that metrics are computed from.
    retains_all: Whether scores use all lengths.
    passes_others: Whether other features keep their lengths.

  Raises:
    ValueError: The metric type is unknown.
  """
  match metric_type:
    case MetricType.PREDICT:
      # One id of the targets, so that rows end with EOS.
      lengths = {'inputs': _length(feature_lengths, 'inputs'), 'targets': 1}
    case MetricType.SCORE if retains_all:
      return dict(feature_lengths)
    case MetricType.SCORE:
      lengths = {n: _length(feature_lengths, n) for n in ('inputs', 'targets')}
    case _:
      raise ValueError(
        f'metric_type must be one of {list(MetricType)}, got {metric_type!r}'
      )
  return {**feature_lengths, **lengths} if passes_others else lengths


def _converter(
  feature_converter: FeatureConverter | None, metric_type: MetricType, task: Any
) -> FeatureConverter:
  """Returns the feature converter of the input of a task."""
  if feature_converter is None:
    is_score = metric_type is MetricType.SCORE
    return pax_fiddle.Config(
      lm_features.LanguageModelFeatures,
      pack=False,
      # SeqIOInput requires it for all inputs of a task that scores targets.
      weights_on_targets_only=is_score or bool(task.score_metric_fns),
    )
  if isinstance(feature_converter, pax_fiddle.Config):
    return feature_converter.clone()
  logging.warning('feature_converter should be a pax_fiddle.Config')
  return feature_converter
