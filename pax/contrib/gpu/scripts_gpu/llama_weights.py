# SPDX-License-Identifier: Apache-2.0
"""Conversion of LLaMA weights of Meta or Hugging Face to variables.

Both store matrices as [outputs, inputs]. Rotary embeddings rotate channels 2i
and 2i + 1 together in Meta's models, as in ours, and channels i and i + H / 2
in those of Hugging Face.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Weights = Mapping[str, np.ndarray]
Tree = dict[str, Any]

# Meta's names by those of Hugging Face.
_NAMES = {
  'model.embed_tokens': 'tok_embeddings',
  'model.norm': 'norm',
  'lm_head': 'output',
  'self_attn.q_proj': 'attention.wq',
  'self_attn.k_proj': 'attention.wk',
  'self_attn.v_proj': 'attention.wv',
  'self_attn.o_proj': 'attention.wo',
  'mlp.gate_proj': 'feed_forward.w1',
  'mlp.down_proj': 'feed_forward.w2',
  'mlp.up_proj': 'feed_forward.w3',
  'input_layernorm': 'attention_norm',
  'post_attention_layernorm': 'ffn_norm',
}
# Precomputed rotary frequencies, which are not weights.
_ROTARY_TABLES = re.compile(r'.*(rope\.freqs|rotary_emb\.inv_freq)')


class LlamaConstants(Protocol):
  """Constants of an experiment that set the sizes of its LLaMA."""

  VOCAB_SIZE: int
  NUM_LAYERS: int
  MODEL_DIMS: int
  HIDDEN_DIMS: int
  NUM_HEADS: int
  NUM_KV_HEADS: int
  DIMS_PER_HEAD: int
  USE_MQA: bool
  USE_REPEATED_LAYER: bool


def from_huggingface(weights: Weights, llama: LlamaConstants) -> Tree:
  """Returns the variables of an experiment from the weights of Hugging Face.

  Args:
    weights: Weights by the names in the state_dict of LlamaForCausalLM.
    llama: The constants of the experiment.

  Raises:
    ValueError: A weight is missing, unknown, or has another shape.
  """
  renamed = {}
  for name, weight in weights.items():
    stem, _, kind = name.rpartition('.')
    layer = re.match(r'model\.(layers\.\d+)\.(.*)', stem)
    prefix, stem = (f'{layer[1]}.', layer[2]) if layer else ('', stem)
    if stem in ('self_attn.q_proj', 'self_attn.k_proj'):
      weight = _interleave_halves(np.asarray(weight), llama.DIMS_PER_HEAD)
    renamed[f'{prefix}{_NAMES.get(stem, stem)}.{kind}'] = weight
  return from_meta(renamed, llama)


def from_meta(weights: Weights, llama: LlamaConstants) -> Tree:
  """Returns the variables of an experiment from the weights of Meta.

  Args:
    weights: Weights by the names in Meta's checkpoint.
    llama: The constants of the experiment.

  Raises:
    ValueError: A weight is missing, unknown, or has another shape.
  """
  remaining = {
    n: w for n, w in weights.items() if not _ROTARY_TABLES.fullmatch(n)
  }

  def take(name: str, *shape: int) -> np.ndarray:
    weight = remaining.pop(f'{name}.weight', None)
    if weight is None or weight.shape != shape:
      raise ValueError(
        f'{name}.weight must have shape {list(shape)}, got '
        f'{None if weight is None else list(weight.shape)}; load weights of a '
        'model with the sizes of the experiment'
      )
    return np.asarray(weight)

  vocab, model = llama.VOCAB_SIZE, llama.MODEL_DIMS
  layers = [_layer(take, f'layers.{i}', llama) for i in range(llama.NUM_LAYERS)]
  lm = {
    'embedding_lookup': {'emb_var': take('tok_embeddings', vocab, model)},
    'softmax': {'logits_ffn': _linear(take('output', vocab, model))},
    'final_ln': {'scale': take('norm', model)},
    'transformer': _transformer(layers, llama.USE_REPEATED_LAYER),
  }
  if remaining:
    raise ValueError(
      f'{len(remaining)} weights do not belong to the model, such as '
      f'{sorted(remaining)[:3]}; it has no biases and {llama.NUM_LAYERS} layers'
    )
  return {'params': {'lm': lm}}


def _layer(
  take: Callable[..., np.ndarray], name: str, llama: LlamaConstants
) -> Tree:
  model, hidden = llama.MODEL_DIMS, llama.HIDDEN_DIMS
  mlp = f'{name}.feed_forward'
  return {
    'layer_norm': {'scale': take(f'{name}.attention_norm', model)},
    'self_attention': _attention(take, f'{name}.attention', llama),
    'ff_layer': {
      'layer_norm': {'scale': take(f'{name}.ffn_norm', model)},
      'ffn_layer1_gate': _linear(take(f'{mlp}.w1', hidden, model)),
      'ffn_layer1': _linear(take(f'{mlp}.w3', hidden, model)),
      'ffn_layer2': _linear(take(f'{mlp}.w2', model, hidden)),
    },
  }


def _attention(
  take: Callable[..., np.ndarray], name: str, llama: LlamaConstants
) -> Tree:
  num_heads, head_dim = llama.NUM_HEADS, llama.DIMS_PER_HEAD
  num_kv_heads = llama.NUM_KV_HEADS if llama.USE_MQA else num_heads

  def take_heads(projection: str, num_heads: int) -> np.ndarray:
    shape = (num_heads * head_dim, llama.MODEL_DIMS)
    weight = take(f'{name}.{projection}', *shape)
    return weight.T.reshape(llama.MODEL_DIMS, num_heads, head_dim)

  query = take_heads('wq', num_heads)
  key, value = (take_heads(x, num_kv_heads) for x in ('wk', 'wv'))
  post = take(f'{name}.wo', llama.MODEL_DIMS, num_heads * head_dim)
  weights = {'post': post.reshape(llama.MODEL_DIMS, num_heads, head_dim)}
  if not llama.USE_MQA:
    weights['combined_qkv'] = np.stack([query, key, value])
  elif num_kv_heads == 1:
    # A single head of keys and values has no axis.
    weights |= {'query': query, 'key': key[:, 0], 'value': value[:, 0]}
  else:
    weights |= {'query': query, 'key': key, 'value': value}
  return {name: {'w': weight} for name, weight in weights.items()}


def _linear(weight: np.ndarray) -> Tree:
  return {'linear': {'w': weight.T}}


def _interleave_halves(weight: np.ndarray, head_dim: int) -> np.ndarray:
  """Moves channels i and i + head_dim / 2 of each head next to each other."""
  halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[-1])
  return halves.swapaxes(1, 2).reshape(weight.shape)


def _transformer(layers: Sequence[Tree], is_repeated: bool) -> Tree:
  if not is_repeated:
    return {f'x_layers_{i}': layer for i, layer in enumerate(layers)}
  return {'repeat': {'sub': {'x_layers_0': _stack_trees(layers)}}}


def _stack_trees(trees: Sequence[Any]) -> Any:
  if not isinstance(trees[0], dict):
    return np.stack(trees)
  return {
    name: _stack_trees([tree[name] for tree in trees]) for name in trees[0]
  }
