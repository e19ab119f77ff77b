"""A cell on machines that are not here: strategies write down what they issue, and an engine adds the times."""
