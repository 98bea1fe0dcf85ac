"""One live object of a training run ⇄ its nested state, one module per kind of object."""
