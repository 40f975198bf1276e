"""Shows that a user's own module reads other tokens only through its `State`.

A step of a bundle sees only its new tokens. A module that looks at other tokens, at other rows of
the batch, or at a token's place in the chunk without its state would compute something else there
than in training. `check` runs the module with its weights, in all the ways in which tokens can
arrive, and refuses it where its numbers differ.
"""
