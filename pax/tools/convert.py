# SPDX-License-Identifier: Apache-2.0
"""Converts models between Hugging Face and Pax.

pax convert hf-to-pax FOLDER JOB_LOG_DIR
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Sequence

from pax.files import storage
from pax.huggingface import conversion
from pax.runner import command_line
from pax.tools import tool
from praxis import value_domains

_USAGE = """\
Converts a model between a folder of Hugging Face (config.json, *.safetensors
and the tokenizer) and a checkpoint of Pax, with one variable in memory at a
time.

  pax convert hf-to-pax FOLDER JOB_LOG_DIR
  pax convert pax-to-hf JOB_LOG_DIR FOLDER"""

_TO_PAX, _TO_HUGGINGFACE = 'hf-to-pax', 'pax-to-hf'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(command_line.CheckedOptions):
  """The flags of this tool."""

  arguments: tuple[str, ...] = command_line.words(
    f'{_TO_PAX}|{_TO_HUGGINGFACE} SOURCE OUTPUT'
  )
  step: int | None = command_line.flag(
    None,
    'pax-to-hf',
    'Step of the checkpoint. Default: the newest.',
    domain=value_domains.interval(ge=0),
  )
  config: str | None = command_line.flag(
    None,
    'pax-to-hf',
    'Folder with config.json and the tokenizer. Default: `huggingface` in the'
    ' directory of the job, which hf-to-pax and training write.',
    is_path=True,
  )
  dtype: str | None = command_line.flag(
    None,
    'pax-to-hf',
    'Dtype of the tensors. Default: those of the checkpoint.',
    domain=value_domains.OneOf(('bfloat16', 'float16', 'float32')),
  )
  max_shard_size: str | None = command_line.flag(
    None,
    'pax-to-hf',
    'Maximum size of a file, such as 500MB or 5GB (10^9 bytes). Default: the'
    ' files of the original model.',
    example='5GB',
  )
  adapter: bool = command_line.flag(
    False,
    'pax-to-hf',
    'Write the low-rank updates of LORA_RANK alone, as an adapter of PEFT.'
    ' Default: the model with its updates.',
  )
  repeated_layers: bool = command_line.flag(
    False,
    'hf-to-pax',
    'Stack the variables of layers, for experiments with USE_REPEATED_LAYER.',
  )
  mtp: bool = command_line.flag(
    False,
    'hf-to-pax',
    'Read the modules of multi-token prediction too, for experiments with'
    ' MTP_LOSS_WEIGHT.',
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Converts a model; returns the exit code.

  Raises:
    UsageError: Direction, source or output are missing.
  """
  options = command_line.parse(Options, argv, _USAGE)
  direction, *folders = options.arguments or ('',)
  if direction not in (_TO_PAX, _TO_HUGGINGFACE) or len(folders) != 2:
    raise command_line.UsageError(
      f'the arguments must be {_TO_PAX} or {_TO_HUGGINGFACE}, a source and an'
      f' output, got {list(options.arguments)}; e.g. pax convert {_TO_PAX}'
      ' /tmp/llama /tmp/pax/llama'
    )
  for folder in folders:
    storage.require_local(folder, 'argument')
  source, output = folders
  if direction == _TO_PAX:
    summary = conversion.to_pax(
      source,
      output,
      repeated_layers=options.repeated_layers,
      has_mtp=options.mtp,
    )
  elif options.adapter:
    _check_adapter_flags(options)
    summary = conversion.to_peft(
      source, output, step=options.step, config_folder=options.config
    )
  else:
    summary = conversion.to_huggingface(
      source,
      output,
      step=options.step,
      config_folder=options.config,
      dtype=options.dtype,
      max_shard_size=_num_bytes(options.max_shard_size),
    )
  print(
    f'wrote {summary.path}: {summary.num_tensors} tensors,'
    f' {summary.num_bytes / 2**20:.1f} MiB'
  )
  return 0


def _check_adapter_flags(options: Options) -> None:
  for name in ('dtype', 'max_shard_size'):
    if (value := getattr(options, name)) is not None:
      raise command_line.UsageError(
        f'--{name} is that of a model, got {value!r} with --adapter, whose'
        f' tensors are float32 in one file; leave out --{name}'
      )


def _num_bytes(size: str | None) -> int | None:
  """Returns the number of bytes of `--max_shard_size`."""
  if size is None:
    return None
  match = re.fullmatch(r'(\d+)([KMG]?B)', size)
  if match is None or not int(match[1]):
    raise command_line.UsageError(
      '--max_shard_size must be a positive number of B, KB, MB or GB, got'
      f' {size!r}; e.g. --max_shard_size=5GB'
    )
  return int(match[1]) * 1000 ** ['B', 'KB', 'MB', 'GB'].index(match[2])


if __name__ == '__main__':
  tool.run_console(main)
