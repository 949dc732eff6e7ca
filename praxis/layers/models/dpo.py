# SPDX-License-Identifier: Apache-2.0
"""Direct preference optimization (DPO) of a policy against a frozen reference.

With d the log-probability of a response under the policy minus that under the
reference, the loss of a pair of a preferred response w and a dispreferred
response l is -log sigmoid(beta * (d_w - d_l)).

References: Direct Preference Optimization, equation 7,
https://arxiv.org/abs/2305.18290
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, base_model, pax_fiddle
from praxis.layers import embedding_softmax, transformer_models
from praxis.layers.models import (
  dpo_examples,
  frozen,
  sequence_model,
  xent_metrics,
)
from praxis.layers.transformer_models import LanguageModelType
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class LanguageModelDPO(base_model.BaseModel):
  """A decoder-only policy, trained on the pairs of a DPOExample."""

  # The reference; it gets no gradient. None: the policy with the reference's
  # low-rank updates.
  ref_mdl: transformer_models.TransformerLm | None = pax_fiddle.instance_field(
    transformer_models.TransformerLm
  )
  # The policy.
  mdl: transformer_models.TransformerLm = pax_fiddle.instance_field(
    transformer_models.TransformerLm
  )
  # The strength of the KL constraint to the reference.
  beta: float = 0.1
  # Counts the tokens of both responses.
  token_counter: embedding_softmax.TokenCounter = pax_fiddle.instance_field(
    embedding_softmax.TokenCounter
  )
  # Whether pairs are weighted by the batch's eval_sample_weights, [B].
  apply_eval_sample_weights: bool = False
  # The attention pattern of both models.
  model_type: LanguageModelType = LanguageModelType.CAUSAL

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns outputs y_w_ref, y_l_ref, y_w_pi, y_l_pi of `TransformerLm`."""
    pairs = dpo_examples.DPOExample.from_feature_converter(input_batch)
    predictions = NestedMap()
    for name, half in (('y_l', pairs.y_l), ('y_w', pairs.y_w)):
      self.token_counter(half.inputs, half.paddings)
      half.causal_attention_mask = self._causal_mask(half)
      arguments = half.as_xformer_lm_input()
      predictions[f'{name}_ref'] = self._reference_outputs(arguments)
      predictions[f'{name}_pi'] = self.mdl(**arguments)
    return predictions

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, dict[str, Any]]:
    """Returns metrics with total_loss, weighted by the number of pairs, and {}.

    Raises:
      ValueError: the batch has no eval_sample_weights, and they are used.
    """
    weights = None
    if self.apply_eval_sample_weights:
      if 'eval_sample_weights' not in input_batch:
        raise ValueError(
          "a batch needs 'eval_sample_weights' with apply_eval_sample_weights, "
          f'got {sorted(input_batch)}'
        )
      weights = input_batch.eval_sample_weights
    return compute_dpo_loss_helper(self, predictions, weights)

  def _reference_outputs(self, arguments: dict[str, Any]) -> NestedMap:
    network = self.mdl if self.ref_mdl is None else self.ref_mdl
    with frozen.context(applies_reference=self.ref_mdl is None):
      return network(**arguments)

  def _causal_mask(self, half: dpo_examples.DPOExampleHalf) -> Array | None:
    if self.model_type == LanguageModelType.PREFIX:
      if half.inputs_indicator is None:
        raise ValueError(
          "a prefix model needs 'inputs_indicator', got None; add it to the "
          'batch, 1 in the prompt'
        )
      return 1 - half.inputs_indicator
    if self.model_type == LanguageModelType.BIDIRECTIONAL:
      return jnp.zeros_like(half.inputs)
    return None


