"""Low-bit weights: choosing codes, and laying them out for kernels.

blocks      codes with one scale per group of inputs, and their layouts
rtn         codes by rounding to nearest
gptq        codes that fit the outputs; `calibrate` runs the model for it, `refine` improves them
channel     int8 with one scale per output, for products of integers
schemes     which weights of the graphs become codes, in which format
tune        trains the scales of codes, so that the outputs of the whole model agree
auto        4 or 8 bits per weight, by the measured effect on the output
"""
