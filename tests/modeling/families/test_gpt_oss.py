"""gpt-oss as it is published against transformers."""

from pathlib import Path

import torch
from tests.modeling.mxfp4_files import save_gpt_oss
from tests.modeling.tiny_models import assert_same_logits, random_text, reference_logits

from ortolan.modeling import load


def test_experts_in_four_bits_give_the_logits_of_what_they_stand_for(tmp_path: Path) -> None:
    reference = save_gpt_oss(tmp_path)
    ids = random_text(20)
    with torch.inference_mode():
        assert_same_logits(load(tmp_path)(ids), reference_logits(reference, ids))
