# SPDX-License-Identifier: Apache-2.0
"""The names of the tools, for `pax TOOL ...`; it imports none of them."""

from __future__ import annotations

from collections.abc import Sequence

# The tools by purpose, with one line for each in `pax --help`.
GROUPS = {
  'Find and read experiments': {
    'list_experiments': 'experiments with parameter counts and meshes',
    'dump_hparams': 'the whole configuration of an experiment as text',
    'dump_input_specs': 'shapes and dtypes of its batches',
    'diff_configs': 'differences between two experiments',
    'graph': 'a picture of its configuration',
    'codegen': 'Python code that makes its configuration',
  },
  'Check an experiment before it runs': {
    'validate_config': 'whether it can run, checked to a level from 0 to 10',
    'model_analysis': 'its parameters, FLOPs, memory, HLO; one forward pass',
  },
  'Prepare data and models': {
    'prepare': 'files of text to an array of tokens',
    'convert': 'a model of Hugging Face to a checkpoint, and back',
  },
  'Run on several machines, and look at jobs': {
    'launch': 'all processes of a job: here, over ssh, or as a file',
    'plot': 'curves of jobs, as a picture and a page',
  },
  'Learn': {
    'docs': 'the documentation, served on this machine',
    'completion': 'a script by which the shell completes commands',
  },
}
TOOLS = {
  name: text for group in GROUPS.values() for name, text in group.items()
}


def tool_name(argv: Sequence[str]) -> str | None:
  """Returns the tool of a command line `pax TOOL ...`, or None."""
  name = argv[1].replace('-', '_') if len(argv) > 1 else ''
  return name if name in TOOLS else None
