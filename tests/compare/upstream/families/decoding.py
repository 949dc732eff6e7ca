# SPDX-License-Identifier: Apache-2.0
"""Sampling and searches on a toy model, and the helpers of searches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from praxis import (
  base_layer,
  beam_search,
  decoder_hparams,
  flat_beam_search,
  pax_fiddle,
  py_utils,
  sample_decode,
  token_samplers,
)
from tests.compare.upstream import cases
from tests.compare.upstream.cases import floats, function, integers

_V = 7
_EOS = 1
_TABLE = floats(31, _V, scale=1.5)
_IDS = np.asarray([[3, 2, 5, 0], [4, 0, 0, 0], [2, 6, 3, 4]], np.int32)
_LENGTHS = np.asarray([3, 1, 4], np.int32)
_PAIR_IDS = np.asarray([[3, 2, 5, 0], [4, 0, 0, 0]], np.int32)
_PAIR_LENGTHS = np.asarray([3, 1], np.int32)
_STEPS = 4
# The state of the search's loop, which only upstream's results have.
_LOOP_STATE = ('end_logprobs', 'hyp_ids', 'segment_pos')


class _Toy(base_layer.BaseLayer):
  """Logits are a table lookup by the hash of the sequence, its decode state."""

  def read(self, ids: Any, step: int) -> None:
    self.update_decode_state('ids', jnp.asarray(ids))
    self.update_decode_state('time_step', jnp.asarray(step, jnp.int32))

  def extend_step(self, inputs: Any, segment_pos: Any) -> Any:
    step = self.get_decode_state('time_step')
    ids = self.get_decode_state('ids').at[:, step].set(inputs)
    self.update_decode_state('ids', ids)
    self.update_decode_state('time_step', step + 1)
    column = jnp.arange(ids.shape[1])
    position = column[None] - (step - segment_pos)[:, None]
    is_seen = (position >= 0) & (column <= step)
    codes = jnp.sum(jnp.where(is_seen, (position + 2) * ids, 0), axis=1)
    return jnp.asarray(_TABLE)[codes % 31]

  def transform_decode_state(self, fn: Any) -> None:
    self.update_decode_state('ids', fn(self.get_decode_state('ids'), 0, 1))


def _run(function: Callable[[Any], Any]) -> Any:
  """Returns the result of a function of a bound toy model."""
  toy = base_layer.instantiate(pax_fiddle.Config(_Toy, name='toy'))
  apply = nn.apply(function, toy, mutable=[base_layer.DECODE_CACHE])
  rngs = {base_layer.RANDOM: jax.random.PRNGKey(4)}
  return jax.jit(lambda: apply({}, rngs=rngs)[0])()


def _extend(model: Any, ids: Any, segment_pos: Any) -> Any:
  return model.extend_step(ids, segment_pos)


def _transform(model: Any, fn: Any) -> None:
  model.transform_decode_state(fn)


def _prefill(model: Any, ids: Any, paddings: Any) -> None:
  del paddings
  model.read(ids, ids.shape[1] - 1)


def _read_nothing(model: Any, ids: Any, paddings: Any) -> None:
  del paddings
  model.read(jnp.zeros_like(ids[:, :1]), 0)


def _right_aligned(ids: np.ndarray, lengths: np.ndarray) -> Any:
  return sample_decode.right_align_prefix_ids(
    jnp.asarray(ids), jnp.asarray(lengths), jnp.float32
  )


def _comparable(result: Any) -> Any:
  """Returns a result with logprobs 1 at padding: upstream also has 0 there."""
  result = py_utils.NestedMap(result)
  lengths = result.decode_lengths[..., None]
  is_token = jnp.arange(result.logprobs.shape[-1]) < lengths
  result.logprobs = jnp.where(is_token, result.logprobs, 1.0)
  for name in _LOOP_STATE:
    result.pop(name, None)
  return result


def _sample(
  is_prefilled: bool,
  ids: np.ndarray = _IDS,
  lengths: np.ndarray = _LENGTHS,
  sampler: dict[str, Any] | None = None,
  num_samples: int = 2,
  **options: Any,
) -> Any:
  """Returns the result of `sample_decode`."""
  options = {'eos_id': _EOS, 'max_decode_steps': _STEPS} | options
  options = {
    k: jnp.asarray(v) if isinstance(v, np.ndarray) else v
    for k, v in options.items()
  }
  width = ids.shape[1]
  if is_prefilled:
    prompts, paddings = _right_aligned(ids, lengths)
    seq_len = width + np.max(options['max_decode_steps'])
  else:
    prompts = jnp.asarray(ids)
    paddings = jnp.asarray(cases.paddings(lengths, width))
    seq_len = options.pop('seq_len', 8)
  next_token_sampler = token_samplers.DefaultNextTokenSampler(
    **(sampler or {'top_k': 0})
  )

  def decode(model: Any) -> Any:
    return sample_decode.sample_decode(
      model,
      _extend,
      _transform,
      None,
      next_token_sampler,
      prompts,
      paddings,
      int(seq_len),
      num_samples,
      fprop_fn=_prefill if is_prefilled else _read_nothing,
      fprop_for_prefix=is_prefilled,
      max_prefix_len=width,
      prefix_lengths=jnp.asarray(lengths),
      **options,
    )

  result = _run(decode)
  if options.get('return_result_for_suffix_score'):
    return {name: result[name] for name in ('output_ids', 'decode_lengths')}
  return _comparable(result)


_KEYS = np.asarray([5, 6, 7])
_PAIR = {'ids': _PAIR_IDS, 'lengths': _PAIR_LENGTHS}
_TEMPERATURES = np.asarray([0.5, 1.0, 2.0], np.float32)
_TOP_P = np.asarray([0.9, 0.5, 0.2], np.float32)
# Options of `_sample` that need no prefill.
_OPTIONS = {
  'defaults': {},
  'one sample': {'num_samples': 1},
  'temperature': {'temperature': 0.3},
  'temperature 0': {'temperature': 0.0},
  'temperature by example': {'temperature': _TEMPERATURES},
  'temperature by sample': {'temperature': np.stack([_TEMPERATURES] * 2, 1)},
  'temperature by example, one sample': {
    'temperature': _TEMPERATURES, 'num_samples': 1,
  },
  'top_k': {'sampler': {'top_k': 3}},
  'top_k, top_p': {'sampler': {'top_k': 5, 'top_p': 0.7}},
  'top_p': {'sampler': {'top_k': 0, 'top_p': 0.6}},
  'epsilon': {'sampler': {'top_k': 0, 'epsilon_p': 0.05}},
  'global_normalize': {
    'sampler': {'top_k': 5, 'top_p': 0.7, 'global_normalize': True}
  },
  'greedy': {'sampler': {'top_k': 1}, 'num_samples': 1},
  'per_example_top_p': {'per_example_top_p': _TOP_P},
  'per_example_top_p, top_k': {
    'per_example_top_p': _TOP_P, 'sampler': {'top_k': 4},
  },
  'per_example_top_k': {
    'per_example_top_k': np.asarray([1, 2, 4]), 'sampler': {'top_k': 4},
  },
  'eos list': {'eos_id': [_EOS, 5]},
  'eos absent': {'eos_id': None},
  'stop sequences': {
    'eos_id': np.asarray([[0, 0, 2], [0, 3, 5], [1, 4, 4]])
  },
  'keys of one number': {'gumbel_prng_key': _KEYS},
  'keys': {'gumbel_prng_key': np.stack([_KEYS, _KEYS + 9], 1)},
  'keys, one sample': {'gumbel_prng_key': _KEYS, 'num_samples': 1},
  'dummy keys': {
    'gumbel_prng_key': np.full(3, sample_decode.DUMMY_PRNG_KEY)
  },
  'keys, top_k': {'gumbel_prng_key': _KEYS, 'sampler': {'top_k': 3}},
  'entropy': {'return_entropy_score': True},
  'candidates': {'num_per_token_logprobs': np.asarray([2, 0, 9])},
  'unsorted': {'sort_samples': False, 'num_samples': 4},
  'approximate sort': {'top_k_recall_target': 0.9},
  'use_top_k_for_logprobs': {
    'use_top_k_for_logprobs': True,
    'sampler': {'top_k': 3, 'use_top_k_for_logprobs': True},
  },
  'process_result_fn': {
    'process_result_fn': lambda model, result: py_utils.NestedMap(
      result, twice=2 * result.decode_lengths
    )
  },
  'loop state': {'return_result_for_suffix_score': True},
}  # fmt: skip
_PREFILLED_OPTIONS = {
  'per_example_max_decode_steps': {
    'per_example_max_decode_steps': np.asarray([1, 3, 9])
  },
  'buckets': {'max_decode_steps': [2, 4]},
  'no early_exit': {'early_exit': False},
  'no early_exit, keys': {'early_exit': False, 'gumbel_prng_key': _KEYS},
  'no early_exit, entropy': {
    'early_exit': False, 'return_entropy_score': True,
  },
  'guidance': {'cf_guidance_scale': 2.0, **_PAIR},
  'guidance by sample': {'cf_guidance_scale': [1.0, 2.5], **_PAIR},
  'guidance by example': {
    'cf_guidance_scale': np.asarray([1.75], np.float32), **_PAIR,
  },
  'guidance by example and sample': {
    'cf_guidance_scale': np.asarray([[1.75, 0.5]], np.float32), **_PAIR,
  },
  'guidance, limits': {
    'cf_guidance_scale': 1.5,
    'per_example_max_decode_steps': np.asarray([2]), **_PAIR,
  },
  'guidance, keys': {
    'cf_guidance_scale': 2.0, 'gumbel_prng_key': _KEYS[:1], **_PAIR,
  },
}  # fmt: skip
_BY_TOKEN = (
  'defaults',
  'temperature by example',
  'top_k, top_p',
  'per_example_top_p',
  'eos list',
  'stop sequences',
  'keys',
  'unsorted',
  'entropy',
  'candidates',
)


def _samples() -> Iterator[cases.Case]:
  for name, options in (_OPTIONS | _PREFILLED_OPTIONS).items():
    yield function(
      f'sample_decode, {name}', functools.partial(_sample, True, **options)
    )
  for name in _BY_TOKEN:
    # A limit of steps counts from column 0 upstream, whatever the prompts.
    options = {'max_decode_steps': None} | _OPTIONS[name]
    yield function(
      f'sample_decode token by token, {name}',
      functools.partial(_sample, False, **options),
    )
  yield function(
    'sample_decode, prompts of no columns', _sample_without_prompts
  )
  yield function(
    'sample_decode, optimize_eos without prompts',
    functools.partial(
      _sample_without_prompts, optimize_eos=True, eos_id=[_EOS, 4]
    ),
  )


def _sample_without_prompts(**options: Any) -> Any:
  ids = jnp.zeros((2, 5), jnp.int32)

  def decode(model: Any) -> Any:
    model.read(jnp.zeros((2, 6), jnp.int32), 0)
    return sample_decode.sample_decode(
      model,
      _extend,
      lambda model, fn: None,
      None,
      token_samplers.DefaultNextTokenSampler(top_k=0),
      ids,
      jnp.zeros(ids.shape),
      5,
      1,
      fprop_for_prefix=True,
      max_prefix_len=0,
      max_decode_steps=5,
      prefix_lengths=jnp.zeros(2, jnp.int32),
      gumbel_prng_key=jnp.asarray([3, 4]),
      early_exit=False,
      **options,
    )

  return _run(decode)


def _greedy(is_prefilled: bool, **options: Any) -> Any:
  prompts, lengths = jnp.asarray(_IDS), jnp.asarray(_LENGTHS)
  paddings = jnp.asarray(cases.paddings(_LENGTHS, 4))
  if is_prefilled:
    prompts, paddings = _right_aligned(_IDS, _LENGTHS)
  return _comparable(
    _run(
      lambda model: sample_decode.greedy_decode(
        model,
        _extend,
        prompts,
        paddings,
        4 + _STEPS,
        fprop_for_prefix=is_prefilled,
        fprop_fn=_prefill if is_prefilled else _read_nothing,
        transform_state_fn=_transform,
        max_prefix_len=4,
        max_decode_steps=_STEPS if is_prefilled else None,
        prefix_lengths=lengths,
        **options,
      )
    )
  )


def _vanilla(sampler: dict[str, Any], **options: Any) -> Any:
  prompts, paddings = _right_aligned(_IDS, _LENGTHS)
  result = _run(
    lambda model: sample_decode.vanilla_sample_decode(
      model,
      _prefill,
      _extend,
      _transform,
      token_samplers.DefaultNextTokenSampler(**sampler),
      prompts,
      paddings,
      max_decode_steps=_STEPS,
      **options,
    )
  )
  result = _comparable(result)
  result.pop('original_lengths', None)
  return result


def _continuous_batching() -> Any:
  """Returns the states after three steps of three requests."""
  prompts, _ = _right_aligned(_IDS, _LENGTHS)

  def decode(model: Any) -> Any:
    model.read(prompts, prompts.shape[1] - 1)
    state = sample_decode.sample_init_decode_state(
      model,
      prompts,
      max_prefix_len=4,
      max_decode_steps=_STEPS,
      top_k=1,
      prefix_lengths=jnp.asarray(_LENGTHS),
      eos_id=_EOS,
      transform_state_fn=_transform,
    )
    state.temperature = jnp.ones(3)
    state.per_example_top_p = jnp.ones(3)
    state.per_example_top_k = jnp.full(3, 4)
    state.per_example_max_decode_steps = jnp.asarray([2, 9, 9])
    names = ('output_ids', 'logprobs', 'done', 'has_eos', 'segment_pos')
    names += ('step', 'per_sample_steps', 'prefix_lengths')
    states = []
    for _ in range(3):
      state = sample_decode.sample_decoding_step(
        model,
        state,
        _extend,
        top_k=1,
        max_prefix_len=4,
        max_decode_steps=_STEPS,
        eos_id=_EOS,
      )
      states.append({name: state[name] for name in names})
    return states

  return _run(decode)


def _decoders() -> Iterator[cases.Case]:
  for is_prefilled in (False, True):
    label = 'prefilled' if is_prefilled else 'token by token'
    yield function(f'greedy_decode, {label}', _greedy, is_prefilled)
    yield function(
      f'greedy_decode, {label}, eos', _greedy, is_prefilled, eos_id=_EOS
    )
  yield function('vanilla_sample_decode', _vanilla, {'top_k': 0}, eos_id=_EOS)
  yield function(
    'vanilla_sample_decode, top_k', _vanilla, {'top_k': 3}, temperature=0.5
  )
  yield function(
    'vanilla_sample_decode, eos list', _vanilla, {'top_k': 1}, eos_id=[1, 5]
  )
  yield function('sample_decoding_step', _continuous_batching)


def _beam(**fields: Any) -> Any:
  prompts, paddings = _right_aligned(_IDS, _LENGTHS)
  fields = {
    'eos_id': _EOS, 'beam_size': 3, 'max_decode_steps': _STEPS, 'seqlen': 8,
    'fprop_for_prefix': True,
  } | fields  # fmt: skip
  hparams = decoder_hparams.BeamSearchHParams(**fields)
  return _comparable(
    _run(
      lambda model: beam_search.beam_search(
        model, _extend, _prefill, _transform, prompts, paddings, hparams
      )
    )
  )


def _beams() -> Iterator[cases.Case]:
  for name, fields in {
    'defaults': {},
    'early_exit': {'early_exit': True},
    'early_exit, two ends': {'early_exit': True, 'eos_id': [1, 5]},
    'early_exit, min_decode_steps': {
      'early_exit': True,
      'min_decode_steps': 2,
    },
    'eos list': {'eos_id': [5, _EOS]},
    'min_decode_steps': {'min_decode_steps': 2},
    'tokens_per_beam': {'tokens_per_beam': 2},
    'more tokens_per_beam': {'tokens_per_beam': 5},
    'no length norm': {'length_norm_alpha': 0.0},
    'length norm': {'length_norm_alpha': 1.5},
    'beam of 1': {'beam_size': 1},
    'beam of 6': {'beam_size': 6},
    'one step': {'max_decode_steps': 1},
    'one step, no length norm': {
      'max_decode_steps': 1, 'length_norm_alpha': 0.0,
    },
    'buckets': {'max_decode_steps': [2, 4]},
    'matmul': {'use_matmul_beam_shuffle': True},
    'offset': {'output_id_offset': 31},
  }.items():  # fmt: skip
    yield function(f'beam_search, {name}', _beam, **fields)
  hyps = [
    (integers(2, k, 5, high=9, seed=k), integers(2, k, high=5, seed=k),
     floats(2, k, seed=k), floats(2, k, 5, seed=k))
    for k in (3, 4)
  ]  # fmt: skip
  to_jax = lambda hyp: tuple(jnp.asarray(x) for x in hyp)
  yield function(
    'update_global_beam',
    lambda: beam_search.update_global_beam(*map(to_jax, hyps)),
  )
  yield function(
    'update_topk_scores_with_eos',
    lambda: flat_beam_search.update_topk_scores_with_eos(
      *(to_jax((hyp[3], hyp[2], hyp[2] + 1)) for hyp in hyps)
    ),
  )
  parents = integers(2, 3, high=3)
  for use_matmul in (False, True):
    for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5), (6,)):
      yield function(
        f'shuffle_state, {use_matmul}, {len(shape)}',
        beam_search.shuffle_state,
        floats(*shape),
        parents,
        use_matmul,
      )
  for axis in (0, 1):
    yield function(
      f'broadcast_beam_dim, {axis}',
      beam_search.broadcast_beam_dim,
      _IDS,
      axis,
      2,
    )


def _flat(**options: Any) -> Any:
  """Returns the result of a search whose logits depend on step and token."""
  table = jnp.asarray(floats(6, _V, _V, scale=2.0))

  def extend(model: Any, ids: Any, segment_pos: Any) -> Any:
    del segment_pos
    step = model.get_decode_state('time_step')
    model.update_decode_state('time_step', step + 1)
    # Upstream takes logits of a single example, without a dimension for it.
    return table[step, ids[0]]

  def search(model: Any) -> Any:
    model.read(jnp.zeros((1, 1), jnp.int32), 0)
    return flat_beam_search.flat_beam_search(
      model,
      extend,
      jnp.asarray([[6, 3]]),
      jnp.zeros((1, 2)),
      5,
      fprop_dtype=jnp.float32,
      **{'beam_size': 2, 'eos_id': _EOS} | options,
    )

  result = _run(search)
  # The other entries are those of the loop.
  return {k: result[k] for k in ('output_ids', 'decode_lengths', 'scores')}


def _flat_searches() -> Iterator[cases.Case]:
  for name, options in {
    'defaults': {},
    'beam of 3': {'beam_size': 3},
    'no length norm': {'length_norm_alpha': 0.0},
    'max_decode_steps': {'max_decode_steps': 5},
    'other end': {'eos_id': 4},
  }.items():
    yield function(f'flat_beam_search, {name}', _flat, **options)
  yield function(
    'init_loop_var', flat_beam_search.init_loop_var, _IDS, 3, 4, jnp.float32
  )
  mask = (floats(2, 3, 12) > 0).astype(np.float32)
  for step in (None, 2):
    yield function(
      f'update_beam_mask, {step}',
      flat_beam_search.update_beam_mask,
      mask,
      integers(2, 3, high=3),
      step,
    )
  yield function(
    'get_final_output_ids',
    flat_beam_search.get_final_output_ids,
    np.tile(np.eye(3, 12, dtype=np.float32), (2, 1, 1)),
    integers(2, 3, 4, high=9),
  )
  yield function(
    'post_process',
    lambda: flat_beam_search.post_process(
      py_utils.NestedMap(
        step=jnp.asarray(3),
        done=jnp.zeros((1, 2), bool),
        output_ids=jnp.asarray(integers(4, 1, 2, high=9)),
        end_mask=jnp.asarray(
          [[[1.0, 0, 0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]]]
        ),
        end_scores_norm=jnp.asarray([[1.0, 2.0]]),
      ),
      8,
      4,
    ),
  )


def family() -> Iterator[cases.Case]:
  yield from _samples()
  yield from _decoders()
  yield from _beams()
  yield from _flat_searches()
