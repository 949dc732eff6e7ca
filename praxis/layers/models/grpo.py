# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning of a language model from rewards of its samples."""

from __future__ import annotations

import enum
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from praxis import base_layer, base_model, pax_fiddle, value_domains
from praxis.base_input import rewards as rewards_lib
from praxis.layers.embedding_softmax import time_chunks, xent
from praxis.layers.models import (
  decode_output,
  frozen,
  language_model,
  xent_metrics,
)
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


@enum.unique
class PolicyLossMean(enum.StrEnum):
  """What the mean of the losses of tokens is."""

  # The mean over all tokens of all samples (DAPO, arXiv:2503.14476).
  TOKENS = 'tokens'
  # The mean over samples of the means over their tokens (arXiv:2402.03300).
  SAMPLES = 'samples'
  # The mean over samples of the sums over their tokens, divided by the largest
  # number of tokens of a response (Dr. GRPO, arXiv:2503.20783).
  MAX_LENGTH = 'max_length'


@enum.unique
class RatioLevel(enum.StrEnum):
  """Whose probabilities the ratio of the new and the old policy is of."""

  # Those of tokens (arXiv:2402.03300).
  TOKEN = 'token'
  # The geometric mean over the tokens of a sample (GSPO, arXiv:2507.18071).
  SEQUENCE = 'sequence'


