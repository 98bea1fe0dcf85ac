"""The processes of a distributed run: what they tell each other, and the state that differs between them."""
