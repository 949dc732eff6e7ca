# SPDX-License-Identifier: Apache-2.0
"""The mixture-of-experts feed-forward layer (GShard, arXiv:2006.16668).

Shapes: B batch, T time, G groups, S tokens per group, E experts, C expert
capacity per group, M model dimension, H hidden dimension.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import activations, base_ops, normalizations
from praxis.layers.moe import (
  dropless,
  expert_parallel,
  expert_units,
  gating,
  segment_means,
)
from praxis.layers.transformers import feed_forward_block

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping
template_field = pax_fiddle.template_field

_GATING_FUNCS = (
  'top2',
  'dropless',
  'dense_top2',
  'expert_choice',
  'expert_choice_v2',
)


class TransformerFeedForwardMoe(feed_forward_block.FeedForwardBlock):
  """A mixture of experts that replaces TransformerFeedForward.

  References:
    GShard, https://arxiv.org/abs/2006.16668;
    MegaBlocks, https://arxiv.org/abs/2211.15841 (dropless);
    Expert Choice Routing, https://arxiv.org/abs/2202.09368 (expert_choice);
    DeepSeek-V3, https://arxiv.org/abs/2412.19437 (sigmoid gates, groups, bias
    of the choice, shared experts).
  """

  # 'top2': each token is sent to two experts, unless they are full;
  # 'dropless': always to its experts_per_token best; 'dense_top2': every expert
  # computes every token, and the two best are mixed; 'expert_choice': each
  # expert chooses tokens; 'expert_choice_v2': the same, padding excluded.
  gating_func: str = 'top2'
  # Only 'dropless' has other values than these, down to
  # balances_each_sequence. Number of experts of a token, and whether their
  # gates add up to 1, which leaves a single expert without a gradient of its
  # gate; the factor of the gates after that.
  experts_per_token: int = 2
  normalize_gates: bool = True
  gate_scale: float = 1.0
  # The gates as a function of the router's logits: 'softmax' or 'sigmoid'.
  gate_function: str = 'softmax'
  # Whether gates multiply the inputs of experts, not their outputs (Llama 4).
  gates_scale_inputs: bool = False
  # Consecutive experts form groups; a token uses those of the best groups. The
  # score of a group is the sum of those of its best experts.
  num_expert_groups: int = 1
  groups_per_token: int = 1
  experts_per_group_score: int = 1
  # Whether the choice of experts, not their gates, adds a variable bias to
  # each expert. A training step, in a pipeline each microbatch, adds the rate
  # to that of experts with fewer tokens than the mean, and subtracts it from
  # others (arXiv:2408.15664).
  use_choice_bias: bool = False
  choice_bias_update_rate: float = 0.0
  # Whether the load balancing loss is the mean of those of the sequences, else
  # that of all tokens of the call: in a pipeline, of the microbatch.
  balances_each_sequence: bool = False
  # How tokens reach experts on other devices: 'all_gather', all of them, or
  # 'all_to_all', each those of its experts, which 'auto' takes for many
  # devices. CPUs gather.
  expert_dispatch: str = 'auto'
  num_experts: int = 0
  # Tokens are routed within groups; 'dropless' has none. If they have fewer
  # than min_group_size tokens, the number of groups becomes
  # ceil(num_tokens / min_group_size).
  num_groups: int = 0
  min_group_size: int | None = None
  # Capacity of an expert per group: the larger of expert_capacity_dim and the
  # factor times an equal share of the tokens.
  expert_capacity_dim: int | None = 0
  unadjusted_expert_capacity_factor: float = 2.0
  # Whether the router and the experts have biases; only 'dropless' has them.
  has_bias: bool = False
  # Limit of the activation's input, from above, and of the projection that it
  # gates, on both sides; and what is added to the latter (gpt-oss).
  gated_limit: float | None = None
  gated_offset: float = 0.0
  # Number of variables that the weights are split into along H.
  expert_weight_shards: int = 1
  # 'all': the second best expert; 'sampling': an expert sampled from the gates;
  # 'random': the second best, with probability gate / threshold.
  second_expert_policy: str = 'all'
  second_expert_threshold: float = 0.0
  internal_gshard_variance_scaling_fan_in_init: bool = True
  # Whether initializers use M and H as fan-in and fan-out, not E.
  explicit_fan_in_fan_out_axes: bool = False
  # Weight of the load balancing loss, which is GShard's, or for 'dropless' that
  # of Switch Transformers over all choices (arXiv:2101.03961). Only for
  # 'dropless' it may be 0.
  moe_load_balance_loss_weight: float = 1.0
  # Tanh soft cap of the router logits; 0 disables it.
  gating_logit_cap: float = 0.0
  # Router input: the token ('token') or the mean of its segment ('sentence').
  moe_gating_embedding_level: str = 'token'
  # A TransformerFeedForward that computes every token too; None for none.
  shared_experts_tpl: LayerTpl | None = template_field(None)
  # Compute the products of 'top2' and 'expert_choice'.
  einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)
  einsum_gated_tpl: LayerTpl = template_field(base_ops.EinsumGatedOp)

  class WeightSharding(base_layer.WeightSharding):
    # The router, and the input and output projections of the experts.
    me: SplitDimsMapping = None
    emh: SplitDimsMapping = None
    ehm: SplitDimsMapping = None

  class ActivationSharding(base_layer.ActivationSharding):
    # Activations by their dimensions; see the module docstring.
    gsm: SplitDimsMapping = None
    gs: SplitDimsMapping = None
    gsec: SplitDimsMapping = None
    gecs: SplitDimsMapping = None
    gec: SplitDimsMapping = None
    egcm: SplitDimsMapping = None
    egch: SplitDimsMapping = None
    gecm: SplitDimsMapping = None

  def setup(self) -> None:
    self._check_moe_fields()
    self._create_norms_and_residual(self.input_dims)
    self._create_weights()
    if self.shared_experts_tpl is not None:
      self.create_child(
        'shared_experts',
        self.shared_experts_tpl.clone().set(
          input_dims=self.input_dims,
          ln_tpl=pax_fiddle.Config(normalizations.IdentityNorm),
          add_skip_connection=False,
          relu_dropout_prob=self.relu_dropout_prob,
        ),
      )
    self.create_child('activation', self.activation_tpl.clone())
    for name in ('dispatch_einsum', 'ffn2_einsum', 'combine_einsum'):
      self.create_child(name, self.einsum_tpl.clone())
    if self.use_gated_activation:
      self.create_child('gated_ffn1_einsum', self.einsum_gated_tpl.clone())

  def extend_step(
    self,
    inputs: Float[Array, 'B *L M'],
    *,
    time_step: pytypes.JTensor | int | None = None,
  ) -> Float[Array, 'B *L M']:
    """Returns the output of one decoding step; groups span the batch."""
    if inputs.ndim == 3:
      return super().extend_step(inputs, time_step=time_step)
    outputs = super().extend_step(inputs[:, jnp.newaxis], time_step=time_step)
    return outputs[:, 0]

  def _masks_outputs(self) -> bool:
    return True

  def _transform(
    self,
    inputs: Float[Array, 'B T M'],
    paddings: Num[Array, 'B T'] | None,
    segment_ids: Int[Array, 'B T'] | None,
  ) -> Float[Array, 'B T M']:
    outputs = self._mix_experts(inputs, inputs, paddings, segment_ids)
    if self.shared_experts_tpl is not None:
      outputs += self.shared_experts(inputs, paddings)
    return outputs

  def _mix_experts(
    self,
    inputs: Float[Array, 'B T M'],
    router_inputs: Float[Array, 'B T M'],
    paddings: Num[Array, 'B T'] | None,
    segment_ids: Int[Array, 'B T'] | None,
  ) -> Float[Array, 'B T M']:
    """Returns the mixture of expert outputs; adds the load balancing loss."""
    num_groups = inputs.shape[0]
    if self.gating_func != 'dropless':
      num_groups = self._num_groups(inputs.shape[0] * inputs.shape[1])
    sharding = self.activation_split_dims_mapping
    tokens = self.shard(_group(inputs, num_groups), sharding.gsm)
    if self.moe_gating_embedding_level == 'sentence':
      router_inputs = segment_means.segment_means(
        router_inputs, paddings, segment_ids
      )
    routed = tokens
    if router_inputs is not inputs:
      routed = self.shard(_group(router_inputs, num_groups), sharding.gsm)
    logits = self._router_logits(routed)
    importance = jnp.ones(tokens.shape[:2], jnp.float32)
    if paddings is not None:
      is_token = 1.0 - paddings.astype(jnp.float32)
      importance = self.shard(is_token.reshape(num_groups, -1), sharding.gs)
    outputs, loss = self._route(tokens, logits, importance)
    loss = loss * self.moe_load_balance_loss_weight
    self.add_summary('aux_moe_load_balance_loss', loss)
    self.add_aux_loss('aux_moe_load_balance_loss', loss)
    outputs = self.shard(outputs, sharding.gsm).reshape(inputs.shape)
    return outputs.astype(inputs.dtype)

  # Routing.

  def _router_logits(
    self, inputs: Float[Array, 'G S M']
  ) -> Float[Array, 'G S E']:
    dtype = None
    if self.gating_func == 'dropless':
      # Gates in bfloat16 are further apart than steps of biases of the choice.
      dtype = jnp.float32
    logits = jnp.einsum(
      'gsm,me->gse', inputs, self.theta.gate, preferred_element_type=dtype
    )
    return logits + self.theta.gate_bias if self.has_bias else logits

  def _route(
    self,
    tokens: Float[Array, 'G S M'],
    logits: Float[Array, 'G S E'],
    importance: Float[Array, 'G S'],
  ) -> tuple[Float[Array, 'G S M'], Float[Array, '']]:
    """Returns the mixture of expert outputs and the load balancing loss."""
    if self.gating_func.startswith('expert_choice'):
      outputs = self._apply_expert_choice(tokens, logits, importance)
      return outputs, jnp.zeros((), jnp.float32)
    options = self._gating_options()
    bias = self.get_var('choice_bias') if self.use_choice_bias else None
    assignment = gating.assign_experts(
      logits, importance, options, self.next_prng_key, bias
    )
    if bias is not None and self.choice_bias_update_rate and not self.do_eval:
      self._balance(bias, assignment.expert_load())
    if self.gating_func == 'dense_top2':
      outputs = self._apply_all_experts(tokens, assignment.expert_weights())
      return outputs, jnp.zeros((), jnp.float32)
    if self.gating_func == 'dropless':
      load = assignment.relative_expert_load
      self.add_summary('expert_load_max', lambda: jnp.max(load()))
      self.add_summary('expert_load_min', lambda: jnp.min(load()))
      outputs = self._apply_dropless_experts(tokens, assignment)
      if self.has_bias:
        gates = assignment.expert_weights()
        outputs += expert_units.output_biases(gates, self.theta.bo)
      return outputs, assignment.load_balance_loss
    routing = gating.apply_capacity(assignment, options)
    for i, fraction in enumerate(routing.over_capacity, start=1):
      self.add_summary(f'over_capacity_{i}_ratio', fraction)
    self._summarize_dispatch(routing.combine, importance)
    gsec = self.activation_split_dims_mapping.gsec
    outputs = self._apply_experts(tokens, self.shard(routing.combine, gsec))
    return outputs, assignment.load_balance_loss

  def _balance(
    self, bias: Float[Array, ' E'], load: Float[Array, ' E']
  ) -> None:
    """Updates the bias of the choice by the tokens of each expert."""
    if base_layer.is_running_under_pmap() and self.jax_context.sync_replicas:
      load = jax.lax.psum(load, base_layer.PMAP_PARALLEL_AXIS_NAME)
    step = self.choice_bias_update_rate * jnp.sign(jnp.mean(load) - load)
    self.update_var('choice_bias', bias + step)

  def _apply_expert_choice(
    self,
    tokens: Float[Array, 'G S M'],
    logits: Float[Array, 'G S E'],
    importance: Float[Array, 'G S'],
  ) -> Float[Array, 'G S M']:
    sharding = self.activation_split_dims_mapping
    gates = gating.gate_probabilities(logits, self.gating_logit_cap)
    if self.gating_func == 'expert_choice_v2':
      combine = gating.choose_unpadded_tokens(
        gates, importance, self._gating_options()
      )
      return self._apply_experts(tokens, self.shard(combine, sharding.gsec))
    factor = self.unadjusted_expert_capacity_factor
    choice = gating.choose_tokens(gates, factor)
    combine = jnp.einsum(
      'gecs,gec->gsec',
      self.shard(choice.tokens, sharding.gecs),
      self.shard(choice.gates, sharding.gec),
    )
    return self._apply_experts(tokens, combine)

  def _gating_options(self) -> gating.GatingOptions:
    return gating.GatingOptions(
      experts_per_token=self.experts_per_token,
      normalize_gates=self.normalize_gates,
      gate_scale=self.gate_scale,
      gate_function=self.gate_function,
      num_expert_groups=self.num_expert_groups,
      groups_per_token=self.groups_per_token,
      experts_per_group_score=self.experts_per_group_score,
      balances_each_group=self.balances_each_sequence,
      balances_all_choices=self.gating_func == 'dropless',
      second_expert_policy=self.second_expert_policy,
      second_expert_threshold=self.second_expert_threshold,
      expert_capacity_dim=self.expert_capacity_dim or 0,
      capacity_factor=self.unadjusted_expert_capacity_factor,
      gating_logit_cap=self.gating_logit_cap,
    )

  # Experts.

  def _apply_experts(
    self, tokens: Float[Array, 'G S M'], combine: Float[Array, 'G S E C']
  ) -> Float[Array, 'G S M']:
    """Dispatches tokens to expert slots and combines the outputs."""
    sharding = self.activation_split_dims_mapping
    dispatch = (combine > 0.0).astype(self.fprop_dtype)
    dispatched = self.dispatch_einsum('gsec,gsm->egcm', dispatch, tokens)
    dispatched = self.shard(dispatched, sharding.egcm)
    weights = self._input_weights()
    if self.use_gated_activation:
      hidden, preactivation = self.gated_ffn1_einsum(
        'egcm,emh->egch', dispatched, *weights
      )
      hidden = self._gated(preactivation, hidden)
    else:
      preactivation = jnp.einsum('egcm,emh->egch', dispatched, *weights)
      hidden = self.activation(self.shard(preactivation, sharding.egch))
    if self.gating_func != 'expert_choice':
      self._summarize_dead_neurons(preactivation, dispatch)
    hidden = self.relu_dropout(hidden)
    outputs = self.ffn2_einsum('egch,ehm->egcm', hidden, self._output_weight())
    outputs = jnp.swapaxes(self.shard(outputs, sharding.egcm), 0, 1)
    combine = combine.astype(self.fprop_dtype)
    return self.combine_einsum(
      'gecm,gsec->gsm', self.shard(outputs, sharding.gecm), combine
    )

  def _apply_all_experts(
    self, tokens: Float[Array, 'G S M'], gates: Float[Array, 'G S E']
  ) -> Float[Array, 'G S M']:
    """Applies every expert to every token and mixes the outputs by gate."""
    (weight,) = self._input_weights()
    hidden = self.activation(jnp.einsum('gsm,emh->egsh', tokens, weight))
    hidden = self.relu_dropout(hidden)
    outputs = jnp.einsum('egsh,ehm->egsm', hidden, self._output_weight())
    return jnp.einsum('egsm,gse->gsm', outputs, gates.astype(outputs.dtype))

  def _apply_dropless_experts(
    self, tokens: Float[Array, 'G S M'], assignment: gating.ExpertAssignment
  ) -> Float[Array, 'G S M']:
    """Applies to each token its experts, without a capacity limit."""
    weights = dropless.ExpertWeights(
      self._input_weights(), self._output_weight(), self._input_biases()
    )
    top_k = dropless.top_k_experts(assignment.masks, assignment.gates)
    axes = expert_parallel.ExpertMeshAxes.from_mappings(
      self.weight_split_dims_mapping.emh,
      self.activation_split_dims_mapping.gsm,
      self.mesh_axis_names,
      (tokens.shape[0], self.num_experts, self.hidden_dims),
    )
    has_dropout = self.relu_dropout_prob > 0.0 and not self.do_eval
    if axes.expert and has_dropout:
      raise ValueError(
        'relu_dropout_prob must be 0 with experts on several devices and '
        f"gating_func='dropless', got {self.relu_dropout_prob}; use "
        'residual_dropout_prob'
      )
    if has_dropout:
      # The dropout layer may be called once only, for all experts.
      return dropless.grouped_mixture(tokens, top_k, weights, self._expert)
    if axes:
      return expert_parallel.sharded_mixture(
        tokens, top_k, weights, self._expert, axes, self.expert_dispatch
      )
    return dropless.mixture(tokens, top_k, weights, self._expert)

  def _expert(
    self,
    weights: dropless.ExpertWeights,
    rows: Float[Array, 'R M'],
    gates: Float[Array, 'R 1'],
    matmul: dropless.Matmul,
  ) -> Float[Array, 'R M']:
    """Applies experts to rows; a `dropless.ExpertFn`."""
    if self.gates_scale_inputs:
      rows, gates = rows * gates, jnp.ones_like(gates)
    projections = weights.input_projections(rows, matmul)
    units = self._hidden_units
    if self.relu_dropout_prob == 0.0:
      # Between products of Pallas, XLA fuses the units with nothing else.
      units = jax.checkpoint(units, prevent_cse=False)
    return matmul(units(gates, *projections), weights.output)

  def _hidden_units(
    self, gates: Float[Array, 'R 1'], *projections: Float[Array, 'R H']
  ) -> Float[Array, 'R H']:
    if self.use_gated_activation:
      hidden = self._gated(projections[-1], projections[0])
    else:
      hidden = self.activation(projections[-1])
    return self.relu_dropout(hidden) * gates

  def _gated(
    self, gate: Float[Array, '*B H'], linear: Float[Array, '*B H']
  ) -> Float[Array, '*B H']:
    limit, offset = self.gated_limit, self.gated_offset
    return expert_units.gated(
      self.activation, gate, linear, limit=limit, offset=offset
    )

  # Weights.

  def _create_weights(self) -> None:
    model, split = self.input_dims, self.weight_split_dims_mapping
    hidden = self.hidden_dims // self.expert_weight_shards
    router = self._moe_weight_hparams(
      [model, self.num_experts], split.me, model
    )
    self.create_variable('gate', router)
    if self.use_choice_bias:
      expert_units.create_choice_bias(self)
    input_weight = self._moe_weight_hparams(
      [self.num_experts, model, hidden], split.emh, model
    )
    output_weight = self._moe_weight_hparams(
      [self.num_experts, hidden, model], split.ehm, self.hidden_dims
    )
    for i in range(self.expert_weight_shards):
      self.create_variable(f'wi_{i}', input_weight)
      if self.use_gated_activation:
        self.create_variable(f'wi_gate_{i}', input_weight)
      self.create_variable(f'wo_{i}', output_weight)
    if self.has_bias:
      fraction = self._active_fraction()
      expert_units.create_biases(self, self._input_names(), fraction)

  def _moe_weight_hparams(
    self, shape: list[int], split: SplitDimsMapping, fan_in: int
  ) -> base_layer.WeightHParams:
    is_of_experts = len(shape) == 3
    has_explicit_axes = self.explicit_fan_in_fan_out_axes and is_of_experts
    return base_layer.WeightHParams(
      shape=shape,
      init=self._fan_in_init(fan_in),
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=split,
      fan_in_axes=[-2] if has_explicit_axes else None,
      fan_out_axes=[-1] if has_explicit_axes else None,
      active_fraction=self._active_fraction() if is_of_experts else 1.0,
    )

  def _active_fraction(self) -> float:
    """Returns the fraction of the experts that a token has on average."""
    experts_per_token: float = self.experts_per_token
    if self.gating_func.startswith('expert_choice'):
      experts_per_token = self.unadjusted_expert_capacity_factor
    return min(experts_per_token / self.num_experts, 1.0)

  def _input_weights(self) -> list[Float[Array, 'E M H']]:
    """Returns the input projection and, if gated, that of the activation."""
    return [self._concatenate_shards(name, 2) for name in self._input_names()]

  def _input_biases(self) -> list[Float[Array, 'E H']]:
    names = map(expert_units.bias_name, self._input_names())
    if not self.has_bias:
      return []
    return [self._concatenate_shards(name, 1) for name in names]

  def _input_names(self) -> list[str]:
    return ['wi', 'wi_gate'] if self.use_gated_activation else ['wi']

  def _output_weight(self) -> Float[Array, 'E H M']:
    return self._concatenate_shards('wo', 1)

  def _concatenate_shards(
    self, name: str, hidden_axis: int
  ) -> Float[Array, 'E ...']:
    shards = [
      self.theta[f'{name}_{i}'] for i in range(self.expert_weight_shards)
    ]
    if len(shards) == 1:
      return shards[0]
    return jnp.concatenate(shards, axis=hidden_axis)

  # Summaries.

  def _summarize_dispatch(
    self, combine: Float[Array, 'G S E C'], importance: Float[Array, 'G S']
  ) -> None:
    """Adds the fractions of the tokens that reach 0, 1 and 2 experts."""
    for count in range(3):
      self.add_summary(
        f'dispatch_{count}',
        functools.partial(gating.dispatch_fraction, combine, importance, count),
      )

  def _summarize_dead_neurons(
    self,
    preactivation: Float[Array, 'E G C H'],
    dispatch: Float[Array, 'G S E C'],
  ) -> None:
    """Adds the number of hidden units that no token activates."""
    activation = self.activation_tpl.cls
    # GELU is nearly 0 below -3.
    threshold = -3.0 if issubclass(activation, activations.GELU) else 0.0

    def num_dead() -> Array:
      has_token = jnp.einsum('gsec->egc', dispatch)[..., jnp.newaxis] > 0
      largest = jnp.max(jnp.where(has_token, preactivation, -10.0), axis=(1, 2))
      return jnp.sum(largest < threshold)

    self.add_summary(f'dead_{activation.__name__}_count', num_dead)

  # Validation.

  def _num_groups(self, num_tokens: int) -> int:
    num_groups, size = self.num_groups, self.min_group_size
    if size is not None and num_tokens / num_groups < size:
      num_groups = -(-num_tokens // size)
    if num_tokens % num_groups:
      raise ValueError(
        f'num_groups must divide the number of tokens {num_tokens}, got '
        f'{num_groups}; change num_groups or min_group_size'
      )
    return num_groups

  def _check_moe_fields(self) -> None:
    self._check_positive('input_dims', 'hidden_dims')
    self._check_positive('num_experts', 'num_groups')
    if self.hidden_dims % self.expert_weight_shards:
      raise ValueError(
        f'expert_weight_shards must divide hidden_dims={self.hidden_dims}, got '
        f'{self.expert_weight_shards}'
      )
    is_dropless = self.gating_func == 'dropless'
    if not (self.moe_load_balance_loss_weight or is_dropless):
      raise ValueError('moe_load_balance_loss_weight must not be 0, got 0')
    if not (self.unadjusted_expert_capacity_factor or self.expert_capacity_dim):
      raise ValueError(
        'unadjusted_expert_capacity_factor or expert_capacity_dim must be '
        'positive, got 0 for both'
      )
    for name, value, allowed in (
      ('gating_func', self.gating_func, _GATING_FUNCS),
      (
        'second_expert_policy',
        self.second_expert_policy,
        gating.SECOND_EXPERT_POLICIES,
      ),
      ('gate_function', self.gate_function, gating.GATE_FUNCTIONS),
      ('expert_dispatch', self.expert_dispatch, expert_parallel.DISPATCHES),
      (
        'moe_gating_embedding_level',
        self.moe_gating_embedding_level,
        ('token', 'sentence'),
      ),
    ):
      if value not in allowed:
        raise ValueError(
          f'{name} must be one of {", ".join(allowed)}; got {value!r}'
        )
    expert_units.check_fields(self)
    if is_dropless:
      gating.check_choice(self._gating_options(), self.num_experts)
    else:
      self._check_dropless_fields()

  def _check_dropless_fields(self) -> None:
    names = (
      *('experts_per_token', 'normalize_gates', 'gate_scale', 'gate_function'),
      'gates_scale_inputs',
      *('num_expert_groups', 'groups_per_token', 'experts_per_group_score'),
      *('use_choice_bias', 'choice_bias_update_rate'),
      *('balances_each_sequence', 'expert_dispatch'),
    )
    defaults = {
      field.name: field.default for field in dataclasses.fields(type(self))
    }
    if changed := [n for n in names if getattr(self, n) != defaults[n]]:
      raise ValueError(
        f'{", ".join(changed)} must have the default with gating_func='
        f"{self.gating_func!r}, got another; set gating_func='dropless'"
      )


def _group(x: Float[Array, 'B T M'], num_groups: int) -> Float[Array, 'G S M']:
  return x.reshape(num_groups, -1, x.shape[-1])
