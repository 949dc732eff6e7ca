# SPDX-License-Identifier: Apache-2.0
"""Steps that leave the train state unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax import train_states
from pax.steps import forward as forward_lib
from pax.steps import gathered_weights, replicas
from pax.steps.step_settings import StepSettings
from pax.steps.step_types import Batch, StepFnOutput
from pax.train_states import Variables
from praxis import base_model, py_utils, pytypes
from praxis.decoding import hparams as decoding

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap
TrainState = train_states.TrainState


def eval_step(
  settings: StepSettings, state: TrainState, batch: Batch, key: jax.Array
) -> StepFnOutput:
  """Returns loss, metrics and per-example outputs of the model on a batch.

  Provenance entries of the batch, which identify examples, are copied to the
  per-example outputs.

  Args:
    settings: The task whose model is evaluated, and where it runs.
    state: The train state; optimizer states may be absent.
    batch: The global batch; over replicas the batch of one.
    key: PRNG key of the job; `state.step` is folded in.
  """
  task, axis_name = settings.task, settings.axis_name
  key = jax.random.fold_in(key, state.step)
  provenance, batch = _split_provenance(batch)
  with forward_lib.context(task, do_eval=True):
    outputs = forward_lib.forward(
      settings,
      state.mdl_vars,
      batch,
      forward_lib.make_rngs(key, axis_name),
      mutable=task.evaluate.apply_mutable_list,
    )
  summaries = forward_lib.layer_summaries(outputs.updated_vars)
  return StepFnOutput(
    loss=outputs.mean_loss,
    weighted_scalars=replicas.mean_scalars(outputs.weighted_scalars, axis_name),
    per_example_out=NestedMap({**outputs.per_example_out, **provenance}),
    summary_tensors=replicas.mean_summaries(summaries, axis_name),
    clu_metrics=replicas.reduce_clu_metrics(outputs.clu_metrics, axis_name),
  )


def score_step(
  settings: StepSettings, state: TrainState, batch: Batch, key: jax.Array
) -> StepFnOutput:
  """Returns log-probabilities of the labels of a batch, without a loss.

  Args:
    settings: The task whose model predicts, and where it runs.
    state: The train state; optimizer states may be absent.
    batch: The global batch; over replicas the batch of one. Its weights [B, T]
      are 1 for the labels that count, and 0 for others.
    key: PRNG key of the job; `state.step` is folded in.

  Returns:
    Outputs per example: `log_probs`, the sum over the labels that count, in
    nats, and `is_greedy`, whether each is the most probable one.
  """
  predictions = _predictions(settings, state, batch, key)
  is_best = predictions.per_example_argmax == batch.labels
  return StepFnOutput(
    loss=None,
    weighted_scalars=NestedMap(),
    per_example_out=NestedMap(
      log_probs=-predictions.per_sequence_xent,
      is_greedy=jnp.all(is_best | (batch.weights == 0), axis=-1),
    ),
    summary_tensors={},
  )


def token_log_probs_step(
  settings: StepSettings, state: TrainState, batch: Batch, key: jax.Array
) -> StepFnOutput:
  """Returns the log-probability of each label of a batch, without a loss.

  Args:
    settings: The task whose model has `token_log_probs`, a LanguageModelGRPO,
      and where it runs.
    state: The train state; optimizer states may be absent.
    batch: The global batch; over replicas the batch of one.
    key: PRNG key of the job; `state.step` is folded in.

  Returns:
    Outputs per example: `token_log_probs`, [B, T], in nats.
  """
  log_probs = _predictions(
    settings, state, batch, key, method='token_log_probs'
  )
  return StepFnOutput(
    loss=None,
    weighted_scalars=NestedMap(),
    per_example_out=NestedMap(token_log_probs=log_probs),
    summary_tensors={},
  )


def decode_step(
  settings: StepSettings,
  state: TrainState,
  batch: Batch,
  key: jax.Array,
  decoder_tpl: decoding.DecoderHParams | None = None,
) -> StepFnOutput:
  """Returns the output of `model.decode` on a batch, without a loss.

  Metrics are those of `task.metrics` over the replicas.

  Args:
    settings: The task whose model decodes, and where it runs.
    state: The train state; optimizer states may be absent.
    batch: The global batch; over replicas the batch of one.
    key: PRNG key of the job; `state.step` is folded in.
    decoder_tpl: Settings of decoding; None is those of the model.
  """
  task, axis_name = settings.task, settings.axis_name
  model = task.model
  if decoder_tpl is not None:
    model = model.clone(decoder_tpl=decoder_tpl)
  key = jax.random.fold_in(key, state.step)
  mdl_vars = gathered_weights.gather_weights(settings, state.mdl_vars)
  mdl_vars, batch = forward_lib.cast_inputs(settings, mdl_vars, batch)
  with forward_lib.context(task, do_eval=True):
    (metrics, per_example_out, more_metrics), updated_vars = apply_decoder(
      model,
      mdl_vars,
      batch,
      forward_lib.make_rngs(key, axis_name),
      mutable=task.decode.apply_mutable_list,
    )
  scalars, clu_metrics = forward_lib.split_metrics({**metrics, **more_metrics})
  summaries = forward_lib.layer_summaries(updated_vars)
  return StepFnOutput(
    loss=None,
    weighted_scalars=task.metrics_aggregator.aggregate(scalars)
    if axis_name
    else scalars,
    per_example_out=per_example_out,
    summary_tensors=replicas.mean_summaries(summaries, axis_name),
    clu_metrics=replicas.reduce_clu_metrics(clu_metrics, axis_name),
  )


def apply_decoder(
  model: base_model.BaseModel,
  mdl_vars: Variables[JTensor],
  batch: Batch,
  rngs: dict[str, jax.Array],
  *,
  mutable: Sequence[str],
  method: str = 'decode',
) -> tuple[tuple[Any, NestedMap, Mapping[str, Any]], Variables[JTensor]]:
  """Returns metrics, outputs per example, more metrics; and updated variables.

  Provenance entries of the batch, which identify examples, are copied to the
  outputs per example.

  Args:
    model: The model.
    mdl_vars: Variables by collection.
    batch: The global batch; over replicas the batch of one.
    rngs: PRNG keys of `make_rngs`.
    mutable: Variable collections that the model may update.
    method: Name of the method of the model.
  """
  provenance, batch = _split_provenance(batch)
  (metrics, per_example_out, *more_metrics), updated_vars = model.apply(
    mdl_vars, batch, method=method, mutable=list(mutable), rngs=rngs
  )
  per_example_out = NestedMap({**per_example_out, **provenance})
  more_metrics = more_metrics[0] if more_metrics else {}
  return (metrics, per_example_out, more_metrics), dict(updated_vars)


def infer_step(
  settings: StepSettings, state: TrainState, batch: Batch, key: jax.Array
) -> NestedMap:
  """Returns the inference runner's outputs, one row per example.

  Args:
    settings: The task with the inference runner, and where it runs.
    state: The train state; optimizer states may be absent.
    batch: The global batch; over replicas the batch of one.
    key: PRNG key of the batch.
  """
  key = forward_lib.replica_key(key, settings.axis_name)
  mdl_vars = gathered_weights.gather_weights(settings, state.mdl_vars)
  state = state.replace(mdl_vars=mdl_vars)
  with forward_lib.context(settings.task, do_eval=True):
    return settings.task.inference_runner.infer(
      state, key, settings.var_weight_hparams, batch
    )


def _predictions(
  settings: StepSettings,
  state: TrainState,
  batch: Batch,
  key: jax.Array,
  *,
  method: str = 'compute_predictions',
) -> Any:
  """Returns what a method of the model returns for a batch in evaluation."""
  key = jax.random.fold_in(key, state.step)
  mdl_vars, batch = forward_lib.cast_inputs(settings, state.mdl_vars, batch)
  with forward_lib.context(settings.task, do_eval=True):
    predictions, _ = settings.task.model.apply(
      mdl_vars,
      batch,
      method=method,
      mutable=list(settings.task.evaluate.apply_mutable_list),
      rngs=forward_lib.make_rngs(key, settings.axis_name),
    )
  return predictions


def _split_provenance(batch: Batch) -> tuple[NestedMap, Batch]:
  """Returns the provenance entries and the other entries of a batch."""
  if not isinstance(batch, Mapping):
    return NestedMap(), batch
  return py_utils.filter_by_matching_keys(batch, [py_utils.PROVENANCE_PREFIX])
