# SPDX-License-Identifier: Apache-2.0
"""Samples a continuation of a prompt from a language model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from pax import tasks_lib
from praxis import base_layer, pytypes
from praxis.decoding import hparams as decoding
from praxis.nested_map import NestedMap


class TextInput(Protocol):
  """An input with a vocabulary."""

  @property
  def tokenizer(self) -> Any:
    """Has the id of the end of a text, `eos_id`."""

  def strings_to_ids(self, strings: Sequence[str]) -> list[list[int]]:
    """Returns the token ids of each text."""

  def ids_to_strings(
    self, ids: np.ndarray, lengths: np.ndarray
  ) -> Sequence[str]:
    """Returns the text of each row of token ids."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleOptions:
  """Settings of top-k sampling with temperature."""

  # Number of tokens to generate.
  num_tokens: int = 200
  # Divides the logits; 0 is greedy decoding.
  temperature: float = 0.7
  # Number of most probable tokens to sample from.
  top_k: int = 40
  seed: int = 0


def sample_text(
  task: tasks_lib.SingleTask,
  mdl_vars: pytypes.Nested[jax.Array],
  inp: TextInput,
  prompt: str,
  options: SampleOptions | None = None,
) -> str:
  """Returns `prompt` with a continuation sampled from the task's model.

  Args:
    task: A task whose model is a LanguageModel.
    mdl_vars: The variables of the model.
    inp: The input with the vocabulary.
    prompt: The text to continue.
    options: Settings; None is the defaults.
  """
  options = options or SampleOptions()
  [ids] = inp.strings_to_ids([prompt])
  decoder = decoding.SampleDecoderHParams(
    fprop_for_prefix=True,
    seqlen=len(ids) + options.num_tokens,
    max_decode_steps=options.num_tokens,
    # EOS may end the text, but not in its first half.
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
