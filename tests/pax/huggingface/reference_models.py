# SPDX-License-Identifier: Apache-2.0
"""Small models of each family as folders, with the outputs of transformers.

`references.json` has for each model its config.json, the shapes of its tensors,
and for fixed tokens the logits and the greedy continuation of transformers;
tests/compare/huggingface_references.py writes it. Weights are random numbers
that depend on the name of the tensor only.
"""

# bazel: data=//tests/pax/huggingface:references.json
from __future__ import annotations

import io
import json
import pathlib
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import sentencepiece

from pax.huggingface import families, safetensors
from pax.inputs.tokens import tokenizers
from tests.testing import nightly

REFERENCES = pathlib.Path(__file__).parent / 'references.json'
DTYPES = {
  'F32': np.float32,
  'F16': np.float16,
  'BF16': ml_dtypes.bfloat16,
}
# At least the ids of a tokenizer of bytes.
BYTE_VOCAB_SIZE = 264
_NUM_PIECES = 64
# Others have the same layers.
_BY_NIGHT = (
  'deepseek_v2',
  'exaone4',
  'gemma',
  'gemma4_e4b',
  'glm4_moe_lite',
  'granite_hybrid',
  'granite_hybrid_moe',
  'ministral3',
  'mistral',
  'olmo2',
  'qwen3_5',
  'qwen3_5_moe',
  'qwen3_yarn',
  'seed_oss',
)
# Each has tensors that are laid out in another way.
LAYOUTS = (
  'deepseek_v3',
  'gemma4_e2b',
  'gpt2',
  'gpt_oss',
  'granite_hybrid',
  'llama3',
  'llama4',
  'mixtral',
  'phi3',
  'qwen3_next',
  't5',
)
TOKENIZER = {
  'tokenizer.json': '{"version": "1.0"}',
  'tokenizer_config.json': '{}',
}


def load() -> dict[str, Any]:
  """Returns the references by the name of the model."""
  return json.loads(REFERENCES.read_text())


def names(by_day: Collection[str] | None = None) -> list[Any]:
  """Returns the names of `load()`, some of them for tests of the night.

  Args:
    by_day: those for tests of the day; None: one family of each kind of layer.
  """
  models = load()
  by_day = {*models} - {*_BY_NIGHT} if by_day is None else by_day
  return nightly.except_for(by_day, models)


def input_ids(vocab_size: int) -> np.ndarray:
  """Returns the tokens [2, 9] of the references."""
  rng = np.random.default_rng(0)
  return rng.integers(3, vocab_size, (2, 9), dtype=np.int32)


def decoder_ids(vocab_size: int) -> np.ndarray:
  """Returns the targets [2, 5] of encoder-decoders, which start with 0."""
  rng = np.random.default_rng(1)
  ids = rng.integers(3, vocab_size, (2, 5), dtype=np.int32)
  ids[:, 0] = 0
  return ids


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Returns the weight of a tensor."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  values = 0.2 * rng.standard_normal(shape)
  endings = ('.weight', 'scalar', 'scale')
  is_scale = len(shape) == 1 and name.endswith(endings)
  return (values + is_scale).astype(np.float32)


def write(
  folder: pathlib.Path,
  config: Mapping[str, Any],
  shapes: Mapping[str, tuple[int, ...]],
  *,
  dtype: str = 'F32',
  num_files: int = 1,
  copies: Mapping[str, str] | None = None,
) -> pathlib.Path:
  """Writes a model to a new folder, and returns the folder.

  Args:
    folder: Its path.
    config: Contents of config.json.
    shapes: Of the tensors, by name.
    dtype: That of the tensors, by its name in the format.
    num_files: Over which the tensors are distributed.
    copies: Names of tensors that have the values of another one, and its name.
  """
  copies = copies or {}
  folder.mkdir(parents=True)
  (folder / 'config.json').write_text(json.dumps(config))
  for name, text in TOKENIZER.items():
    (folder / name).write_text(text)
  names = sorted(shapes)
  size = -(-len(names) // num_files)
  files = {}
  for i in range(num_files):
    file = 'model.safetensors'
    if num_files > 1:
      file = f'model-{i + 1:05d}-of-{num_files:05d}.safetensors'
    part = names[i * size : (i + 1) * size]
    arrays = {
      name: weight(copies.get(name, name), tuple(shapes[name])).astype(
        DTYPES[dtype]
      )
      for name in part
    }
    write_safetensors(folder / file, arrays, dtype)
    files |= dict.fromkeys(part, file)
  if num_files > 1:
    (folder / 'model.safetensors.index.json').write_text(
      json.dumps({'metadata': {'total_size': -1}, 'weight_map': files})
    )
  return folder


def write_reference(
  folder: pathlib.Path, name: str, **options: Any
) -> tuple[pathlib.Path, dict[str, Any]]:
  """Writes a model of `load()`; returns the folder and the reference."""
  reference = load()[name]
  return (
    write(folder, reference['config'], reference['tensors'], **options),
    reference,
  )


def write_byte_model(
  folder: pathlib.Path, name: str, *, num_layers: int | None = None
) -> pathlib.Path:
  """Writes a model with the vocabulary of bytes, and returns the folder.

  It has no tokenizer of its own.

  Args:
    folder: Its path.
    name: Name of the reference.
    num_layers: Number of layers; None is that of the reference.
  """
  settings = {
    **{x: BYTE_VOCAB_SIZE for x in load()[name]['config'] if 'vocab_size' in x},
    'eos_token_id': tokenizers.ByteTokenizer.eos_id,
  }
  if num_layers is not None:
    key = 'n_layer' if name == 'gpt2' else 'num_hidden_layers'
    settings |= {key: num_layers, 'layer_types': None}
    if name in ('qwen3_next', 'qwen3_5', 'qwen3_5_moe'):
      # Four layers are two blocks.
      settings['full_attention_interval'] = 2
    elif name == 'glm4_moe_lite':
      settings['mlp_layer_types'] = None
    elif name.startswith('gemma4'):
      # Two blocks of a layer with a window and one without.
      settings['layer_types'] = ['sliding_attention', 'full_attention'] * 2
      of_full = list(load()[name]['config']['per_layer_config'].values())[0]
      settings['per_layer_config'] = {'1': of_full, '3': of_full}
    elif name.startswith('granite_hybrid'):
      settings['layer_types'] = ['mamba', 'attention'] * 2
    elif name == 'llama4':
      # Layers follow from their intervals.
      settings |= {'no_rope_layers': None, 'moe_layers': None}
  _write_with_settings(folder, name, settings)
  return folder


def write_text_model(
  folder: pathlib.Path, name: str, texts: Sequence[str]
) -> pathlib.Path:
  """Writes a model with a SentencePiece tokenizer, and returns the folder.

  Its stacks have one layer.

  Args:
    folder: Its path.
    name: Name of the reference.
    texts: The tokenizer is trained on them.
  """
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts),
    model_writer=model,
    vocab_size=_NUM_PIECES,
    hard_vocab_limit=False,
    bos_id=1,
    eos_id=2,
    minloglevel=2,
  )
  settings: dict[str, Any] = {'vocab_size': _NUM_PIECES, 'eos_token_id': 2}
  if name == 't5':
    settings |= {'num_layers': 1, 'num_decoder_layers': 1}
  else:
    settings |= {'num_hidden_layers': 1, 'layer_types': None}
  _write_with_settings(folder, name, settings)
  (folder / 'tokenizer.model').write_bytes(model.getvalue())
  return folder


