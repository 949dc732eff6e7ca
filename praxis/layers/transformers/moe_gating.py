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
import numpy as np
from jaxtyping import Array, Float, Int

_EPSILON = 1e-9
# Capacities are multiples of this, for the sake of the hardware's tiles.
_CAPACITY_MULTIPLE = 4
SECOND_EXPERT_POLICIES = ('all', 'sampling', 'random')


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatingOptions:
  """How tokens are routed; most fields are as in TransformerFeedForwardMoe."""

  # How many experts a token goes to.
  num_choices: int = 2
  second_expert_policy: str = 'all'
  second_expert_threshold: float = 0.0
  expert_capacity_dim: int = 0
  capacity_factor: float | None = None
  gating_logit_cap: float = 0.0
  # Whether the gates of a token add up to 1 before full experts turn it away,
  # or after.
  legacy_mtf_behavior: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choices:
  """The choices of tokens, the first ones first."""

  # One-hot, 0 for padding.
  masks: list[Float[Array, 'G S E']]
  # How much the chosen expert counts for the token.
  gates: list[Float[Array, 'G S']]
  # To be added to the loss, so that experts get equal shares.
  load_balance_loss: Float[Array, '']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routing:
  """Where tokens go, and with which weight they come back."""

  # What an expert's output counts for a token, 0 where it does not see it.
  combine: Float[Array, 'G S E C']
  # Of the tokens with a first, second ... choice: the share turned away.
  over_capacity: list[Float[Array, '']]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picks:
  """The tokens that experts picked."""

  # How much the expert counts for the token at each of its places.
  gates: Float[Array, 'G E C']
  # Which token that is, one-hot.
  tokens: Float[Array, 'G E C S']


def gate_probabilities(
  logits: Float[Array, 'G S E'], logit_cap: float = 0.0
) -> Float[Array, 'G S E']:
  """Returns the softmax of logits, kept within ± `logit_cap` unless 0."""
  logits = _capped(logits.astype(jnp.float32), logit_cap)
  return jax.nn.softmax(logits)


def choose(
  logits: Float[Array, 'G S E'],
  importance: Float[Array, 'G S'],
  options: GatingOptions,
  next_key: Callable[[], jax.Array],
) -> Choices:
  """Returns the experts of each token's choice.

  Args:
    logits: how well each expert suits each token.
    importance: 0 for padding, which goes nowhere; below 1 for tokens that have
      no first choice.
    options: how to choose.
    next_key: gives a random key where the policy draws.
  """
  experts = logits.shape[-1]
  logits = _capped(logits.astype(jnp.float32), options.gating_logit_cap)
  gates = jax.nn.softmax(logits)
  counts = (importance == 1.0).astype(jnp.float32)[..., None]
  visible = (importance > 0.0).astype(jnp.float32)[..., None]
  masks = [jax.nn.one_hot(jnp.argmax(gates, -1), experts) * counts]
  others = gates
  for _ in range(1, options.num_choices):
    others = others * (1.0 - masks[-1])
    ranking = others
    if options.second_expert_policy == 'sampling':
      ranking = _drawn(logits, masks[0], next_key())
    best = jax.nn.one_hot(jnp.argmax(ranking, -1), experts)
    masks.append(best * visible)
  chosen = [jnp.sum(gates * mask, -1) for mask in masks]
  if options.legacy_mtf_behavior and len(chosen) > 1:
    total = sum(chosen) + _EPSILON
    chosen = [gate / total for gate in chosen]
  if options.second_expert_policy == 'random':
    threshold = max(options.second_expert_threshold, _EPSILON)
    key = jax.random.split(next_key())[1]
    drawn = jax.random.uniform(key, chosen[1].shape) < chosen[1] / threshold
    masks[1] = masks[1] * drawn[..., None]
    chosen[1] = chosen[1] * drawn
  loss = _load_balance_loss(masks[0], gates * counts, importance, options)
  return Choices(masks=masks, gates=chosen, load_balance_loss=loss)


def queue(choices: Choices, options: GatingOptions) -> Routing:
  """Gives tokens places in order, later choices after all earlier ones."""
  capacity = expert_capacity(choices.masks[0].shape, options)
  taken = jnp.zeros((), jnp.float32)
  masks, places, lost = [], [], []
  for mask in choices.masks:
    place = _places_before(mask) + taken
    kept = mask * (place < capacity)
    taken = taken + jnp.sum(kept, axis=1, keepdims=True)
    lost.append(_share_lost(mask, kept))
    masks.append(kept)
    places.append(place)
  gates = [
    gate * jnp.sum(mask, -1)
    for gate, mask in zip(choices.gates, masks, strict=True)
  ]
  if not options.legacy_mtf_behavior:
    total = sum(gates)
    gates = [gate / jnp.where(total > 0.0, total, 1.0) for gate in gates]
  combine = sum(
    _at_places(mask * gate[..., None], place, capacity)
    for mask, gate, place in zip(masks, gates, places, strict=True)
  )
  return Routing(combine=combine, over_capacity=lost)