class LanguageModelGRPO(language_model.LanguageModel):
  """Learns by group relative policy optimization from samples with rewards.

  The network `lm` is the policy, as in a LanguageModel. A batch has the fields
  of a LanguageModel's, with weights of 1 for the tokens that the policy has
  sampled; in training also advantages, [B], those of each sample. Samples of an
  older policy have its log-probabilities, old_log_probs [B, T] in nats: then
  the ratio of the probabilities of the new and the old policy is clipped.
  Without them, samples are those of the policy of the step and the ratio is 1.

  In training the log-probabilities of the policy and of the reference are those
  of logits over the temperature of the samples.

  References:
    https://arxiv.org/abs/2402.03300
  """

  FLOAT32_INPUTS: ClassVar[frozenset[str]] = frozenset(
    {'advantages', 'old_log_probs'}
  )

  # Weight of the KL divergence from the frozen reference `ref_lm`, a network
  # like `lm`; 0: there is no reference.
  beta: float = value_domains.field(0.0, ge=0.0)
  # Whether the reference is instead `lm` with the reference's low-rank updates.
  has_low_rank_reference: bool = False
  # What the loss is a mean of.
  loss_mean: PolicyLossMean | str = value_domains.field(
    PolicyLossMean.TOKENS, value_domains.OneOf(tuple(PolicyLossMean))
  )
  # The largest number of tokens of a response, for the loss_mean 'max_length'.
  max_response_len: int | None = value_domains.field(None, ge=1)
  # What is clipped to [1 - clip_ratio_low, 1 + clip_ratio_high].
  ratio_level: RatioLevel | str = value_domains.field(
    RatioLevel.TOKEN, value_domains.OneOf(tuple(RatioLevel))
  )
  clip_ratio_low: float = value_domains.field(0.2, ge=0.0, le=1.0)
  clip_ratio_high: float = value_domains.field(0.2, ge=0.0)
  # That at which the policy has sampled.
  temperature: float = value_domains.field(1.0, gt=0.0)
  # Time steps per chunk of log-probabilities at another temperature than 1,
  # whose logits are in memory.
  chunk_size: int = value_domains.field(128, ge=1)

  def setup(self) -> None:
    super().setup()
    PolicyLossMean(self.loss_mean)
    RatioLevel(self.ratio_level)
    is_by_length = self.loss_mean == PolicyLossMean.MAX_LENGTH
    if is_by_length and not self.max_response_len:
      raise ValueError(
        "loss_mean='max_length' needs max_response_len, got"
        f' {self.max_response_len}; set it to the largest number of tokens of a'
        ' response'
      )
    if self.beta and not self.has_low_rank_reference:
      self.create_child('ref_lm', self._network_tpl())

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the outputs of the policy.

    In training they have also the log-probabilities of the labels,
    `token_log_probs`, and those of the reference, `ref_log_probs`.
    """
    predictions = super().compute_predictions(input_batch)
    if 'advantages' not in input_batch:
      return predictions
    predictions.token_log_probs = self._token_log_probs(
      self.lm, predictions, input_batch
    )
    if self.beta:
      predictions.ref_log_probs = self._reference_log_probs(input_batch)
    return predictions

  def token_log_probs(self, input_batch: NestedMap) -> Float[Array, 'B T']:
    """Returns those of the labels by the policy at the temperature, in nats."""
    predictions = super().compute_predictions(input_batch)
    return self._token_log_probs(self.lm, predictions, input_batch)

  def _reference_log_probs(self, input_batch: NestedMap) -> Float[Array, 'B T']:
    network = self.lm if self.has_low_rank_reference else self.ref_lm
    with frozen.context(applies_reference=self.has_low_rank_reference):
      outputs = self._apply_network(network, input_batch)
      log_probs = self._token_log_probs(network, outputs, input_batch)
    return jax.lax.stop_gradient(log_probs)

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, NestedMap]:
    """Returns metrics with total_loss, and the per-example output.

    Those of a LanguageModel for a batch without advantages.
    """
    metrics, per_example = super().compute_loss(predictions, input_batch)
    if 'advantages' not in input_batch:
      return metrics, per_example
    weights = xent_metrics.label_weights(
      input_batch, self.apply_eval_sample_weights
    ).astype(jnp.float32)
    # Probabilities of other tokens than the sampled ones may overflow.
    sampled = lambda x: jnp.where(weights > 0, x, 0.0)
    log_probs = sampled(predictions.token_log_probs)
    old_log_probs = jax.lax.stop_gradient(log_probs)
    if 'old_log_probs' in input_batch:
      old_log_probs = sampled(input_batch.old_log_probs)
    ratios = self._ratios(log_probs - old_log_probs, weights)
    advantages = input_batch.advantages[:, jnp.newaxis]
    gains = advantages * ratios
    clipped_gains = advantages * jnp.clip(
      ratios, 1.0 - self.clip_ratio_low, 1.0 + self.clip_ratio_high
    )
    losses = -jnp.minimum(gains, clipped_gains)
    if 'old_log_probs' in input_batch:
      is_clipped = (clipped_gains < gains).astype(jnp.float32)
      metrics.clipped_fraction = _weighted_mean(is_clipped, weights)
      divergence = kl_estimate(old_log_probs, log_probs)
      metrics.old_policy_kl = _weighted_mean(divergence, weights)
    if self.beta:
      divergence = kl_estimate(log_probs, sampled(predictions.ref_log_probs))
      losses += self.beta * divergence
      metrics.kl = _weighted_mean(divergence, weights)
    loss, weight = self._mean(losses, weights, input_batch)
    metrics.policy_loss = loss, weight
    metrics.total_loss = loss + predictions.aux_loss, weight
    return metrics, per_example

  def process_decode_out(
    self, input_obj: Any, decode_out: NestedMap
  ) -> base_model.ProcessDecodeOut:
    """Detokenizes decoded ids; an input of RewardedPrompts rewards them.

    Results then have also `rewards`, and metrics the mean of each.

    Args:
      input_obj: has the vocabulary, and perhaps the rewards.
      decode_out: the output of `decode`, with prompt_index, [B].
    """
    metrics, pairs, more = super().process_decode_out(input_obj, decode_out)
    if not isinstance(input_obj, rewards_lib.RewardedPrompts) or not pairs:
      return metrics, pairs, more
    rows = decode_output.non_padding_rows(decode_out)
    rewards = input_obj.rewards(
      np.asarray(decode_out.prompt_index)[rows],
      [result.decoded_substr for _, result in pairs],
    )
    num_samples = np.float32(len(pairs))
    for name, values in rewards.items():
      metrics[name] = np.float32(np.mean(values)), num_samples
    for at, (_, result) in enumerate(pairs):
      result.rewards = {name: float(x[at]) for name, x in rewards.items()}
    return metrics, pairs, more

  def _mean(
    self,
    losses: Float[Array, 'B T'],
    weights: Float[Array, 'B T'],
    input_batch: NestedMap,
  ) -> tuple[Float[Array, ''], Float[Array, '']]:
    """Returns the mean loss, and the number of what it is a mean of."""
    if self.loss_mean == PolicyLossMean.TOKENS:
      return _weighted_mean(losses, weights)
    if self.loss_mean == PolicyLossMean.MAX_LENGTH:
      max_len = cast(int, self.max_response_len)
      sample_losses = jnp.sum(losses * weights, axis=1) / max_len
      # Samples without tokens that count are samples, too.
      is_sample = jnp.ones_like(sample_losses)
      if self.apply_eval_sample_weights:
        is_sample = input_batch.eval_sample_weights.astype(jnp.float32)
      return _weighted_mean(sample_losses, is_sample)
    num_tokens = jnp.sum(weights, axis=1)
    sample_losses = jnp.sum(losses * weights, axis=1) / jnp.maximum(
      num_tokens, 1.0
    )
    return _weighted_mean(sample_losses, (num_tokens > 0).astype(jnp.float32))

  def _ratios(
    self, log_ratios: Float[Array, 'B T'], weights: Float[Array, 'B T']
  ) -> Float[Array, 'B T']:
    """Returns the ratios of the probabilities that `ratio_level` selects."""
    if self.ratio_level == RatioLevel.SEQUENCE:
      num_tokens = jnp.sum(weights, axis=1, keepdims=True)
      means = jnp.sum(log_ratios * weights, axis=1, keepdims=True)
      means /= jnp.maximum(num_tokens, 1.0)
      log_ratios = jnp.broadcast_to(means, log_ratios.shape)
    return jnp.exp(log_ratios)

  def _token_log_probs(
    self,
    network: base_layer.BaseLayer,
    predictions: NestedMap,
    input_batch: NestedMap,
  ) -> Float[Array, 'B T']:
    """Returns those of the labels by a network, from its outputs."""
    if self.temperature == 1.0:
      return -predictions.per_example_xent

    def log_probs(softmax: Any, activations: Array, ids: Array, labels: Array):
      logits = softmax.get_logits(activations, ids).astype(jnp.float32)
      return -xent.token_losses(logits / self.temperature, labels).xent

    arrays = predictions.activations, input_batch.ids, input_batch.labels
    return time_chunks.map_chunks(
      log_probs, network.softmax, arrays, self.chunk_size
    )

  def _network_tpl(self) -> LayerTpl:
    network = super()._network_tpl()
    if self.temperature != 1.0:
      network.record_activations_in_xent_output = True
    return network

  def _records_logits(self) -> bool:
    return self.return_predictions


def kl_estimate(
  log_probs: Float[Array, '*B'], ref_log_probs: Float[Array, '*B']
) -> Float[Array, '*B']:
  """Returns an unbiased estimate of KL(policy || reference) per sampled token.

  It is r - log(r) - 1 with r = p_ref / p, which is never negative ("k3",
  arXiv:2402.03300, equation 4).

  Args:
    log_probs: of tokens that the policy has sampled, in nats.
    ref_log_probs: of the same tokens by the reference.
  """
  log_ratios = ref_log_probs - log_probs
  return jnp.expm1(log_ratios) - log_ratios


def _weighted_mean(
  values: Float[Array, '*B'], weights: Float[Array, '*B']
) -> tuple[Float[Array, ''], Float[Array, '']]:
  total_weight = jnp.sum(weights)
  mean = jnp.sum(values * weights) / jnp.maximum(total_weight, 1.0)
  return mean, total_weight
