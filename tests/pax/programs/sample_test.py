# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""A model continues a prompt: with what it was taught, and reproducibly."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import pytest

from pax.inputs.text import packed_text
from pax.programs import sample
from praxis import pax_fiddle
from praxis.layers import models
from praxis.nested_map import NestedMap


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  path = tmp_path_factory.mktemp('corpus') / 'text'
  path.write_text('some text')
  return (
    packed_text.TextLmInput.config(
      files=str(path), batch_size=1, seq_len=8, held_out_percent=0.0
    )
  ).Instantiate()


@pytest.fixture(scope='module')
def model(corpus):
  """A model of bytes with random weights, and its variables."""
  config = pax_fiddle.Config(models.LanguageModel, name='lm')
  config.lm_tpl.set(model_dims=8, vocab_size=259, packed_input=True)
  config.lm_tpl.stacked_transformer_tpl.set(
    num_layers=1, num_heads=2, model_dims=8, hidden_dims=8
  )
  built = config.Instantiate()
  batch = jax.tree.map(jnp.asarray, corpus.get_next())
  corpus.reset()
  return built, jax.jit(built.init)(jax.random.key(0), batch)


def draw(model, corpus, prompt='def ', **options):
  built, variables = model
  return sample.sample_text(
    types.SimpleNamespace(model=built),
    variables,
    corpus,
    prompt,
    sample.SampleOptions(num_tokens=12, **options),
  )


def test_the_prompt_comes_first_and_the_seed_decides(model, corpus):
  first = draw(model, corpus)
  assert first.startswith('def ') and len(first) > 4
  assert draw(model, corpus, seed=1) != first


def test_without_temperature_it_is_what_the_model_finds_likeliest(
  model, corpus
):
  built, variables = model
  drawn = draw(model, corpus, prompt='ab', temperature=0.0)
  ids, length = [256, 97, 98], 6
  predict = jax.jit(
    lambda batch: built.apply(variables, batch, method='compute_predictions')
  )
  while len(ids) < length:
    row = jnp.array([ids + [0] * (length - len(ids))])
    batch = NestedMap(
      ids=row,
      labels=row,
      weights=jnp.ones(row.shape),
      paddings=jnp.zeros(row.shape),
      segment_ids=jnp.ones_like(row),
      segment_pos=jnp.arange(length)[None],
    )
    likeliest = predict(batch).per_example_argmax
    ids.append(int(likeliest[0, len(ids) - 1]))
  [expected] = corpus.ids_to_strings([ids], [len(ids)])
  assert drawn.startswith(expected.rstrip('\ufffd'))
