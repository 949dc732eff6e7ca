# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters by row, from options by example."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from praxis.decoding import token_samplers
from praxis.decoding.sampling_options import SamplingOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowKeys:
  """Raw PRNG keys of rows, folded with the step at each step."""

  keys: UInt32[Array, 'G 2']
  # Whether the batch holds DUMMY_PRNG_KEY everywhere, that is, no keys.
  is_dummy: Bool[Array, '']

  @classmethod
  def from_seeds(
    cls, seeds: Array, num_examples: int, num_samples: int
  ) -> RowKeys:
    """Returns keys of each sample, split from one per example.

    Raises:
      ValueError: there are not as many seeds as examples.
    """
    seeds = jnp.asarray(seeds).astype(jnp.uint32)
    key_size = jax.random.key_data(jax.random.key(0)).shape[0]
    if seeds.ndim == 1:
      seeds = jnp.repeat(seeds[:, jnp.newaxis], key_size, axis=1)
    if seeds.shape != (num_examples, key_size):
      raise ValueError(
        f'gumbel_prng_key must have shape ({num_examples},) or '
        f'({num_examples}, {key_size}), got {seeds.shape}; it needs a key for '
        'each example'
      )
    split = jax.vmap(lambda key: jax.random.split(key, num_samples))
    keys = jax.random.key_data(split(jax.random.wrap_key_data(seeds)))
    return cls(
      keys=keys.reshape(-1, key_size),
      is_dummy=jnp.all(seeds == token_samplers.DUMMY_PRNG_KEY),
    )

  def at_step(self, step: Int[Array, '']) -> UInt32[Array, 'G 2']:
    """Returns the raw keys of a step, or DUMMY_PRNG_KEY everywhere."""
    keys = jax.random.wrap_key_data(self.keys)
    folded = jax.vmap(lambda key: jax.random.fold_in(key, step))(keys)
    data = jax.random.key_data(folded)
    return jnp.where(self.is_dummy, token_samplers.DUMMY_PRNG_KEY, data)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerRowParams:
  """Sampling parameters by row.

  R rows are decoded and G are sampled for: R, or R / 2 with classifier-free
  guidance. None: the sampler's own parameter, or none.
  """

  temperature: float | Float[Array, 'G 1']
  top_p: Float[Array, 'G 1'] | None
  top_k: Int[Array, ' G'] | None
  max_steps: int | Int[Array, ' R']
  # Left-padded with 0; None: the ids in `SamplingOptions.eos_id` end all rows.
  stop_sequences: Int[Array, 'R *S L'] | None
  num_candidates: Int[Array, ' R'] | None
  keys: RowKeys | None

  @classmethod
  def from_options(
    cls, options: SamplingOptions, batch: int, num_samples: int, max_steps: int
  ) -> PerRowParams:
    """Returns the parameters of each row.

    Args:
      options: by example.
      batch: number of prompts; with guidance twice the number of examples.
      num_samples: number of samples of each prompt.
      max_steps: the largest number of decode steps.

    Raises:
      ValueError: an option has another number of examples.
    """
    is_guided = options.cf_guidance_scale is not None
    num_examples = batch // 2 if is_guided else batch
    decoded_copies = 2 * num_samples if is_guided else num_samples

    def repeat(name: str, x: Array, copies: int) -> Array:
      x = _broadcast_examples(x, num_examples, num_samples)
      if x.ndim < 1 or x.shape[0] != num_examples:
        raise ValueError(
          f'{name} must have shape ({num_examples},), a value for each '
          f'example, got {x.shape}'
        )
      return jnp.repeat(x, copies, axis=0)

    def for_sampled(name: str, x: Array | None) -> Array | None:
      return None if x is None else repeat(name, x, num_samples)

    def for_decoded(name: str, x: Array | None) -> Array | None:
      return None if x is None else repeat(name, x, decoded_copies)

    row_max_steps: int | Array = max_steps
    row_limits = for_decoded(
      'per_example_max_decode_steps', options.per_example_max_decode_steps
    )
    if row_limits is not None:
      row_max_steps = jnp.minimum(row_limits.astype(jnp.int32), max_steps)
    top_p = for_sampled('per_example_top_p', options.per_example_top_p)
    stop_sequences = None
    if getattr(options.eos_id, 'ndim', 0) > 1:
      ids = jnp.asarray(options.eos_id, jnp.int32)
      stop_sequences = repeat('eos_id', ids, decoded_copies)
    keys = None
    if options.gumbel_prng_key is not None:
      keys = RowKeys.from_seeds(
        options.gumbel_prng_key, num_examples, num_samples
      )
    return cls(
      temperature=_row_temperature(
        options.temperature, num_examples, num_samples
      ),
      top_p=None if top_p is None else top_p.reshape(-1, 1),
      top_k=for_sampled('per_example_top_k', options.per_example_top_k),
      max_steps=row_max_steps,
      stop_sequences=stop_sequences,
      num_candidates=for_decoded(
        'num_per_token_logprobs', options.num_per_token_logprobs
      ),
      keys=keys,
    )


def _broadcast_examples(x: Array, num_examples: int, num_samples: int) -> Array:
  """Returns x, repeated for each example if it has one row for all.

  Several samples of each prompt need a row for each example.
  """
  if num_samples > 1 or x.ndim < 1 or x.shape[0] != 1:
    return x
  return jnp.repeat(x, num_examples, axis=0)


def _row_temperature(
  temperature: float | Array, num_examples: int, num_samples: int
) -> float | Float[Array, 'G 1']:
  """Returns a scalar unchanged, an array as one value per row."""
  if not isinstance(temperature, jax.Array) or temperature.ndim == 0:
    return temperature
  per_sample = _broadcast_examples(temperature, num_examples, num_samples)
  if temperature.ndim == 1:
    per_sample = jnp.repeat(per_sample[:, jnp.newaxis], num_samples, axis=1)
  if per_sample.shape != (num_examples, num_samples):
    raise ValueError(
      f'temperature must have shape ({num_examples},) or ({num_examples}, '
      f'{num_samples}), a value for each example or for each sample, got '
      f'{temperature.shape}'
    )
  return per_sample.reshape(-1, 1)
