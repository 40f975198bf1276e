"""The parts of a block, and the ops that they are made of."""
