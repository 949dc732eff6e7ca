# SPDX-License-Identifier: Apache-2.0
"""Models: networks with losses, metrics and decoding."""

from praxis.alias_names import module_getattr
from praxis.decoding.hparams import template_has_type
from praxis.layers import transformer_models
from praxis.layers.models.bert_model import BertModel
from praxis.layers.models.classification_mlp import ClassificationMLPModel
from praxis.layers.models.classification_model import ClassificationModel
from praxis.layers.models.continuous_batching_model import (
  LanguageModelContinuousBatching,
)
from praxis.layers.models.distillation import LanguageModelDistillation
from praxis.layers.models.dpo import (
  LanguageModelDPO,
  SequenceModelDPO,
  add_hist,
  compute_dpo_loss_helper,
)
from praxis.layers.models.dpo_examples import (
  DPOExample,
  DPOExampleHalf,
  DPOExampleHalfSeq2Seq,
  DPOExampleSeq2Seq,
  Labels,
)
from praxis.layers.models.grpo import LanguageModelGRPO, PolicyLossMean
from praxis.layers.models.language_model import LanguageModel
from praxis.layers.models.sequence_model import SequenceModel
from praxis.layers.models.xent_metrics import compute_xent_loss_helper
from praxis.layers.transformer_models import LanguageModelType

__getattr__ = module_getattr(__name__)

__all__ = [
  'BertModel',
  'ClassificationMLPModel',
  'ClassificationModel',
  'DPOExample',
  'DPOExampleHalf',
  'DPOExampleHalfSeq2Seq',
  'DPOExampleSeq2Seq',
  'Labels',
  'LanguageModel',
  'LanguageModelContinuousBatching',
  'LanguageModelDPO',
  'LanguageModelDistillation',
  'LanguageModelGRPO',
  'LanguageModelType',
  'PolicyLossMean',
  'SequenceModel',
  'SequenceModelDPO',
  'add_hist',
  'compute_dpo_loss_helper',
  'compute_xent_loss_helper',
  'template_has_type',
  'transformer_models',
]
