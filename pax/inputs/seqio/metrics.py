# SPDX-License-Identifier: Apache-2.0
"""Metrics of a SeqIO task from the outputs of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TextIO

import jax
import numpy as np
from absl import logging

from pax.inputs.seqio import tasks
from praxis import py_utils, pytypes

NestedMap = pytypes.NestedMap
# Values by name: numbers, or metric values of SeqIO.
MetricValues = Mapping[str, Any]

# Keys of the outputs of an example: its decoded text, and its score.
PREDICTION = 'decoded_substr'
SCORE = 'scores'

_TARGETS = 'targets'
_PRETOKENIZED = '_pretokenized'
_ID_KEYS = py_utils.ENUM_PROVENANCE_KEYS


class EvaluatedInput(Protocol):
  """An input whose examples have targets, such as `SeqIOInput`."""

  name: str
  feature_converter: Any
  log_preprocessed_targets: bool | None

  @property
  def is_mixture(self) -> bool:
    """Whether it reads a mixture of tasks."""
    ...

  @property
  def mixture_or_task_inst(self) -> Any:
    """The task or mixture of SeqIO."""
    ...

  def targets_by_id(self) -> Mapping[str, NestedMap]:
    """Returns the examples of one evaluation by enumeration id."""
    ...


def has_metrics(task: Any, score_metrics: bool) -> bool:
  """Returns whether a task has metrics of scores, or of decoded texts."""
  return bool(select_metrics(task, score_metrics))


def select_metrics(task: Any, score_metrics: bool) -> list[Any]:
  """Returns the metric objects of scores, or those of decoded texts.

  Args:
    task: The task of SeqIO.
    score_metrics: Whether to return the metrics of scores.

  Raises:
    ValueError: A metric object does not declare the output that it reads.
  """
  types = tasks.load('a metric').metrics.ModelOutputType
  score_types = (types.SCORE, types.SCORE_WITH_INTERMEDIATES)
  selected = []
  for metric in task.metric_objs:
    output_type = getattr(metric, 'model_output_type', None)
    if output_type is None:
      raise ValueError(
        f'metric {metric} of task {task.name!r} must have a'
        ' model_output_type of seqio.metrics.ModelOutputType; got none'
      )
    if (output_type in score_types) == score_metrics:
      selected.append(metric)
  return selected


def compute_metrics(
  inp: EvaluatedInput,
  decoder_outputs: Sequence[tuple[str | None, NestedMap]],
  score_metrics: bool = False,
  verbose_entries: int | None = 0,
  plain_text_output: TextIO | None = None,
) -> list[MetricValues]:
  """Returns the values of each metric of the task of an input.

  The outputs of the examples get the fields `seqio_targets` and
  `seqio_postprocessed_predictions`, or `seqio_postprocessed_targets` and
  `seqio_preprocessed_targets`, if the task defines `postprocess_fn` and the
  input logs targets.

  Args:
    inp: The input.
    decoder_outputs: (enumeration id, outputs) of the examples of all hosts.
    score_metrics: Whether to compute metrics of scores instead of those of
      decoded texts.
    verbose_entries: Number of examples to log.
    plain_text_output: File that receives the decoded texts.

  Returns:
    The values of each metric; none if the task has no such metrics, the input
    reads a mixture or packs rows, or there are no outputs.

  Raises:
    ValueError: An example has no output.
  """
  task = inp.mixture_or_task_inst
  key = SCORE if score_metrics else PREDICTION
  reason = _reason_for_none(inp, decoder_outputs, score_metrics, key)
  if reason:
    logging.warning('No SeqIO metrics of %s: %s', inp.name, reason)
    return []
  outputs = {
    example_id: output
    for example_id, output in decoder_outputs
    if not _is_padding(output)
  }
  targets = inp.targets_by_id()
  _check_ids(inp.name, targets, outputs)
  examples = [
    _Example(task, example_id, target, outputs[example_id], key)
    for example_id, target in targets.items()
  ]
  for example in examples:
    if score_metrics:
      example.annotate_score(inp.log_preprocessed_targets)
    else:
      example.annotate_prediction()
  for index, example in enumerate(examples[: verbose_entries or 0]):
    example.log(index, score_metrics)
  if plain_text_output is not None:
    _write_plain_text(outputs, plain_text_output)
  return [
    _compute(task, metric, examples)
    for metric in select_metrics(task, score_metrics)
  ]


@dataclasses.dataclass(frozen=True)
class _Example:
  """An example of a task and the outputs of the model for it."""

  task: Any
  example_id: str
  # The features of the example.
  target: NestedMap
  # The outputs, which are written to files later.
  output: dict[str, Any]
  # Key of the output that metrics read.
  key: str

  def annotate_score(self, log_preprocessed_targets: bool | None) -> None:
    """Adds the targets that the score belongs to."""
    if self.task.postprocess_fn is not None:
      self.output['seqio_postprocessed_targets'] = _bytes_as_text(
        self.task.postprocess_fn(
          self.target[_TARGETS], example=self.target, is_target=True
        )
      )
    if log_preprocessed_targets:
      self.output['seqio_preprocessed_targets'] = _bytes_as_text(self.target)

  def annotate_prediction(self) -> None:
    """Adds the processed prediction and its target."""
    if self.task.postprocess_fn is None:
      return
    self.output['seqio_targets'] = self.task.postprocess_fn(
      self.target_text(), example=self.target, is_target=True
    )
    self.output['seqio_postprocessed_predictions'] = _bytes_as_text(
      self.task.postprocess_fn(
        self.output[self.key], example=self.target, is_target=False
      )
    )

  def target_text(self) -> str:
    """Returns the text of the targets; '' without targets."""
    text = self.target.get(_TARGETS + _PRETOKENIZED)
    if text is None and _TARGETS in self.target:
      ids = self.target[_TARGETS]
      if np.issubdtype(np.asarray(ids).dtype, np.integer):
        ids = [int(x) for x in np.ravel(ids)]
      text = self.task.output_features[_TARGETS].vocabulary.decode(ids)
    text = '' if text is None else text
    return text.decode() if isinstance(text, bytes) else text

  def log(self, index: int, score_metrics: bool) -> None:
    """Logs the example for inspection."""
    target, output = self.target, self.output[self.key]
    if score_metrics:
      logging.info(
        'Example %d (%s): inputs %r, targets %r, is_correct %s, score %s',
        index,
        self.example_id,
        target.get('inputs' + _PRETOKENIZED),
        target.get(_TARGETS + _PRETOKENIZED),
        target.get('is_correct', 'not a feature'),
        output,
      )
    else:
      logging.info(
        'Example %d (%s): decoded %r, target %r',
        index,
        self.example_id,
        output,
        self.target_text(),
      )


def _reason_for_none(
  inp: EvaluatedInput,
  decoder_outputs: Sequence[tuple[str | None, NestedMap]],
  score_metrics: bool,
  key: str,
) -> str:
  """Returns why metrics of an input cannot be computed, '' if they can.

  Args:
    inp: The input.
    decoder_outputs: The outputs of the examples.
    score_metrics: Whether metrics of scores are wanted.
    key: The key that each output needs.
  """
  task = inp.mixture_or_task_inst
  if inp.is_mixture:
    return (
      f'{task.name!r} is a mixture; evaluate its tasks one by one with'
      ' get_eval_hparams_for_seqio'
    )
  if not has_metrics(task, score_metrics):
    kind = 'scores' if score_metrics else 'decoded texts'
    return f'task {task.name!r} has no metrics of {kind}'
  if getattr(inp.feature_converter, 'pack', False):
    return 'its feature converter has pack=True; set pack=False'
  if not decoder_outputs:
    return 'there are no outputs'
  if key not in decoder_outputs[0][1]:
    return (
      f'the outputs of the model must have {key!r}, got'
      f' {sorted(decoder_outputs[0][1])}'
    )
  return ''


def _check_ids(
  name: str, targets: Mapping[str, Any], outputs: Mapping[str | None, Any]
) -> None:
  """Raises ValueError if a target has no output."""
  missing = [example_id for example_id in targets if example_id not in outputs]
  if not missing:
    return
  if None in outputs:
    raise ValueError(
      f'the outputs of {name!r} have no enumeration ids, so they cannot be'
      f' matched with targets; keep {list(_ID_KEYS)} of the batches'
    )
  raise ValueError(
    f'Example not found in {name} decoder output (key={missing[0]}):'
    f' {len(missing)} of {len(targets)} examples have no output:'
    f' {targets[missing[0]]}; set reset_for_eval=True, which pads the last'
    ' batch, or drop_remainder=False'
  )


def _is_padding(output: Mapping[str, Any]) -> bool:
  """Returns whether an output belongs to a row that pads a batch."""
  return all(key in output and output[key] == -1 for key in _ID_KEYS)


def _write_plain_text(
  outputs: Mapping[str | None, Mapping[str, Any]], file: TextIO
) -> None:
  """Writes prompt, decoded text and target of each output."""
  for output in outputs.values():
    lines = ['---', output.get('prefix', ''), '>>>', output.get(PREDICTION, '')]
    if 'seqio_targets' in output:
      lines += ['REF', output['seqio_targets']]
    print(*lines, sep='\n', file=file)


def _compute(
  task: Any, metric: Any, examples: Sequence[_Example]
) -> MetricValues:
  """Returns the values of a metric object of a task.

  Args:
    task: The task.
    metric: The metric object, or its class.
    examples: The examples with their outputs.
  """
  metrics = tasks.load('a metric').metrics
  types = metrics.ModelOutputType
  model_output: Any = _stack([e.output[e.key] for e in examples])
  features = task.output_features
  if model_output.dtype.kind == 'U':
    features = _with_text_vocabulary(features)
  if metric.model_output_type in (
    types.PREDICTION_WITH_AUX,
    types.SCORE_WITH_INTERMEDIATES,
  ):
    model_output = (model_output, _auxiliary_outputs(examples))
  targets = [example.target for example in examples]
  instance = metric.from_model_output(targets, model_output, features)
  if isinstance(instance, metrics.CollectingMetric):
    values, _ = instance.actual_compute(targets, features)
  else:
    values = instance.compute()
  logging.info('Metrics of task %s: %s', task.name, values)
  return values


def _auxiliary_outputs(examples: Sequence[_Example]) -> dict[str, np.ndarray]:
  """Returns the other numeric outputs that all examples have, [N, ...]."""
  names = [
    name
    for name in examples[0].output
    if name != examples[0].key and all(name in e.output for e in examples)
  ]
  columns = {name: [e.output[name] for e in examples] for name in names}
  return {
    name: _stack(values)
    for name, values in columns.items()
    if all(_is_numeric(value) for value in values)
  }


def _stack(values: Sequence[Any]) -> np.ndarray:
  """Returns values as one array; shorter ones are padded with zeros."""
  arrays = [np.asarray(value) for value in values]
  shapes = {array.shape for array in arrays}
  if len(shapes) == 1:
    return np.stack(arrays)
  # Trailing dimensions that only some have are those of longer values.
  rank = max(array.ndim for array in arrays)
  arrays = [a.reshape(a.shape + (1,) * (rank - a.ndim)) for a in arrays]
  longest = np.max([array.shape for array in arrays], axis=0)
  return np.stack(
    [np.pad(array, [(0, n) for n in longest - array.shape]) for array in arrays]
  )


def _is_numeric(value: Any) -> bool:
  return np.asarray(value).dtype.kind in 'biuf'


def _with_text_vocabulary(features: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns features whose target vocabulary leaves decoded texts as they are.

  Metrics of SeqIO decode ids unless the predictions are one text per example.
  """
  if _TARGETS not in features:
    return features
  feature = features[_TARGETS]
  vocabulary = _TextVocabulary(feature.vocabulary)
  return {
    **features,
    _TARGETS: dataclasses.replace(feature, vocabulary=vocabulary),
  }


class _TextVocabulary:
  """A vocabulary that decodes ids, and leaves texts as they are."""

  def __init__(self, vocabulary: Any):
    self._vocabulary = vocabulary

  def decode(self, ids: Any) -> Any:
    """Returns the text of ids; of texts, the text or a list of them."""
    array = np.asarray(ids)
    if array.dtype.kind == 'U':
      return array.tolist()
    return self._vocabulary.decode(ids)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._vocabulary, name)


def _bytes_as_text(tree: Any) -> Any:
  """Returns a pytree with its bytes as strings."""
  return jax.tree.map(lambda x: x.decode() if isinstance(x, bytes) else x, tree)