class SequenceModelDPO(base_model.BaseModel):
  """An encoder-decoder policy, trained on the pairs of a DPOExampleSeq2Seq.

  Batches with src and tgt are evaluated as by `SequenceModel`.
  """

  # Policy and reference.
  model_tpl: LayerTpl = pax_fiddle.template_field(
    transformer_models.TransformerEncoderDecoder
  )
  # The strength of the KL constraint to the reference.
  beta: float = 0.1
  # The label smoothing of training; None: the softmax's own.
  label_smoothing_prob: float | None = None

  def setup(self) -> None:
    model = sequence_model.with_label_smoothing(
      self.model_tpl, self.label_smoothing_prob
    )
    self.create_child('model', model)
    self.create_child('ref_model', model.clone())

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns outputs y_w_ref, y_l_ref, y_w_pi and y_l_pi, or of the policy."""
    if 'src' in input_batch:
      return self.model(**sequence_model.network_inputs(input_batch))
    pairs = dpo_examples.DPOExampleSeq2Seq.from_feature_converter(input_batch)
    predictions = NestedMap()
    for name, half in (('y_l', pairs.y_l), ('y_w', pairs.y_w)):
      arguments = half.as_xformer_encdec_input()
      with frozen.context():
        predictions[f'{name}_ref'] = self.ref_model(**arguments)
      predictions[f'{name}_pi'] = self.model(**arguments)
    return predictions

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, dict[str, Any]]:
    """Returns total_loss, weighted by the number of pairs, and {}."""
    if 'src' in input_batch:
      return xent_metrics.compute_xent_loss_helper(
        predictions, input_batch.tgt, return_predictions=False
      )
    return compute_dpo_loss_helper(self, predictions)


def compute_dpo_loss_helper(
  model: base_model.BaseModel,
  predictions: NestedMap,
  weights: Float[Array, ' B'] | None = None,
) -> tuple[NestedMap, dict[str, Any]]:
  """Returns ({'total_loss': (loss, number of pairs)}, {}).

  With weights also `reward_margin` and `reward_accuracy`, the fraction of the
  pairs whose preferred response has the larger reward.

  Args:
    model: has `beta`; summaries are added to it.
    predictions: y_w_ref, y_l_ref, y_w_pi and y_l_pi, outputs of a softmax.
    weights: of the pairs; None: 1.
  """
  stop_gradient = jax.lax.stop_gradient
  log_p = {
    'y_w_ref': stop_gradient(_log_probability(predictions.y_w_ref)),
    'y_w_pi': _log_probability(predictions.y_w_pi),
    'y_l_ref': stop_gradient(_log_probability(predictions.y_l_ref)),
    'y_l_pi': _log_probability(predictions.y_l_pi),
  }
  rewards = {
    'r_hat_y_w': model.beta * (log_p['y_w_pi'] - log_p['y_w_ref']),
    'r_hat_y_l': model.beta * (log_p['y_l_pi'] - log_p['y_l_ref']),
  }
  margin = rewards['r_hat_y_w'] - rewards['r_hat_y_l']
  has_weights = weights is not None
  if weights is None:
    weights = jnp.ones_like(margin)
  # Those of a bfloat16 model's batch are bfloat16.
  weights = weights.astype(jnp.float32)
  num_pairs = jnp.sum(weights)
  normalized_weights = weights / jnp.where(num_pairs > 0, num_pairs, 1.0)

  def mean(x: Float[Array, ' B']) -> Float[Array, '']:
    return jnp.sum(x * normalized_weights)

  for name, value in log_p.items():
    model.add_summary(f'dpo/{name}_log_p', mean(value))
    add_hist(model, f'dpo/{name}_log_p', value)
  for name, value in (rewards | {'delta_r_hat': margin}).items():
    deviation = jnp.sqrt(mean(jnp.square(value - mean(value))))
    model.add_summary(f'dpo/{name}', mean(value))
    model.add_summary(f'dpo/{name}_std', deviation)
    add_hist(model, f'dpo/{name}', value)
  loss = -mean(jax.nn.log_sigmoid(margin))
  model.add_summary('dpo/dpo_loss', loss)
  model.add_summary(
    '_dpo_topline/p_correct_ranking', mean(jax.nn.sigmoid(margin))
  )
  metrics = NestedMap(total_loss=(loss, num_pairs))
  if has_weights:
    # Unlike summaries, they are means over all batches of an evaluation.
    accuracy = mean((margin > 0).astype(jnp.float32))
    metrics.reward_margin = stop_gradient(mean(margin)), num_pairs
    metrics.reward_accuracy = accuracy, num_pairs
  return metrics, {}


def add_hist(
  layer: base_layer.BaseLayer,
  name: str,
  expression: Array,
  verbosity: int = 2,
) -> None:
  """Adds a histogram summary.

  Args:
    layer: the summary is added to it.
    name: of the summary.
    expression: the values.
    verbosity: of the summary.
  """
  layer.add_summary(
    name,
    expression,
    summary_type=base_layer.SummaryType.HISTOGRAM,
    verbosity=verbosity,
  )


def _log_probability(output: NestedMap) -> Float[Array, ' B']:
  """Returns the log-probability of the labels from a softmax's output.

  Raises:
    ValueError: it is not float32, which DPO needs for stability.
  """
  for name in ('per_example_xent', 'per_sequence_xent'):
    if output[name].dtype != jnp.float32:
      raise ValueError(
        f'{name} must be float32 for DPO, got {output[name].dtype}; let the '
        'softmax compute in float32'
      )
  return -output.per_sequence_xent
