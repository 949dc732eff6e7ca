# SPDX-License-Identifier: Apache-2.0
"""Settings of sampling that each example of a batch may have for itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from praxis.decoding import samplers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
  """Settings by row: G rows are drawn for, R of them read (2 G if guided)."""

  temperature: float | Float[Array, 'G 1']
  top_p: Float[Array, 'G 1'] | None
  top_k: Int[Array, 'G'] | None
  max_steps: int | Int[Array, 'R']
  # Stop sequences, with zeros at the left; None: the same ids end all rows.
  stops: Int[Array, 'R *S L'] | None
  num_candidates: Int[Array, 'R'] | None
  # Raw keys of the rows.
  keys: UInt32[Array, 'G 2'] | None
  # Whether those mean that there are none.
  is_dummy: Any = False

  @classmethod
  def of(
    cls, options: Any, batch: int, num_samples: int, max_steps: int
  ) -> Rows:
    """Returns the settings of `sampling.Options`, for `batch` prompts.

    Raises:
      ValueError: something has another number of examples.
    """
    guided = options.cf_guidance_scale is not None
    examples = batch // 2 if guided else batch

    def by_row(name: str, both: bool = False) -> Array | None:
      x = getattr(options, name)
      if x is None:
        return None
      if x.ndim < 1 or x.shape[0] != examples:
        raise ValueError(
          f'{name} must have shape ({examples},), a value for each example, '
          f'got {x.shape}'
        )
      times = num_samples * (2 if both and guided else 1)
      return jnp.repeat(x, times, axis=0)

    limit = by_row('per_example_max_decode_steps', both=True)
    if limit is not None:
      max_steps = jnp.minimum(limit.astype(jnp.int32), max_steps)
    top_p = by_row('per_example_top_p')
    candidates = by_row('num_per_token_logprobs', both=True)
    stops = None
    if getattr(options.eos_id, 'ndim', 0) > 1:
      stops = by_row('eos_id', both=True).astype(jnp.int32)
    return cls(
      temperature=_temperature(options.temperature, examples, num_samples),
      top_p=None if top_p is None else top_p.reshape(-1, 1),
      top_k=by_row('per_example_top_k'),
      max_steps=max_steps,
      stops=stops,
      num_candidates=candidates,
      **_keys(options.gumbel_prng_key, examples, num_samples),
    )

  def keys_of(self, step: Int[Array, '']) -> UInt32[Array, 'G 2'] | None:
    """Returns the raw keys of a step, or DUMMY_PRNG_KEY everywhere."""
    if self.keys is None:
      return None
    keys = jax.random.wrap_key_data(self.keys)
    folded = jax.vmap(lambda key: jax.random.fold_in(key, step))(keys)
    data = jax.random.key_data(folded)
    return jnp.where(self.is_dummy, samplers.DUMMY_PRNG_KEY, data)


def _temperature(
  temperature: float | Array, examples: int, num_samples: int
) -> float | Float[Array, 'G 1']:
  """Returns it as it is, or by row."""
  if not isinstance(temperature, jax.Array) or temperature.ndim == 0:
    return temperature
  by_sample = temperature
  if temperature.ndim == 1:
    by_sample = jnp.repeat(temperature[:, jnp.newaxis], num_samples, axis=1)
  if by_sample.shape != (examples, num_samples):
    raise ValueError(
      f'temperature must have shape ({examples},) or ({examples}, '
      f'{num_samples}), a value for each example or for each sample, got '
      f'{temperature.shape}'
    )
  return by_sample.reshape(-1, 1)


def _keys(
  seeds: Array | None, examples: int, num_samples: int
) -> dict[str, Any]:
  if seeds is None:
    return {'keys': None}
  seeds = jnp.asarray(seeds).astype(jnp.uint32)
  size = jax.random.key_data(jax.random.key(0)).shape[0]
  if seeds.ndim == 1:
    seeds = jnp.repeat(seeds[:, jnp.newaxis], size, axis=1)
  if seeds.shape != (examples, size):
    raise ValueError(
      f'gumbel_prng_key must have shape ({examples},) or ({examples}, {size}), '
      f'got {seeds.shape}; it needs a key for each example'
    )
  split = jax.vmap(lambda key: jax.random.split(key, num_samples))
  keys = jax.random.key_data(split(jax.random.wrap_key_data(seeds)))
  is_dummy = jnp.all(seeds == samplers.DUMMY_PRNG_KEY)
  return {'keys': keys.reshape(-1, size), 'is_dummy': is_dummy}
