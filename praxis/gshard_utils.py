# SPDX-License-Identifier: Apache-2.0
"""Gating of mixtures of experts as GShard's functions.

Shapes: G groups, S tokens of a group, E experts, C places at an expert. The
layer uses praxis.layers.moe.gating, which does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import pytypes
from praxis.layers.moe import gating
from praxis.layers.moe.gating import top_k as top_k

# (load balancing loss, combine, dispatch, ...)
_Gating = tuple[Any, ...]


def remove_dim(
  dim: int, split_dims_mapping: pytypes.SplitDimsMapping
) -> pytypes.SplitDimsMapping:
  """Returns the mapping without the entry of dimension `dim`."""
  entries = list(split_dims_mapping)
  if not -len(entries) <= dim < len(entries):
    raise ValueError(
      f'dim must be one of {len(entries)} dimensions of split_dims_mapping, '
      f'got {dim}'
    )
  del entries[dim]
  return entries


def cum_sum(
  elements: Num[Array, '...'],
  axis: int = 0,
  exclusive: bool = False,
  reverse: bool = False,
) -> Num[Array, '...']:
  """Returns sums of the elements up to each, or from each on if `reverse`.

  An `exclusive` sum leaves the element itself out.
  """
  turned = jnp.flip(elements, axis) if reverse else elements
  sums = jnp.cumsum(turned, axis=axis)
  if exclusive:
    sums = sums - turned
  return jnp.flip(sums, axis) if reverse else sums


def top2_gating_on_logits(
  paddings: Float[Array, 'G S'] | None,
  logits: Float[Array, 'G S E'],
  experts_dim: int,
  expert_capacity_dim: int | None,
  fprop_dtype: Any,
  prng_key: jax.Array | None = None,
  **options: Any,
) -> _Gating:
  """Returns (loss, combine, dispatch, summaries) of two choices a token.

  Args:
    paddings: 1 where there is no token.
    logits: how well each expert suits each token.
    experts_dim: how many experts there are.
    expert_capacity_dim: places of an expert, unless capacity_factor wants more.
    fprop_dtype: of combine and dispatch, [G, S, E, C].
    prng_key: for second_expert_policy 'sampling' and 'random'.
    **options: fields of `gating.GatingOptions`; importance, in place of
      1 - paddings; and mask_dtype, without effect: masks are float32.

  The summaries are the shares of first and of second choices turned away, and
  how many tokens reach 0, 1 and 2 experts.
  """
  importance = options.pop('importance', None)
  chosen = _options(experts_dim, logits, expert_capacity_dim, options)
  if importance is None:
    importance = _importance(paddings, logits)
  combine, loss, lost = _queued(logits, importance, chosen, prng_key)
  reached = jnp.sum(combine > 0.0, axis=(-2, -1))
  counts = [jnp.sum(reached == count) for count in range(3)]
  if paddings is not None:
    counts[0] -= jnp.sum(paddings.astype(jnp.int32))
  return loss, *_cast(combine, fprop_dtype), (*lost, *counts)


def topk_gating_on_logits(
  paddings: Float[Array, 'G S'] | None,
  logits: Float[Array, 'G S E'],
  experts_dim: int,
  expert_capacity_dim: int,
  fprop_dtype: Any,
  k: int = 2,
  **options: Any,
) -> _Gating:
  """Returns (loss, combine, dispatch, shares turned away) of k choices."""
  options = options | {'experts_per_token': k}
  chosen = _options(experts_dim, logits, expert_capacity_dim, options)
  importance = _importance(paddings, logits)
  combine, loss, lost = _queued(logits, importance, chosen, None)
  return loss.astype(fprop_dtype), *_cast(combine, fprop_dtype), lost


def compute_gating(
  paddings: Float[Array, 'G S'] | None,
  logits: Float[Array, 'G S E'],
  experts_dim: int,
  expert_capacity_dim: int,
  fprop_dtype: Any,
  gating_func: str = 'top2',
  **options: Any,
) -> _Gating:
  """Returns what the function of 'top2' or 'expert_choice(_v2)' returns."""
  sizes = experts_dim, expert_capacity_dim, fprop_dtype
  if gating_func == 'top2':
    return top2_gating_on_logits(paddings, logits, *sizes, **options)
  if gating_func == 'expert_choice':
    factor = options.get('capacity_factor')
    return expert_choice_gating_on_logits(logits, *sizes, factor)
  if gating_func == 'expert_choice_v2':
    factor = options.get('capacity_factor')
    return expert_choice_gating_on_logits_v2(
      paddings, logits, *sizes, capacity_factor=factor
    )
  raise ValueError(
    'gating_func must be one of top2, expert_choice, expert_choice_v2; got '
    f'{gating_func!r}'
  )


def expert_choice_gating_on_logits(
  logits: Float[Array, 'G S E'],
  experts_dim: int,
  expert_capacity_dim: int,
  fprop_dtype: Any,
  capacity_factor: float | None = None,
  mask_dtype: Any = jnp.int32,
) -> _Gating:
  """Returns (0, gates [G, E, C], tokens [G, E, C, S]) that experts pick."""
  del mask_dtype
  _options(experts_dim, logits, expert_capacity_dim, {})
  gates = gating.gate_probabilities(logits)
  picks = gating.choose_tokens(gates, capacity_factor or 1.0)
  cast = lambda x: x.astype(fprop_dtype)
  return jnp.zeros((), fprop_dtype), cast(picks.gates), cast(picks.tokens)


def expert_choice_gating_on_logits_v2(
  paddings: Float[Array, 'G S'] | None,
  logits: Float[Array, 'G S E'],
  experts_dim: int,
  expert_capacity_dim: int,
  fprop_dtype: Any,
  **options: Any,
) -> _Gating:
  """Returns (0, combine, dispatch) where experts pick tokens, no padding."""
  chosen = _options(experts_dim, logits, expert_capacity_dim, options)
  gates = gating.gate_probabilities(logits, chosen.gating_logit_cap)
  combine = gating.choose_unpadded_tokens(
    gates, _importance(paddings, logits), chosen
  )
  return jnp.zeros((), fprop_dtype), *_cast(combine, fprop_dtype)


def _queued(
  logits: Float[Array, 'G S E'],
  importance: Float[Array, 'G S'],
  options: gating.GatingOptions,
  key: jax.Array | None,
) -> tuple[Array, Array, list[Array]]:
  """Returns combine, the loss, and the shares of choices turned away."""
  next_key: Callable[[], Any] = lambda: key
  assignment = gating.assign_experts(logits, importance, options, next_key)
  routing = gating.apply_capacity(assignment, options)
  return routing.combine, assignment.load_balance_loss, routing.over_capacity


def _options(
  experts_dim: int,
  logits: Float[Array, 'G S E'],
  expert_capacity_dim: int | None,
  options: dict[str, Any],
) -> gating.GatingOptions:
  if logits.shape[-1] != experts_dim:
    raise ValueError(
      f'logits must have experts_dim={experts_dim} as last dimension, got '
      f'shape {logits.shape}'
    )
  fields = {k: v for k, v in options.items() if k != 'mask_dtype'}
  return gating.GatingOptions(
    expert_capacity_dim=expert_capacity_dim or 0, **fields
  )


def _importance(
  paddings: Float[Array, 'G S'] | None, logits: Float[Array, 'G S E']
) -> Float[Array, 'G S']:
  if paddings is None:
    return jnp.ones(logits.shape[:2], jnp.float32)
  return 1.0 - paddings.astype(jnp.float32)


def _cast(combine: Float[Array, 'G S E C'], dtype: Any) -> tuple[Array, Array]:
  """Returns combine and dispatch, which is 1 where combine is not 0."""
  return combine.astype(dtype), (combine > 0.0).astype(dtype)
