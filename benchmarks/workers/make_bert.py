"""Write a random checkpoint of a BERT of 22 million parameters (the shape of MiniLM-L6).

python -m workers.make_bert OUT
"""

import sys

import torch
from transformers import BertConfig, BertModel

if __name__ == "__main__":
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(sys.argv[1])
