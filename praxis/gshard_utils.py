# SPDX-License-Identifier: Apache-2.0
"""GShard's gating of mixtures of experts as functions (arXiv:2006.16668).

Dimensions: G groups, S tokens per group, E experts, C expert capacity. The
implementation is `praxis.layers.moe.gating`.
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
  """Returns the mapping without the entry of dimension `dim`.

  Raises:
    ValueError: the mapping has no such dimension.
  """
  entries = list(split_dims_mapping or ())
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
  """Returns the cumulative sum along `axis`.

  Args:
    elements: the summands.
    axis: the dimension to sum over.
    exclusive: whether each sum excludes its own element.
    reverse: whether to sum from the end.
  """
  ordered = jnp.flip(elements, axis) if reverse else elements
  sums = jnp.cumsum(ordered, axis=axis)
  if exclusive:
    sums = sums - ordered
  return jnp.flip(sums, axis) if reverse else sums


def top2_gating_on_logits(
  paddings: Float[Array, 'G S'] | None,
  logits: Float[Array, 'G S E'],
  experts_dim: int,
  expert_capacity_dim: int | None,
  fprop_dtype: Any,
  prng_key: jax.Array | None = None,
  second_expert_policy: str = 'all',
  second_expert_threshold: float = 0.0,
  legacy_mtf_behavior: bool = True,
  capacity_factor: float | None = None,
  importance: Float[Array, 'G S'] | None = None,
  mask_dtype: Any = jnp.int32,
  gating_logit_cap: float = 0.0,
) -> _Gating:
  """Top-2 gating.

  Args:
    paddings: 1 at padded positions.
    logits: gating logits.
    experts_dim: number of experts.
    expert_capacity_dim: minimum capacity, None for 1; capacity_factor may
      raise it.
    fprop_dtype: dtype of combine and dispatch.
    prng_key: for second_expert_policy 'sampling' and 'random'.
    second_expert_policy: 'all', 'sampling' or 'random'.
    second_expert_threshold: of the gate of the second expert.
    legacy_mtf_behavior: whether gates are normalized before the capacity
      limit drops choices.
    capacity_factor: capacity relative to an equal share of the tokens.
    importance: replaces 1 - paddings.
    mask_dtype: ignored, masks are float32.
    gating_logit_cap: if positive, the cap of the logits.

  Returns:
    The load balancing loss; the combine and dispatch tensors, [G, S, E, C]; and
    a tuple of summaries: the fractions of first and second choices over
    capacity, and the numbers of tokens that reach 0, 1 and 2 experts.
  """
  del mask_dtype
  gating_options = _options(
    experts_dim,
    logits,
    expert_capacity_dim,
    second_expert_policy=second_expert_policy,
    second_expert_threshold=second_expert_threshold,
    legacy_mtf_behavior=legacy_mtf_behavior,
    capacity_factor=capacity_factor,
    gating_logit_cap=gating_logit_cap,
  )
  if importance is None:
    importance = _importance(paddings, logits)
  combine, loss, dropped = _route_tokens(
    logits, importance, gating_options, prng_key
  )
  num_experts = jnp.sum(combine > 0.0, axis=(-2, -1))
  counts = [jnp.sum(num_experts == count) for count in range(3)]
  if paddings is not None:
    counts[0] -= jnp.sum(paddings.astype(jnp.int32))
  return loss, *_cast(combine, fprop_dtype), (*dropped, *counts)


def topk_gating_on_logits(
  paddings: Float[Array, 'G S'] | None,
  logits: Float[Array, 'G S E'],
  experts_dim: int,
  expert_capacity_dim: int,
  fprop_dtype: Any,
  capacity_factor: float | None = None,
  mask_dtype: Any = jnp.int32,
  k: int = 2,
  gating_logit_cap: float = 0.0,
) -> _Gating:
  """Top-k gating: (loss, combine, dispatch, over-capacity fractions).

  Args:
    paddings: 1 at padded positions.
    logits: gating logits.
    experts_dim: number of experts.
    expert_capacity_dim: minimum capacity; capacity_factor may raise it.
    fprop_dtype: dtype of the results.
    capacity_factor: capacity relative to an equal share of the tokens.
    mask_dtype: ignored, masks are float32.
    k: number of experts per token.
    gating_logit_cap: if positive, the cap of the logits.
  """
  del mask_dtype
  gating_options = _options(
    experts_dim,
    logits,
    expert_capacity_dim,
    experts_per_token=k,
    # A single gate stays the probability of its expert.
    normalize_gates=k > 1,
    capacity_factor=capacity_factor,
    gating_logit_cap=gating_logit_cap,
  )
  importance = _importance(paddings, logits)
  combine, loss, dropped = _route_tokens(
    logits, importance, gating_options, None
  )
  return loss.astype(fprop_dtype), *_cast(combine, fprop_dtype), dropped


def compute_gating(
  paddings: Float[Array, 'G S'] | None,
  logits: Float[Array, 'G S E'],
  experts_dim: int,
  expert_capacity_dim: int,
  fprop_dtype: Any,
  gating_func: str = 'top2',
  prng_key: jax.Array | None = None,
  second_expert_policy: str = 'all',
  second_expert_threshold: float = 0.0,
  legacy_mtf_behavior: bool = True,
  capacity_factor: float | None = None,
  mask_dtype: Any = jnp.int32,
  gating_logit_cap: float = 0.0,
) -> _Gating:
  """Calls the gating function that `gating_func` names.

  Args:
    paddings: 1 at padded positions.
    logits: gating logits.
    experts_dim: number of experts.
    expert_capacity_dim: minimum capacity; capacity_factor may raise it.
    fprop_dtype: dtype of the results.
    gating_func: 'top2', 'expert_choice' or 'expert_choice_v2'.
    prng_key: see `top2_gating_on_logits`, as the arguments after it; gating by
      expert choice reads only capacity_factor of them.
    second_expert_policy: see above.
    second_expert_threshold: see above.
    legacy_mtf_behavior: see above.
    capacity_factor: see above.
    mask_dtype: ignored, masks are float32.
    gating_logit_cap: see above.

  Raises:
    ValueError: `gating_func` is unknown.
  """
  sizes = experts_dim, expert_capacity_dim, fprop_dtype
  if gating_func == 'top2':
    return top2_gating_on_logits(
      paddings,
      logits,
      *sizes,
      prng_key,
      second_expert_policy,
      second_expert_threshold,
      legacy_mtf_behavior,
      capacity_factor,
      None,
      mask_dtype,
      gating_logit_cap,
    )
  if gating_func == 'expert_choice':
    return expert_choice_gating_on_logits(logits, *sizes, capacity_factor)
  if gating_func == 'expert_choice_v2':
    return expert_choice_gating_on_logits_v2(
      paddings, logits, *sizes, capacity_factor
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
  """Expert-choice gating (arXiv:2202.09368).

  Returns:
    A loss of 0, the gates [G, E, C], and the one-hot chosen tokens
    [G, E, C, S] in mask_dtype.
  """
  _options(experts_dim, logits, expert_capacity_dim)
  gates = gating.gate_probabilities(logits)
  picks = gating.choose_tokens(gates, capacity_factor or 1.0)
  loss = jnp.zeros((), fprop_dtype)
  return loss, picks.gates.astype(fprop_dtype), picks.tokens.astype(mask_dtype)


def expert_choice_gating_on_logits_v2(
  paddings: Float[Array, 'G S'] | None,
  logits: Float[Array, 'G S E'],
  experts_dim: int,
  expert_capacity_dim: int,
  fprop_dtype: Any,
  capacity_factor: float | None = None,
  mask_dtype: Any = jnp.int32,
  gating_logit_cap: float = 0.0,
) -> _Gating:
  """Expert-choice gating without padded tokens: (0, combine, dispatch).

  Args:
    paddings: 1 at padded positions.
    logits: gating logits.
    experts_dim: number of experts.
    expert_capacity_dim: minimum capacity; capacity_factor may raise it.
    fprop_dtype: dtype of the results.
    capacity_factor: capacity relative to an equal share of the tokens.
    mask_dtype: ignored, masks are float32.
    gating_logit_cap: if positive, the cap of the logits.
  """
  del mask_dtype
  gating_options = _options(
    experts_dim,
    logits,
    expert_capacity_dim,
    capacity_factor=capacity_factor,
    gating_logit_cap=gating_logit_cap,
  )
  gates = gating.gate_probabilities(logits, gating_options.gating_logit_cap)
  combine = gating.choose_unpadded_tokens(
    gates, _importance(paddings, logits), gating_options
  )
  return jnp.zeros((), fprop_dtype), *_cast(combine, fprop_dtype)


def _route_tokens(
  logits: Float[Array, 'G S E'],
  importance: Float[Array, 'G S'],
  options: gating.GatingOptions,
  key: jax.Array | None,
) -> tuple[Array, Array, list[Array]]:
  """Returns (combine, loss, over-capacity fraction of each choice)."""
  next_key: Callable[[], Any] = lambda: key
  assignment = gating.assign_experts(logits, importance, options, next_key)
  routing = gating.apply_capacity(assignment, options)
  return routing.combine, assignment.load_balance_loss, routing.over_capacity


def _options(
  experts_dim: int,
  logits: Float[Array, 'G S E'],
  expert_capacity_dim: int | None,
  **options: Any,
) -> gating.GatingOptions:
  if logits.shape[-1] != experts_dim:
    raise ValueError(
      f'logits must have experts_dim={experts_dim} as last dimension, got '
      f'shape {logits.shape}'
    )
  if not (expert_capacity_dim or options.get('capacity_factor', 1.0)):
    raise ValueError(
      'expert_capacity_dim or capacity_factor must be positive, got '
      f'{expert_capacity_dim} and {options["capacity_factor"]}'
    )
  if expert_capacity_dim is None:
    # A minimum that capacity_factor need not raise.
    expert_capacity_dim = 1
  return gating.GatingOptions(
    expert_capacity_dim=expert_capacity_dim, **options
  )


def _importance(
  paddings: Float[Array, 'G S'] | None, logits: Float[Array, 'G S E']
) -> Float[Array, 'G S']:
  if paddings is None:
    return jnp.ones(logits.shape[:2], jnp.float32)
  return 1.0 - paddings.astype(jnp.float32)


def _cast(combine: Float[Array, 'G S E C'], dtype: Any) -> tuple[Array, Array]:
  """Returns combine and dispatch, the mask of positive combine weights."""
  return combine.astype(dtype), (combine > 0.0).astype(dtype)
