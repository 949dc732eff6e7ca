# SPDX-License-Identifier: Apache-2.0
"""A feed-forward block of many experts, of which each token sees two.

Shapes: G groups, S tokens of a group, E experts, C places at an expert, M model
and H hidden dimension.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import activations, base_ops, normalizations, stochastics
from praxis.layers.transformers import moe_gating, residual

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping
template_field = pax_fiddle.template_field

_GATING_FUNCS = ('top2', 'expert_choice', 'expert_choice_v2', 'dense_top2')
_NORM_POLICIES = ('pre', 'post', 'primer_hybrid')


class TransformerFeedForwardMoe(base_layer.BaseLayer):
  """A mixture of experts in the place of TransformerFeedForward.

  References: GShard, https://arxiv.org/abs/2006.16668
  """

  # Sizes of the input and output, and within an expert.
  input_dims: int = 0
  hidden_dims: int = 0
  # Whether padding is zeroed in the input and not in the output.
  apply_padding_first: bool = False
  ln_tpl: LayerTpl = template_field(normalizations.LayerNorm)
  activation_tpl: LayerTpl = template_field(activations.ReLU)
  relu_dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  relu_dropout_prob: float = 0.0
  residual_dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  residual_dropout_prob: float = 0.0
  # Whether the input is added, and the factor of what it is added to.
  add_skip_connection: bool = True
  residual_weight: float = 1.0
  # Where to normalise (see residual.py; not post_skip), and the probability
  # that an example skips the block.
  norm_policy: str = 'pre'
  residual_droppath_prob: float = 0.0
  # 'top2': a token goes to two experts; 'dense_top2': all experts compute all
  # tokens, two count; 'expert_choice': experts pick tokens; 'expert_choice_v2':
  # none of them padding.
  gating_func: str = 'top2'
  num_experts: int = 0
  # Tokens are routed within groups; groups are no smaller than min_group_size.
  num_groups: int = 0
  min_group_size: int | None = None
  # Places of an expert in a group: at least this, and the factor times its
  # equal share of the tokens.
  expert_capacity_dim: int = 0
  unadjusted_expert_capacity_factor: float = 2.0
  # Into how many variables the weights are split along the hidden dimension.
  expert_weight_shards: int = 1
  # 'all': the second best expert is always taken; 'sampling': a second expert
  # is drawn; 'random': the second best is taken if its gate is large.
  second_expert_policy: str = 'all'
  # Whether weights start uniform with variance 1 / fan_in.
  internal_gshard_variance_scaling_fan_in_init: bool = True
  # Whether initialisers see the model and hidden dimension as fans.
  explicit_fan_in_fan_out_axes: bool = False
  # Factor of the loss that balances the load of the experts; not 0.
  moe_load_balance_loss_weight: float = 1.0
  # Gating logits are kept within ± this number by a tanh; 0 leaves them.
  gating_logit_cap: float = 0.0
  # Whether a token is routed by itself ('token') or by the mean of its
  # sequence ('sentence').
  moe_gating_embedding_level: str = 'token'
  # Whether the activation is that of a second product, which multiplies the
  # first.
  use_gated_activation: bool = False
  einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)
  einsum_gated_tpl: LayerTpl = template_field(base_ops.EinsumGatedOp)

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    # Of the gate and of the experts' first and second weights.
    me: SplitDimsMapping = None
    emh: SplitDimsMapping = None
    ehm: SplitDimsMapping = None

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
    size = self.input_dims
    residual.create_norms(self, self.ln_tpl, size, size, 'layer_norm')
    self._create_weights()
    self.create_child('activation', self.activation_tpl.clone())
    self.create_child('einsum', self.einsum_tpl.clone())
    if self.use_gated_activation:
      self.create_child('einsum_gated', self.einsum_gated_tpl.clone())
    self.create_child(
      'relu_dropout',
      self.relu_dropout_tpl.clone().set(keep_prob=1.0 - self.relu_dropout_prob),
    )
    self.create_child(
      'residual_dropout',
      self.residual_dropout_tpl.clone().set(
        keep_prob=1.0 - self.residual_dropout_prob
      ),
    )
    if self.residual_droppath_prob > 0.0:
      self.create_child(
        'residual_droppath',
        residual.droppath(self.residual_droppath_prob, self.residual_weight),
      )

  def __call__(
    self,
    inputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'] | None = None,
    segment_ids: Int[Array, 'B T'] | None = None,
  ) -> Float[Array, 'B T D']:
    """Returns the block's output; adds the load balancing loss."""
    del segment_ids
    if paddings is None:
      paddings = jnp.zeros(inputs.shape[:2], inputs.dtype)
    visible = (1 - paddings).astype(inputs.dtype)[..., None]
    if self.apply_padding_first:
      inputs = inputs * visible
    normed = residual.norm_before(self, inputs, paddings)
    outputs = self._mix(normed, paddings).astype(inputs.dtype)
    if not self.apply_padding_first:
      outputs = outputs * visible
    outputs = residual.norm_after(self, outputs, paddings)
    outputs = self.residual_dropout(outputs)
    if not self.add_skip_connection:
      return outputs
    if self.residual_droppath_prob > 0.0:
      return self.residual_droppath(inputs, outputs)
    return inputs + outputs * self.residual_weight

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

  # Routing.

  def _mix(
    self, inputs: Float[Array, 'B T D'], paddings: Num[Array, 'B T']
  ) -> Float[Array, 'B T D']:
    groups = self._count_groups(paddings.size)
    tokens = inputs.reshape(groups, -1, self.input_dims)
    tokens = self._split(tokens, 'gsm')
    routing = self._route(inputs, paddings, groups)
    self.add_aux_loss(
      'aux_moe_load_balance_loss',
      routing.load_balance_loss * self.moe_load_balance_loss_weight,
    )
    for name in ('over_capacity_1_ratio', 'over_capacity_2_ratio'):
      self.add_summary(name, getattr(routing, name))
    combine = routing.combine.astype(self.fprop_dtype)
    if self.gating_func == 'dense_top2':
      outputs = self._experts_of_all(tokens, combine)
    else:
      outputs = self._experts(tokens, self._split(combine, 'gsec'))
    return self._split(outputs, 'gsm').reshape(inputs.shape)

  def _route(
    self,
    inputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'],
    groups: int,
  ) -> moe_gating.Routing:
    embeddings = inputs
    if self.moe_gating_embedding_level == 'sentence':
      visible = (1 - paddings).astype(inputs.dtype)[..., None]
      total = jnp.sum(inputs * visible, axis=1, keepdims=True)
      mean = total / jnp.maximum(visible.sum(1, keepdims=True), 1)
      embeddings = jnp.broadcast_to(mean, inputs.shape)
    embeddings = embeddings.reshape(groups, -1, self.input_dims)
    logits = self.einsum('GSM,ME->GSE', embeddings, self.theta.gate)
    options = moe_gating.GatingOptions(
      gating_func=self.gating_func,
      second_expert_policy=self.second_expert_policy,
      expert_capacity_dim=self.expert_capacity_dim,
      capacity_factor=self.unadjusted_expert_capacity_factor,
      gating_logit_cap=self.gating_logit_cap,
    )
    pads = self._split(paddings.reshape(groups, -1), 'gs')
    return moe_gating.compute_gating(logits, pads, options, self.next_prng_key)

  # Experts.

  def _experts(
    self, tokens: Float[Array, 'G S M'], combine: Float[Array, 'G S E C']
  ) -> Float[Array, 'G S M']:
    """Sends tokens to places at experts, and mixes what comes back."""
    dispatch = (combine > 0).astype(combine.dtype)
    sent = self.einsum('GSEC,GSM->EGCM', dispatch, tokens)
    sent = self._split(sent, 'egcm')
    hidden = self._hidden('EGCM,EMH->EGCH', sent)
    hidden = self._split(self.relu_dropout(hidden), 'egch')
    outputs = self.einsum('EGCH,EHM->GECM', hidden, self._weight('wo', 1))
    outputs = self._split(outputs, 'gecm')
    return self.einsum('GECM,GSEC->GSM', outputs, combine)

  def _experts_of_all(
    self, tokens: Float[Array, 'G S M'], combine: Float[Array, 'G S E']
  ) -> Float[Array, 'G S M']:
    """Computes all tokens at all experts, and mixes those of choice."""
    hidden = self._hidden('GSM,EMH->EGSH', tokens)
    hidden = self._split(self.relu_dropout(hidden), 'egch')
    outputs = self.einsum('EGSH,EHM->GESM', hidden, self._weight('wo', 1))
    return self.einsum('GESM,GSE->GSM', outputs, combine)

  def _hidden(self, equation: str, inputs: Array) -> Array:
    weight = self._weight('wi', 2)
    if not self.use_gated_activation:
      return self.activation(self.einsum(equation, inputs, weight))
    gate = self._weight('wi_gate', 2)
    hidden, gates = self.einsum_gated(equation, inputs, weight, gate)
    return self.activation(gates) * hidden

  # Weights.

  def _create_weights(self) -> None:
    model, hidden = (
      self.input_dims,
      self.hidden_dims // self.expert_weight_shards,
    )
    split = self.weight_split_dims_mapping
    gate = self._declare([model, self.num_experts], split.me, model)
    self.create_variable('gate', gate)
    names = ['wi', 'wi_gate'] if self.use_gated_activation else ['wi']
    for i in range(self.expert_weight_shards):
      for name in names:
        shape = [self.num_experts, model, hidden]
        weight = self._declare(shape, split.emh, model)
        self.create_variable(f'{name}_{i}', weight)
      shape = [self.num_experts, hidden, model]
      weight = self._declare(shape, split.ehm, self.hidden_dims)
      self.create_variable(f'wo_{i}', weight)

  def _declare(
    self, shape: list[int], split: SplitDimsMapping, fan_in: int
  ) -> base_layer.WeightHParams:
    init = base_layer.WeightInit.Uniform(math.sqrt(3.0 / fan_in))
    explicit = self.explicit_fan_in_fan_out_axes
    return base_layer.WeightHParams(
      shape=shape,
      init=init if self.internal_gshard_variance_scaling_fan_in_init else None,
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=split,
      fan_in_axes=[-2] if explicit else None,
      fan_out_axes=[-1] if explicit else None,
    )

  def _weight(self, name: str, hidden_axis: int) -> Float[Array, 'E _ _']:
    shards = range(self.expert_weight_shards)
    weights = [getattr(self.theta, f'{name}_{i}') for i in shards]
    if len(weights) == 1:
      return weights[0]
    return jnp.concatenate(weights, axis=hidden_axis)

  # Helpers.

  def _split(self, x: jax.Array, name: str) -> jax.Array:
    mapping = getattr(self.activation_split_dims_mapping, name)
    return base_layer.maybe_shard(x, mapping, self.mesh_axis_names)

  def _count_groups(self, num_tokens: int) -> int:
    groups = self.num_groups
    if self.min_group_size and num_tokens / groups < self.min_group_size:
      groups = max(1, num_tokens // self.min_group_size)
    if num_tokens % groups:
      raise ValueError(
        f'num_groups must divide the number of tokens {num_tokens}, got '
        f'{groups}; change num_groups or min_group_size'
      )
    return groups

  def _check_fields(self) -> None:
    residual.check_norm_policy(self.norm_policy, _NORM_POLICIES)
    for name in ('input_dims', 'hidden_dims', 'num_experts', 'num_groups'):
      if getattr(self, name) < 1:
        raise ValueError(f'{name} must be positive, got {getattr(self, name)}')
    if self.hidden_dims % self.expert_weight_shards:
      raise ValueError(
        f'expert_weight_shards must divide hidden_dims={self.hidden_dims}, got '
        f'{self.expert_weight_shards}'
      )
    if not self.moe_load_balance_loss_weight:
      raise ValueError('moe_load_balance_loss_weight must not be 0, got 0')
    _check_choice('gating_func', self.gating_func, _GATING_FUNCS)
    _check_choice(
      'second_expert_policy',
      self.second_expert_policy,
      moe_gating.SECOND_EXPERT_POLICIES,
    )
    _check_choice(
      'moe_gating_embedding_level',
      self.moe_gating_embedding_level,
      ('token', 'sentence'),
    )
    if self.gating_func == 'dense_top2' and self.use_gated_activation:
      raise ValueError(
        "use_gated_activation must be False with gating_func='dense_top2', got "
        'True'
      )


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
  if value not in allowed:
    raise ValueError(
      f'{name} must be one of {", ".join(allowed)}; got {value!r}'
    )
