# SPDX-License-Identifier: Apache-2.0
"""The tools by name, for `pax TOOL ...`."""

# bazel: deps=//pax/tools:codegen_lib,//pax/tools:convert_lib
# bazel: deps=//pax/tools:diff_configs_lib,//pax/tools:docs_lib
# bazel: deps=//pax/tools:dump_hparams_lib,//pax/tools:dump_input_specs_lib
# bazel: deps=//pax/tools:graph_lib,//pax/tools:list_experiments_lib
# bazel: deps=//pax/tools:model_analysis_lib,//pax/tools:plot_lib
# bazel: deps=//pax/tools:launch_lib,//pax/tools:prepare_lib
# bazel: deps=//pax/tools:validate_config_lib
from __future__ import annotations

import importlib
from collections.abc import Sequence

from pax.tools import tool

# One line for each in `pax --help`.
TOOLS = {
  'list_experiments': 'experiments with parameter counts and meshes',
  'dump_hparams': 'the whole configuration of an experiment as text',
  'dump_input_specs': 'shapes and dtypes of its batches',
  'model_analysis': 'its parameters, FLOPs, memory, HLO; one forward pass',
  'validate_config': 'whether it can run, checked to a level from 0 to 10',
  'diff_configs': 'differences between two experiments',
  'convert': 'a model of Hugging Face to a checkpoint, and back',
  'prepare': 'files of text to an array of tokens',
  'graph': 'a picture of its configuration',
  'codegen': 'Python code that makes its configuration',
  'launch': 'all processes of a job: on this machine, over ssh, or as a file',
  'plot': 'curves of jobs, as a picture and a page',
  'docs': 'the documentation, served on this machine',
}


def tool_name(argv: Sequence[str]) -> str | None:
  """Returns the tool of a command line `pax TOOL ...`, or None."""
  name = argv[1].replace('-', '_') if len(argv) > 1 else ''
  return name if name in TOOLS else None


def run(argv: Sequence[str]) -> int:
  """Runs `pax TOOL ...`; returns the exit code."""
  module = importlib.import_module(f'pax.tools.{tool_name(argv)}')
  return tool.run(module.main, argv[1:])


def help_text() -> str:
  """Returns one line for each tool."""
  width = max(map(len, TOOLS))
  return '\n'.join(
    f'  pax {name:{width}}  {text}' for name, text in TOOLS.items()
  )
