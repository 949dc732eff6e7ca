# SPDX-License-Identifier: Apache-2.0
"""Early stopping functions and search spaces, as users of paxml call them.

Studies themselves are `--study=local`; see pax/studies.
"""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pax import base_experiment
from pax.programs import early_stopping
from pax.programs.early_stopping import is_last_checkpoint as is_last_checkpoint
from pax.programs.program import DecodeProgramOutput, EvalProgramOutput
from pax.tuning import aggregators, space

SUB_EXPERIMENT_STEP_INTERVAL = aggregators.SUB_EXPERIMENT_STEP_OFFSET

_Found = Sequence[dict[str, float] | None] | None


class EvalMetrics(NamedTuple):
  """What evaluations found, in the order of `input_names`."""

  metrics_list: _Found = None
  scoring_metrics_list: _Found = None
  # Batches a second.
  steps_per_sec: float | None = None
  input_names: Sequence[str] | None = None


class DecodeMetrics(NamedTuple):
  """What decoding found, in the order of `input_names`."""

  metrics_list: _Found = None
  processed_metrics_list: _Found = None
  seqio_metrics_list: _Found = None
  # Batches a second.
  steps_per_sec: float | None = None
  input_names: Sequence[str] | None = None


def get_search_space(
  experiment_config: base_experiment.BaseExperiment,
) -> space.Space:
  """Returns the space that the constants of an experiment span."""
  return space.of(type(experiment_config))


def should_early_stop(
  early_stop_fn: early_stopping.EarlyStoppingFn | None,
  global_step: int,
  is_last_ckpt: bool,
  train_weighted_scalars: Mapping[str, Any] | None = None,
  eval_train_metrics: Mapping[str, float] | None = None,
  eval_metrics: EvalMetrics | None = None,
  decode_metrics: DecodeMetrics | None = None,
  num_params: float | None = None,
  train_steps_per_sec: float | None = None,
  checkpoint_path: str | None = None,
) -> bool:
  """Returns what the function says of all this; without one it is False."""
  numbers = {
    'num_params': num_params,
    'train_steps_per_sec': train_steps_per_sec,
  }
  found = early_stopping.Found(
    train=train_weighted_scalars
    if is_last_ckpt or eval_metrics or decode_metrics
    else None,
    eval_train=eval_train_metrics,
    evals=_outputs(EvalProgramOutput, eval_metrics or EvalMetrics()),
    decodes=_outputs(DecodeProgramOutput, decode_metrics or DecodeMetrics()),
    numbers={k: v for k, v in numbers.items() if v is not None},
  )
  if early_stop_fn is None:
    return False
  return early_stopping.ask(
    early_stop_fn, global_step, is_last_ckpt, found, checkpoint_path
  )


def compressed(value: Any) -> str:
  """Returns what JSON can say as a short text."""
  packed = lzma.compress(json.dumps(value).encode())
  return base64.b64encode(packed).decode('ascii')


def uncompressed(str_compressed: str) -> str:
  """Returns the JSON that `compressed` was made of."""
  return lzma.decompress(base64.b64decode(str_compressed)).decode()


# The fields of program outputs, by those of EvalMetrics and DecodeMetrics.
_FIELDS = {
  EvalProgramOutput: {
    'eval_metrics': 'metrics_list',
    'eval_scoring_metrics': 'scoring_metrics_list',
  },
  DecodeProgramOutput: {
    'decode_metrics': 'metrics_list',
    'processed_decode_metrics': 'processed_metrics_list',
    'seqio_metrics': 'seqio_metrics_list',
  },
}


def _outputs(kind: Any, found: Any) -> dict[str, Any]:
  """Returns an output for each input, as programs return them."""
  outputs = {}
  for index, name in enumerate(found.input_names or ()):
    parts = {
      field: values[index]
      for field, theirs in _FIELDS[kind].items()
      if (values := getattr(found, theirs)) is not None
    }
    outputs[name] = kind(None, steps_per_sec=found.steps_per_sec, **parts)
  return outputs
