"""One module per verb: values in, values out, no printing."""
