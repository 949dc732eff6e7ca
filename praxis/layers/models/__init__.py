# SPDX-License-Identifier: Apache-2.0
"""Models: networks with their losses, metrics and generation."""

from praxis.decoding.hparams import template_has_type as template_has_type
from praxis.layers.models.classification_mlp import (
  ClassificationMLPModel as ClassificationMLPModel,
)
from praxis.layers.models.continuous_batching import (
  LanguageModelContinuousBatching as LanguageModelContinuousBatching,
)
from praxis.layers.models.dpo import (
  LanguageModelDPO as LanguageModelDPO,
)
from praxis.layers.models.dpo import (
  SequenceModelDPO as SequenceModelDPO,
)
from praxis.layers.models.dpo import (
  add_hist as add_hist,
)
from praxis.layers.models.dpo import (
  compute_dpo_loss_helper as compute_dpo_loss_helper,
)
from praxis.layers.models.dpo_examples import (
  DPOExample as DPOExample,
)
from praxis.layers.models.dpo_examples import (
  DPOExampleHalf as DPOExampleHalf,
)
from praxis.layers.models.dpo_examples import (
  DPOExampleHalfSeq2Seq as DPOExampleHalfSeq2Seq,
)
from praxis.layers.models.dpo_examples import (
  DPOExampleSeq2Seq as DPOExampleSeq2Seq,
)
from praxis.layers.models.dpo_examples import (
  Labels as Labels,
)
from praxis.layers.models.language_model import LanguageModel as LanguageModel
from praxis.layers.models.sequence_model import SequenceModel as SequenceModel
from praxis.layers.models.xent_metrics import (
  compute_xent_loss_helper as compute_xent_loss_helper,
)
from praxis.layers.transformer_models import (
  LanguageModelType as LanguageModelType,
)
