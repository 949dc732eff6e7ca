# SPDX-License-Identifier: Apache-2.0
"""Gating of mixtures of experts: top-k token choice and expert choice.

Shapes: G groups, S tokens per group, E experts, C capacity of an expert per
group, k experts per token. All functions compute in float32.

References:
  GShard, https://arxiv.org/abs/2006.16668, algorithm 1 (top-2 gating);
  Expert Choice Routing, https://arxiv.org/abs/2202.09368;
  DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.1.2 (sigmoid gates,
  biases of the choice, groups of experts).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

_EPSILON = 1e-9
# Capacities computed from the factor are multiples of this, to fill tiles.
_CAPACITY_MULTIPLE = 4
SECOND_EXPERT_POLICIES = ('all', 'sampling', 'random')
GATE_FUNCTIONS = ('softmax', 'sigmoid')


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatingOptions:
  """Options of the routing; most are fields of TransformerFeedForwardMoe."""

  # k, the number of experts per token.
  experts_per_token: int = 2
  second_expert_policy: str = 'all'
  second_expert_threshold: float = 0.0
  expert_capacity_dim: int = 0
  capacity_factor: float | None = None
  gating_logit_cap: float = 0.0
  # One of GATE_FUNCTIONS, of the logits.
  gate_function: str = 'softmax'
  # Limit of a token to the experts of the best groups of consecutive experts:
  # the number of groups, how many a token may use, and of how many of its best
  # experts the scores of a group are the sum.
  num_expert_groups: int = 1
  groups_per_token: int = 1
  experts_per_group_score: int = 1
  # Whether the gates of a token are normalized before the capacity limit drops
  # choices (as in Mesh TensorFlow) rather than after.
  legacy_mtf_behavior: bool = True
  # Whether the gates of the k experts of a token add up to 1.
  normalize_gates: bool = True
  # Factor of the gates after that.
  gate_scale: float = 1.0
  # Whether the load balancing loss is Switch Transformer's over all k choices
  # of all tokens, instead of GShard's over the first choices of each group.
  balances_all_choices: bool = False
  # Whether the former is the mean of that of each group of tokens.
  balances_each_group: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertAssignment:
  """The k experts of each token, before any capacity limit."""

  # One-hot masks of the first, second ... expert; all zero for padding.
  masks: list[Float[Array, 'G S E']]
  # The gates of those experts.
  gates: list[Float[Array, 'G S']]
  load_balance_loss: Float[Array, '']

  def expert_weights(self) -> Float[Array, 'G S E']:
    """Returns the gate of every expert for every token, 0 if unassigned."""
    return _sum(
      mask * gate[..., jnp.newaxis]
      for mask, gate in zip(self.masks, self.gates, strict=True)
    )

  def expert_load(self) -> Float[Array, ' E']:
    """Returns the number of tokens of each expert."""
    return _sum(jnp.sum(mask, axis=(0, 1)) for mask in self.masks)

  def relative_expert_load(self) -> Float[Array, ' E']:
    """Returns the tokens per expert relative to an equal share."""
    load = self.expert_load()
    return load / jnp.maximum(jnp.mean(load), 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CapacityRouting:
  """The assignment after each expert dropped the tokens above its capacity."""

  # Gate of each token at each slot of each expert; GShard's combine_weights.
  combine: Float[Array, 'G S E C']
  # For the first, second ... choice: the fraction of its tokens dropped.
  over_capacity: list[Float[Array, '']]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertChoice:
  """The tokens chosen by each expert."""

  gates: Float[Array, 'G E C']
  # One-hot token of each slot of an expert, within the group.
  tokens: Float[Array, 'G E C S']


def check_choice(options: GatingOptions, num_experts: int) -> None:
  """Checks that a token can have its number of experts.

  Args:
    options: of the choice.
    num_experts: number of experts.

  Raises:
    ValueError: it cannot.
  """
  k = options.experts_per_token
  if not 1 <= k <= num_experts:
    raise ValueError(
      f'experts_per_token must be from 1 to num_experts={num_experts}, got {k}'
    )
  if k != 2 and options.second_expert_policy != 'all':
    raise ValueError(
      f"second_expert_policy must be 'all' with experts_per_token={k}, got"
      f' {options.second_expert_policy!r}; it is a policy of two experts'
    )
  groups, chosen = options.num_expert_groups, options.groups_per_token
  if groups < 1 or num_experts % groups or not 1 <= chosen <= groups:
    raise ValueError(
      f'num_expert_groups must divide num_experts={num_experts} and be at'
      f' least groups_per_token={chosen}, got {groups}'
    )
  size = num_experts // groups
  if k > chosen * size or not 1 <= options.experts_per_group_score <= size:
    raise ValueError(
      f'experts_per_token={k} must be in groups_per_token={chosen} groups, and'
      f' experts_per_group_score={options.experts_per_group_score} in one, got'
      f' {size} experts per group; use fewer groups'
    )


def gate_probabilities(
  logits: Float[Array, 'G S E'], logit_cap: float = 0.0
) -> Float[Array, 'G S E']:
  """Returns the softmax of the logits, soft-capped unless `logit_cap` is 0."""
  logits = _soft_cap(logits.astype(jnp.float32), logit_cap)
  return jax.nn.softmax(logits)


def assign_experts(
  logits: Float[Array, 'G S E'],
  importance: Float[Array, 'G S'],
  options: GatingOptions,
  next_key: Callable[[], jax.Array],
  bias: Float[Array, ' E'] | None = None,
) -> ExpertAssignment:
  """Assigns each token to its top-k experts.

  Args:
    logits: router logits.
    importance: 1 for a token, 0 for padding, which is not assigned; a token
      with a value between them gets no first expert.
    options: k, and the policy for the second expert.
    next_key: returns a PRNG key; called by the policies that sample.
    bias: added to the gates for the choice of experts only.
  """
  num_experts = logits.shape[-1]
  logits = _soft_cap(logits.astype(jnp.float32), options.gating_logit_cap)
  is_sigmoid = options.gate_function == 'sigmoid'
  gates = jax.nn.sigmoid(logits) if is_sigmoid else jax.nn.softmax(logits)
  scores = _choice_scores(gates, bias, options)
  is_important = (importance == 1.0).astype(jnp.float32)[..., None]
  is_token = (importance > 0.0).astype(jnp.float32)[..., None]
  first = jax.nn.one_hot(jnp.argmax(scores, -1), num_experts)
  masks = [first * is_important]
  for _ in range(1, options.experts_per_token):
    # No expert is chosen twice.
    scores = jnp.where(masks[-1] > 0.0, -jnp.inf, scores)
    if options.second_expert_policy == 'sampling':
      scores = _gumbel_perturbed(logits, masks[0], next_key())
    best = jax.nn.one_hot(jnp.argmax(scores, -1), num_experts)
    masks.append(best * is_token)
  top_gates = [jnp.sum(gates * mask, -1) for mask in masks]
  if options.legacy_mtf_behavior and options.normalize_gates:
    total = sum(top_gates) + _EPSILON
    top_gates = [gate / total for gate in top_gates]
  if options.second_expert_policy == 'random':
    threshold = max(options.second_expert_threshold, _EPSILON)
    key = jax.random.split(next_key())[1]
    uniform = jax.random.uniform(key, top_gates[1].shape)
    is_kept = uniform < top_gates[1] / threshold
    masks[1] = masks[1] * is_kept[..., None]
    top_gates[1] = top_gates[1] * is_kept
  if options.gate_scale != 1.0:
    top_gates = [gate * options.gate_scale for gate in top_gates]
  if options.balances_all_choices:
    if is_sigmoid:
      gates = gates / jnp.sum(gates, axis=-1, keepdims=True)
    axes = (1,) if options.balances_each_group else (0, 1)
    loss = _all_choices_loss(masks, gates * is_token, axes)
  else:
    loss = _first_choice_loss(
      masks[0], gates * is_important, importance, options
    )
  return ExpertAssignment(masks=masks, gates=top_gates, load_balance_loss=loss)


def apply_capacity(
  assignment: ExpertAssignment, options: GatingOptions
) -> CapacityRouting:
  """Assigns tokens to expert slots in order; drops those above capacity.

  All first choices take slots before any second choice.
  """
  capacity = expert_capacity(assignment.masks[0].shape, options)
  num_used_slots = jnp.zeros((), jnp.float32)
  masks, slots, dropped = [], [], []
  for mask in assignment.masks:
    slot = _exclusive_cumsum(mask) + num_used_slots
    kept_mask = mask * (slot < capacity)
    num_used_slots += jnp.sum(kept_mask, axis=1, keepdims=True)
    dropped.append(_dropped_fraction(mask, kept_mask))
    masks.append(kept_mask)
    slots.append(slot)
  gates = [
    gate * jnp.sum(mask, -1)
    for gate, mask in zip(assignment.gates, masks, strict=True)
  ]
  if not options.legacy_mtf_behavior:
    total = sum(gates)
    gates = [gate / jnp.where(total > 0.0, total, 1.0) for gate in gates]
  combine = _sum(
    _scatter_to_slots(mask * gate[..., None], slot, capacity)
    for mask, gate, slot in zip(masks, gates, slots, strict=True)
  )
  return CapacityRouting(combine=combine, over_capacity=dropped)


def choose_tokens(
  gates: Float[Array, 'G S E'], capacity_factor: float
) -> ExpertChoice:
  """Lets each expert choose the S / E * factor tokens with the top gates."""
  _, num_tokens, num_experts = gates.shape
  capacity = int(num_tokens // num_experts * capacity_factor)
  capacity = min(max(1, capacity), num_tokens)
  values, indices = top_k(jnp.swapaxes(gates, 1, 2), capacity)
  return ExpertChoice(gates=values, tokens=jax.nn.one_hot(indices, num_tokens))


def choose_unpadded_tokens(
  gates: Float[Array, 'G S E'],
  importance: Float[Array, 'G S'],
  options: GatingOptions,
) -> Float[Array, 'G S E C']:
  """Returns the combine tensor of expert choice that excludes padding."""
  num_tokens = gates.shape[1]
  capacity = expert_capacity(gates.shape, options)
  scores = jnp.swapaxes(gates * importance[..., None], 1, 2)
  _, indices = top_k(scores, min(capacity, num_tokens))
  chosen = jnp.sum(jax.nn.one_hot(indices, num_tokens), axis=2)
  chosen = jnp.swapaxes(chosen, 1, 2) * importance[..., None]
  return _scatter_to_slots(gates * chosen, _exclusive_cumsum(chosen), capacity)


def top_k(
  x: Float[Array, '*B S'], k: int
) -> tuple[Float[Array, '*B k'], Int[Array, '*B k']]:
  """Returns the k largest of the last axis and their indices, ascending."""
  indices = jnp.argsort(x, axis=-1)[..., x.shape[-1] - k :]
  return jnp.take_along_axis(x, indices, axis=-1), indices


def expert_capacity(shape: tuple[int, ...], options: GatingOptions) -> int:
  """Returns the number of slots of an expert per group of [G, S, E] gates.

  The larger of `expert_capacity_dim` and `capacity_factor * S / E`, the latter
  rounded up to a multiple of 4; at least 1.
  """
  _, num_tokens, num_experts = shape
  factor = options.capacity_factor or 0.0
  capacity = max(int(num_tokens * factor / num_experts), 1)
  if options.expert_capacity_dim >= capacity:
    return options.expert_capacity_dim
  return capacity + -capacity % _CAPACITY_MULTIPLE


def dispatch_fraction(
  combine: Float[Array, 'G S E C'],
  importance: Float[Array, 'G S'],
  num_experts: int,
) -> Float[Array, '']:
  """Returns the fraction of the tokens that reach exactly `num_experts`."""
  reached = jnp.sum(combine > 0.0, axis=(-2, -1))
  is_token = importance > 0.0
  num_tokens = jnp.maximum(jnp.sum(is_token), 1)
  return jnp.sum((reached == num_experts) & is_token) / num_tokens


def _soft_cap(logits: Array, cap: float) -> Array:
  return cap * jnp.tanh(logits / cap) if cap > 0.0 else logits


def _gumbel_perturbed(
  logits: Float[Array, 'G S E'], first: Float[Array, 'G S E'], key: jax.Array
) -> Float[Array, 'G S E']:
  """Returns Gumbel-perturbed logits, with the first expert masked out.

  Their argmax samples the second expert in proportion to the gates.
  """
  uniform = jax.random.uniform(jax.random.split(key)[1], logits.shape)
  lowest = -0.7 * float(np.finfo(np.float32).max)
  return jnp.where(first > 0.0, lowest, logits) - jnp.log(-jnp.log(uniform))


def _first_choice_loss(
  first: Float[Array, 'G S E'],
  gates: Float[Array, 'G S E'],
  importance: Float[Array, 'G S'],
  options: GatingOptions,
) -> Float[Array, '']:
  """Returns the mean of density * mean gate, times E^2 (GShard's l_aux)."""
  density, mean_gate = jnp.mean(first, axis=1), jnp.mean(gates, axis=1)
  if not options.legacy_mtf_behavior:
    token_fraction = jnp.mean(importance, axis=1)[:, None] + 1e-6
    density, mean_gate = density / token_fraction, mean_gate / token_fraction
  return jnp.mean(density * mean_gate) * first.shape[-1] ** 2


def _all_choices_loss(
  masks: list[Float[Array, 'G S E']],
  gates: Float[Array, 'G S E'],
  axes: tuple[int, ...],
) -> Float[Array, '']:
  """Returns E * sum of density * mean gate; 1 if all experts have equal shares.

  Args:
    masks: one-hot masks of the choices.
    gates: of each token they add up to 1, or to 0 for padding.
    axes: of the tokens that are balanced together; the result is the mean over
      the others, of groups with tokens.

  References: Switch Transformers, https://arxiv.org/abs/2101.03961, equation 4,
    with the share of an expert in all choices.
  """
  load, gate = jnp.sum(_sum(masks), axis=axes), jnp.sum(gates, axis=axes)
  # Without tokens both sums are 0.
  num_choices = jnp.sum(load, axis=-1, keepdims=True)
  density = load / jnp.maximum(num_choices, 1.0)
  mean_gate = gate / jnp.maximum(
    jnp.sum(gate, axis=-1, keepdims=True), _EPSILON
  )
  num_groups = jnp.maximum(jnp.sum(num_choices > 0.0), 1)
  return jnp.sum(density * mean_gate) / num_groups * masks[0].shape[-1]


def _choice_scores(
  gates: Float[Array, 'G S E'],
  bias: Float[Array, ' E'] | None,
  options: GatingOptions,
) -> Float[Array, 'G S E']:
  """Returns what ranks the experts of a token: -inf outside its groups."""
  scores = gates if bias is None else gates + bias
  num_groups, num_chosen = options.num_expert_groups, options.groups_per_token
  if num_chosen == num_groups:
    return scores
  grouped = scores.reshape(*scores.shape[:-1], num_groups, -1)
  best, _ = jax.lax.top_k(grouped, options.experts_per_group_score)
  _, chosen = jax.lax.top_k(jnp.sum(best, axis=-1), num_chosen)
  is_chosen = jnp.any(chosen[..., jnp.newaxis] == jnp.arange(num_groups), -2)
  return jnp.where(is_chosen[..., jnp.newaxis], grouped, -jnp.inf).reshape(
    scores.shape
  )


def _exclusive_cumsum(mask: Float[Array, 'G S E']) -> Float[Array, 'G S E']:
  """Returns how many earlier tokens have the same expert."""
  return jnp.cumsum(mask, axis=1) - mask


def _scatter_to_slots(
  weights: Float[Array, 'G S E'], slots: Float[Array, 'G S E'], capacity: int
) -> Float[Array, 'G S E C']:
  """Returns the weights at their slots; slots >= capacity are dropped."""
  one_hot = jax.nn.one_hot(slots.astype(jnp.int32), capacity)
  return weights[..., None] * one_hot


def _dropped_fraction(
  assigned: Float[Array, 'G S E'], kept: Float[Array, 'G S E']
) -> Float[Array, '']:
  num_assigned = jnp.sum(assigned)
  num_dropped = num_assigned - jnp.sum(kept)
  return num_dropped / jnp.maximum(num_assigned, 1.0)


def _sum(terms: Iterable[Array]) -> Array:
  """Returns the sum of at least one array."""
  return functools.reduce(operator.add, terms)
