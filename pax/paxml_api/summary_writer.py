# SPDX-License-Identifier: Apache-2.0
"""Writes single entries to the events of one directory, as paxml's code does.

Pax itself writes through `pax.summaries.writer`; programs of users that were
written for paxml call these.
"""

from __future__ import annotations

import collections.abc
import contextlib
import contextvars
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from pax import base_metrics
from pax.summaries import media, model_text, tags, tensorboard, trees_text
from praxis import base_layer

SummaryType = base_layer.SummaryType

AUDIO_SUMMARY_SAMPLE_RATE = media.AUDIO_SAMPLE_RATE
MAX_IMAGES_PER_SUMMARY = media.MAX_PER_TAG
MAX_AUDIOS_PER_SUMMARY = media.MAX_PER_TAG
MAX_TEXTS_PER_SUMMARY = media.MAX_PER_TAG

_default: contextvars.ContextVar[SummaryWriter | None] = contextvars.ContextVar(
  'default summary writer', default=None
)


class SummaryWriter:
  """The events of one directory; None writes nothing."""

  def __init__(self, summary_dir: str | None):
    self._events = None
    if summary_dir is not None:
      folder, self._split = os.path.split(summary_dir.rstrip('/'))
      self._events = tensorboard.TensorBoardWriter(folder)

  @contextlib.contextmanager
  def as_default(self) -> Iterator[SummaryWriter]:
    """While entered, the functions of this module write here."""
    token = _default.set(self)
    try:
      yield self
    finally:
      _default.reset(token)

  def write(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes numbers and media by tag."""
    if self._events is not None:
      self._events.write(step, values, self._split)

  def flush(self) -> None:
    if self._events is not None:
      self._events.flush()

  def close(self) -> None:
    if self._events is not None:
      self._events.close()
      self._events = None


@contextlib.contextmanager
def get_summary_writer(
  summary_dir: str | os.PathLike[str], enable_summary_writer: bool = True
) -> Iterator[SummaryWriter]:
  """Gives the writer of a directory; one that writes nothing where disabled.

  Only the first process writes.
  """
  writes = enable_summary_writer and jax.process_index() == 0
  writer = SummaryWriter(os.fspath(summary_dir) if writes else None)
  try:
    yield writer
  finally:
    writer.close()


def flatten_flax_summaries(
  summary_tensors: Mapping[str, Any],
) -> dict[str, Any]:
  """Returns nested summaries by slash path.

  A list, as repeated layers give, becomes entries numbered before the suffix.
  """
  found = {}
  for key, value in _flat(summary_tensors, '', '/'):
    if isinstance(value, list):
      kind = base_layer.get_summary_type_from_key(key)
      suffix = base_layer.get_summary_type_suffix(kind)
      name = base_layer.trim_summary_type_from_key(key)
      found |= {f'{name}_{i}{suffix}': part for i, part in enumerate(value)}
    else:
      found[key] = value
  return found


def flatten_summary_dict(
  summary_dict: Mapping[str, Any], parent_key: str | None = None
) -> list[tuple[str, Any]]:
  """Returns (key, value) of nested summaries, keys joined by nothing."""
  return list(_flat(summary_dict, parent_key or '', ''))


def get_summary_display_name_from_key(key: str) -> str:
  """Returns a key with the suffix of its plain type: none is AGGREGATE."""
  kind = base_layer.get_summary_base_type(
    base_layer.get_summary_type_from_key(key)
  )
  name = base_layer.trim_summary_type_from_key(key)
  return name + base_layer.get_summary_type_suffix(kind)


def should_cap_summary(
  summary_tensors: Mapping[str, Sequence[Any]], key: str
) -> bool:
  """Whether there are images enough under a key, and more would not show."""
  if base_layer.get_summary_type_from_key(key) is not SummaryType.IMAGE:
    return False
  found = summary_tensors.get(key)
  if not found:
    return False
  per_entry = int(np.prod(found[0].shape[:-3]))
  return per_entry * len(found) >= MAX_IMAGES_PER_SUMMARY


def write_summary_tensor(
  step_i: int,
  key: str,
  tensor: Any,
  summary_type: SummaryType,
  metadata: Any = None,
  sample_rate: int = AUDIO_SUMMARY_SAMPLE_RATE,
) -> bool:
  """Writes a value, or those of several steps as one; says whether it did.

  To be called within `SummaryWriter.as_default()`. Of scalars the mean is
  written, of images, videos, audio and texts the latest 64, of numbers one
  histogram.
  """
  writer = _default.get()
  if writer is None:
    return False
  values = list(tensor) if isinstance(tensor, list | tuple) else [tensor]
  kind = base_layer.get_summary_base_type(summary_type)
  if kind is SummaryType.SCALAR:
    mean = float(np.mean([np.asarray(value) for value in values]))
    writer.write(step_i, {key: mean})
  else:
    found = media.Media(kind, values[-1], sample_rate).on_host()
    for value in reversed(values[:-1]):
      older = media.Media(kind, value, sample_rate).on_host()
      found = media.joined(found, older)
    writer.write(step_i, {key: found})
  return True


def write_summary_entry(
  summary_writer: SummaryWriter,
  step_i: int,
  loss: Any,
  weighted_scalars_list: Mapping[str, Sequence[tuple[Any, Any]]],
  clu_metrics: Any,
  summary_tensors: Mapping[str, Any],
  steps_per_sec: float | None = None,
  metrics_prefix: str = tags.METRICS_PREFIX,
) -> None:
  """Writes what one or several steps gave as one entry.

  Args:
    summary_writer: where to.
    step_i: the step of the entry.
    loss: of the steps; the mean is written.
    weighted_scalars_list: (value, weight) of each step by name; the weighted
      mean is written, and the sum of weights.
    clu_metrics: by name, each with `compute()`.
    summary_tensors: values by key, or those of each step as a list.
    steps_per_sec: the speed.
    metrics_prefix: put before the names of metrics.
  """
  numbers = {tags.LOSS: float(np.mean(np.asarray(loss)))}
  if steps_per_sec is not None:
    numbers[tags.STEPS_PER_SEC] = float(steps_per_sec)
  for name, pairs in weighted_scalars_list.items():
    values, weights = np.asarray(pairs, np.float64).T
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
  train_summary_writer: SummaryWriter,
  train_state: Any,
  is_vars_replicated: bool,
) -> None:
  """Writes the shapes of a state's variables as the text `Model`."""
  text = trees_text.pretty_repr_shapes(train_state.mdl_vars, is_vars_replicated)
  _write_text(train_summary_writer, tags.MODEL, text)


def write_model_provenance(
  train_summary_writer: SummaryWriter, train_state_provenance: Any
) -> None:
  """Writes where variables and optimizer states come from, as texts."""
  for tag, tree in (
    (tags.MODEL_PROVENANCE, train_state_provenance.mdl_vars),
    (tags.OPT_PROVENANCE, train_state_provenance.opt_states),
  ):
    text = trees_text.pretty_repr_provenance(tree)
    _write_text(train_summary_writer, tag, text)


def write_total_num_params(
  train_summary_writer: SummaryWriter, total_num_params: int
) -> None:
  """Writes the number of parameters as a text."""
  text = model_text.spaced(total_num_params)
  _write_text(train_summary_writer, tags.TOTAL_NUM_PARAMS, text)


def write_global_batch_size(
  train_summary_writer: SummaryWriter, global_batch_size: int
) -> None:
  """Writes the rows of a batch of all hosts as a text."""
  text = model_text.spaced(global_batch_size)
  _write_text(train_summary_writer, tags.GLOBAL_BATCH_SIZE, text)


def _write_text(writer: SummaryWriter, tag: str, text: str) -> None:
  writer.write(0, {tag: media.Media(SummaryType.TEXT, text)})
  writer.flush()


def _flat(
  tree: Mapping[str, Any], prefix: str, separator: str
) -> Iterator[tuple[str, Any]]:
  for key, value in tree.items():
    path = f'{prefix}{separator}{key}' if prefix else key
    if isinstance(value, collections.abc.Mapping):
      yield from _flat(value, path, separator)
    else:
      yield path, value
