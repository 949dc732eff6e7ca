# SPDX-License-Identifier: Apache-2.0
"""Results of evaluating a SeqIO input: metrics of its task, and their files."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from pax.files import atomic_file, side_files
from pax.inputs.seqio import outputs as seqio_outputs
from pax.inputs.seqio import seqio_input
from pax.programs import metric_accumulator
from pax.summaries import jsonl, media, metric_records
from pax.summaries.summary_writer import as_summary_writer
from praxis import base_input

MetricType = seqio_outputs.MetricType
# (enumeration id, outputs) of each example.
Outputs = Sequence[tuple[str | None, Any]]

# Part of the tags of metrics before the slash.
_PREFIXES = {
  MetricType.SCORE: seqio_outputs.EVAL_METRICS_PREFIX,
  MetricType.PREDICT: seqio_outputs.DECODE_METRICS_PREFIX,
}


@dataclasses.dataclass(frozen=True)
class SeqIOResults:
  """Metrics of a task from the outputs of one evaluation."""

  # Numbers by name.
  metrics: Mapping[str, float]
  # Numbers, texts, images, recordings and histograms by tag.
  summaries: Mapping[str, float | media.Media]
  # Prompts, decoded texts and targets of all examples.
  text: str = ''
  # The task or mixture; '' without summaries.
  task_name: str = ''


def compute(
  inp: seqio_input.SeqIOInput,
  model_outputs: Outputs,
  metric_type: MetricType,
  verbose_entries: int = 1,
) -> SeqIOResults:
  """Returns the metrics of the task of an input.

  Args:
    inp: The input.
    model_outputs: The outputs of the examples of all hosts, which get fields
      with the targets.
    metric_type: The outputs that metrics are computed from.
    verbose_entries: Number of examples to log.

  Raises:
    ValueError: The metric type is unknown, an example has no output, or a
      metric is neither a number nor a metric value of SeqIO.
  """
  if metric_type not in _PREFIXES:
    raise ValueError(
      f'metric_type must be one of {list(MetricType)}, got {metric_type!r}'
    )
  is_prediction = metric_type is MetricType.PREDICT
  text = io.StringIO()
  values = inp.compute_metrics(
    model_outputs,
    score_metrics=not is_prediction,
    verbose_entries=verbose_entries,
    plain_text_output=text if is_prediction else None,
  )
  prefix = _PREFIXES[metric_type]
  summaries = metric_records.seqio_summaries(values, prefix)
  metrics = {
    tag.removeprefix(f'{prefix}/'): value
    for tag, value in summaries.items()
    if not isinstance(value, media.Media)
  }
  return SeqIOResults(
    metrics, summaries, text.getvalue(), inp.mixture_or_task_inst.name
  )


def compute_for_all_processes(
  inp: base_input.BaseInput,
  model_outputs: Outputs,
  metric_type: MetricType,
  verbose_entries: int = 1,
) -> SeqIOResults | None:
  """Computes on process 0; returns its numbers on all processes.

  All processes call it. The result has summaries and text on process 0 only; it
  is None for an input that does not read SeqIO.

  Args:
    inp: The input.
    model_outputs: The outputs of the examples of all hosts, on process 0.
    metric_type: The outputs that metrics are computed from.
    verbose_entries: Number of examples to log.

  Raises:
    RuntimeError: Process 0 raised an error, which this process did not.
  """
  if not isinstance(inp, seqio_input.SeqIOInput):
    return None
  results, error = SeqIOResults({}, {}), None
  if seqio_outputs.should_process_outputs(inp):
    try:
      results = compute(inp, model_outputs, metric_type, verbose_entries)
    except Exception as e:
      e.add_note(f'Computing metrics of SeqIO of the input {inp.name!r}')
      error = e
  message = f'{type(error).__name__}: {error}' if error else ''
  shared = metric_accumulator.broadcast_json_from_first_process(
    {'metrics': results.metrics, 'error': message}
  )
  if error is not None:
    raise error
  if shared['error']:
    raise RuntimeError(
      f'process 0 could not compute metrics of {inp.name!r}: {shared["error"]}'
    )
  return dataclasses.replace(results, metrics=shared['metrics'])


def write_files(
  results: SeqIOResults,
  step: int,
  output_dir: str | os.PathLike[str],
  plain_text_output_fname: str | os.PathLike[str] | None = None,
) -> None:
  """Appends metrics to `<task>-metrics.jsonl`, and writes the decoded texts.

  Args:
    results: The metrics.
    step: Number of training steps of the state.
    output_dir: The directory of the outputs of the input.
    plain_text_output_fname: File of the decoded texts; None writes none.
  """
  if results.text and plain_text_output_fname is not None:
    path = pathlib.Path(plain_text_output_fname)
    _make_directory(path.parent)
    with atomic_file.open_atomic(path) as file:
      file.write(results.text.encode())
  if not results.summaries:
    return
  directory = _make_directory(pathlib.Path(output_dir))
  file_name = f'{results.task_name}-metrics.jsonl'
  texts = {
    tag.partition('/')[2]: value.value
    for tag, value in results.summaries.items()
    if isinstance(value, media.Media) and isinstance(value.value, str)
  }
  with contextlib.closing(jsonl.Appender(str(directory / file_name))) as file:
    file.append({'step': int(step), **results.metrics, **texts})


def process_outputs(
  inp: base_input.BaseInput,
  model_outputs: Outputs,
  summary_writer: Any,
  metric_type: MetricType,
  step: int,
  output_dir: str | os.PathLike[str],
  verbose_entries: int = 1,
  plain_text_output_fname: str | None = None,
) -> dict[str, float]:
  """Computes metrics of the task of an input, writes and returns them.

  Call it in process 0 only, as `should_process_outputs` decides.

  Args:
    inp: The input, a `SeqIOInput`.
    model_outputs: The outputs of the examples of all hosts, which get fields
      with the targets.
    summary_writer: A SummaryWriter, of this library or of TensorFlow.
    metric_type: The outputs that metrics are computed from.
    step: Number of training steps of the state.
    output_dir: Directory that gets the file `<task>-metrics.jsonl`.
    verbose_entries: Number of examples to log.
    plain_text_output_fname: File of the decoded texts; None writes none.

  Raises:
    ValueError: The input does not read SeqIO.
  """
  if not isinstance(inp, seqio_input.SeqIOInput):
    raise ValueError(
      f'process_outputs needs a SeqIOInput, got {type(inp).__name__}; call it'
      ' if should_process_outputs(inp)'
    )
  results = compute(inp, model_outputs, metric_type, verbose_entries)
  write_files(results, step, output_dir, plain_text_output_fname)
  as_summary_writer(summary_writer).write(int(step), results.summaries)
  logging.info('Step %s, metrics of %s: %s', step, inp.name, results.metrics)
  return dict(results.metrics)


def _make_directory(path: pathlib.Path) -> pathlib.Path:
  """Creates a directory of an input, below one of the job."""
  path = path.absolute()
  side_files.make_directories(path.parent.parent, path.parent.name, path.name)
  return path
