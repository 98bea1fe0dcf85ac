"""Do two models behave alike? Their modules and their outputs, on the same inputs.

A *sample* is one row of the inputs. The *modules* of both models run in turns and what each returns is
compared at once, so that no more than two outputs are held. A *score* is one number for a sample that
is made from what the whole model returns; the *tests* ask whether the scores of both models have the
same distribution.
"""
