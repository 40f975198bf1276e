"""Parts of a block, and the operations they are made of."""