def _write_with_settings(
  folder: pathlib.Path, name: str, settings: Mapping[str, Any]
) -> None:
  """Writes a reference with other settings, and without tokenizer."""
  config = {**load()[name]['config'], **settings}
  weights = families.read_model(config).weights()
  shapes = {weight.tensor: weight.tensor_shape for weight in weights}
  write(folder, config, shapes)
  (folder / 'tokenizer.json').unlink()


def write_mtp_model(
  folder: pathlib.Path, name: str = 'deepseek_v3'
) -> pathlib.Path:
  """Writes a model of bytes, and returns the folder.

  It has four layers, and as layer 4 the module that predicts a second token.

  Args:
    folder: Its path.
    name: A key of the references.
  """
  config = {
    **load()[name]['config'],
    'vocab_size': BYTE_VOCAB_SIZE,
    'eos_token_id': tokenizers.ByteTokenizer.eos_id,
    'num_hidden_layers': 4,
    'num_nextn_predict_layers': 1,
  }
  copies = {
    'model.layers.4.embed_tokens.weight': 'model.embed_tokens.weight',
    'model.layers.4.shared_head.head.weight': 'lm_head.weight',
  }
  weights = families.read_model(config, has_mtp=True).weights()
  shapes = {weight.tensor: weight.tensor_shape for weight in weights}
  shapes |= {name: shapes[source] for name, source in copies.items()}
  write(folder, config, shapes, copies=copies)
  (folder / 'tokenizer.json').unlink()
  return folder


def write_mxfp4(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Writes a gpt-oss as it is published; returns the tensors of the file.

  Args:
    folder: Its path.
  """
  config = {
    **load()['gpt_oss']['config'],
    'intermediate_size': 64,
    'dtype': 'bfloat16',
    'quantization_config': {'quant_method': 'mxfp4'},
  }
  arrays: dict[str, np.ndarray] = {}
  for layout in families.read_model(config).weights():
    name, shape = layout.tensor, layout.tensor_shape
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith('_proj'):
      experts, inputs, outputs = shape
      blocks = (experts, outputs, inputs // 32)
      draw = lambda *args: rng.integers(*args, dtype=np.uint8)  # noqa: B023
      arrays[f'{name}_blocks'] = draw(0, 256, (*blocks, 16))
      arrays[f'{name}_scales'] = draw(121, 126, blocks)
    else:
      arrays[name] = weight(name, shape).astype(ml_dtypes.bfloat16)
  folder.mkdir(parents=True)
  (folder / 'config.json').write_text(json.dumps(config))
  header = safetensors.make_header(
    {name: (x.shape, x.dtype) for name, x in arrays.items()}
  )
  safetensors.write(folder / 'model.safetensors', header, arrays.values())
  return arrays


def write_safetensors(
  file: pathlib.Path, arrays: Mapping[str, np.ndarray], dtype: str
) -> None:
  """Writes a file by the description of the format."""
  header: dict[str, Any] = {'__metadata__': {'format': 'pt'}}
  end = 0
  for name, array in arrays.items():
    header[name] = {
      'dtype': dtype,
      'shape': list(array.shape),
      'data_offsets': [end, end + array.nbytes],
    }
    end += array.nbytes
  text = json.dumps(header).encode()
  parts = [struct.pack('<Q', len(text)), text]
  file.write_bytes(b''.join([*parts, *(x.tobytes() for x in arrays.values())]))
