# SPDX-License-Identifier: Apache-2.0
"""A look at what a language model has learned: it continues a text."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from praxis import base_layer, pytypes
from praxis.decoding import hparams as decoding
from praxis.nested_map import NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleOptions:
  """How the continuation is drawn."""

  # How many tokens to generate.
  num_tokens: int = 200
  # What logits are divided by; 0 takes the most probable token.
  temperature: float = 0.7
  # Of how many of the most probable tokens one is drawn.
  top_k: int = 40
  seed: int = 0


def sample_text(
  task: Any,
  mdl_vars: pytypes.Nested[jax.Array],
  inp: Any,
  prompt: str,
  options: SampleOptions | None = None,
) -> str:
  """Returns `prompt` with the continuation that the task's model draws.

  Args:
    task: a SingleTask whose model is a LanguageModel.
    mdl_vars: its variables.
    inp: has the vocabulary: `strings_to_ids`, `ids_to_strings`, `tokenizer`.
    prompt: the text to continue.
    options: None for the defaults.
  """
  options = options or SampleOptions()
  [ids] = inp.strings_to_ids([prompt])
  decoder = decoding.SampleDecoderHParams(
    fprop_for_prefix=True,
    seqlen=len(ids) + options.num_tokens,
    max_decode_steps=options.num_tokens,
    # A text may end, but not before some of it can be seen.
    min_decode_steps=options.num_tokens // 2,
    eos_id=inp.tokenizer.eos_id,
    temperature=options.temperature,
    k=options.top_k,
  )
  context = base_layer.JaxContext.HParams(do_eval=True, summary_verbosity=0)

  @jax.jit
  def generate(mdl_vars: Any, batch: NestedMap, key: jax.Array) -> NestedMap:
    with base_layer.JaxContext.new_context(hparams=context):
      (_, out, _), _ = task.model.apply(
        mdl_vars,
        decoder,
        batch,
        method='decode_with_params',
        mutable=[base_layer.DECODE_CACHE],
        rngs={base_layer.RANDOM: key},
      )
    return NestedMap(ids=out.output_ids[:, 0], lengths=out.decode_lengths[:, 0])

  row = np.asarray(ids, np.int32)[None]
  batch = NestedMap(ids=row, paddings=jnp.zeros(row.shape, jnp.float32))
  out = jax.device_get(generate(mdl_vars, batch, jax.random.key(options.seed)))
  [text] = inp.ids_to_strings(out.ids, out.lengths)
  return text
