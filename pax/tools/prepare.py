# SPDX-License-Identifier: Apache-2.0
"""Tokenizes files of text into an indexed array of tokens.

pax prepare /data/*.jsonl OUTPUT --tokenizer=/models/llama/tokenizer.json
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from pax.files import storage
from pax.inputs.records import data_files, text_records
from pax.inputs.tokens import huggingface_tokenizers, tokenization
from pax.runner import command_line
from pax.tools import tool
from praxis import value_domains

_USAGE = f"""\
Tokenizes files of text into OUTPUT.bin and OUTPUT.idx, an indexed data set of
Megatron-LM, which --set TRAIN_DATA=OUTPUT.bin reads. A run that was killed
continues with the next part.

  pax prepare INPUT... OUTPUT --tokenizer=bytes

Inputs are files, globs or folders with {', '.join(text_records.SUFFIXES)},
or data sets of Hugging Face: hf://OWNER/NAME, optionally with /CONFIGURATION
and :SPLIT."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(command_line.CheckedOptions):
  """The flags of this tool."""

  arguments: tuple[str, ...] = command_line.words('INPUT... OUTPUT')
  tokenizer: str = command_line.flag(
    'bytes',
    'tokens',
    'A SentencePiece model (*.model), a tokenizer.json of Hugging Face with'
    ' config.json in its folder, or bytes.',
  )
  field: str = command_line.flag(
    'text',
    'text',
    'Field of JSON, column of Parquet and Arrow, or feature of tf.train.Example'
    ' with the text. Empty: records are the text itself.',
  )
  workers: int = command_line.flag(
    0,
    'execution',
    'Number of processes. 0: one per CPU core, and none for little text.',
    domain=value_domains.interval(ge=0),
  )
  max_corrupt_records: int = command_line.flag(
    0,
    'execution',
    'Number of corrupt records that are left out, with a warning; one more is'
    ' an error.',
    domain=value_domains.interval(ge=0),
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Tokenizes files; returns the exit code.

  Raises:
    UsageError: Inputs or output are missing.
  """
  options = command_line.parse(Options, argv, _USAGE)
  *inputs, output = options.arguments or ('',)
  if not inputs:
    raise command_line.UsageError(
      'the arguments must be files of text and an output, got'
      f' {list(options.arguments)}; e.g. pax prepare /data/*.jsonl /data/tokens'
    )
  storage.require_local(output, 'OUTPUT')
  job = tokenization.TokenizationJob(
    paths=[
      path
      for pattern in inputs
      for path in data_files.expand(pattern, text_records.SUFFIXES)
    ],
    tokenizer=huggingface_tokenizers.by_name(options.tokenizer),
    field=options.field,
    num_workers=options.workers,
    max_corrupt_records=options.max_corrupt_records,
  )
  output = output.removesuffix('.bin').removesuffix('.idx')
  summary = tokenization.tokenize_files(job, output)
  print(
    f'wrote {output}.bin: {summary.num_documents} documents,'
    f' {summary.num_tokens} tokens, {summary.num_corrupt_records} corrupt'
    ' records left out'
  )
  return 0


if __name__ == '__main__':
  tool.run_console(main)
