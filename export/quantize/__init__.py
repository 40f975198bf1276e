"""Weights in 4 or 8 bits: how codes are chosen, and how kernels want them laid out.

`blocks` has the format of codes with one scale per group of inputs. Three modules choose such
codes: `rtn` rounds, `hqq` fits the numbers of the weight, and `gptq` fits what the weight computes.
`channel` is another format: int8 with one scale per output. These five take tensors alone. `plan`
says which weights of some graphs are quantized, and `calibrate` runs the model for `gptq`.
"""
