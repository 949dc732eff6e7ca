# SPDX-License-Identifier: Apache-2.0
"""A feed-forward block of many experts, of which each token sees two.

Shapes: G groups, S tokens of a group, E experts, C places at an expert, M model
and H hidden dimension.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import activations, base_ops
from praxis.layers.transformers import (
  moe_dropless,
  moe_gating,
  moe_sentences,
  moe_spread,
  moe_weights,
)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping
template_field = pax_fiddle.template_field

_GATING_FUNCS = (
  'top2',
  'dropless_top2',
  'dense_top2',
  'expert_choice',
  'expert_choice_v2',
)


class TransformerFeedForwardMoe(moe_weights.MoeWeights):
  """A mixture of experts in the place of TransformerFeedForward.

  References: GShard, https://arxiv.org/abs/2006.16668
  """

  # 'top2': a token goes to two experts, if they have a place for it;
  # 'dropless_top2': to two experts in any case; 'dense_top2': all experts
  # compute all tokens, two count; 'expert_choice': experts pick tokens;
  # 'expert_choice_v2': none of them padding.
  gating_func: str = 'top2'
  # Tokens are routed within groups; of smaller ones than min_group_size there
  # are fewer.
  num_groups: int = 0
  min_group_size: int | None = None
  # Places of an expert in a group: at least this, and the factor times its
  # equal share of the tokens.
  expert_capacity_dim: int | None = 0
  unadjusted_expert_capacity_factor: float = 2.0
  # 'all': the second best expert is always taken; 'sampling': a second expert
  # is drawn; 'random': the second best is taken with the probability of its
  # gate over the threshold.
  second_expert_policy: str = 'all'
  second_expert_threshold: float = 0.0
  # Factor of the loss that balances the load of the experts; not 0.
  moe_load_balance_loss_weight: float = 1.0
  # Gating logits are kept within ± this number by a tanh; 0 leaves them.
  gating_logit_cap: float = 0.0
  # Whether a token is routed by itself ('token') or by the mean of its
  # segment ('sentence').
  moe_gating_embedding_level: str = 'token'
  # Do the products of routed tokens.
  einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)
  einsum_gated_tpl: LayerTpl = template_field(base_ops.EinsumGatedOp)

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    # Of what has these dimensions; see the head of the file.
    gsm: SplitDimsMapping = None
    gs: SplitDimsMapping = None
    gsec: SplitDimsMapping = None
    gecs: SplitDimsMapping = None
    gec: SplitDimsMapping = None
    egcm: SplitDimsMapping = None
    egch: SplitDimsMapping = None
    gecm: SplitDimsMapping = None

  def setup(self) -> None:
    self._check_fields()
    self._create_surroundings(self.input_dims)
    self._create_weights()
    self.create_child('activation', self.activation_tpl.clone())
    for name in ('dispatch', 'ffn2', 'combine'):
      self.create_child(f'{name}_einsum', self.einsum_tpl.clone())
    if self.use_gated_activation:
      self.create_child('gated_ffn1_einsum', self.einsum_gated_tpl.clone())

  def extend_step(
    self,
    inputs: Float[Array, 'B *L D'],
    *,
    time_step: pytypes.JTensor | int | None = None,
  ) -> Float[Array, 'B *L D']:
    """Returns the output of one decoding step, routed among the batch."""
    del time_step
    if inputs.ndim == 3:
      return self(inputs)
    return self(inputs[:, jnp.newaxis])[:, 0]

  def _hides_outputs(self) -> bool:
    return True

  def _transform(
    self,
    inputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'] | None,
    segment_ids: Int[Array, 'B T'] | None,
  ) -> Float[Array, 'B T D']:
    """Returns the mix of experts' outputs; adds the load balancing loss."""
    groups = self._count_groups(inputs.shape[0] * inputs.shape[1])
    tokens = self._split(self._grouped(inputs, groups), 'gsm')
    gating_inputs = tokens
    if self.moe_gating_embedding_level == 'sentence':
      means = moe_sentences.means(inputs, paddings, segment_ids)
      gating_inputs = self._split(self._grouped(means, groups), 'gsm')
    logits = jnp.einsum('gsm,me->gse', gating_inputs, self.theta.gate)
    importance = jnp.ones(tokens.shape[:2], jnp.float32)
    if paddings is not None:
      visible = 1.0 - paddings.astype(jnp.float32)
      importance = self._split(visible.reshape(groups, -1), 'gs')
    outputs, loss = self._route(tokens, logits, importance)
    loss = loss * self.moe_load_balance_loss_weight
    self.add_summary('aux_moe_load_balance_loss', loss)
    self.add_aux_loss('aux_moe_load_balance_loss', loss)
    outputs = self._split(outputs, 'gsm').reshape(inputs.shape)
    return outputs.astype(inputs.dtype)

  # Routing.

  def _route(
    self,
    tokens: Float[Array, 'G S M'],
    logits: Float[Array, 'G S E'],
    importance: Float[Array, 'G S'],
  ) -> tuple[Float[Array, 'G S M'], Float[Array, '']]:
    """Returns the mix of experts' outputs and the load balancing loss."""
    no_loss = jnp.zeros((), jnp.float32)
    options = self._options()
    if self.gating_func.startswith('expert_choice'):
      gates = moe_gating.gate_probabilities(logits, self.gating_logit_cap)
      return self._picked(tokens, gates, importance), no_loss
    choices = moe_gating.choose(logits, importance, options, self.next_prng_key)
    if self.gating_func == 'dense_top2':
      return self._experts_of_all(tokens, _counts(choices)), no_loss
    if self.gating_func == 'dropless_top2':
      self._summarize_load(choices)
      outputs = self._experts_of_runs(tokens, choices)
      return outputs, choices.load_balance_loss
    routing = moe_gating.queue(choices, options)
    for i, share in enumerate(routing.over_capacity, start=1):
      self.add_summary(f'over_capacity_{i}_ratio', share)
    self._summarize_dispatch(routing.combine, importance)
    outputs = self._experts(tokens, self._split(routing.combine, 'gsec'))
    return outputs, choices.load_balance_loss

  def _picked(
    self,
    tokens: Float[Array, 'G S M'],
    gates: Float[Array, 'G S E'],
    importance: Float[Array, 'G S'],
  ) -> Float[Array, 'G S M']:
    """Returns the mix of what experts make of tokens that they pick."""
    if self.gating_func == 'expert_choice_v2':
      combine = moe_gating.pick_visible_tokens(
        gates, importance, self._options()
      )
      return self._experts(tokens, self._split(combine, 'gsec'))
    factor = self.unadjusted_expert_capacity_factor
    picks = moe_gating.pick_tokens(gates, factor)
    combine = jnp.einsum(
      'gecs,gec->gsec',
      self._split(picks.tokens, 'gecs'),
      self._split(picks.gates, 'gec'),
    )
    return self._experts(tokens, combine)

  def _options(self) -> moe_gating.GatingOptions:
    return moe_gating.GatingOptions(
      second_expert_policy=self.second_expert_policy,
      second_expert_threshold=self.second_expert_threshold,
      expert_capacity_dim=self.expert_capacity_dim or 0,
      capacity_factor=self.unadjusted_expert_capacity_factor,
      gating_logit_cap=self.gating_logit_cap,
    )

  # Experts.

  def _experts(
    self, tokens: Float[Array, 'G S M'], combine: Float[Array, 'G S E C']
  ) -> Float[Array, 'G S M']:
    """Sends tokens to places at experts, and mixes what comes back."""
    dispatch = (combine > 0.0).astype(self.fprop_dtype)
    sent = self.dispatch_einsum('gsec,gsm->egcm', dispatch, tokens)
    sent = self._split(sent, 'egcm')
    weights = self._input_weights()
    if self.use_gated_activation:
      hidden, before = self.gated_ffn1_einsum('egcm,emh->egch', sent, *weights)
      hidden = self.activation(before) * hidden
    else:
      before = jnp.einsum('egcm,emh->egch', sent, *weights)
      hidden = self.activation(self._split(before, 'egch'))
    if self.gating_func != 'expert_choice':
      self._summarize_dead_neurons(before, dispatch)
    hidden = self.relu_dropout(hidden)
    outputs = self.ffn2_einsum('egch,ehm->egcm', hidden, self._output_weight())
    outputs = jnp.swapaxes(self._split(outputs, 'egcm'), 0, 1)
    combine = combine.astype(self.fprop_dtype)
    return self.combine_einsum(
      'gecm,gsec->gsm', self._split(outputs, 'gecm'), combine
    )

  def _experts_of_all(
    self, tokens: Float[Array, 'G S M'], counts: Float[Array, 'G S E']
  ) -> Float[Array, 'G S M']:
    """Computes all tokens at all experts, and mixes those of choice."""
    (weight,) = self._input_weights()
    hidden = self.activation(jnp.einsum('gsm,emh->egsh', tokens, weight))
    hidden = self.relu_dropout(hidden)
    outputs = jnp.einsum('egsh,ehm->egsm', hidden, self._output_weight())
    return jnp.einsum('egsm,gse->gsm', outputs, counts.astype(outputs.dtype))

  def _experts_of_runs(
    self, tokens: Float[Array, 'G S M'], choices: moe_gating.Choices
  ) -> Float[Array, 'G S M']:
    """Computes each token at the experts of its choice."""
    weights = self._input_weights(), self._output_weight()
    chosen = moe_dropless.chosen(choices.masks, choices.gates)
    axes = moe_spread.Axes.of(
      self.weight_split_dims_mapping.emh,
      self.activation_split_dims_mapping.gsm,
      self.mesh_axis_names,
      (tokens.shape[0], self.num_experts, self.hidden_dims),
    )
    has_dropout = self.relu_dropout_prob > 0.0 and not self.do_eval
    if axes.expert and has_dropout:
      raise ValueError(
        'relu_dropout_prob must be 0 with experts on several devices and '
        f"gating_func='dropless_top2', got {self.relu_dropout_prob}; use "
        'residual_dropout_prob'
      )
    if has_dropout:
      # It is drawn once, for all experts.
      return moe_dropless.mix_runs(tokens, chosen, weights, self._of_rows)
    if axes:
      return moe_spread.mix(tokens, chosen, weights, self._of_rows, axes)
    return moe_dropless.mix(tokens, chosen, weights, self._of_rows)

  def _of_rows(
    self,
    weights: tuple[list[Float[Array, '...']], Float[Array, '...']],
    rows: Float[Array, 'R M'],
    counts: Float[Array, 'R 1'],
    product: moe_dropless.Product,
  ) -> Float[Array, 'R M']:
    """Returns what experts, or one of them, make of rows; see `Experts`."""
    into, out_of = weights
    products = [product(rows, weight) for weight in into]
    hidden = self.activation(products[-1])
    if self.use_gated_activation:
      hidden = hidden * products[0]
    return product(self.relu_dropout(hidden) * counts, out_of)

  # Summaries.

  def _summarize_load(self, choices: moe_gating.Choices) -> None:
    """Reports the most and least loaded expert, 1 being an equal share."""

    def shares() -> Array:
      load = sum(jnp.sum(mask, axis=(0, 1)) for mask in choices.masks)
      return load / jnp.maximum(jnp.mean(load), 1.0)

    self.add_summary('expert_load_max', lambda: jnp.max(shares()))
    self.add_summary('expert_load_min', lambda: jnp.min(shares()))

  def _summarize_dispatch(
    self, combine: Float[Array, 'G S E C'], importance: Float[Array, 'G S']
  ) -> None:
    """Reports which shares of the tokens reach 0, 1 and 2 experts."""

    def share(count: int) -> Array:
      reached = jnp.sum(combine > 0.0, axis=(-2, -1))
      visible = importance > 0.0
      total = jnp.maximum(jnp.sum(visible), 1)
      return jnp.sum((reached == count) & visible) / total

    for count in range(3):
      self.add_summary(f'dispatch_{count}', lambda count=count: share(count))

  def _summarize_dead_neurons(
    self, before: Float[Array, 'E G C H'], dispatch: Float[Array, 'G S E C']
  ) -> None:
    """Reports how many neurons no token activates."""
    activation = self.activation_tpl.cls
    # Below this a GELU is nearly 0.
    threshold = -3.0 if issubclass(activation, activations.GELU) else 0.0

    def count() -> Array:
      has_token = jnp.einsum('gsec->egc', dispatch)[..., jnp.newaxis] > 0
      largest = jnp.max(jnp.where(has_token, before, -10.0), axis=(1, 2))
      return jnp.sum(largest < threshold)

    self.add_summary(f'dead_{activation.__name__}_count', count)

  # Helpers.

  def _split(self, x: jax.Array, name: str) -> jax.Array:
    mapping = getattr(self.activation_split_dims_mapping, name)
    return base_layer.maybe_shard(x, mapping, self.mesh_axis_names)

  def _grouped(
    self, inputs: Float[Array, 'B T M'], groups: int
  ) -> Float[Array, 'G S M']:
    return inputs.reshape(groups, -1, inputs.shape[-1])

  def _count_groups(self, num_tokens: int) -> int:
    groups, size = self.num_groups, self.min_group_size
    if size is not None and num_tokens / groups < size:
      groups = -(-num_tokens // size)
    if num_tokens % groups:
      raise ValueError(
        f'num_groups must divide the number of tokens {num_tokens}, got '
        f'{groups}; change num_groups or min_group_size'
      )
    return groups

  def _check_fields(self) -> None:
    self._check_positive('num_groups')
    if not self.moe_load_balance_loss_weight:
      raise ValueError('moe_load_balance_loss_weight must not be 0, got 0')
    if not (self.unadjusted_expert_capacity_factor or self.expert_capacity_dim):
      raise ValueError(
        'unadjusted_expert_capacity_factor or expert_capacity_dim must be '
        'positive, got 0 for both'
      )
    for name, allowed in (
      ('gating_func', _GATING_FUNCS),
      ('second_expert_policy', moe_gating.SECOND_EXPERT_POLICIES),
      ('moe_gating_embedding_level', ('token', 'sentence')),
    ):
      if getattr(self, name) not in allowed:
        raise ValueError(
          f'{name} must be one of {", ".join(allowed)}; got '
          f'{getattr(self, name)!r}'
        )
    if self.gating_func == 'dense_top2' and self.use_gated_activation:
      raise ValueError(
        "use_gated_activation must be False with gating_func='dense_top2', got "
        "True; 'dropless_top2' has gates"
      )


def _counts(choices: moe_gating.Choices) -> Float[Array, 'G S E']:
  """Returns what each expert counts for a token."""
  return sum(
    mask * gate[..., jnp.newaxis]
    for mask, gate in zip(choices.masks, choices.gates, strict=True)
  )
