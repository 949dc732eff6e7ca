# SPDX-License-Identifier: Apache-2.0
"""A language model that learns from the distributions of a teacher."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.layers import transformer_models
from praxis.layers.embedding_softmax import time_chunks, xent
from praxis.layers.models import frozen, language_model, xent_metrics
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class LanguageModelDistillation(language_model.LanguageModel):
  """Learns the labels and the distributions of a frozen teacher.

  The network `lm` is the student, as in a LanguageModel; `teacher_lm` gets no
  gradient. With the weight a, the temperature T and the distributions p of the
  teacher and q of the student at T, the loss of a token is

    (1 - a) * cross entropy + a * T^2 * KL(p || q).

  References:
    Distilling the knowledge in a neural network,
    https://arxiv.org/abs/1503.02531
  """

  # The teacher, which has the vocabulary of the student.
  teacher_lm_tpl: LayerTpl = pax_fiddle.template_field(
    transformer_models.TransformerLm
  )
  # The weight a of the teacher, from 0 to 1.
  distillation_weight: float = 0.5
  # The temperature T of both distributions, above 0.
  temperature: float = 1.0
  # Time steps per chunk of the comparison, which has the logits of both
  # networks in memory.
  chunk_size: int = 128

  def setup(self) -> None:
    super().setup()
    self._check_positive('chunk_size')
    self._check_distillation()
    teacher = self.teacher_lm_tpl.clone().set(
      model_type=self.model_type,
      packed_input=self.lm_tpl.packed_input,
      skip_compute_loss=True,
    )
    self.create_child('teacher_lm', teacher)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the outputs of the student, with those of a comparison.

    They are divergence, KL(p || q) of each token in nats, and teacher_argmax,
    both [B, T].
    """
    predictions = super().compute_predictions(input_batch)
    with frozen.context():
      teacher_activations = self._apply_network(self.teacher_lm, input_batch)
    arrays = (
      predictions.activations,
      jax.lax.stop_gradient(teacher_activations),
      input_batch.ids,
    )
    if not self.lm_tpl.record_activations_in_xent_output:
      del predictions.activations
    comparison = time_chunks.map_chunks(_compare, self, arrays, self.chunk_size)
    return NestedMap(**predictions, **comparison)

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, NestedMap]:
    """Returns metrics with total_loss, and the per-example output.

    The metrics are those of the student, distillation_loss, the mean of
    T^2 * KL(p || q), and teacher_agreement, the share of tokens with the same
    most probable class.
    """
    metrics, per_example = super().compute_loss(predictions, input_batch)
    weights = xent_metrics.label_weights(
      input_batch, self.apply_eval_sample_weights
    ).astype(jnp.float32)
    divergence = xent.weighted_mean(predictions.divergence, weights)
    distillation_loss = self.temperature**2 * divergence
    is_equal = predictions.teacher_argmax == predictions.per_example_argmax
    agreement = xent.weighted_mean(is_equal.astype(jnp.float32), weights)
    loss, weight = metrics.total_loss
    # Auxiliary losses are whole.
    loss += self.distillation_weight * (
      distillation_loss - predictions.avg_xent
    )
    metrics.update(
      total_loss=(loss, weight),
      distillation_loss=(distillation_loss, weight),
      teacher_agreement=(agreement, weight),
    )
    return metrics, per_example

  def _network_tpl(self) -> LayerTpl:
    return super()._network_tpl().set(record_activations_in_xent_output=True)

  def _records_logits(self) -> bool:
    # The gradient of a fused cross entropy includes that of the z-loss, which
    # has another weight.
    z_loss_weight = getattr(self.lm_tpl.softmax_tpl, 'z_loss_weight', 0.0)
    return self.return_predictions or bool(z_loss_weight)

  def _check_distillation(self) -> None:
    """Checks the fields.

    Raises:
      ValueError: one is not in its range, or the vocabularies differ.
    """
    if not 0 <= self.distillation_weight <= 1:
      raise ValueError(
        'distillation_weight must be from 0 to 1, got '
        f'{self.distillation_weight}; 1 learns from the teacher only'
      )
    if not 0 < self.temperature < float('inf'):
      raise ValueError(
        f'temperature must be finite and above 0, got {self.temperature}; 1 '
        'compares the distributions as they are'
      )
    sizes = self.lm_tpl.vocab_size, self.teacher_lm_tpl.vocab_size
    if sizes[0] != sizes[1]:
      raise ValueError(
        'lm_tpl and teacher_lm_tpl must have the same vocab_size, got '
        f'{sizes[0]} and {sizes[1]}; use a teacher with the vocabulary of the '
        'student'
      )


def _compare(
  model: Any,
  activations: Float[Array, 'B T D'],
  teacher_activations: Float[Array, 'B T E'],
  input_ids: Array,
) -> dict[str, Array]:
  """Returns what `compute_predictions` adds, for some time steps."""
  logits = model.lm.softmax.get_logits(activations, input_ids)
  with frozen.context():
    softmax = model.teacher_lm.softmax
    teacher_logits = softmax.get_logits(teacher_activations, input_ids)
  teacher_logits = jax.lax.stop_gradient(teacher_logits)
  log_q, log_p = (
    jax.nn.log_softmax(x.astype(jnp.float32) / model.temperature)
    for x in (logits, teacher_logits)
  )
  _, teacher_argmax = xent.log_z_and_argmax(teacher_logits)
  divergence = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
  return {'divergence': divergence, 'teacher_argmax': teacher_argmax}
