# SPDX-License-Identifier: Apache-2.0
"""Writers of TensorBoard event files, with the signatures of paxml.

Runs of Pax write through `pax.summaries.writer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from pax import base_metrics
from pax.steps import summary_paths
from pax.summaries import media, model_text, tags, trees_text
from pax.summaries.summary_writer import (
  as_summary_writer,
  default_summary_writer,
)
from praxis import base_layer

SummaryType = base_layer.SummaryType

AUDIO_SUMMARY_SAMPLE_RATE = media.AUDIO_SAMPLE_RATE
MAX_IMAGES_PER_SUMMARY = media.MAX_PER_TAG
MAX_AUDIOS_PER_SUMMARY = media.MAX_PER_TAG
MAX_TEXTS_PER_SUMMARY = media.MAX_PER_TAG


def flatten_summary_dict(
  summary_dict: Mapping[str, Any], parent_key: str | None = None
) -> list[tuple[str, Any]]:
  """Returns (key, value) of nested summaries; keys are concatenated."""
  return list(summary_paths.nested_items(summary_dict, prefix=parent_key or ''))


def get_summary_display_name_from_key(key: str) -> str:
  """Returns a key with the suffix of its base type, without AGGREGATE."""
  return str(tags.of_key(key))


def should_cap_summary(
  summary_tensors: Mapping[str, Sequence[Any]], key: str
) -> bool:
  """Returns whether `key` already holds the most images a summary shows."""
  if base_layer.get_summary_type_from_key(key) is not SummaryType.IMAGE:
    return False
  steps = summary_tensors.get(key)
  if not steps:
    return False
  images_per_step = int(np.prod(steps[0].shape[:-3]))
  return images_per_step * len(steps) >= MAX_IMAGES_PER_SUMMARY


def write_summary_tensor(
  step_i: int,
  key: str,
  tensor: Any,
  summary_type: SummaryType,
  metadata: Any = None,
  sample_rate: int = AUDIO_SUMMARY_SAMPLE_RATE,
) -> bool:
  """Writes a value, or the values of several steps as one summary.

  Scalars are averaged; the newest 64 images, videos, recordings and texts are
  written; numbers form one histogram.

  Args:
    step_i: The step of the summary.
    key: Its tag.
    tensor: The value, or a list of the values of several steps.
    summary_type: The type that decides how values combine.
    metadata: Ignored.
    sample_rate: Samples per second of audio.

  Returns:
    Whether a `SummaryWriter.as_default()` context was open to write to.
  """
  writer = default_summary_writer()
  if writer is None:
    return False
  values = list(tensor) if isinstance(tensor, list | tuple) else [tensor]
  kind = base_layer.get_summary_base_type(summary_type)
  if kind is SummaryType.SCALAR:
    mean = float(np.mean([np.asarray(value) for value in values]))
    writer.write(step_i, {key: mean})
  else:
    newest_first = media.Media(kind, values[-1], sample_rate).on_host()
    for value in reversed(values[:-1]):
      older = media.Media(kind, value, sample_rate).on_host()
      newest_first = media.concatenate(newest_first, older)
    writer.write(step_i, {key: newest_first})
  return True


def write_summary_entry(
  summary_writer: Any,
  step_i: int,
  loss: Any,
  weighted_scalars_list: Mapping[str, Sequence[tuple[Any, Any]]],
  clu_metrics: Any,
  summary_tensors: Mapping[str, Any],
  steps_per_sec: float | None = None,
  metrics_prefix: str = tags.METRICS_PREFIX,
) -> None:
  """Writes the outputs of one or several steps as one entry.

  Args:
    summary_writer: A SummaryWriter, of this library or of TensorFlow.
    step_i: The step of the entry.
    loss: The losses of the steps; the mean is written.
    weighted_scalars_list: (value, weight) of each step by name; the weighted
      mean is written, and the sum of weights.
    clu_metrics: Metrics by name, each with `compute()`.
    summary_tensors: Values by key, or a list with the value of each step.
    steps_per_sec: Training speed.
    metrics_prefix: Prefix of the names of metrics.
  """
  summary_writer = as_summary_writer(summary_writer)
  numbers = {tags.LOSS: float(np.mean(np.asarray(loss)))}
  if steps_per_sec is not None:
    numbers[tags.STEPS_PER_SEC] = float(steps_per_sec)
  for name, pairs in weighted_scalars_list.items():
    # A value of one step may be an array, such as the values of all devices.
    values, weights = (
      np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in column])
      for column in zip(*pairs, strict=True)
    )
    total = weights.sum()
    mean = (values * weights).sum() / max(total, base_metrics.MIN_WEIGHT)
    numbers[f'{metrics_prefix}{name}'] = float(mean)
    numbers[f'{metrics_prefix}{name}-weight'] = float(total)
  for name, metric in (clu_metrics or {}).items():
    numbers[f'{metrics_prefix}{name}'] = float(metric.compute())
  summary_writer.write(step_i, numbers)
  with summary_writer.as_default():
    for key, value in flatten_summary_dict(summary_tensors):
      kind = base_layer.get_summary_type_from_key(key)
      name = get_summary_display_name_from_key(key)
      write_summary_tensor(step_i, name, value, kind)
  summary_writer.flush()
  logging.info('Wrote a summary at step %d: %s', step_i, numbers)


def write_model_structure(
  train_summary_writer: Any,
  train_state: Any,
  is_vars_replicated: bool,
) -> None:
  """Writes the shapes of a state's variables as the text `Model`."""
  text = trees_text.pretty_repr_shapes(train_state.mdl_vars, is_vars_replicated)
  _write_text(train_summary_writer, tags.MODEL, text)


def write_model_provenance(
  train_summary_writer: Any, train_state_provenance: Any
) -> None:
  """Writes the origin of variables and optimizer states, as texts."""
  for tag, tree in (
    (tags.MODEL_PROVENANCE, train_state_provenance.mdl_vars),
    (tags.OPT_PROVENANCE, train_state_provenance.opt_states),
  ):
    text = trees_text.pretty_repr_provenance(tree)
    _write_text(train_summary_writer, tag, text)


def write_total_num_params(
  train_summary_writer: Any, total_num_params: int
) -> None:
  """Writes the number of parameters as a text."""
  text = model_text.spaced(total_num_params)
  _write_text(train_summary_writer, tags.TOTAL_NUM_PARAMS, text)


def write_global_batch_size(
  train_summary_writer: Any, global_batch_size: int
) -> None:
  """Writes the number of rows of the global batch as a text."""
  text = model_text.spaced(global_batch_size)
  _write_text(train_summary_writer, tags.GLOBAL_BATCH_SIZE, text)


def _write_text(writer: Any, tag: str, text: str) -> None:
  writer = as_summary_writer(writer)
  writer.write(0, {tag: media.Media(SummaryType.TEXT, text)})
  writer.flush()
