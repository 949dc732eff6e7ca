# SPDX-License-Identifier: Apache-2.0
"""Which experts see which tokens.

Shapes: G groups, S tokens of a group, E experts, C places at an expert. All of
it is computed in float32.

References: GShard, https://arxiv.org/abs/2006.16668, algorithm 1; expert
choice, https://arxiv.org/abs/2202.09368.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_EPSILON = 1e-9
# Capacities are multiples of this, for the sake of the hardware's tiles.
_CAPACITY_MULTIPLE = 4
# The second expert is always taken from this gate on, with policy 'random'.
_SECOND_EXPERT_THRESHOLD = 0.3
SECOND_EXPERT_POLICIES = ('all', 'sampling', 'random')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routing:
  """Where tokens go, and with which weight they come back."""

  # What an expert's output counts for a token, 0 where it does not see it;
  # without the last axis when experts have a place for every token.
  combine: Float[Array, 'G S E C'] | Float[Array, 'G S E']
  # To be added to the loss, so that experts get equal shares.
  load_balance_loss: Float[Array, '']
  # Of the tokens with a first, or second, choice: how many did not get it.
  over_capacity_1_ratio: Float[Array, '']
  over_capacity_2_ratio: Float[Array, '']


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatingOptions:
  """How tokens are routed; fields as in TransformerFeedForwardMoe."""

  gating_func: str
  second_expert_policy: str
  expert_capacity_dim: int
  capacity_factor: float
  gating_logit_cap: float


def compute_gating(
  logits: Float[Array, 'G S E'],
  paddings: Float[Array, 'G S'],
  options: GatingOptions,
  next_key: Callable[[], jax.Array],
) -> Routing:
  """Returns the routing of all tokens.

  Args:
    logits: how well each expert suits each token.
    paddings: 1 where the token is padding, which goes nowhere.
    options: how to route.
    next_key: gives a random key where the policy draws.
  """
  cap = options.gating_logit_cap
  logits = logits.astype(jnp.float32)
  if cap > 0.0:
    logits = cap * jnp.tanh(logits / cap)
  visible = 1.0 - paddings.astype(jnp.float32)
  if options.gating_func in ('expert_choice', 'expert_choice_v2'):
    if options.gating_func == 'expert_choice':
      visible = jnp.ones_like(visible)
    return _expert_choice(logits, visible, options)
  choices = _top2(logits, visible, options.second_expert_policy, next_key)
  if options.gating_func == 'dense_top2':
    return _dense(choices)
  return _queued(choices, _capacity(logits, options))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Choices:
  """The first and the second choice of each token, one-hot, and their gates."""

  first: Float[Array, 'G S E']
  second: Float[Array, 'G S E']
  gate_1: Float[Array, 'G S']
  gate_2: Float[Array, 'G S']
  load_balance_loss: Float[Array, '']


def _top2(
  logits: Float[Array, 'G S E'],
  visible: Float[Array, 'G S'],
  policy: str,
  next_key: Callable[[], jax.Array],
) -> _Choices:
  experts = logits.shape[-1]
  gates = jax.nn.softmax(logits) * visible[..., None]
  first = jax.nn.one_hot(jnp.argmax(gates, -1), experts) * visible[..., None]
  others = gates * (1.0 - first)
  ranking = others
  if policy == 'sampling':
    noise = jax.random.gumbel(next_key(), gates.shape)
    taken = jnp.where(first > 0, -jnp.inf, 0.0)
    ranking = jnp.log(others + _EPSILON) + noise + taken
  second = jax.nn.one_hot(jnp.argmax(ranking, -1), experts)
  second *= visible[..., None]
  gate_1 = jnp.sum(gates * first, -1)
  gate_2 = jnp.sum(gates * second, -1)
  total = gate_1 + gate_2 + _EPSILON
  gate_1, gate_2 = gate_1 / total, gate_2 / total
  if policy == 'random':
    drawn = jax.random.uniform(next_key(), gate_2.shape)
    second *= (drawn < gate_2 / _SECOND_EXPERT_THRESHOLD)[..., None]
  share = jnp.mean(first, axis=1)
  mean_gate = jnp.mean(gates, axis=1)
  return _Choices(
    first=first,
    second=second,
    gate_1=gate_1,
    gate_2=gate_2,
    load_balance_loss=jnp.mean(share * mean_gate) * experts**2,
  )


def _queued(choices: _Choices, capacity: int) -> Routing:
  """Gives tokens places in order, second choices after all first ones."""
  place_1 = _places_before(choices.first)
  first = choices.first * (place_1 < capacity)
  taken = jnp.sum(first, axis=1, keepdims=True)
  place_2 = _places_before(choices.second) + taken
  second = choices.second * (place_2 < capacity)
  combine = _at_places(first, place_1, choices.gate_1, capacity)
  combine += _at_places(second, place_2, choices.gate_2, capacity)
  return Routing(
    combine=combine,
    load_balance_loss=choices.load_balance_loss,
    over_capacity_1_ratio=_lost(choices.first, first),
    over_capacity_2_ratio=_lost(choices.second, second),
  )


def _dense(choices: _Choices) -> Routing:
  zero = jnp.zeros((), jnp.float32)
  combine = choices.first * choices.gate_1[..., None]
  combine += choices.second * choices.gate_2[..., None]
  return Routing(
    combine=combine,
    load_balance_loss=choices.load_balance_loss,
    over_capacity_1_ratio=zero,
    over_capacity_2_ratio=zero,
  )


def _expert_choice(
  logits: Float[Array, 'G S E'],
  visible: Float[Array, 'G S'],
  options: GatingOptions,
) -> Routing:
  """Lets each expert pick the tokens with the highest gates."""
  tokens = logits.shape[1]
  gates = jax.nn.softmax(logits) * visible[..., None]
  places = min(_capacity(logits, options), tokens)
  picked_gates, picked = jax.lax.top_k(jnp.swapaxes(gates, 1, 2), places)
  chosen = jax.nn.one_hot(picked, tokens)
  zero = jnp.zeros((), jnp.float32)
  return Routing(
    combine=jnp.einsum('GECS,GEC->GSEC', chosen, picked_gates),
    load_balance_loss=zero,
    over_capacity_1_ratio=zero,
    over_capacity_2_ratio=zero,
  )


def _capacity(logits: Float[Array, 'G S E'], options: GatingOptions) -> int:
  _, tokens, experts = logits.shape
  wanted = int(tokens * options.capacity_factor / experts)
  multiples = -(-wanted // _CAPACITY_MULTIPLE)
  return max(options.expert_capacity_dim, multiples * _CAPACITY_MULTIPLE)


def _places_before(chosen: Float[Array, 'G S E']) -> Float[Array, 'G S E']:
  """Returns how many earlier tokens chose the same expert."""
  return jnp.cumsum(chosen, axis=1) - chosen


def _at_places(
  chosen: Float[Array, 'G S E'],
  places: Float[Array, 'G S E'],
  gate: Float[Array, 'G S'],
  capacity: int,
) -> Float[Array, 'G S E C']:
  place: Int[Array, 'G S'] = jnp.sum(places * chosen, -1).astype(jnp.int32)
  at = jax.nn.one_hot(place, capacity)
  return jnp.einsum('GSE,GSC,GS->GSEC', chosen, at, gate)


def _lost(wanted: Array, got: Array) -> Float[Array, '']:
  total = jnp.sum(wanted)
  return (total - jnp.sum(got)) / jnp.maximum(total, 1.0)