def pick_tokens(gates: Float[Array, 'G S E'], capacity_factor: float) -> Picks:
  """Lets each expert pick its share of tokens, those with the highest gates."""
  _, tokens, experts = gates.shape
  places = int(tokens // experts * capacity_factor)
  places = min(max(1, places), tokens)
  values, indices = top_k(jnp.swapaxes(gates, 1, 2), places)
  return Picks(gates=values, tokens=jax.nn.one_hot(indices, tokens))


def pick_visible_tokens(
  gates: Float[Array, 'G S E'],
  importance: Float[Array, 'G S'],
  options: GatingOptions,
) -> Float[Array, 'G S E C']:
  """Returns the combine tensor where experts pick tokens, none of padding."""
  tokens = gates.shape[1]
  capacity = expert_capacity(gates.shape, options)
  scores = jnp.swapaxes(gates * importance[..., None], 1, 2)
  _, indices = top_k(scores, min(capacity, tokens))
  picked = jnp.sum(jax.nn.one_hot(indices, tokens), axis=2)
  picked = jnp.swapaxes(picked, 1, 2) * importance[..., None]
  return _at_places(gates * picked, _places_before(picked), capacity)


def top_k(
  x: Float[Array, '*B S'], k: int
) -> tuple[Float[Array, '*B k'], Int[Array, '*B k']]:
  """Returns the k largest of the last axis and their indices, ascending."""
  indices = jnp.argsort(x, axis=-1)[..., x.shape[-1] - k :]
  return jnp.take_along_axis(x, indices, axis=-1), indices


def expert_capacity(shape: tuple[int, ...], options: GatingOptions) -> int:
  """Returns how many places an expert has for the tokens of a group.

  It is the capacity set, or where that is more the factor times the equal share
  of [G, S, E] tokens, rounded up; never less than one, rounded up.
  """
  _, tokens, experts = shape
  share = int(tokens * (options.capacity_factor or 0.0) / experts)
  capacity = max(options.expert_capacity_dim, 1)
  if options.expert_capacity_dim < max(share, 1):
    capacity = max(share, 1)
    capacity += -capacity % _CAPACITY_MULTIPLE
  return capacity


def _capped(logits: Array, cap: float) -> Array:
  return cap * jnp.tanh(logits / cap) if cap > 0.0 else logits


def _drawn(
  logits: Float[Array, 'G S E'], first: Float[Array, 'G S E'], key: jax.Array
) -> Float[Array, 'G S E']:
  """Returns ranks by which each expert but the first wins as its gate says."""
  uniform = jax.random.uniform(jax.random.split(key)[1], logits.shape)
  lowest = -0.7 * float(np.finfo(np.float32).max)
  return jnp.where(first > 0.0, lowest, logits) - jnp.log(-jnp.log(uniform))


def _load_balance_loss(
  first: Float[Array, 'G S E'],
  gates: Float[Array, 'G S E'],
  importance: Float[Array, 'G S'],
  options: GatingOptions,
) -> Float[Array, '']:
  share, mean_gate = jnp.mean(first, axis=1), jnp.mean(gates, axis=1)
  if not options.legacy_mtf_behavior:
    visible = jnp.mean(importance, axis=1)[:, None] + 1e-6
    share, mean_gate = share / visible, mean_gate / visible
  return jnp.mean(share * mean_gate) * first.shape[-1] ** 2


def _places_before(chosen: Float[Array, 'G S E']) -> Float[Array, 'G S E']:
  """Returns how many earlier tokens chose the same expert."""
  return jnp.cumsum(chosen, axis=1) - chosen


def _at_places(
  weights: Float[Array, 'G S E'], places: Float[Array, 'G S E'], capacity: int
) -> Float[Array, 'G S E C']:
  """Returns weights at their places, nothing beyond the capacity."""
  at = jax.nn.one_hot(places.astype(jnp.int32), capacity)
  return weights[..., None] * at


def _share_lost(wanted: Array, got: Array) -> Float[Array, '']:
  total = jnp.sum(wanted)
  return (total - jnp.sum(got)) / jnp.maximum(total, 1.0)
